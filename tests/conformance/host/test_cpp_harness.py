"""The C++ harness: compiles without a warning, speaks the protocol, and conforms to what it claims."""

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, Failed
from kvref_conformance.foreign_text import printable
from kvref_conformance.host.process import ProcessHost
from kvref_conformance.host.smoke import check_transcript, smoke
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import Placement, present
from kvref_conformance.runner.evaluate import evaluate, plan

HARNESS = Path(__file__).parents[3] / "conformance" / "harness"
CASE = Case(verb="paged_attention", seq_lens=(21, 6), query_lens=(2, 6), num_kv_heads=2, group=3)
#: All that a C string can hold.
ANY_TEXT = st.lists(st.integers(1, 0x10FFFF).filter(lambda c: not 0xD800 <= c <= 0xDFFF).map(chr)).map(
    "".join
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile the harness as its README says, warnings being errors."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    target = tmp_path_factory.mktemp("harness") / "harness"
    options = ["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([compiler, *options, "-o", str(target), str(HARNESS / "paged_attention.cpp")], check=True)
    return str(target)


@pytest.fixture(scope="module")
def host(program: str) -> Iterator[ProcessHost]:
    """Run the harness for the tests of this module."""
    with ProcessHost([program]) as opened:
        yield opened


def test_it_speaks_the_protocol(program: str) -> None:
    """Smoke finds nothing, and neither does a look at every line."""
    lines: list[tuple[str, bytes]] = []
    with ProcessHost([program], trace=lambda direction, line: lines.append((direction, line))) as host:
        assert {step.blame for step in smoke(host)} == {"ok"}
    assert len(lines) == 2 * 8
    assert check_transcript(lines) == []


def test_it_conforms(host: ProcessHost) -> None:
    """One case of every check that is in force for what it claims; strides beyond 2^31 among them."""
    hello = host.hello()
    claims = Claims.from_dict(hello.claims)
    oracle = Oracle(claims)
    planned = plan(hello.verbs, claims, "quick")
    groups = itertools.groupby(planned, lambda pair: (pair[0].requirement, pair[0].name, pair[1].verb))
    found = [evaluate(*next(pairs), host, oracle) for _, pairs in groups]
    assert len({evidence.requirement for evidence in found}) > 30
    assert [evidence for evidence in found if evidence.status != "pass"] == []


def test_what_it_does_not_know_it_does_not_guess(host: ProcessHost) -> None:
    """An argument that is not in the handler's list makes the call unsupported, never a silent answer."""
    problem = random_problem(CASE)
    call = present(problem.but(variant={**problem.variant, "chunk_size": 8}), CASE, Placement())
    with pytest.raises(Failed) as caught:
        host.call(call)
    assert (caught.value.kind, caught.value.detail) == ("unsupported", "argument chunk_size")


@pytest.mark.parametrize("verb", ["paged_attention", "append_and_attend"])
def test_a_table_out_of_range_is_refused_before_anything_is_written(host: ProcessHost, verb: str) -> None:
    """In the words of the spec, with the requirement's name."""
    case = Case(verb=verb, seq_lens=CASE.seq_lens, query_lens=CASE.query_lens, num_kv_heads=2, group=3)
    call = present(random_problem(case), case, Placement())
    tables = call.tensors["block_tables"].copy()
    tables[1, 0] = 91
    with pytest.raises(Failed) as caught:
        host.call(
            Call(verb, {**call.tensors, "block_tables": tables}, call.params, call.outputs, call.in_place)
        )
    assert caught.value.kind == "refused"
    assert caught.value.detail.startswith("block_tables[1, 0] = 91, but k_cache has ")
    assert caught.value.detail.endswith("(KV-ATTN-014 table-in-range)")


def test_a_slot_out_of_range_is_refused_before_anything_is_written(host: ProcessHost) -> None:
    """All or nothing: the good token before the bad one is not written either."""
    k = np.ones((2, 1, 4), np.float32)
    caches = {"k_cache": np.zeros((2, 4, 1, 4), np.float32), "v_cache": np.zeros((2, 4, 1, 4), np.float32)}
    tensors = {"k": k, "v": k, **caches, "slot_mapping": np.array([0, 8])}
    with pytest.raises(Failed, match=r"slot_mapping\[1\] = 8, but the cache has 8 slots"):
        host.call(Call("write_kv", tensors, in_place=("k_cache", "v_cache")))
    mapped = np.fromfile(host._scratch.root / "k_cache.bin", np.float32)[16:-16]
    assert (mapped == 0).all()


def test_an_unknown_dtype_is_unsupported(host: ProcessHost) -> None:
    """float64 is not among its claims, and is not read as something else."""
    case = Case(verb="attention", seq_lens=(3,), query_lens=(1,), dtype="float64")
    with pytest.raises(Failed) as caught:
        host.call(present(random_problem(case), case, Placement()))
    assert (caught.value.kind, caught.value.detail) == ("unsupported", "k of float64")


@given(ANY_TEXT)
@settings(max_examples=50, deadline=None)
def test_any_text_crosses_its_parser_and_back(host: ProcessHost, verb: str) -> None:
    """Quotes, backslashes, control characters and every plane of Unicode come back in its reply."""
    with pytest.raises(Failed) as caught:
        host.call(Call(verb, {}))
    assert caught.value.kind == "unsupported"
    assert caught.value.detail == printable(f"verb {verb}")
