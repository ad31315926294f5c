"""Both hosts alike: the same subject gives the same answer in its own process and in this one."""

import sys
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.contracts import Answer, Call, Failed, OutputSpec
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.process import ProcessHost, python_command
from kvref_conformance.host.subject import make_subject, verbs_of


class Correct:
    """Computes nothing of interest, exactly."""

    claims = {"name": "correct"}  # noqa: RUF012

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        """Write the rows of k and v."""
        flat_k, flat_v = k_cache.reshape(-1, *k.shape[1:]), v_cache.reshape(-1, *v.shape[1:])
        flat_k[slot_mapping], flat_v[slot_mapping] = k, v

    def merge_attention_states(self, out_a: Array, lse_a: Array, out_b: Array, lse_b: Array) -> Any:
        """Return one side."""
        return out_a, lse_b

    def paged_attention(self, q: Array, *rest: Any, **options: Any) -> Array:
        """Return q."""
        return q.copy()


class WithOut(Correct):
    """Writes its answer where it is told to, but for the last row."""

    claims = {"name": "with out", "features": ["out"]}  # noqa: RUF012

    def paged_attention(self, q: Array, *rest: Any, out: Array, **options: Any) -> None:  # type: ignore[override]
        """Write all but one row of out."""
        out[:-1] = q[:-1]


class Functional(Correct):
    """Cannot write in place: returns the updated caches."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> Any:
        """Return new caches."""
        new_k, new_v = k_cache.copy(), v_cache.copy()
        Correct().write_kv(k, v, new_k, new_v, slot_mapping=slot_mapping)
        return new_k, new_v


class Mutator(Correct):
    """Negates q where it lies."""

    def paged_attention(self, q: Array, *rest: Any, **options: Any) -> Array:
        """Return q, after spoiling it."""
        answer = q.copy()
        np.negative(q, out=q)
        return answer


SUBJECTS: dict[str, type] = {
    "correct": Correct,
    "with_out": WithOut,
    "functional": Functional,
    "mutator": Mutator,
}


@pytest.fixture(params=["process", "in_process"])
def hosts(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Open hosts of either kind by class."""
    opened: list[Host] = []

    def opener(subject: type) -> Host:
        if request.param == "in_process":
            opened.append(InProcessHost(subject))
        else:
            opened.append(ProcessHost(python_command(sys.executable, f"{__file__}:{subject.__name__}")))
        return opened[-1]

    yield opener
    for host in opened:
        host.close()


def cache_call() -> Call:
    """Return a write of two tokens into caches of three blocks."""
    rng = np.random.default_rng(0)
    k, v = rng.integers(0, 9, (2, 2, 2, 4)).astype(ml_dtypes.bfloat16)
    caches = {"k_cache": np.ones((3, 4, 2, 4), k.dtype), "v_cache": np.ones((3, 4, 2, 4), k.dtype)}
    slots = np.array([9, 2])
    return Call(
        "write_kv", {"k": k, "v": v, **caches, "slot_mapping": slots}, in_place=("k_cache", "v_cache")
    )


def read_call(num_tokens: int = 3) -> Call:
    """Return a paged attention call over one block."""
    q = np.full((num_tokens, 2, 4), 2, np.float16)
    cache = np.ones((1, 4, 2, 4), np.float16)
    tables = {"block_tables": np.zeros((1, 1), np.int32), "seq_lens": np.array([3], np.int32)}
    loc = np.array([0, num_tokens], np.int32)
    tensors = {"q": q, "k_cache": cache, "v_cache": cache, **tables, "query_start_loc": loc}
    return Call("paged_attention", tensors, {"scale": 0.5}, {"out": OutputSpec("float16", q.shape)})


def assert_written(answer: Answer, call: Call) -> None:
    """Check that two slots hold the new rows and the others what they held."""
    for name, rows in (("k_cache", call.tensors["k"]), ("v_cache", call.tensors["v"])):
        expected = np.ones((12, 2, 4), rows.dtype)
        expected[[9, 2]] = rows
        np.testing.assert_array_equal(answer.outputs[name].reshape(12, 2, 4), expected)
    assert not answer.mutated
    assert not answer.overrun


@pytest.mark.parametrize("subject", ["correct", "functional"])
def test_caches_come_back_as_they_are_after_the_call(hosts: Any, subject: str) -> None:
    """Written in place, or returned by a subject that cannot write."""
    call = cache_call()
    assert_written(hosts(SUBJECTS[subject]).call(call), call)


