"""Which choices of formats a subject makes, found by running it.

A declaration is a promise; this is an observation beside it. For each decision there are inputs at which its
answers part, and what comes back there agrees with some of them. Only the elements at which answers part are
looked at, so that another fault does not blur the finding; and what is found of one decision is assumed when
the next is looked at, so that a subject that declares nothing is understood all the same.

Realises: KV-CONF-031 choices-found.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.errors import KVError
from kvref.formats.format import FORMATS
from kvref.formats.paths import PATHS, Path
from kvref.formats.scaled import acceptable, decoded
from kvref_conformance.bytes_judged import settled
from kvref_conformance.cases import Case
from kvref_conformance.checks import formats_attend
from kvref_conformance.checks.check import Check
from kvref_conformance.choices import choice_name
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.contracts import Call, Failed
from kvref_conformance.formatted import Reading, Writing, outputs_of
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.format_cases import HEADS, format_case, places_of
from kvref_conformance.probes.parting import PARTINGS
from kvref_conformance.report.model import ChoiceFound
from kvref_conformance.trial import Trial, Violation, bits

WRITE, READ, ATTEND = "quantize_kv", "dequantize_kv", "quantized_paged_attention"
#: Decisions that only attention over codes shows, and the check that shows them.
SHOWN_BY_ATTENTION: dict[str, Check] = {
    "v_scale_layout": formats_attend.scales_of_values_lie_where_declared,
    "attend_values": formats_attend.keys_are_rounded_as_declared,
}
#: The answer with which more than one code may agree; it is found only where no other is.
APPROXIMATE = "approximate"
#: Rounds in which what was found of other decisions is assumed.
ROUNDS = 4

Outputs = Mapping[str, Array]
#: What a path gives: everything a program of it may return, or nothing where it refuses.
Outcomes = tuple[Outputs, ...]


@dataclass
class _Seen:
    """A subject's answers to probes, each asked once."""

    host: Host
    _known: dict[Any, Outputs | None] = field(default_factory=dict)

    def ask(self, key: Any, call: Call) -> Outputs | None:
        """Return what comes back, nothing where it has another form; None where the call is refused.

        Raises: Failed if it breaks down.
        """
        full = (*key, tuple((name, spec.dtype, spec.shape) for name, spec in call.outputs.items()))
        if full not in self._known:
            try:
                self._known[full] = dict(self.host.call(call).outputs)
            except Failed as failed:
                if failed.kind not in ("refused", "error", "shape", "dtype"):
                    raise
                self._known[full] = {} if failed.kind in ("shape", "dtype") else None
        return self._known[full]


def find_choices(host: Host, claims: Claims, verbs: Iterable[str]) -> tuple[ChoiceFound, ...]:
    """Ask a subject's verbs of formats, and return every decision that its claimed formats open."""
    offered, path = set(verbs), claims.path()
    for _ in range(ROUNDS):
        found: dict[str, tuple[str, ...]] = {}
        before, assumed, seen = path, _on(claims, path), _Seen(host)
        for decision in PATHS:
            agreeing = _agreeing(seen, assumed, offered, decision, path)
            if agreeing is not None:
                found[decision] = agreeing
            if agreeing is not None and len(agreeing) == 1:
                path = replace(path, **{decision: agreeing[0]})
        if path == before:
            break
    declared = claims.path()
    return tuple(
        ChoiceFound(choice=choice_name(name), declared=getattr(declared, name), found=found[name])
        for name in PATHS
        if name in found
    )


def _on(claims: Claims, path: Path) -> Claims:
    """Return the claims with the answers of a path declared."""
    answers = {choice_name(decision): getattr(path, decision) for decision in PATHS}
    return replace(claims, choices={**claims.choices, **answers})


def _agreeing(
    seen: _Seen, claims: Claims, offered: set[str], decision: str, path: Path
) -> tuple[str, ...] | None:
    """Return the answers that agree with all probes of a decision; None where no probe tells them apart."""
    if decision in SHOWN_BY_ATTENTION:
        return _agreeing_attention(seen.host, claims, decision, path) if ATTEND in offered else None
    left, told = set(PATHS[decision]), False
    for key, one in _probes(claims, decision):
        if (WRITE if isinstance(one, Writing) else READ) not in offered:
            continue
        try:
            agreeing = _compared(seen, key, one, claims.path(), decision, path)
        except Failed:
            continue  # the same failure stands in the results
        if agreeing is not None:
            told, left = True, left & agreeing
    if not told:
        return None
    exact = [answer for answer in PATHS[decision] if answer in left and answer != APPROXIMATE]
    return tuple(exact or [answer for answer in PATHS[decision] if answer in left])


