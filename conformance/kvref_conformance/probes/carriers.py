"""Carriers: numbers laid into the groups of a format so that they are encoded under a scale of 1.

A cast can only be watched through a format, and a format divides first. In a group whose largest magnitude is
just right the scale is 1, the division changes nothing, and every other number of the group meets the bare
cast. The number that makes it right is the group's anchor.
"""

from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import largest
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.problems import cast

#: Anchors of asymmetric formats, the ends of the range at which the step is 1, and of ggml's blocks.
_ANCHORS: dict[str, tuple[float, ...]] = {
    "int4_token_head": (-7.0, 8.0),
    "int8_midpoint": (-127.0, 128.0),
    "kivi_k4": (0.0, 15.0),
    "kivi_v4": (0.0, 15.0),
    "kivi_k2": (0.0, 3.0),
    "kivi_v2": (0.0, 3.0),
    "ggml_q8_0": (127.0,),
    "ggml_q4_0": (-8.0,),
    "ggml_mxfp4": (4.0,),
    "ggml_nvfp4": (6.0,),
}
#: The largest magnitude at which a derived global scale is 1, by the canonical rule.
WHOLE = 2688.0


@dataclass(frozen=True)
class Geometry:
    """How groups of numbers lie in `[num_tokens, num_kv_heads, head_dim]`."""

    heads: int
    head_dim: int
    size: int
    """Numbers of a group; of a whole row where a scale is given, or the tensor's."""
    along_tokens: bool = False

    @staticmethod
    def of(kind: Format, path: Path, heads: int, head_dim: int) -> "Geometry":
        """Return the geometry of a format."""
        along = kind.group == "tokens" or (path.scale_axis == "tokens" and kind.family in ("mx", "nvfp4"))
        sizes = {"given": heads * head_dim, "tensor": heads * head_dim, "token_head": head_dim}
        size = 16 if kind.name == "ggml_nvfp4" else sizes.get(kind.group, kind.size)
        return Geometry(heads, head_dim, size, along)

    @property
    def whole(self) -> int:
        """Groups that fill the fewest tokens possible."""
        if self.along_tokens:
            return self.heads * self.head_dim
        return self.heads * self.head_dim // self.size

    def arrange(self, groups: Array) -> Array:
        """Return groups `[any, size]` as numbers of tokens; the first ones again where some are missing."""
        count = -(-len(groups) // self.whole) * self.whole
        filled = groups[np.arange(count) % len(groups)]
        if not self.along_tokens:
            return np.ascontiguousarray(filled.reshape(-1, self.heads, self.head_dim))
        tokens = filled.reshape(-1, self.heads, self.head_dim, self.size).transpose(0, 3, 1, 2)
        return np.ascontiguousarray(tokens.reshape(-1, self.heads, self.head_dim))


def anchors(kind: Format) -> tuple[float, ...]:
    """Return what stands in every group to make its scale 1; nothing where scales are given."""
    if kind.name in _ANCHORS:
        return _ANCHORS[kind.name]
    if kind.group == "given":
        return ()
    top = largest(kind.element)
    return (2.0 ** np.floor(np.log2(top)),) if kind.family == "mx" else (top,)


def carried(numbers: Array, kind: Format, path: Path, heads: int, head_dim: int) -> Array:
    """Return the numbers that fit between the anchors, and the anchors, as `[num_tokens, heads, head_dim]`.

    NaN stays, infinities and numbers beyond the anchors are left out where a format derives its scales.
    """
    geometry, fixed = Geometry.of(kind, path, heads, head_dim), anchors(kind)
    fitting = numbers
    if fixed:
        low, high = (min(fixed), max(fixed)) if len(fixed) > 1 else (-abs(fixed[0]), abs(fixed[0]))
        with np.errstate(invalid="ignore"):
            wide = numbers.astype(np.float64)
            fitting = numbers[~((wide < low) | (wide > high))]
    if not len(fitting):
        return np.zeros((0, heads, head_dim), numbers.dtype)
    groups = with_anchors(in_groups(fitting, geometry.size - len(fixed)), fixed)
    if kind.global_scale in ("tensor", "token_head"):
        groups = under_global(groups, kind, geometry)
    return geometry.arrange(groups)


def with_anchors(groups: Array, fixed: tuple[float, ...]) -> Array:
    """Return groups with their anchors, which move from place to place."""
    if not fixed:
        return groups
    size = groups.shape[1] + len(fixed)
    ordered = np.concatenate([np.tile(np.array(fixed, groups.dtype), (len(groups), 1)), groups], axis=1)
    turns = (np.arange(size) - 5 * np.arange(len(groups))[:, None]) % size
    return np.take_along_axis(ordered, turns, axis=1)


def filled(amaxes: Array, size: int, dtype: str, seed: int) -> Array:
    """Return groups with these largest magnitudes: one number has it, of either sign, the others are shares.

    Under a scale that is a power of two no share is at a tie.
    """
    rng = np.random.default_rng(seed + 211)
    shares = (rng.integers(-64, 64, (len(amaxes), size)) * 2 + 1) / 128.0
    at = np.arange(len(amaxes)), rng.integers(0, size, len(amaxes))
    groups = off_ties(cast(shares * amaxes[:, None], dtype))
    groups[at] = cast(rng.choice([-1.0, 1.0], len(amaxes)) * amaxes, dtype)
    return groups


def off_ties(x: Array) -> Array:
    """Return numbers with their last bit set, but zeros: more bits than any tie of an element has."""
    codes = x.view(np.dtype(f"u{x.itemsize}"))
    return np.asarray((codes | (x != 0)).view(x.dtype))


def in_groups(numbers: Array, size: int) -> Array:
    """Return numbers in groups; the first ones again at the end of the last."""
    count = -(-len(numbers) // size) * size
    return numbers[np.arange(count) % len(numbers)].reshape(-1, size)


def under_global(groups: Array, kind: Format, geometry: Geometry, whole: float = WHOLE) -> Array:
    """Put a group before the others, of every row where rows have a scale, that makes the global scale."""
    top = cast(np.array([whole] + [0.0] * (geometry.size - 1)), "float32").astype(groups.dtype)
    if kind.global_scale == "tensor":
        return np.concatenate([top[None], groups])
    each = geometry.head_dim // geometry.size - 1
    if geometry.along_tokens or each < 1:
        return np.concatenate([top[None], groups])
    count = -(-len(groups) // each) * each
    rows = groups[np.arange(count) % len(groups)].reshape(-1, each, geometry.size)
    return np.concatenate([np.broadcast_to(top, (len(rows), 1, geometry.size)), rows], axis=1).reshape(
        -1, geometry.size
    )
