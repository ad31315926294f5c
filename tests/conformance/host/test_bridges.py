"""Tensors of other libraries: every code crosses both ways unchanged, and none is copied without need."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvref.arrays import DTYPES, Array
from kvref.errors import ArgumentError, DTypeError
from kvref_conformance.contracts import Call, OutputSpec
from kvref_conformance.host.bridges import lend, library_of, take_back, to_numpy
from kvref_conformance.host.process import ProcessHost, python_command


def every_code(dtype: str) -> Array:
    """Return codes of a dtype, NaN payloads, infinities, −0 and subnormals included."""
    width = DTYPES[dtype].itemsize
    if dtype == "bool":
        return np.array([False, True])
    if width <= 2:
        return np.arange(256**width, dtype=f"u{width}").view(DTYPES[dtype])
    return np.random.default_rng(0).integers(0, 256, 4096 * width, np.uint8).view(DTYPES[dtype])


def bits(x: Array) -> Array:
    """Return the codes of an array."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


@pytest.fixture(params=["numpy", "torch", "jax"])
def framework(request: pytest.FixtureRequest) -> str:
    """Name a library that is installed."""
    pytest.importorskip(request.param, exc_type=ImportError)
    return str(request.param)


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_every_code_crosses_both_ways(framework: str, dtype: str) -> None:
    """No rounding, no canonical NaN, no flushed subnormal."""
    x = every_code(dtype)
    if framework == "jax" and dtype in ("float64", "int64"):
        with pytest.raises(DTypeError, match="set jax_enable_x64"):
            lend(x, "jax")
        return
    tensor = lend(x, framework)
    assert library_of(tensor) == framework
    back = to_numpy(tensor)
    assert back.dtype == x.dtype
    np.testing.assert_array_equal(bits(back), bits(x))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e5m2"])
def test_torch_on_the_cpu_shares_memory_and_strides(dtype: str) -> None:
    """A write through the tensor is a write to the array, in the view's own places."""
    torch = pytest.importorskip("torch")
    whole = np.zeros((3, 2, 4, 8), DTYPES[dtype])
    x = whole[:, 1].transpose(1, 0, 2)
    tensor = lend(x, "torch")
    assert tensor.stride() == (8, 64, 1)
    tensor[2, 1] = torch.ones(8).to(tensor.dtype)
    take_back(tensor, x)
    assert (x[2, 1].astype(np.float32) == 1).all()
    assert whole[:, 0].astype(np.float32).sum() == 0


def test_results_need_not_be_contiguous(framework: str) -> None:
    """Transposed, sliced and expanded results have the values they show."""
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensor = lend(x, framework)
    np.testing.assert_array_equal(to_numpy(tensor[:, ::2, 1:]), x[:, ::2, 1:])
    np.testing.assert_array_equal(
        to_numpy(tensor.T if framework != "torch" else tensor.mT),
        x.T if framework != "torch" else x.swapaxes(1, 2),
    )


def test_torch_results_may_need_a_gradient_or_be_conjugated_views() -> None:
    """What a test of a training framework hands over."""
    torch = pytest.importorskip("torch")
    tensor = torch.ones(3, requires_grad=True) * 2
    np.testing.assert_array_equal(to_numpy(tensor), np.full(3, 2, np.float32))


def test_a_jax_array_does_not_change_with_the_memory_it_came_from() -> None:
    """The next call writes new content at the old address; jax may have kept that address."""
    pytest.importorskip("jax")
    x = np.ones(1024, np.float32)
    tensor = lend(x, "jax")
    x[:] = 2
    assert (to_numpy(tensor) == 1).all()


def test_jax_holds_the_values_of_wide_integers_that_fit() -> None:
    """jax has no int64 of its own; slots below 2^31 are the same numbers in int32."""
    pytest.importorskip("jax")
    slots = np.array([-1, 0, 2**31 - 1], np.int64)
    np.testing.assert_array_equal(to_numpy(lend(slots, "jax")), slots)


def test_what_is_no_tensor_is_refused() -> None:
    """Lists and numbers have no dtype of their own; foreign dtypes have no name."""
    for wrong in ([1.0], 1.0, "out", None):
        with pytest.raises(DTypeError, match="expected a NumPy array, a torch tensor or a jax array"):
            to_numpy(wrong)
    with pytest.raises(DTypeError, match="complex64"):
        to_numpy(np.zeros(1, np.complex64))
    torch = pytest.importorskip("torch")
    with pytest.raises(DTypeError, match="a torch tensor of complex64"):
        to_numpy(torch.zeros(1, dtype=torch.complex64))


def test_an_unknown_framework_is_named() -> None:
    """With those that are known."""
    with pytest.raises(ArgumentError, match="framework = 'mxnet', expected one of numpy, torch, jax"):
        lend(np.zeros(1), "mxnet")


def test_a_device_tensor_goes_there_and_back() -> None:
    """On the device that is always there: torch's meta device refuses, a CUDA device is used if present."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    x = every_code("bfloat16").reshape(256, 256).T
    tensor = lend(x, "torch", "cuda")
    assert tensor.is_cuda
    assert tensor.stride() == (1, 256)
    np.testing.assert_array_equal(bits(to_numpy(tensor)), bits(x))
    tensor[0, 0] = 7
    take_back(tensor, x)
    assert x[0, 0] == 7


SOURCE = """
    class Torch:
        framework = "torch"
        claims = {"features": ["out"]}
        def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
            k_cache.flatten(0, 1)[slot_mapping], v_cache.flatten(0, 1)[slot_mapping] = k, v
        def paged_attention(self, q, k_cache, v_cache, *, out, scale, **_):
            assert type(scale) is float and q.dtype.itemsize == 2
            out.copy_(q)

    class Jax:
        framework = "jax"
        def write_kv(self, k, v, k_cache, v_cache, *, slot_mapping):
            at = slot_mapping // 4, slot_mapping % 4
            return k_cache.at[at].set(k), v_cache.at[at].set(v)
        def paged_attention(self, q, k_cache, v_cache, *, scale, **_):
            return q * 1
"""


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_a_subject_of_another_library_writes_and_reads_a_cache(library: str, tmp_path: Path) -> None:
    """In place with torch, functionally with jax; the suite cannot tell the two apart."""
    pytest.importorskip(library)
    (tmp_path / "mine.py").write_text(textwrap.dedent(SOURCE))
    bfloat16 = DTYPES["bfloat16"]
    k, v = (np.random.default_rng(0).integers(0, 9, (2, 2, 2, 8))).astype(bfloat16)
    caches: dict[str, Any] = {name: np.ones((3, 4, 2, 8), bfloat16) for name in ("k_cache", "v_cache")}
    write = Call(
        "write_kv",
        {"k": k, "v": v, **caches, "slot_mapping": np.array([9, 2])},
        in_place=("k_cache", "v_cache"),
    )
    read = Call(
        "paged_attention", {"q": k, **caches}, {"scale": 0.5}, {"out": OutputSpec("bfloat16", k.shape)}
    )
    command = python_command(sys.executable, f"{tmp_path / 'mine.py'}:{library.capitalize()}")
    with ProcessHost(command) as host:
        assert host.hello().environment["framework"] == library
        assert library in host.hello().environment
        answer = host.call(write)
        expected = np.ones((12, 2, 8), bfloat16)
        expected[[9, 2]] = v
        np.testing.assert_array_equal(bits(answer.outputs["v_cache"].reshape(12, 2, 8)), bits(expected))
        answer = host.call(read)
        np.testing.assert_array_equal(bits(answer.outputs["out"]), bits(k))
        assert not answer.unwritten
        assert not answer.mutated
