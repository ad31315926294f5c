"""Asserts for other people's tests: right kernels pass, wrong ones fail with a reason."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array, dtype_of
from kvref.attention.arithmetic import Arithmetic
from kvref.attention.dense import attention
from kvref.attention.merge import State, merge
from kvref.attention.paged import paged_attention, write_kv
from kvref.errors import ArgumentError, BlockTableError, DTypeError, KVError, ShapeError
from kvref.testing import assert_attention, assert_merge, assert_paged_attention, assert_write_kv, inputs

SCALE, BLOCK, WINDOW = 0.3, 16, 20
HEADS, KV_HEADS, WIDTH = 6, 2, 64
SEQ_LENS, QUERY_LENS = (37, 64, 18), (1, 7, 18)


def drawn(*shape: int, seed: int, dtype: str = "bfloat16") -> Array:
    """Return random numbers of about unit size, rounded to a dtype."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype_of(dtype))


class Batch:
    """One ragged batch over scattered blocks, everything outside the contexts NaN."""

    def __init__(
        self,
        dtype: str = "bfloat16",
        seq_lens: tuple[int, ...] = SEQ_LENS,
        query_lens: tuple[int, ...] = QUERY_LENS,
    ) -> None:
        needed = [-(-n // BLOCK) for n in seq_lens]
        num_blocks = sum(needed) + 3
        order = np.random.default_rng(7).permutation(num_blocks)
        self.q = drawn(sum(query_lens), HEADS, WIDTH, seed=1, dtype=dtype)
        self.k_cache = np.full((num_blocks, BLOCK, KV_HEADS, WIDTH), np.nan, self.q.dtype)
        self.v_cache = self.k_cache.copy()
        tables = np.full((len(seq_lens), max(needed) + 1), order[-1], np.int32)
        for request, count in enumerate(needed):
            tables[request, :count], order = order[:count], order[count:]
            at = np.arange(seq_lens[request])
            place = tables[request, at // BLOCK], at % BLOCK
            self.k_cache[place] = drawn(len(at), KV_HEADS, WIDTH, seed=10 + request, dtype=dtype)
            self.v_cache[place] = drawn(len(at), KV_HEADS, WIDTH, seed=20 + request, dtype=dtype)
        self.lengths = {
            "block_tables": tables,
            "seq_lens": np.array(seq_lens, np.int32),
            "query_start_loc": np.concatenate([[0], np.cumsum(query_lens)]).astype(np.int32),
        }

    def answer(self, *, scale: float = SCALE, **variant: Any) -> State:
        """Return what a right kernel gives: the reference, rounded to the dtype of q."""
        caches = self.k_cache, self.v_cache
        state = paged_attention(self.q, *caches, **self.lengths, scale=scale, **variant)  # type: ignore[arg-type]
        return State(state.out.astype(self.q.dtype), state.lse.astype(np.float32))

    def check(self, out: Any, *, lse: Any = None, window: int | None = None, **rest: Any) -> None:
        """Assert that an output is right."""
        assert_paged_attention(
            out,
            self.q,
            self.k_cache,
            self.v_cache,
            **self.lengths,
            scale=SCALE,
            lse=lse,
            window=window,
            **rest,
        )


def torch_kernel(batch: Batch) -> Any:
    """A kernel in torch: float32 inside, P and the output rounded to bfloat16, two splits merged."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from kvref_conformance.host.bridges import lend

    q, k_cache, v_cache = (lend(x, "torch") for x in (batch.q, batch.k_cache, batch.v_cache))
    tables, starts = batch.lengths["block_tables"], batch.lengths["query_start_loc"]
    rows = []
    for request, n in enumerate(batch.lengths["seq_lens"].tolist()):
        at = np.arange(n)
        place = tables[request, at // BLOCK].tolist(), (at % BLOCK).tolist()
        k = k_cache[place].float().repeat_interleave(HEADS // KV_HEADS, 1)
        v = v_cache[place].float().repeat_interleave(HEADS // KV_HEADS, 1)
        queries = q[int(starts[request]) : int(starts[request + 1])].float()
        t = torch.arange(n - len(queries), n)
        logits = SCALE * torch.einsum("qhd,nhd->hqn", queries, k)
        logits = logits.masked_fill(torch.arange(n)[None, :] > t[:, None], float("-inf"))
        out, lse = None, None
        for part in (slice(0, n // 2), slice(n // 2, n)):
            piece = logits[..., part]
            peak = piece.amax(-1, keepdim=True).clamp_min(-1e30)
            p = (piece - peak).exp()
            total = p.sum(-1, keepdim=True)
            one = torch.einsum("hqn,nhd->hqd", p.bfloat16().float(), v[part]) / total.clamp_min(1e-30)
            own = (peak + total.log())[..., 0]
            if out is None:
                out, lse = one, own
            else:
                both = torch.logaddexp(lse, own)
                out = out * (lse - both).exp()[..., None] + one * (own - both).exp()[..., None]
        rows.append(out.transpose(0, 1))
    return torch.cat(rows).bfloat16()


def test_a_right_torch_kernel_passes_on_its_own_tensors() -> None:
    """bfloat16 tensors as they are: no conversion, no tolerance to pick."""
    pytest.importorskip("torch", reason="torch is not installed")
    from kvref_conformance.host.bridges import lend

    batch = Batch()
    out = torch_kernel(batch)
    given = [lend(x, "torch") for x in (batch.q, batch.k_cache, batch.v_cache)]
    lengths = {name: lend(x, "torch") for name, x in batch.lengths.items()}
    assert_paged_attention(out, *given, **lengths, scale=SCALE)


def test_a_right_jax_array_passes() -> None:
    """The same for jax."""
    jax = pytest.importorskip("jax", reason="jax is not installed")
    batch = Batch("float32")
    batch.check(jax.numpy.asarray(batch.answer().out))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_rounded_reference_passes_in_every_dtype(dtype: str) -> None:
    """With its lse, and with a window."""
    batch = Batch(dtype)
    for window in (None, WINDOW):
        state = batch.answer(window=window)
        batch.check(state.out, lse=state.lse, window=window)


#: Fault -> (the variant asked for, how a wrong output is made, what the message says it is like).
FAULTS: dict[str, tuple[dict[str, Any], Callable[[Batch], Array], str]] = {
    "window one too many": (
        {"window": WINDOW},
        lambda b: b.answer(window=WINDOW + 1).out,
        "the window held one more token",
    ),
    "window one too few": (
        {"window": WINDOW},
        lambda b: b.answer(window=WINDOW - 1).out,
        "the window held one token less",
    ),
    "window ignored": ({"window": WINDOW}, lambda b: b.answer().out, "the window was ignored"),
    "scale twice": ({}, lambda b: b.answer(scale=SCALE**2).out, "the scale was applied twice"),
    "scale replaced": (
        {},
        lambda b: b.answer(scale=WIDTH**-0.5).out,
        "the scale that was passed was replaced by head_dim ** -0.5",
    ),
    "heads tiled": ({}, lambda b: tiled_heads(b), "query head h read kv head h % num_kv_heads"),
    "last token missing": ({}, lambda b: one_token_short(b), "the last token of the context was missing"),
    "softcap ignored": ({"softcap": 3.0}, lambda b: b.answer().out, "the soft cap was ignored"),
    "sink dropped": (
        {"sinks": np.full(HEADS, 2.0)},
        lambda b: b.answer().out,
        "the sink was left out of the denominator",
    ),
    "slopes with the wrong sign": (
        {"alibi_slopes": np.linspace(0.05, 0.3, HEADS)},
        lambda b: b.answer(alibi_slopes=-np.linspace(0.05, 0.3, HEADS)).out,
        "the ALiBi bias had the opposite sign",
    ),
}


def tiled_heads(batch: Batch) -> Array:
    """Return the output of a kernel that pairs query head h with kv head h % num_kv_heads."""
    order = np.argsort(np.arange(HEADS) % KV_HEADS, kind="stable")
    other = Batch()
    other.q = batch.q[:, order]
    out = np.empty_like(batch.q)
    out[:, order] = other.answer().out
    return out


def one_token_short(batch: Batch) -> Array:
    """Return the output of a kernel that stops one token early."""
    other = Batch()
    visible = []
    for n, n_q in zip(SEQ_LENS, QUERY_LENS, strict=True):
        t, j = np.arange(n - n_q, n)[:, None], np.arange(n)[None, :]
        visible.append(((j <= t) & (j < n - 1)).ravel())
    return other.answer(mask=np.concatenate(visible)).out


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_fails_and_is_named(fault: str) -> None:
    """The message says where, how far, and what it looks like."""
    variant, wrong, said = FAULTS[fault]
    batch = Batch()
    with pytest.raises(AssertionError) as caught:
        batch.check(wrong(batch), **variant)
    message = str(caught.value)
    assert message.startswith("request ")
    assert ", channel " in message
    assert " outside" in message
    assert f"as if: {said}" in message, message


def test_zeros_at_a_long_context_fail() -> None:
    """The mean of many values is small: an absolute tolerance of 1e-2 would take zeros for it."""
    batch = Batch("float32", seq_lens=(4000, 4095), query_lens=(1, 1))
    out = batch.answer(scale=1e-3).out
    assert np.abs(out).max() < 0.1
    with pytest.raises(AssertionError, match="outside"):
        assert_paged_attention(
            np.zeros_like(out), batch.q, batch.k_cache, batch.v_cache, **batch.lengths, scale=1e-3
        )


@pytest.mark.parametrize("accumulate", ["bfloat16", "float32"])
def test_a_pass_that_zeros_would_get_too_is_refused(accumulate: str) -> None:
    """Sums in bfloat16 may lose everything in a context of 4000 tokens; then the assert says so."""
    batch = Batch("float32", seq_lens=(4000, 4095), query_lens=(1, 1))
    arguments = (batch.q, batch.k_cache, batch.v_cache)
    out = batch.answer(scale=1e-3).out
    lax = Arithmetic(accumulate=accumulate)
    if accumulate == "float32":
        assert_paged_attention(out, *arguments, **batch.lengths, scale=1e-3, arithmetic=lax)
        return
    with pytest.raises(ArgumentError, match="expected outputs that tell a kernel from zeros"):
        assert_paged_attention(out, *arguments, **batch.lengths, scale=1e-3, arithmetic=lax)


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_inputs_without_an_answer_are_the_fault_of_the_test(where: str) -> None:
    """NaN in an attended slot makes the exact answer NaN, which no output can be compared with."""
    given = {"q": drawn(2, 2, 8, seed=1), "k": drawn(4, 1, 8, seed=2), "v": drawn(4, 1, 8, seed=3)}
    given[where][-1] = np.nan
    with pytest.raises(ArgumentError, match="request 0, token 1, head 0, channel 0: the exact answer is NaN"):
        assert_attention(np.zeros((2, 2, 8)), **given, query_start_loc=[0, 2], seq_lens=[4], scale=1.0)


def test_zeros_pass_where_zeros_are_right() -> None:
    """Values that are zero, or that cancel as far as float64 can tell, have no other answer."""
    q, k = drawn(1, 2, 8, seed=1), drawn(4, 1, 8, seed=2)
    for v in (np.zeros((4, 1, 8), q.dtype), np.array([[[1]], [[-1]], [[3]], [[-3]]], q.dtype)):
        out = np.zeros((1, 2, v.shape[2]), q.dtype)
        assert_attention(out, 0 * q, k, v, query_start_loc=[0, 1], seq_lens=[4], scale=1.0)


def test_a_sample_of_nothing_is_refused() -> None:
    """No row checked would be a pass for any output."""
    batch = Batch("float32")
    out = np.zeros_like(batch.answer().out)
    for nothing in ({"rows": []}, {"max_rows": 0}, {"max_rows": -1}):
        with pytest.raises(ArgumentError, match=r"expected (at least one|an integer >= 1)"):
            batch.check(out, **nothing)


@pytest.mark.parametrize(
    ("cache", "error", "message"),
    [
        (np.zeros((4, 2, 8)), ShapeError, r"k_cache has shape \[4, 2, 8\], expected \[num_blocks"),
        (np.zeros(3), ShapeError, r"k_cache has shape \[3\], expected \[num_blocks"),
        ([[[[0.0]]]], DTypeError, "k_cache is a list, expected a tensor"),
        (None, DTypeError, "k_cache is a NoneType, expected a tensor"),
    ],
)
def test_what_is_no_cache_is_named(cache: Any, error: type[KVError], message: str) -> None:
    """The caches are looked at before they are copied from their device."""
    batch = Batch("float32")
    out, batch.k_cache = batch.answer().out, cache
    with pytest.raises(error, match=message):
        batch.check(out)


def test_nan_fails() -> None:
    """A comparison that NaN slips through is no comparison."""
    batch = Batch("float32")
    out = batch.answer().out.copy()
    out[3, 2, 5] = np.nan
    with pytest.raises(AssertionError, match=r"request 1, token 3, head 2, channel 5: out = nan"):
        batch.check(out)


def test_the_lse_is_held_too() -> None:
    """In nats; a base-2 lse is far outside."""
    batch = Batch("float32")
    state = batch.answer()
    with pytest.raises(AssertionError, match="lse = "):
        batch.check(state.out, lse=state.lse / np.log(2))


def test_a_declared_arithmetic_decides_the_bound() -> None:
    """What a float16 accumulation may give is refused by the strict default, and taken as declared."""
    batch = Batch(seq_lens=(7, 3), query_lens=(2, 1))
    out = (batch.answer().out.astype(np.float64) * (1 + 2.0**-5)).astype(batch.q.dtype)
    with pytest.raises(AssertionError):
        batch.check(out)
    batch.check(out, arithmetic=Arithmetic(accumulate="float16"))


def test_another_shape_is_a_failure_and_another_table_an_error() -> None:
    """The first is the kernel's fault, the second the test's."""
    batch = Batch("float32")
    out = batch.answer().out
    with pytest.raises(AssertionError, match=r"out has shape .*, expected \[26, 6, 64\]"):
        batch.check(out.transpose(1, 0, 2))
    batch.lengths["block_tables"] = batch.lengths["block_tables"] + 1000
    with pytest.raises(BlockTableError, match="KV-ATTN-014"):
        batch.check(out)


def test_a_sample_has_the_ends_of_every_request_and_says_what_it_is() -> None:
    """A long prefill is checked in a fixed sample; a fault in a last token is always seen."""
    batch = Batch("float32")
    out = batch.answer().out.copy()
    out[7] += 1.0  # the last token of request 1
    with pytest.raises(AssertionError, match=r"token 7, .*; 8 of 26 query tokens were checked"):
        batch.check(out, max_rows=8)
    with pytest.raises(AssertionError, match=r"1 of 26 query tokens were checked"):
        batch.check(out, rows=[7])
    batch.check(out, rows=[0, 3])


def test_only_the_blocks_in_use_of_a_large_cache_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache on a device may be larger than the host's memory."""
    batch = Batch("float32")
    state = batch.answer()
    monkeypatch.setattr(inputs, "_WHOLE_CACHE", 1)
    batch.check(state.out, lse=state.lse)
    with pytest.raises(AssertionError):
        batch.check(state.out + 1)


def test_dense_attention_is_held_the_same_way() -> None:
    """Packed keys and values, values narrower than keys."""
    q, k = drawn(9, HEADS, WIDTH, seed=1), drawn(30, KV_HEADS, WIDTH, seed=2)
    v = drawn(30, KV_HEADS, 32, seed=3)
    lengths = {"query_start_loc": [0, 4, 9], "seq_lens": [17, 13]}
    out = attention(q, k, v, **lengths, scale=SCALE).out.astype(q.dtype)
    assert_attention(out, q, k, v, **lengths, scale=SCALE)
    out[4] *= -1
    with pytest.raises(AssertionError, match="request 1, token 4"):
        assert_attention(out, q, k, v, **lengths, scale=SCALE)


def written(slots: list[int], dtype: str = "bfloat16") -> tuple[dict[str, Any], Array, Array]:
    """Return a write's arguments and the caches as they should be afterwards."""
    before = [drawn(3, 4, 2, 8, seed=seed, dtype=dtype) for seed in (1, 2)]
    new = [drawn(len(slots), 2, 8, seed=seed, dtype="float32") for seed in (3, 4)]
    after = [x.copy() for x in before]
    write_kv(*new, *after, slot_mapping=slots)
    given = dict(zip(("k", "v", "k_cache_before", "v_cache_before"), (*new, *before), strict=True))
    return {**given, "slot_mapping": slots}, after[0], after[1]


def test_a_write_is_held_bit_for_bit() -> None:
    """Rounded to the cache's dtype, a negative slot skipped."""
    given, k_after, v_after = written([5, -1, 0])
    assert_write_kv(k_after, v_after, **given)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda k, v: v.__setitem__((1, 1), 0), "slot 5, token 0 belongs there"),
        (lambda k, v: k.__setitem__((2, 3), 0), "slot 11, no token belongs there"),
        (lambda k, v: k.__setitem__((0, 0), v[0, 0]), "k_cache[0, 0, 0, "),
    ],
)
def test_a_wrong_write_names_the_slot(break_it: Callable[[Array, Array], None], said: str) -> None:
    """And says whether a token belongs there."""
    given, k_after, v_after = written([5, -1, 0])
    break_it(k_after, v_after)
    with pytest.raises(AssertionError) as caught:
        assert_write_kv(k_after, v_after, **given)
    assert said in str(caught.value)