def test_the_callers_arrays_are_never_touched(hosts: Any) -> None:
    """A case may be asked again: what it holds is its own."""
    call = cache_call()
    hosts(Correct).call(call)
    assert (call.tensors["k_cache"] == 1).all()
    spoiled = read_call()
    assert hosts(Mutator).call(spoiled).mutated == ("q",)
    assert (spoiled.tensors["q"] == 2).all()


def test_outputs_are_named_in_the_order_of_the_verb(hosts: Any) -> None:
    """A pair is out and lse."""
    out, lse = np.ones((2, 2, 4), np.float32), np.zeros((2, 2), np.float32)
    tensors = {"out_a": out, "lse_a": lse, "out_b": out + 1, "lse_b": lse + 1}
    specs = {"out": OutputSpec("float32", (2, 2, 4)), "lse": OutputSpec("float32", (2, 2))}
    answer = hosts(Correct).call(Call("merge_attention_states", tensors, {}, specs))
    np.testing.assert_array_equal(answer.outputs["out"], out)
    np.testing.assert_array_equal(answer.outputs["lse"], lse + 1)


def test_what_was_not_written_into_out_is_counted(hosts: Any) -> None:
    """Nothing stands there from an earlier call: poison does, each time."""
    host = hosts(WithOut)
    for _ in range(2):
        answer = host.call(read_call())
        assert answer.unwritten == {"out": 8}
        assert (answer.outputs["out"][:2] == 2).all()


class Careless(Correct):
    """Returns whatever q is, as float64, or one row short."""

    def paged_attention(self, q: Array, *rest: Any, scale: float, **options: Any) -> Array:
        """Return q in another form."""
        return q.astype(np.float64) if scale == 0.5 else q[1:]


@pytest.mark.parametrize(
    ("scale", "kind", "found"), [(0.5, "dtype", "float64 [3, 2, 4]"), (2.0, "shape", "float16 [2, 2, 4]")]
)
def test_an_output_of_another_form_fails(hosts: Any, scale: float, kind: str, found: str) -> None:
    """Nothing is rounded or padded to fit; found and expected are named (KV-CONF-014)."""
    call = read_call()
    with pytest.raises(Failed) as caught:
        hosts(Careless).call(Call(call.verb, call.tensors, {"scale": scale}, call.outputs))
    assert caught.value.kind == kind
    assert caught.value.detail == f"out is {found}, expected float16 [3, 2, 4]"


class Signed:
    """Returns codes as signed integers, which the contract has none of."""

    def quantize_kv(self, x: Array, *, format: str, **_: Any) -> Any:
        """Return codes of the right shape."""
        codes = np.zeros(x.shape, np.int8)
        if format == "fp8_e4m3":
            return codes
        import torch

        return torch.from_numpy(codes)


@pytest.mark.parametrize("format", ["fp8_e4m3", "int8"])
def test_codes_of_a_dtype_that_has_no_name_are_told_what_is_expected(hosts: Any, format: str) -> None:
    """One dtype is asked for, so a list of all that there are is no help; NumPy and torch alike."""
    if format == "int8":
        pytest.importorskip("torch")
    x = np.ones((5, 3, 64), np.float32)
    call = Call("quantize_kv", {"x": x}, {"format": format}, {"codes": OutputSpec("uint8", x.shape)})
    with pytest.raises(Failed) as caught:
        hosts(Signed).call(call)
    assert caught.value.kind == "dtype"
    assert caught.value.detail == "codes is int8 [5, 3, 64], expected uint8 [5, 3, 64]"


def test_calls_without_tokens_are_calls(hosts: Any) -> None:
    """An empty batch has arrays of no elements, and an answer."""
    answer = hosts(Correct).call(read_call(0))
    assert answer.outputs["out"].shape == (0, 2, 4)
    assert not answer.unwritten


def test_a_verb_that_is_not_offered_is_unsupported(hosts: Any) -> None:
    """Whatever else the object has."""
    with pytest.raises(Failed) as caught:
        hosts(Correct).call(Call("apply_rope", {}))
    assert caught.value.kind == "unsupported"


def test_a_callable_with_verbs_is_a_subject_not_a_factory() -> None:
    """Some kernels are objects that can be called as well."""

    class Kernel:
        def __call__(self) -> None:
            raise AssertionError("called as a factory")

        def write_kv(self) -> None: ...

    kernel = Kernel()
    assert make_subject(kernel) is kernel
    assert verbs_of(kernel) == ("write_kv",)
