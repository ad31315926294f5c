"""One answer in every form: token by token, in chunks, cut at each position, packed among neighbours.

Bit by bit where the same operations are done in the same order, and within the bound of float64 where not.
Asked about drawn problems, and about every input that another implementation has answered.
"""

from typing import Any

import numpy as np
import pytest
from recurrent.bounded import assert_scan_within, same
from recurrent.problems import Problem, asked, problem
from recurrent.test_oracles import RECORDED

from kvref.arrays import Array

NAMES = (
    "selective_scan",
    "ssd_scan",
    "lightning",
    "gated_delta_rule",
    "kimi_delta_attention",
    "causal_conv",
)
CHUNKED = NAMES[:-1]  # a convolution has one form
SIZES = (1, 2, 7, 16, 64)
FORMS = (None, *SIZES)
#: Lengths that share no grid: none, one, around the columns of a window, around every chunk.
UNALIGNED = (0, 1, 2, 3, 6, 8, 15, 17, 63, 65)
ORACLES = [answer for answer in RECORDED if answer["verb"] != "decay_gate"]


def in_float32(p: Problem) -> Problem:
    """Round a problem to float32."""
    tokens = {name: x.astype(np.float32) for name, x in p.tokens.items()}
    weights = {
        name: x.astype(np.float32) if isinstance(x, np.ndarray) else x for name, x in p.weights.items()
    }
    return Problem(p.name, p.lens, tokens, weights, p.state.astype(np.float32))


def assert_cut_keeps_bits(p: Problem, cuts: Any, **options: Any) -> None:
    """Scan the first request in two parts, for each cut, and compare the bits with scanning it whole."""
    n = p.lens[0]
    whole = p.part(0, 0, n, p.state[0], **options)
    for cut in cuts:
        first = p.part(0, 0, cut, p.state[0], **options)
        rest = p.part(0, cut, n, first.state[0], **options)
        assert same(np.concatenate([first.out, rest.out]), whole.out), cut
        assert same(rest.state, whole.state), cut


def assert_packing_keeps_bits(p: Problem, **options: Any) -> None:
    """Scan each request of a batch alone and compare the bits with the batch."""
    packed = p.scan(**options)
    for request, n in enumerate(p.lens):
        alone = p.part(request, 0, n, p.state[request], **options)
        start = int(p.query_start_loc[request])
        assert same(packed.out[start : start + n], alone.out), request
        assert same(packed.state[request], alone.state[0]), request


def among_neighbours(p: Problem, before: int, behind: int) -> Problem:
    """Put requests of NaN-free noise before and behind the requests of a problem."""
    rng = np.random.default_rng(before)

    def noise(like: Array, rows: int, name: str) -> Array:
        drawn = rng.random((rows, *like.shape[1:]))
        return -drawn if name == "g" else drawn

    tokens = {
        name: np.concatenate([noise(x, before, name), x, noise(x, behind, name)])
        for name, x in p.tokens.items()
    }
    state = np.concatenate([noise(p.state, 1, ""), p.state, noise(p.state, 1, "")])
    return Problem(p.name, (before, *p.lens, behind), tokens, p.weights, state)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", NAMES)
def test_cut_at_every_position_token_by_token(name: str, dtype: type) -> None:
    """No bit depends on where a prompt is cut (KV-RNN-007)."""
    p = problem(name, (70,), 11)
    assert_cut_keeps_bits(in_float32(p) if dtype is np.float32 else p, range(71), dtype=dtype)


@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.parametrize("chunk_size", SIZES)
def test_cut_at_every_multiple_of_the_chunk(name: str, chunk_size: int) -> None:
    """The grid is the same on both sides of such a cut, and so are the bits (KV-RNN-007, KV-RNN-008)."""
    assert_cut_keeps_bits(problem(name, (70,), 12), range(0, 71, chunk_size), chunk_size=chunk_size)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", CHUNKED)
def test_chunks_of_64_cut_at_64_128_and_256(name: str, dtype: type) -> None:
    """Where snapshots of a chunked prefill are taken, resuming one is invisible."""
    p = problem(name, (300,), 13)
    p = in_float32(p) if dtype is np.float32 else p
    assert_cut_keeps_bits(p, (64, 128, 256), chunk_size=64, dtype=dtype)


@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.parametrize("chunk_size", [*SIZES[1:]])
def test_cut_at_every_other_position(name: str, chunk_size: int) -> None:
    """A cut off the grid moves the grid: each part is within its own bound, the rest from its own start."""
    n = 20 if chunk_size < 64 else 70
    p = problem(name, (n,), 14)
    for cut in range(1, n) if n == 20 else (1, 33, 63, 65, 69):
        first = Problem(p.name, (cut,), {key: x[:cut] for key, x in p.tokens.items()}, p.weights, p.state)
        seen = first.scan(chunk_size=chunk_size)
        assert_scan_within(seen, *first.bound(chunk_size))
        later = {key: x[cut:] for key, x in p.tokens.items()}
        rest = Problem(p.name, (n - cut,), later, p.weights, seen.state)
        assert_scan_within(rest.scan(chunk_size=chunk_size), *rest.bound(chunk_size))


@pytest.mark.parametrize("name", CHUNKED)
@pytest.mark.parametrize("chunk_size", SIZES)
def test_chunks_are_token_by_token(name: str, chunk_size: int) -> None:
    """The two forms differ by rounding alone, and nobody may ask for more (KV-RNN-022)."""
    p = problem(name, (130, 3, 64), 15)
    assert_scan_within(p.scan(chunk_size=chunk_size), *p.bound(chunk_size))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", FORMS)
def test_packed_among_unaligned_lengths(name: str, chunk_size: int | None) -> None:
    """Starts fall on every side of every grid, and change no bit (KV-RNN-006, KV-RNN-008)."""
    assert_packing_keeps_bits(problem(name, UNALIGNED, 16), chunk_size=chunk_size)
    assert_packing_keeps_bits(problem(name, UNALIGNED[::-1], 17), chunk_size=chunk_size)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chunk_size", FORMS)
def test_a_start_at_every_offset(name: str, chunk_size: int | None) -> None:
    """A request of 20 tokens behind neighbours of 0 to 20: always the same bits (KV-RNN-008)."""
    p = problem(name, (20,), 18)
    alone = p.scan(chunk_size=chunk_size)
    for before in range(21):
        packed = among_neighbours(p, before, 3).scan(chunk_size=chunk_size)
        assert same(packed.out[before : before + 20], alone.out), before
        assert same(packed.state[1:2], alone.state), before


@pytest.mark.parametrize("answer", ORACLES, ids=lambda answer: answer["source"])
def test_what_others_answered_in_every_form(answer: dict[str, Any]) -> None:
    """Each form is within float64's bound of the answer that theirs is within float32's bound of."""
    p = asked(answer)
    exact = p.scan()
    for chunk_size in SIZES:
        assert_scan_within(p.scan(chunk_size=chunk_size), *p.bound(chunk_size))
        assert_packing_keeps_bits(among_neighbours(p, 5, 3), chunk_size=chunk_size)
    packed = among_neighbours(p, 5, 3)
    assert_packing_keeps_bits(packed)
    together = packed.scan()
    assert same(together.out[5 : 5 + sum(p.lens)], exact.out)
    assert same(together.state[1:-1], exact.state)
    assert_cut_keeps_bits(p, range(p.lens[0] + 1))