def test_bits_are_compared_and_not_numbers() -> None:
    """−0 is another code than 0, and an untouched NaN keeps its payload; a written NaN may have any."""
    zeros = np.full((1, 3, 1, 1), -0.0, dtype_of("bfloat16"))
    zeros.view(np.uint16)[0, 2] = 0x7FC1
    new = np.array([[[np.nan]]], np.float32)
    after = zeros.copy()
    write_kv(new, new, after, zeros.copy(), slot_mapping=[1])
    given = {"k": new, "v": new, "k_cache_before": zeros, "v_cache_before": zeros, "slot_mapping": [1]}
    other = after.copy()
    other.view(np.uint16)[0, 1] = 0xFFC3
    assert_write_kv(other, after, **given)
    for slot, code in ((0, 0x0000), (2, 0x7FC0)):
        other = after.copy()
        other.view(np.uint16)[0, slot] = code
        with pytest.raises(AssertionError, match=f"slot {slot}, no token belongs there"):
            assert_write_kv(other, after, **given)


def test_a_cache_of_another_form_is_a_failure() -> None:
    """A kernel that returns float32 has not written the cache."""
    given, k_after, v_after = written([5, -1, 0])
    with pytest.raises(AssertionError, match="expected bfloat16"):
        assert_write_kv(k_after.astype(np.float32), v_after, **given)


