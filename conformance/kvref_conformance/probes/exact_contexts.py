"""Numbers of contexts that a format holds exactly, under scales that are powers of two, nowhere alike.

In every group the last places are anchors, which make its scale; the other places are free. A number is a
share, which the element has, of the group's unit, which is its scale.
"""

from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array
from kvref.formats.elements import FloatElement, element_of
from kvref.formats.format import Format
from kvref.formats.paths import Path
from kvref_conformance.cases import Case
from kvref_conformance.probes import numbers
from kvref_conformance.probes.carriers import Geometry, anchors
from kvref_conformance.probes.format_cases import kind_of

#: Exact scales of whole caches, keys and values.
POWERS = (0.25, 4.0)
#: Largest number of values in units where no anchor limits them.
MOST = 16.0


@dataclass(frozen=True)
class Sheet:
    """Which numbers of contexts are fixed, so that every scale is a power of two, and which are free."""

    kind: Format
    geometry: Geometry
    tokens: int
    fixed: Array
    """[tokens, heads, head_dim]: the share of its unit that an anchor has, 0 where there is none."""

    @staticmethod
    def of(case: Case, path: Path) -> "Sheet":
        """Return the sheet of a case: the last places of every group are anchors."""
        kind, tokens = kind_of(case), sum(case.seq_lens)
        geometry = Geometry.of(kind, path, case.num_kv_heads, case.head_dim)
        groups = np.zeros((tokens * geometry.whole, geometry.size))
        for i, anchor in enumerate(anchors(kind)):
            groups[:, -1 - i] = anchor
        return Sheet(kind, geometry, tokens, groups.reshape(tokens, case.num_kv_heads, case.head_dim))

    @property
    def shape(self) -> tuple[int, ...]:
        """Tokens, heads, channels."""
        return self.fixed.shape

    @property
    def free(self) -> list[int]:
        """Channels that are no anchor in any head."""
        return [int(c) for c in np.flatnonzero((self.fixed == 0).all(axis=(0, 1)))]

    def units(self, side: int) -> Array:
        """Return what one share is, of keys (0) or values: the same within a group, else by turns."""
        if self.kind.group == "given":
            return np.broadcast_to(given_scales(POWERS[side], self.shape[1])[:, None], self.shape)
        token, place = np.divmod(np.arange(self.tokens * self.geometry.whole), self.geometry.whole)
        head, group = np.divmod(place, max(self.geometry.whole // self.geometry.heads, 1))
        # of many heads, and of tokens four apart, some differ as well
        powers = 7 * group + 3 * head + head // 4 + 5 * token + token // 4 + 3 * side
        if self.kind.group == "tensor":
            powers = np.full_like(powers, side)
        groups = np.exp2(powers % 4 - 2.0 + _level(self.kind))[:, None]
        if self.kind.global_scale in ("tensor", "token_head"):
            groups = self._under_one(powers)[:, None]
        return np.repeat(groups, self.geometry.size, axis=1).reshape(self.shape)

    def _under_one(self, powers: Array) -> Array:
        """Return units of two-level groups: the first of a row makes its second scale a power of two."""
        rows = powers.reshape(self.tokens * self.geometry.heads, -1)
        shared = rows[:, :1] % 4 - 1.0 if self.kind.global_scale == "token_head" else np.ones((len(rows), 1))
        units = np.exp2(shared - rows % 2)
        units[:, 0] = 1.75 * np.exp2(shared[:, 0])  # 448 times a power of two
        return np.asarray(units.reshape(-1))


def _level(kind: Format) -> float:
    """Return the power of two by which anchors come out at about 16."""
    return float(4 - np.ceil(np.log2(max(abs(x) for x in anchors(kind)))))


def shares_of(kind: Format) -> Array:
    """Return the numbers of values in units: the element has each, and none is larger than an anchor."""
    fixed = anchors(kind)
    if isinstance(element_of(kind.element), FloatElement):
        found = numbers.both_signs(numbers.magnitudes(kind.element)[1:])
        size, most = np.abs(found), abs(fixed[0]) if fixed else MOST
        return np.asarray(found[(size <= most) & (size >= most / 16)])
    low, high = (min(fixed), max(fixed)) if len(fixed) > 1 else _around_zero(fixed)
    return np.arange(low, high + 1.0)


def _around_zero(fixed: tuple[float, ...]) -> tuple[float, float]:
    """Return the ends of integers that need no more than their anchor: both where there is none."""
    most = min(abs(fixed[0]), MOST) if fixed else MOST
    return -most, most - 1


def needle_share(kind: Format) -> float:
    """Return the number of a needle in units: a power of two that the element has."""
    largest_share = float(shares_of(kind).max())
    return float(2.0 ** np.floor(np.log2(largest_share)))


def given_scales(first: float, heads: int) -> Array:
    """Return scales of kv heads, powers of two times the first, no two neighbours alike."""
    return np.asarray(first * np.exp2(np.resize([0.0, 1.0, -1.0, 2.0], heads)))
