"""What holds of every scan: cut anywhere, packed with anyone, in chunks of any size, it is the same."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recurrent.bounded import assert_scan_within, assert_within, same
from recurrent.problems import SCANS, UPDATES, Problem, problem

from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.updates import causal_conv_update

names = st.sampled_from(sorted(SCANS))
lengths = st.lists(st.integers(0, 20), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**16)


@given(names, lengths, st.integers(1, 25), seeds)
def test_chunks_are_the_recurrence(name: str, lens: tuple[int, ...], chunk_size: int, seed: int) -> None:
    """The two forms are equal in real numbers (KV-RNN-008, KV-RNN-022)."""
    p = problem(name, lens, seed)
    assert_scan_within(p.scan(chunk_size=chunk_size), *p.bound(chunk_size))


@given(names, st.integers(1, 20), st.data(), seeds)
def test_cut_anywhere_token_by_token_changes_no_bit(
    name: str, n: int, data: st.DataObject, seed: int
) -> None:
    """The same operations in the same order (KV-RNN-007)."""
    p, cut = problem(name, (n,), seed), data.draw(st.integers(0, n))
    whole = p.scan()
    first = p.part(0, 0, cut, p.state[0])
    second = p.part(0, cut, n, first.state[0])
    assert same(np.concatenate([first.out, second.out]), whole.out)
    assert same(second.state, whole.state)


@given(names, st.integers(1, 9), st.integers(1, 4), st.integers(0, 9), seeds)
def test_cut_at_a_multiple_of_the_chunk_changes_no_bit(
    name: str, chunk_size: int, chunks: int, rest: int, seed: int
) -> None:
    """The grid is the same before and after such a cut, and only such a cut (KV-RNN-007)."""
    cut = chunk_size * chunks
    p = problem(name, (cut + rest,), seed)
    whole = p.scan(chunk_size=chunk_size)
    first = p.part(0, 0, cut, p.state[0], chunk_size=chunk_size)
    second = p.part(0, cut, cut + rest, first.state[0], chunk_size=chunk_size)
    assert same(np.concatenate([first.out, second.out]), whole.out)
    assert same(second.state, whole.state)


@given(names, lengths, st.sampled_from([None, 1, 4, 7]), seeds)
def test_packed_is_alone(name: str, lens: tuple[int, ...], chunk_size: int | None, seed: int) -> None:
    """Neighbours of any length, on any side, change no bit of a request (KV-RNN-006, KV-RNN-024)."""
    p = problem(name, lens, seed)
    packed = p.scan(chunk_size=chunk_size)
    for request, n in enumerate(lens):
        alone = p.part(request, 0, n, p.state[request], chunk_size=chunk_size)
        start = int(p.query_start_loc[request])
        assert same(packed.out[start : start + n], alone.out)
        assert same(packed.state[request], alone.state[0])
        assert n or same(packed.state[request], p.state[request])


@given(names, st.integers(1, 5), seeds)
def test_update_is_a_scan_of_one_token(name: str, requests: int, seed: int) -> None:
    """Scattered slots of a strided pool, padding rows full of NaN, poison in all other slots (KV-RNN-030)."""
    p = problem(name, (1,) * requests, seed)
    rng = np.random.default_rng(seed)
    pool = np.full((2 * requests + 3, 2, *p.state.shape[1:]), np.nan)[:, 1]
    slots = rng.permutation(len(pool))[:requests]
    pool[slots] = p.state
    before = pool.copy()
    padded = {key: np.insert(x, [0, requests], np.nan, axis=0) for key, x in p.tokens.items()}
    out = UPDATES[name](**padded, **p.weights, state=pool, state_indices=[-1, *slots, -7])
    expected = p.scan()
    assert same(out[1:-1], expected.out)
    assert not out[0].any()
    assert not out[-1].any()
    assert same(pool[slots], expected.state)
    others = np.setdiff1d(np.arange(len(pool)), slots)
    assert same(pool[others], before[others])


@given(lengths, st.integers(1, 5), st.booleans(), seeds)
def test_convolution_is_alone_resumes_and_updates(
    lens: tuple[int, ...], width: int, silu: bool, seed: int
) -> None:
    """A request alone, cut after every token, and packed has the same bits (KV-RNN-001 to KV-RNN-007)."""
    rng = np.random.default_rng(seed)
    x, weight, bias = (
        rng.standard_normal((sum(lens), 3)),
        rng.standard_normal((3, width)),
        rng.standard_normal(3),
    )
    state = rng.standard_normal((len(lens), 3, width - 1))
    loc = np.concatenate([[0], np.cumsum(lens)]).astype(np.int64)
    options = {"bias": bias, "activation": "silu" if silu else None}
    packed = causal_conv(x, weight, query_start_loc=loc, initial_state=state, **options)
    pool = state.copy()
    for request in range(len(lens)):
        for token in range(loc[request], loc[request + 1]):
            out = causal_conv_update(
                x[token : token + 1], weight, state=pool, state_indices=[request], **options
            )
            assert same(out[0], packed.out[token])
    assert same(pool, packed.state)
    for request, n in enumerate(lens):
        inputs = np.concatenate([state[request], x[loc[request] : loc[request + 1]].T], axis=1)
        assert same(packed.state[request], np.ascontiguousarray(inputs[:, n:]))


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scan", [gated_delta_rule, kimi_delta_attention])
def test_delta_rule_is_a_memory(scan: object, dtype: type, chunk_size: int | None) -> None:
    """One-hot keys, beta 1 and decays of 1 or 0 store numbers exactly in every form (KV-RNN-010, -011)."""
    rng = np.random.default_rng(3)
    n, width = 70, 5
    keys, reads = rng.integers(0, width, (2, n))
    values = rng.integers(-9, 10, (n, 2))
    forget = rng.random(n) < 0.1
    memory, expected = np.zeros((width, 2)), []
    for t in range(n):
        if forget[t]:
            memory[:] = 0
        memory[keys[t]] = values[t]
        expected.append(memory[reads[t]].copy())
    one_hot = np.eye(width)
    g = np.where(forget, -1000.0, 0.0)[:, None]
    if scan is kimi_delta_attention:
        g = np.repeat(g[:, :, None], width, axis=2)
    arrays = (
        one_hot[reads][:, None],
        one_hot[keys][:, None],
        values[:, None].astype(float),
        g,
        np.ones((n, 1)),
    )
    result = scan(  # type: ignore[operator]
        *(x.astype(dtype) for x in arrays),
        query_start_loc=[0, n],
        scale=1.0,
        chunk_size=chunk_size,
        dtype=dtype,
    )
    assert result.out[:, 0].tolist() == np.array(expected).tolist()
    assert result.state[0, 0].tolist() == memory.tolist()


@pytest.mark.parametrize("chunk_size", [None, 16, 64])
def test_equal_channels_are_one_decay(chunk_size: int | None) -> None:
    """KDA with equal channels is Gated DeltaNet (KV-RNN-015)."""
    p = problem("gated_delta_rule", (50, 3, 80), 5)
    wide = np.repeat(p.tokens["g"][..., None], 5, axis=2)
    q = Problem("kimi_delta_attention", p.lens, {**p.tokens, "g": wide}, p.weights, p.state)
    many, (one, first), (_, second) = q.scan(chunk_size=chunk_size), p.bound(), q.bound(chunk_size)
    assert_within(many.out, one.out, first.out + second.out)
    assert_within(many.state, one.state, first.state + second.state)


@pytest.mark.parametrize("name", ["gated_delta_rule", "kimi_delta_attention"])
@pytest.mark.parametrize("chunk_size", [None, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_strong_decay_is_finite(name: str, chunk_size: int | None, dtype: type) -> None:
    """A cumulative decay of thousands gives zeros, no infinity and no NaN (KV-RNN-026)."""
    p = problem(name, (130,), 1)
    tokens = {key: x.astype(dtype) for key, x in {**p.tokens, "g": p.tokens["g"] - 90}.items()}
    strong = Problem(name, p.lens, tokens, p.weights, p.state.astype(dtype))
    result = strong.scan(chunk_size=chunk_size, dtype=dtype)
    assert np.isfinite(result.out).all()
    assert np.isfinite(result.state).all()


@pytest.mark.parametrize("name", sorted(SCANS))
def test_more_requests_than_a_launch_has_blocks(name: str) -> None:
    """Each of 65,537 requests is computed (KV-RNN-028)."""
    count = 65537
    p = problem(name, (1,) * 3, 2)
    tokens = {key: np.resize(x, (count, *x.shape[1:])) for key, x in p.tokens.items()}
    state = np.resize(p.state, (count, *p.state.shape[1:]))
    many = Problem(name, (1,) * count, tokens, p.weights, state).scan()
    few = p.scan()
    assert same(many.out, np.resize(few.out, many.out.shape))
    assert same(many.state, np.resize(few.state, many.state.shape))
