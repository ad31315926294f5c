"""Checks of manners: the reference behaves, and cheats and careless calls are seen in every verb."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array, dtype_name
from kvref_conformance.checks.calls import batch_does_not_move_a_bit
from kvref_conformance.contracts import ATTENDING, VERBS, OutputSpec
from kvref_conformance.host.tensors import SHORTEST_RUN, poison
from kvref_conformance.probes.replays import replayed
from kvref_conformance.probes.specimens import specimen, specimen_cases
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference
from kvref_conformance.subjects.reference_scans import ReferenceScans
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.trial import bits
from kvref_conformance.verbs_of_scans import RECURRENT

Failing = Callable[..., list[Evidence]]
RETURNING = [verb for verb in VERBS if VERBS[verb].returns]


def altered(verb: str, alter: Callable[..., Any], **claims: Any) -> Any:
    """Return the reference with one verb replaced by `alter(self, original, *tensors, **rest)`."""
    base = ReferenceScans if verb in RECURRENT else Reference
    original = getattr(base, verb)

    def method(self: Any, *tensors: Array, **rest: Any) -> Any:
        return alter(self, lambda *t, **r: original(self, *t, **r), *tensors, **rest)

    return type("Altered", (base,), {verb: method, "claims": replace(base.claims, **claims)})()


def messages(found: list[Evidence]) -> str:
    """Return what some failures say."""
    return " ".join(evidence.message for evidence in found)


def test_the_reference_behaves(failing: Failing) -> None:
    """A check that the reference fails would be a false alarm."""
    assert failing("calls", Reference) == failing("calls", ReferenceScans) == []


def test_a_batch_invariant_subject_keeps_its_promise(failing: Failing) -> None:
    """The built-in subject attends request by request, so it may promise the same bits."""
    assert Tiled.claims.batch_invariant
    assert failing("calls", Tiled, "KV-ATTN-104") == []


@pytest.mark.parametrize("verb", VERBS)
def test_a_changed_input_is_seen_in_every_verb(failing: Failing, verb: str) -> None:
    """Scaling q in place saves a copy and ruins the caller's tensor."""

    def scale_in_place(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        answer = call(*tensors, **rest)
        codes = tensors[0].view(f"u{tensors[0].dtype.itemsize}")
        codes ^= 1
        return answer

    assert failing("calls", altered(verb, scale_in_place), "KV-ATTN-100", verbs=(verb,))


@pytest.mark.parametrize("verb", RETURNING)
def test_an_unwritten_element_is_seen_in_every_verb(failing: Failing, verb: str) -> None:
    """A kernel that leaves the last element of its output alone returns whatever memory held.

    Codes have no byte to spare for poison: there a run of them has to be left.
    """
    count = SHORTEST_RUN if verb == "quantize_kv" else 1

    def all_but_the_last(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        answer = call(*tensors, **rest)
        out = answer[0] if isinstance(answer, tuple) else answer
        out.reshape(-1)[-count:] = poison(OutputSpec(dtype_name(out), out.shape)).reshape(-1)[-count:]
        return answer

    found = failing("calls", altered(verb, all_but_the_last), "KV-ATTN-101", verbs=(verb,))
    assert f"{count} elements of " in messages(found)


@pytest.mark.parametrize("verb", ATTENDING)
def test_rows_without_work_must_be_written(failing: Failing, verb: str) -> None:
    """A request without context is skipped by the launch, and its rows keep what memory held."""

    def skips_empty(self: Any, call: Any, *tensors: Array, out: Array, **rest: Any) -> Any:
        answer = call(*tensors, **rest)
        busy = np.repeat(rest["seq_lens"] > 0, np.diff(rest["query_start_loc"]))
        out[busy] = answer[busy]
        return out

    subject = altered(verb, skips_empty, features=("prefill", "out"))
    found = failing("calls", subject, "KV-ATTN-101", verbs=(verb,))
    assert "were not written" in messages(found)


def test_a_write_past_the_end_is_seen(failing: Failing) -> None:
    """A tile that does not fit is written whole, over whoever comes next in memory."""

    def spills(self: Any, call: Any, *tensors: Array, out: Array, **rest: Any) -> Any:
        out[...] = call(*tensors, **rest)
        beyond = np.lib.stride_tricks.as_strided(out, (out.size + 1,), (out.itemsize,))
        beyond[-1] = 0
        return out

    subject = altered("attention", spills, features=("out",))
    found = failing("calls", subject, "KV-ATTN-101", verbs=("attention",))
    assert "past the end of out" in messages(found)


@pytest.mark.parametrize("verb", RETURNING)
def test_an_echo_of_the_last_answer_is_seen(failing: Failing, verb: str) -> None:
    """The cheapest kernel of all returns what it returned before."""
    last: dict[Any, Any] = {}

    def echo(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        key = tuple((x.shape, x.dtype) for x in tensors)
        if key not in last:
            last[key] = call(*tensors, **rest)
        return last[key]

    assert failing("calls", altered(verb, echo), "KV-ATTN-102", verbs=(verb,))


@pytest.mark.parametrize("verb", RETURNING)
def test_an_answer_cached_by_address_is_seen(failing: Failing, verb: str) -> None:
    """Same buffer, other content: the address says nothing."""
    known: dict[Any, Any] = {}

    def by_address(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        key = tuple(x.__array_interface__["data"][0] for x in tensors), tensors[0].shape
        if key not in known:
            known[key] = call(*tensors, **rest)
        return known[key]

    assert failing("calls", altered(verb, by_address), "KV-ATTN-102", verbs=(verb,))


@pytest.mark.parametrize("verb", ATTENDING)
def test_an_answer_cached_by_its_query_is_seen(failing: Failing, verb: str) -> None:
    """A fingerprint of some inputs is blind to the others."""
    known: dict[bytes, Any] = {}

    def by_query(self: Any, call: Any, q: Array, *tensors: Array, **rest: Any) -> Any:
        key = q.tobytes() + bytes(str(q.shape), "ascii")
        answer = call(q, *tensors, **rest)
        return known.setdefault(key, answer)

    assert failing("calls", altered(verb, by_query), "KV-ATTN-102", verbs=(verb,))


MISSED = ["q", "k_cache", "v_cache", "scale", "seq_lens", "block_tables"]


@pytest.mark.parametrize("missed", MISSED)
def test_an_answer_kept_under_a_key_without_one_input_is_seen(failing: Failing, missed: str) -> None:
    """All inputs but one are hashed, and that one is what changes next."""
    known: dict[Any, Any] = {}

    def keyed(self: Any, call: Any, q: Array, k_cache: Array, v_cache: Array, **rest: Any) -> Any:
        given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, **rest}
        key = tuple(np.asarray(x).tobytes() for name, x in given.items() if name != missed)
        if key not in known:
            known[key] = call(q, k_cache, v_cache, **rest)
        return known[key]

    found = failing("calls", altered("paged_attention", keyed), "KV-ATTN-102", verbs=("paged_attention",))
    assert "changed and nothing else" in messages(found)


@pytest.mark.parametrize("ignored", ["scale", "block_tables"])
def test_an_ignored_input_is_not_taken_for_memory(failing: Failing, ignored: str) -> None:
    """Who does not look at an input answers as before, too, and has remembered nothing."""

    def ignores(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        instead = {"scale": 0.21875, "block_tables": np.zeros_like(rest["block_tables"])}
        return call(*tensors, **{**rest, ignored: instead[ignored]})

    assert failing("calls", altered("paged_attention", ignores), "KV-ATTN-102") == []


def test_a_wrong_answer_is_not_taken_for_memory(failing: Failing) -> None:
    """The rule is about where answers come from; that they are right is what the other rules say."""

    def shifted(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        return call(*tensors, **rest) + np.float32(0.5)

    subject = altered("attention", shifted, features=("prefill",), dtypes=("float32",))
    assert failing("calls", subject, "KV-ATTN-102", verbs=("attention",)) == []


def test_an_answer_that_counts_its_calls_is_seen(failing: Failing) -> None:
    """The same content asked again must be answered as it was."""
    calls = [0]

    def counts(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        calls[0] += 1
        return call(*tensors, **rest) + np.float32(calls[0] > 2)

    subject = altered("attention", counts, features=("prefill",), dtypes=("float32",))
    found = failing("calls", subject, "KV-ATTN-102", verbs=("attention",))
    assert "otherwise the second time" in messages(found)


@pytest.mark.parametrize("stale", ["block_tables", "seq_lens", "query_start_loc"])
def test_metadata_of_the_capture_is_seen(failing: Failing, stale: str) -> None:
    """Anything read when the run was prepared is stale when it runs."""

    def captured(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        if stale == "query_start_loc":
            out = call(*tensors, **rest)
            shifted = np.roll(out, 1, axis=0)
            return np.where(np.arange(len(out))[:, None, None, None] > 1, shifted, out)
        first = rest[stale][:1]
        frozen = np.broadcast_to(first, rest[stale].shape).copy()
        if stale == "seq_lens":
            frozen[np.diff(rest["query_start_loc"]) == 0] = 0
        return call(*tensors, **{**rest, stale: frozen})

    assert failing("calls", altered("replay", captured), "KV-ATTN-103")


def test_runs_of_a_replay_differ_in_all_metadata() -> None:
    """A replay whose runs agree in some tensor could not see that it is stale."""
    case = specimen_cases(Reference.claims, "replay", "quick")[0]
    call = replayed(case).call
    for name in ("block_tables", "seq_lens", "query_start_loc", "q"):
        runs = call.tensors[name]
        assert all((runs[i] != runs[0]).any() for i in range(1 if name != "query_start_loc" else 2, 4)), name


def test_a_batch_that_moves_bits_is_seen(failing: Failing) -> None:
    """The number of splits follows the size of the batch, and so do the last bits."""

    def by_batch(self: Any, call: Any, *tensors: Array, **rest: Any) -> Any:
        out = call(*tensors, **rest)
        nudge = np.float32(1 + 2.0**-7 * len(rest["seq_lens"]))
        return (out * nudge).astype(out.dtype)

    subject = altered("paged_attention", by_batch, batch_invariant=True, features=("prefill",))
    found = failing("calls", subject, "KV-ATTN-104", verbs=("paged_attention",))
    assert "in batch" in messages(found)


def test_nobody_has_to_promise_the_same_bits() -> None:
    """Without the claim there is no case, so there is nothing to fail."""
    assert not Reference.claims.batch_invariant
    assert batch_does_not_move_a_bit.cases(Reference.claims, "attention", "quick") == []


@pytest.mark.parametrize("verb", VERBS)
def test_two_specimens_have_one_shape_and_two_contents(verb: str) -> None:
    """Otherwise a second call would not reach the same memory, or would ask the same thing."""
    for case in specimen_cases(Reference.claims, verb, "quick"):
        one, other = (specimen(case, Reference.claims, turn).call for turn in (0, 1))
        assert {name: (x.shape, x.dtype) for name, x in one.tensors.items()} == {
            name: (x.shape, x.dtype) for name, x in other.tensors.items()
        }
        assert any((bits(x) != bits(other.tensors[name])).any() for name, x in one.tensors.items())