def _probes(claims: Claims, decision: str) -> Iterable[tuple[Any, Writing | Reading]]:
    """Yield (key, input) of every claimed format and dtype that has the inputs of a decision."""
    for name in claims.formats:
        for case in _cases(claims, name, decision):
            for number, parting in enumerate(PARTINGS[decision]):
                if not parting.only(FORMATS[name]):
                    continue
                for i, one in enumerate(parting.make(case, claims.path())):
                    yield (decision, number, i, name, case.dtype), one


def _cases(claims: Claims, name: str, decision: str) -> list[Case]:
    places = places_of(name, claims)
    if decision == "mx_span":  # here alone a width counts that groups do not divide
        places = [(width, HEADS[-1]) for width in claims.head_dims if (width, HEADS[0]) not in places]
    dtypes = [dtype for dtype in claims.dtypes if dtype in ALL_DTYPES]
    return [format_case("", name, dtype, heads, width) for width, heads in places[:1] for dtype in dtypes]


def _compared(
    seen: _Seen, key: Any, one: Writing | Reading, declared: Path, decision: str, path: Path
) -> set[str] | None:
    """Return the answers that agree with one input; None where they do not part there.

    Raises: Failed if the subject breaks down.
    """
    outcomes = {
        answer: _outcomes(one, declared, replace(path, **{decision: answer})) for answer in PATHS[decision]
    }
    exact = [outcome for answer, outcome in outcomes.items() if answer != APPROXIMATE]
    if all(_alike(outcome, exact[0]) for outcome in exact):
        return None
    form, agreeing = next(outcome[0] for outcome in exact if outcome), set()
    for answer, outcome in outcomes.items():
        asked = outcome[0] if outcome else form
        call = one.call_for(asked) if isinstance(one, Writing) else one.call(declared)
        got = seen.ask(key, call)
        if isinstance(one, Writing) and got and outcome and _same_form(got, outcome[0]):
            got = settled(one, replace(path, **{decision: answer}), got)
        if _agrees(got, outcome, exact):
            agreeing.add(answer)
    return agreeing


def _outcomes(one: Writing | Reading, declared: Path, path: Path) -> Outcomes:
    """Return what programs of a path may return for an input that was made for the declared one."""
    try:
        if isinstance(one, Reading):
            return ({"out": decoded(one.stored(declared), one.kind, dtype=one.dtype, path=path)},)
        made = acceptable(one.x, one.kind, scales=one.scales, global_scale=one.global_scale, path=path)
        return tuple(settled(one, path, outputs_of(stored, one.kind)) for stored in made)
    except KVError:
        return ()


def _agrees(got: Outputs | None, outcome: Outcomes, exact: list[Outcomes]) -> bool:
    """Say whether what came back is of an outcome, at the elements where the exact outcomes part.

    Where no other outcome has the form of this one, most of all its elements must be equal.
    """
    if got is None or not outcome:
        return got is None and not outcome
    if {name: x.shape for name, x in got.items()} != {name: x.shape for name, x in outcome[0].items()}:
        return False
    formed = [other[0] for other in exact if other and _same_form(other[0], outcome[0])]
    equal = total = 0
    for name, x in got.items():
        hit = np.any([_same(x, one[name]) for one in outcome], axis=0)
        parts = np.any([~_same(formed[0][name], other[name]) for other in formed[1:]], axis=0)
        at = np.broadcast_to(parts, hit.shape) if len(formed) > 1 else np.ones(hit.shape, np.bool_)
        equal, total = equal + int(hit[at].sum()), total + int(at.sum())
    return equal == total if len(formed) > 1 else 2 * equal > total


def _agreeing_attention(host: Host, claims: Claims, decision: str, path: Path) -> tuple[str, ...] | None:
    """Return the answers under which the check of a decision passes wherever it is run.

    An answer that no claimed width or block size can have, and so no case, is nobody's.
    """
    check, agreeing, told = SHOWN_BY_ATTENTION[decision], [], False
    for answer in PATHS[decision]:
        assumed = _on(claims, replace(path, **{decision: answer}))
        cases = check.cases(assumed, ATTEND, "quick")
        if not cases:
            continue
        told = True
        try:
            for case in cases:
                check.run(Trial(host, case, Oracle(assumed)))
        except (Violation, Failed):
            continue
        agreeing.append(answer)
    return tuple(agreeing) if told else None


def _alike(one: Outcomes, other: Outcomes) -> bool:
    if not one or not other:
        return one == other
    return _same_form(one[0], other[0]) and all(_same(x, other[0][name]).all() for name, x in one[0].items())


def _same_form(one: Outputs, other: Outputs) -> bool:
    return {n: (x.shape, x.dtype) for n, x in one.items()} == {
        n: (x.shape, x.dtype) for n, x in other.items()
    }


def _same(one: Array, other: Array) -> Array:
    same: Array = (bits(one) == bits(other)) | ((one != one) & (other != other))
    return same
