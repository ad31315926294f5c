"""Imprints: a write into caches that are full already, so that every slot says what became of it.

Each token has a code of its own, keys positive and values negative, and carries the numbers that a
conversion on the way would lose: negative zero, a subnormal, the largest finite number, infinity. Each slot
holds earlier content of its own. Slots are scattered, so counting upwards from the first does not find them.

Makes huge: a wrong slot, a skipped or an invented write, keys and values mixed up, bits lost on the way.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.cases import Case
from kvref_conformance.contracts import Call
from kvref_conformance.problems import cast

#: The in-place tensors of a write.
CACHES = ("k_cache", "v_cache")
#: Most tokens of one write.
MOST_TOKENS = 96


@dataclass(frozen=True)
class Imprint:
    """One call that writes, and what the caches must hold after it."""

    call: Call
    slots: Array
    """[num_tokens] where each token goes, negative for nowhere."""
    after: Mapping[str, Array]
    """Each cache as it must be after the call."""

    @property
    def named(self) -> Array:
        """Which slots the mapping names, `[num_blocks * block_size]` booleans."""
        cache = self.after["k_cache"]
        named = np.zeros(cache.shape[0] * cache.shape[1], np.bool_)
        named[self.slots[self.slots >= 0]] = True
        return named


def imprint(case: Case, *, skipped: int = 0, raw_bits: bool = False) -> Imprint:
    """Return a `write_kv` of up to `MOST_TOKENS` tokens into scattered slots.

    Every `skipped`-th token (0: none) has a negative slot. `raw_bits` fills the caches with arbitrary bits,
    NaN codes included, instead of finite numbers.
    """
    rng = np.random.default_rng(case.seed + 23)
    count = min(sum(case.seq_lens), MOST_TOKENS)
    num_blocks = -(-count // case.block_size) + 3
    inner = (case.num_kv_heads, case.head_dim)
    shape = (num_blocks, case.block_size, *inner)
    slots = rng.permutation(num_blocks * case.block_size)[:count].astype(np.int64)
    if skipped:
        at = np.arange(skipped - 1, count, skipped)
        slots[at] = -1 - (at // skipped % 3)
    new = {"k": _codes((count, *inner), case.dtype), "v": -_codes((count, *inner), case.dtype)}
    caches = {name: _content(rng, shape, case.dtype, raw_bits) for name in CACHES}
    call = Call("write_kv", {**new, **caches, "slot_mapping": slots}, {}, {}, in_place=CACHES)
    return Imprint(call, slots, written(call))


def written(call: Call) -> dict[str, Array]:
    """Return the caches of a writing call as they must be after it."""
    slots = call.tensors["slot_mapping"]
    live = slots >= 0
    after = {}
    for new, name in zip("kv", CACHES, strict=True):
        cache = call.tensors[name].copy()
        cache[np.divmod(slots[live], cache.shape[1])] = call.tensors[new][live]
        after[name] = cache
    return after


def _codes(shape: tuple[int, ...], dtype: str) -> Array:
    """Return rows that are all different: channels for the token and the head, odd numbers, a pattern."""
    token, head, channel = np.indices(shape)
    codes = 1.0 + (7 * token + 5 * head + 3 * channel) % 61
    codes[..., 0], codes[..., 1], codes[..., 2] = (
        token[..., 0] % 128 + 1,
        token[..., 0] // 128 + 1,
        head[..., 0] + 1,
    )
    codes = cast(codes, dtype)
    info = ml_dtypes.finfo(dtype_of(dtype))
    codes[..., 3:7] = np.array([-0.0, info.smallest_subnormal, info.max, np.inf], dtype_of(dtype))
    return codes


def _content(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, raw_bits: bool) -> Array:
    """Return a full cache; as numbers, odd multiples of 1/4, which no code equals."""
    kind = dtype_of(dtype)
    if raw_bits:
        return rng.integers(0, 256, (*shape[:-1], shape[-1] * kind.itemsize), np.uint8).view(kind)
    return cast((2 * rng.integers(-60, 60, shape) + 1) / 4.0, dtype)
