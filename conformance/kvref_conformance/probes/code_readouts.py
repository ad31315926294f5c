"""Contexts that read out codes one by one: every code, every scale byte, scales of every size, no numbers.

A context of one token gives that token's value back, for its weight is 1. Of two tokens of which one has a
key of zero the weights say how large the other's key is in the one channel that the query looks at. So each
number of a cache is met alone, and what a reader makes of its code shows.

Makes huge: codes that are read as others, numbers that are flushed or clipped on their way, scale bytes that
are taken for other powers.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import element_of, values
from kvref.formats.format import Format, Quantized
from kvref.formats.ggml import BLOCKS
from kvref.formats.paths import Path
from kvref.formats.scaled import dequantize
from kvref_conformance.cases import Case
from kvref_conformance.formatted import Reading
from kvref_conformance.probes import codes
from kvref_conformance.probes.code_caches import over_codes, stored_exactly
from kvref_conformance.probes.format_cases import kind_of
from kvref_conformance.probes.random import dyadic
from kvref_conformance.problems import Problem, cast

#: Float scales far apart and of many digits: 448 under the first is past the largest float16, 1 under the
#: second is below its least normal number. Those for float16 keep within.
SIZES = (1e4, 3.1e-6, 1.0, 0.37, 131072.0, 2.9e-4, 17.3, 1e-6)
MILD = (1.0, 0.37, 5.3, 0.0117, 2.9, 0.171)
#: Powers of two that a scale byte may be, for keys and for any in float16: queries make up for them.
REACH = {"float64": 30, "float32": 30, "bfloat16": 30, "float16": 7}
SCALE = 0.3125
#: Codes of as many tokens are laid out before they come again.
_TOKENS = 4


def value_tokens(case: Case, path: Path) -> int:
    """Return how many tokens hold every code and every scale of a case."""
    kind, whole = kind_of(case), case.num_kv_heads * case.head_dim
    groups = _group_count(case, path)
    scales = len(_scales(kind, case.dtype, 127))
    tokens = -(-_code_count(kind) // whole)
    return max(tokens, -(-scales // groups)) if kind.group != "given" else max(tokens, len(SIZES))


def key_rows(case: Case) -> int:
    """Return how many requests of two tokens look at every channel of as many tokens as hold every code."""
    tokens = -(-_code_count(kind_of(case)) // (case.num_kv_heads * case.head_dim))
    return min(tokens, _TOKENS) * -(-case.head_dim // case.group)


def values_read_out(case: Case, path: Path) -> Problem:
    """Return contexts of one token: each answers with its value, of every code under every scale."""
    kind, tokens = kind_of(case), sum(case.seq_lens)
    values_ = _filled(case, path, tokens, octaves=127, keep=True)
    keys = codes.template(case, path, tokens)
    plain = replace(path, scale_layout="linear")
    parts = (
        _given(keys, kind, 1.0, path).stored(plain),
        _given(values_, kind, _size(case), path).stored(plain),
    )
    q = dyadic(np.random.default_rng(case.seed + 5), _rows(case), case.dtype)
    problem = over_codes(case, q, parts, path, {"scale": SCALE})
    first = np.repeat(np.cumsum((0, *case.seq_lens[:-1])), case.query_lens)
    alone = np.repeat(np.array(case.seq_lens) == 1, case.query_lens)
    held = np.asarray(_held(problem.v, case.dtype).all(axis=(1, 2)))
    exact = alone & held[first] if len(first) else alone
    return problem.but(hunts=np.where(exact[:, None], 0, -1) * np.ones((1, case.num_q_heads), np.int64))


def _held(x: Array, dtype: str) -> Array:
    """Say which numbers a dtype holds, none of them below its least normal one; NaN counts as held."""
    least = 2.0**-14 if dtype == "float16" else 2.0**-126
    with np.errstate(over="ignore"):
        same = cast(x, dtype).astype(np.float64) == x
    return np.asarray(np.isnan(x) | same & ((x == 0) | (np.abs(x) >= least)))


def keys_weighed(case: Case, path: Path) -> Problem:
    """Return contexts of two tokens, the second with a key of zero: weights tell the number of one channel.

    Queries make up for its size, so that scores are about 1. Values are those of the first, and minus them.
    """
    kind, count = kind_of(case), sum(case.seq_lens)
    plain = replace(path, scale_layout="linear")
    tokens = -(-_code_count(kind) // (case.num_kv_heads * case.head_dim))
    tokens = min(tokens, _TOKENS)
    source = _given(_filled(case, path, tokens, octaves=REACH[case.dtype]), kind, _size(case), path).stored(
        plain
    )
    nothing = _given(codes.template(case, path, 1), kind, _size(case), path).stored(plain)
    starts = np.cumsum((0, *case.seq_lens[:-1]))
    per = -(-case.head_dim // case.group)
    request = np.arange(len(case.seq_lens))
    taken = np.full(count, tokens)  # the token of zeros
    taken[starts] = request // per % tokens
    keys = _taken(source, nothing, taken)
    numbers = dequantize(keys, kind, path=plain)
    q = np.zeros(_rows(case))
    head = np.arange(case.num_q_heads)
    for row, at in enumerate(np.repeat(request, case.query_lens)):
        channel = (at % per * case.group + head % case.group) % case.head_dim
        seen = numbers[starts[at], head // case.group, channel]
        q[row, head, channel] = _against(seen, case.dtype)
    x = dyadic(np.random.default_rng(case.seed + 6), (1, case.num_kv_heads, case.head_dim), "float32")
    signs = np.where(np.isin(np.arange(count), starts), 4.0, -4.0)[:, None, None]
    stored = stored_exactly(x.astype(np.float64) * signs, kind, path, 1.0, case.num_kv_heads)
    return over_codes(case, cast(q, case.dtype), (keys, stored), path, {"scale": SCALE})


def no_numbers(case: Case, path: Path, scales: bool) -> Problem | None:
    """Return three contexts of which the first has a live key that is NaN, and the second such a value.

    It is so by its code, or by the scale of its group; None if the format has no such code or scale.
    """
    kind, tokens = kind_of(case), sum(case.seq_lens)
    bad = np.flatnonzero(np.isnan(values(kind.element)))
    if (kind.scale_element not in ("e8m0", "e4m3fn")) if scales else not len(bad):
        return None
    if kind.family == "ggml":
        return None
    rng = np.random.default_rng(case.seed + 7)
    shape = tokens, case.num_kv_heads, case.head_dim
    sides = []
    for at in (case.seq_lens[0] - 1, case.seq_lens[0] + 1):
        x = dyadic(rng, shape, "float32").astype(np.float64)
        x[at] = 0.0 if not scales else x[at]
        reading = codes.template(case, path, tokens)
        plain = _codes_of(x, reading, rng)
        if scales:
            assert reading.scales is not None
            changed = reading.scales.copy()
            changed[at, 0, 0] = 0xFF if kind.scale_element == "e8m0" else 0x7F
            reading = replace(reading, scales=changed)
        else:
            plain[at, 0, 3] = bad[0]
        reading = replace(reading, codes=plain)
        sides.append(_given(reading, kind, 1.0, path).stored(replace(path, scale_layout="linear")))
    q = dyadic(rng, _rows(case), case.dtype)
    return over_codes(case, q, (sides[0], sides[1]), path, {"scale": 0.03125})


def _codes_of(x: Array, reading: Reading, rng: np.random.Generator) -> Array:
    """Return random codes of small positive numbers, in the shape of a reading."""
    numbers = values(reading.kind.element)
    with np.errstate(invalid="ignore"):
        fine = np.flatnonzero((numbers >= 0.25) & (numbers <= 4))
    return rng.choice(fine, reading.codes.shape).astype(np.uint8)


def _filled(case: Case, path: Path, tokens: int, octaves: int, keep: bool = False) -> Reading:
    """Return every code again and again, each group under the next scale; `keep`: NaN and infinities too."""
    kind = kind_of(case)
    reading = codes.template(case, path, tokens)
    if kind.family == "ggml":
        head, body = codes.blocks_of(reading)
        body[...] = np.resize(_mixed(256), body.shape)
        block = BLOCKS[kind.name.removeprefix("ggml_")]
        scales = _scales(kind, case.dtype, octaves)
        each = 1 if scales.dtype == np.uint8 else 2
        count = head.size // each
        head[...] = np.resize(scales, count).astype(scales.dtype).view(np.uint8).reshape(head.shape)
        assert block.scale_bytes % each == 0
        return reading
    every = _mixed(2 ** element_of(kind.element).bits)
    if not keep:
        every = np.where(np.isfinite(values(kind.element))[every], every, 0).astype(np.uint8)
    reading = codes.with_codes(reading, every)
    if kind.group == "given" or reading.scales is None:
        return reading
    scales = np.resize(_scales(kind, case.dtype, octaves), reading.scales.shape)
    if kind.name == "int4_token_head":  # the zero point lies in the lowest bits
        zeros = reading.scales.view(np.uint32) & 15
        scales = (scales.astype(np.float32).view(np.uint32) & ~np.uint32(15) | zeros).view(np.float32)
    return replace(reading, scales=scales.astype(reading.scales.dtype))


def _mixed(count: int) -> Array:
    """Return so many codes, each once: among any few in a row there are small ones and large ones."""
    return (np.arange(count) * 37 % count).astype(np.uint8)


def _scales(kind: Format, dtype: str, octaves: int) -> Array:
    """Return scales of a format, of bytes every one that is a number within some octaves of 1."""
    reach = min(octaves, REACH["float16"]) if dtype == "float16" else octaves
    if kind.scale_element == "e8m0":
        return np.arange(max(0, 127 - reach), 128 + min(reach, 127), dtype=np.uint8)
    if kind.scale_element == "e4m3fn":
        return np.arange(1, 0x7F, dtype=np.uint8)
    sizes = np.array(MILD if dtype == "float16" else SIZES)
    if kind.scale_element == "float16":
        return np.array([x for x in sizes if 6e-8 < x < 65504], "<f2")
    return sizes.astype(np.float32)


def _given(reading: Reading, kind: Format, scale: float, path: Path) -> Reading:
    """Return a reading whose given scale, or second scale, is one number."""
    one = np.full(1, scale, np.float32)
    if kind.group == "given":
        return replace(reading, scales=one)
    if kind.global_scale == "given":
        return replace(reading, global_scale=1 / one if path.nvfp4_operand == "encode" else one)
    return reading


def _size(case: Case) -> float:
    """Return the given scale of a case: by turns each of the sizes."""
    sizes = MILD if case.dtype == "float16" else SIZES
    return sizes[case.option("size") % len(sizes)]


def _taken(source: Quantized, nothing: Quantized, taken: Array) -> Quantized:
    """Return tokens of what is stored; one past its last is nothing."""

    def pick(part: Array | None, last: Array | None) -> Array | None:
        if part is None or last is None or part.ndim == 1:
            return part
        return np.concatenate([part, last[:1]])[taken]

    found = pick(source.codes, nothing.codes)
    assert found is not None
    second = pick(source.global_scale, nothing.global_scale)
    return Quantized(found, pick(source.scales, nothing.scales), None, second)


def _against(seen: Array, dtype: str) -> Array:
    """Return powers of two that make scores of about 1 of some numbers, within what queries can be."""
    reach = REACH[dtype] + 8 if dtype != "float16" else 13
    size = np.where(seen == 0, 1.0, np.abs(seen)) * SCALE
    return np.asarray(np.exp2(np.clip(-np.rint(np.log2(size)), -reach, reach)))


def _rows(case: Case) -> tuple[int, int, int]:
    return case.num_tokens, case.num_q_heads, case.head_dim


def _code_count(kind: Format) -> int:
    """Return how many codes there are, or bytes of codes in ggml's blocks."""
    return 256 if kind.family == "ggml" else int(2 ** element_of(kind.element).bits)


def _group_count(case: Case, path: Path) -> int:
    """Return how many scales the heads of one token have."""
    reading = codes.template(case, path, 1)
    if reading.kind.family == "ggml":
        head, _ = codes.blocks_of(reading)
        return int(head[0].size) // (2 if reading.kind.scale_element == "float16" else 1)
    return 1 if reading.scales is None else max(1, int(reading.scales[:1].size))