def test_a_merge_is_held_and_its_empty_parts_too() -> None:
    """An empty part changes nothing; a merge that ignores the weights fails."""
    a = State(drawn(4, 2, 8, seed=1, dtype="float32"), drawn(4, 2, seed=2, dtype="float32"))
    b = State(drawn(4, 2, 8, seed=3, dtype="float32"), drawn(4, 2, seed=4, dtype="float32"))
    b.out[1], b.lse[1] = 0, -np.inf
    out, lse = (x.astype(np.float32) for x in merge(State(*(x.astype(np.float64) for x in a)), b))
    assert_merge(out, lse, *a, *b)
    with pytest.raises(AssertionError, match="out = "):
        assert_merge((a.out + b.out) / 2, lse, *a, *b)
    with pytest.raises(AssertionError, match="lse = "):
        assert_merge(out, np.maximum(a.lse, b.lse), *a, *b)


@pytest.mark.parametrize("lse", [np.inf, np.nan])
def test_a_part_with_a_weight_that_is_no_number_is_named(lse: float) -> None:
    """An engine that marks an empty row with +∞ has to convert it before it merges."""
    out, finite = np.ones((1, 2, 4)), np.zeros((1, 2))
    with pytest.raises(ArgumentError, match=r"lse_a\[0, 0\] = .*, expected a finite number, or −inf"):
        assert_merge(out, finite, out, np.full((1, 2), lse), out, finite)


def test_importing_it_brings_in_no_suite() -> None:
    """A test module that imports kvref.testing stays light until an assert is called."""
    import subprocess

    line = "import sys, kvref.testing; sys.exit('kvref_conformance' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
