"""A broken harness and a broken implementation are told apart before any verdict."""

import json
import sys
from pathlib import Path

import pytest

from kvref_conformance.claims import Claims
from kvref_conformance.contracts import VERBS, positional_arguments
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.process import ProcessHost
from kvref_conformance.host.smoke import check_transcript, smallest_call, smoke

FAKES = Path(__file__).parents[1] / "fakes"


class Partial:
    """Writes half of what it should, and raises in another verb."""

    claims = {"features": ["out"]}  # noqa: RUF012

    def paged_attention(self, q, k_cache, v_cache, *, out, **_):  # type: ignore[no-untyped-def]
        """Leave the second half."""
        out[..., :32] = 0

    def sparse_attention(self, q, k_cache, v_cache, *, slots, scale):  # type: ignore[no-untyped-def]
        """Be unable."""
        raise ZeroDivisionError("division by zero")

    def select_topk(self, q, k, weights, *, top_k, query_start_loc, seq_lens):  # type: ignore[no-untyped-def]
        """Return the only position there is."""
        return query_start_loc[:1, None]


def test_faults_of_an_implementation_are_blamed_on_it() -> None:
    """One line a step, the good ones too."""
    steps = {step.name: step for step in smoke(InProcessHost(Partial))}
    assert [step.blame for step in steps.values()] == ["ok", "ok", "implementation", "implementation", "ok"]
    assert "32 elements never written" in str(steps["paged_attention"])
    assert "error: ZeroDivisionError: division by zero" in str(steps["sparse_attention"])
    assert all("\n" not in str(step) for step in steps.values())


def fake(name: str, *args: str) -> ProcessHost:
    """Return a host of a fake."""
    return ProcessHost([sys.executable, "-S", str(FAKES / f"{name}.py"), *args])


@pytest.mark.parametrize(
    ("hello", "detail"),
    [
        ({"wire": "other"}, "protocol: wire = 'other'"),
        ({"claims": '{"dtypes": ["int4"]}'}, "claims cannot be read: claims.dtypes holds 'int4'"),
        ({"claims": '{"arithmetic": 3}'}, "claims cannot be read"),
        ({}, "offers 'copy', expected verbs among attention"),
    ],
)
def test_faults_of_a_harness_are_blamed_on_it(hello: dict[str, str], detail: str) -> None:
    """A program that cannot introduce itself has said nothing about its kernels."""
    with fake("odd_hello", json.dumps(hello)) as host:
        (step,) = smoke(host)
    assert step.blame == "harness"
    assert detail in step.detail


def test_a_harness_that_answers_anything_is_a_broken_harness() -> None:
    """A verb nobody has must be answered with unsupported; this one trips over the call."""
    with fake("odd_hello", json.dumps({"verbs": "write_kv"})) as host:
        steps = smoke(host)
    assert [step.name for step in steps] == ["hello", "a verb nobody has", "write_kv"]
    assert steps[1].blame == "harness"
    assert "crash: exited with status 1" in steps[1].detail


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_the_smallest_call_has_every_argument_that_is_always_passed(verb: str) -> None:
    """And none that is optional; what only some formats have is passed with those."""
    call = smallest_call(verb, Claims(dtypes=("bfloat16",), head_dims=(80,), block_sizes=(8,)))
    possible = [argument for argument in VERBS[verb].arguments if argument.feature is None]
    always = {argument.name for argument in possible if not argument.some_formats}
    assert always <= {*call.tensors, *call.params} <= {argument.name for argument in possible}
    assert set(positional_arguments(verb)) <= set(call.tensors)


def test_a_transcript_is_held_to_the_protocol() -> None:
    """Every line of an honest run passes; each kind of fault is one sentence with its line."""
    lines: list[tuple[str, bytes]] = []
    command = [sys.executable, "-S", str(FAKES / "honest.py")]
    with ProcessHost(command, trace=lambda direction, line: lines.append((direction, line))) as host:
        host.hello()
    assert [direction for direction, _ in lines] == ["->", "<-"] * 2
    assert check_transcript(lines) == []
    wrong = [
        ("<-", b'{"id":"1","ok":true}\n'),
        ("->", b'{"id":"1","op":"defragment"}\n'),
        ("->", b'{"id":"1","op":"call","verb":"copy","inputs":"x","outputs":"","in_place":"","params":""}\n'),
        ("->", b'{"id":"1","op":"bye"}\n'),
        ("<-", b'{"id":"1","ok":true}'),
        ("<-", b"ok\n"),
        ("<-", b'{"id":"2","ok":true}\n'),
    ]
    assert check_transcript(wrong) == [
        "line 1: a reply without a request",
        "line 2: op = 'defragment', expected one of hello, call, open, apply, close, bye, and an id",
        "line 3: key 'x' is missing",
        "line 5: a line has no newline at its end",
        "line 6: a line is not JSON: 'ok\\n'",
        "line 7: a reply has id '2', expected '1'",
    ]
