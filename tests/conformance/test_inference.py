"""Inference of arithmetic: what a kernel does is read off its answers, whatever it declares."""

from dataclasses import replace

import numpy as np
import pytest

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.emulation import KERNELS, Kernel, run
from kvref_conformance.inference import UNKNOWN, Attend, Inferred, compare, infer


def subject(kernel: Kernel) -> Attend:
    """Wrap an emulated kernel as something that attends to one request."""

    def attend(q: Array, k: Array, v: Array, scale: float) -> Array:
        return run(kernel, q, k, v, np.ones((len(q), len(k)), np.bool_), scale=scale).out

    return attend


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_is_what_it_declares(name: str, dtype: str) -> None:
    """No emulated kernel contradicts its own declaration; what is undecidable stays unknown."""
    assert compare(KERNELS[name].arithmetic, infer(subject(KERNELS[name]), dtype), dtype) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("P bfloat16, out bfloat16", ("float32", "bfloat16", "float32", "bfloat16", "nearest")),
        ("P bfloat16, out float32", ("float32", "bfloat16", "float32", "float32", "nearest")),
        ("P float16, out float16", ("float32", "float16", "float32", "float16", "nearest")),
        ("P float8_e4m3fn, out bfloat16", ("float32", "float8_e4m3fn", UNKNOWN, "bfloat16", "nearest")),
        ("8 splits, parts float32", ("float32", "bfloat16", "float32", "bfloat16", "nearest")),
        ("bfloat16 naive", ("float32", "bfloat16", "bfloat16", "bfloat16", "nearest")),
        ("P truncated", ("float32", "bfloat16", "float32", "bfloat16", "truncate")),
        ("float32 online", ("float32", "float32", "float32", "float32", UNKNOWN)),
        ("sums in bfloat16", ("bfloat16", UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN)),
    ],
)
def test_stages_are_found(name: str, expected: tuple[str, ...]) -> None:
    """Accumulator, P, scores, output, rounding."""
    assert infer(subject(KERNELS[name]), "bfloat16") == Inferred(*expected)


def test_float64_is_told_from_float32() -> None:
    """Sums of 53 bits."""
    wide = Arithmetic(
        accumulate="float64",
        scores="float64",
        probabilities="float64",
        output="float64",
        merges=0,
        block=None,
    )
    found = infer(subject(Kernel(wide)), "float32")
    assert (found.accumulate, found.probabilities, found.output) == ("float64", "float64", "float64")


def test_a_lax_declaration_is_seen() -> None:
    """P in float8 is claimed and P in bfloat16 done: finer. The reverse is a fault: coarser."""
    found = infer(subject(KERNELS["P bfloat16, out bfloat16"]), "bfloat16")
    lax, false = (
        compare(replace(Arithmetic(), probabilities=each), found, "bfloat16")
        for each in ("float8_e4m3fn", "float32")
    )
    assert [tuple(each) for each in lax] == [("probabilities", "float8_e4m3fn", "bfloat16", "finer")]
    assert [tuple(each) for each in false] == [("probabilities", "float32", "bfloat16", "coarser")]


def test_grouped_heads_and_narrow_heads_are_served() -> None:
    """The probes fit any head count and any width from 8 up."""
    kernel = KERNELS["P bfloat16, out bfloat16"]
    found = infer(subject(kernel), "bfloat16", head_dim=16, num_q_heads=4, num_kv_heads=2)
    assert found == infer(subject(kernel), "bfloat16")


def test_a_wrong_kernel_is_unknown() -> None:
    """No candidate explains noise, so nothing is named."""
    rng = np.random.default_rng(0)
    found = infer(lambda q, k, v, scale: rng.normal(size=(1, 1, v.shape[2])).astype(np.float32), "float32")
    assert UNKNOWN in (found.accumulate, found.output)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_torch_is_read_correctly(dtype: str) -> None:
    """CPU flash attention: float32 sums and logits, P and output in the input dtype."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def attend(q: Array, k: Array, v: Array, scale: float) -> Array:
        q, k, v = (
            torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype)).transpose(0, 1)[None]
            for x in (q, k, v)
        )
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale)
        return np.asarray(out[0].transpose(0, 1).float().numpy())

    found = infer(attend, dtype)
    assert compare(Arithmetic(), found, dtype) == []
    assert (found.accumulate, found.probabilities, found.output) == ("float32", dtype, dtype)
