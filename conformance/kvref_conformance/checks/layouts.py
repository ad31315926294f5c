"""Checks of layouts: every element at its address, and every bit back after a round trip.

The right answer is written element by element from the addresses the spec defines, so two wrong halves of a
converter cannot forgive each other.
"""

import numpy as np

from kvref_conformance.checks.check import check
from kvref_conformance.probes.caches import CodedCache, layout_cases
from kvref_conformance.trial import Trial

VERB = ("convert_layout",)


@check("KV-ATTN-090", verbs=VERB, cases=layout_cases)
def there_and_back_keeps_every_bit(trial: Trial) -> None:
    """Codes of every kind, NaN and negative zero among them, to the target and back to the source."""
    case = trial.case
    source, target = case.option("source"), case.option("target")
    cache = CodedCache.of(case)
    given = cache.seen_as(source)
    there = trial.call(cache.present(given, source, target))
    back = trial.call(cache.present(np.asarray(there.answer.outputs["out"]), target, source))
    trial.expect_bits(
        f"{source} -> {target} -> {source} ", back, np.asarray(back.answer.outputs["out"]), given
    )


@check("KV-ATTN-091", verbs=VERB, cases=layout_cases)
def every_element_is_at_its_address(trial: Trial) -> None:
    """Every element has a code of its own: the target holds each where its formula says."""
    case = trial.case
    source, target = case.option("source"), case.option("target")
    cache = CodedCache.of(case)
    result = trial.call(cache.present(cache.seen_as(source), source, target))
    found = np.asarray(result.answer.outputs["out"])
    trial.expect_bits(f"{source} -> {target} ", result, found, cache.seen_as(target))
