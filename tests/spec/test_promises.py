"""What the conformance chapter promises about the cases of a run, held to the plan of a run."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from kvref.formats.format import FORMATS
from kvref_conformance.cases import LEVELS, Case
from kvref_conformance.claims import (
    ALL_BLOCK_SIZES,
    ALL_DTYPES,
    ALL_FORMATS,
    ALL_HEAD_DIMS,
    FEATURES,
    MINIMUM_GROUPS,
    Claims,
)
from kvref_conformance.contracts import ATTENDING, FORMATTED, VERBS, Answer, Call, Failed
from kvref_conformance.host import Hello
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.code_cases import attends, holds
from kvref_conformance.runner.evaluate import evaluate, plan
from kvref_conformance.subjects.reference import Reference

#: Verbs that attend to one context for each request, over numbers or over codes.
OVER_CONTEXTS = (*ATTENDING, FORMATTED[2])
LEAST = Claims(head_dims=(64,))
MOST = Claims(
    dtypes=ALL_DTYPES, head_dims=ALL_HEAD_DIMS, block_sizes=ALL_BLOCK_SIZES, features=tuple(FEATURES)
)


class Recorder:
    """A host that notes each call and answers none."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def hello(self) -> Hello:
        """Offer every verb."""
        return Hello("recorder", "", tuple(VERBS), {}, {})

    def call(self, call: Call) -> Answer:
        """Note the call."""
        self.calls.append(call)
        raise Failed("unsupported", "only recorded")

    def close(self) -> None:
        """Nothing to end."""


def values_of(cases: list[Case]) -> Mapping[str, set[Any]]:
    """What of the claimed domain the cases visit."""
    return {
        "dtypes": {case.dtype for case in cases},
        "head_dims": {case.head_dim for case in cases},
        "block_sizes": {case.block_size for case in cases},
    }


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", OVER_CONTEXTS)
def test_what_is_claimed_is_exercised(verb: str, level: Any) -> None:
    """A claimed dtype, width, block size or feature that no case visits would be believed (KV-CONF-003)."""
    planned = plan((verb,), MOST, level)
    visited = values_of([case for _, case in planned])
    for name, values in visited.items():
        assert set(getattr(MOST, name)) <= values, (verb, level, name)
    asked = {feature for check, _ in planned for feature in check.features}
    offered = {a.feature for a in VERBS[verb].arguments if a.feature}
    offered |= {"prefill", "value_width"} | ({"strided"} if verb != "attention" else set())
    assert offered <= asked


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("verb", OVER_CONTEXTS)
def test_minimum_domain_is_visited_whatever_is_claimed(verb: str, level: Any) -> None:
    """Nobody can declare away the group sizes and lengths at which kernels break (KV-CONF-005)."""
    cases = [case for _, case in plan((verb,), LEAST, level)]
    assert set(MINIMUM_GROUPS) <= {case.group for case in cases}
    (block_size,) = LEAST.block_sizes
    lengths = {n for case in cases for n in case.seq_lens}
    assert {0, 1, block_size - 1, block_size + 1} <= lengths
    assert any(n % block_size for n in lengths if n > block_size)
    assert all(len(case.seq_lens) >= 2 for case in cases)
    assert all(len(set(case.seq_lens)) >= 2 for case in cases)


@pytest.mark.parametrize("name", [name for name in ALL_FORMATS if attends(FORMATS[name])])
@pytest.mark.parametrize("level", ["quick", "full"])
def test_every_format_meets_the_domain_of_attention(name: str, level: Any) -> None:
    """A claimed format is a kernel of its own, in which a group, a dtype or a width may be the broken one."""
    claims = replace(Reference.claims, formats=ALL_FORMATS)
    cases = [case for _, case in plan((FORMATTED[2],), claims, level) if case.option("format") == name]
    widths = [width for width in claims.head_dims if holds(FORMATS[name], claims.path(), width)]
    assert set(MINIMUM_GROUPS) <= {case.group for case in cases}
    assert set(claims.dtypes) <= {case.dtype for case in cases}
    assert {1, 4, 8} <= {case.num_kv_heads for case in cases} or FORMATS[name].group == "tensor"
    met = {(case.group, width) for case in cases for width in [case.head_dim]}
    assert set(product(MINIMUM_GROUPS, widths)) <= met
    if level == "full":
        every = {(case.group, case.head_dim, case.block_size) for case in cases}
        assert set(product(MINIMUM_GROUPS, widths, claims.block_sizes)) <= every


@pytest.mark.parametrize("verb", VERBS)
def test_optional_arguments_are_not_passed_unclaimed(verb: str) -> None:
    """A kernel without windows is never handed a window (KV-CONF-002)."""
    host = Recorder()
    visited = set()
    for check, case in plan((verb,), LEAST, "quick"):
        if check.name not in visited:
            visited.add(check.name)
            evaluate(check, case, host, Oracle(LEAST))
    always = {argument.name for argument in VERBS[verb].arguments if argument.feature is None}
    assert host.calls or verb == "replay"  # replays wait for their feature
    for call in host.calls:
        assert set(call.tensors) | set(call.params) <= always, call.verb
