"""Which elements share a scale: groups of channels, of tokens, a whole vector, or everything."""

from kvref.arrays import Array
from kvref.errors import FormatError
from kvref_conformance.subjects.bitwise.decisions import Decisions
from kvref_conformance.subjects.bitwise.kinds import Kind


class Groups(Decisions):
    """Numbers `[num_tokens, num_kv_heads, head_dim]` as groups `[..., size]`, and back."""

    def axis_of(self, kind: Kind) -> str:
        """Return whether groups run along channels or along tokens."""
        movable = kind.family in ("mx", "nvfp4")
        return self.says("scale-axis") if movable else "tokens" if kind.group == "tokens" else "channels"

    def grouped(self, x: Array, kind: Kind) -> Array:
        """Return groups: `[num_tokens, num_kv_heads, groups, size]`; `[groups, num_kv_heads, head_dim, size]`
        where they run along tokens; `[num_tokens, groups, size]` where a token's heads are joined.

        Raises: FormatError if groups do not divide the axis.
        """
        tokens, heads, width = x.shape
        if self.axis_of(kind) == "tokens":
            check_divides("num_tokens", tokens, kind.size)
            return x.reshape(-1, kind.size, heads, width).transpose(0, 2, 3, 1)
        if self.spans_heads(kind):
            check_divides("num_kv_heads * head_dim", heads * width, kind.size)
            return x.reshape(tokens, -1, kind.size)
        check_divides("head_dim", width, kind.size)
        return x.reshape(tokens, heads, -1, kind.size)

    def spans_heads(self, kind: Kind) -> bool:
        """Say whether groups are cut from all heads of a token joined end to end."""
        return kind.family == "mx" and self.says("mx-span") == "flattened"

    def ungrouped(self, groups: Array, kind: Kind, heads: int) -> Array:
        """Return groups as `[num_tokens, num_kv_heads, head_dim]`."""
        if self.axis_of(kind) == "tokens":
            return groups.transpose(0, 3, 1, 2).reshape(-1, *groups.shape[1:3])
        return groups.reshape(len(groups), heads, -1)


def check_divides(name: str, extent: int, size: int) -> None:
    """Raise FormatError if groups of a size do not fill an axis."""
    if extent % size:
        raise FormatError(f"{name} = {extent}, expected a multiple of the group's {size}")
