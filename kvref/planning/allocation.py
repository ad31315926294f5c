"""What a manager of one pool of equal blocks takes for a request: more than its entries and states.

A manager that serves all layers of a hybrid from one pool wants blocks of one size. So it does four things:

1. It cuts the layers of each kind into groups with one block table each, of as many layers as the kind with
   the fewest has; where no kind has half as many again, of as many as the kind with the most. Groups that are
   not full take blocks as if they were.
2. It gives each layer of a group a part of the block, all of one size: where an entry is smaller, a part
   holds more tokens, and where that does not come out even, it is padded.
3. It gives a state such a part, padded; where the model attends too, parts hold the entries of so many tokens
   that a state fits (`hybrid_block_size`).
4. It gives out whole blocks: to a window one more than it fills, as it may begin within a block, and to a
   running state two, one that is read and one that is written, and one for each draft.

Where all layers keep every token, there is one table, and nothing of this happens but the last.

Realises: nothing that an engine must do. It is how vLLM does it, in mode `align` for states.
For porters: `allocation_of` is the four steps.
Source: vLLM 0.32.0, `kv_cache_utils` and `kv_cache_interface`; held by tests/planning/test_allocation.py.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from kvref.arrays import check_count
from kvref.formats.footprints import Form
from kvref.planning.groups import CacheGeometry, LayerGroup, StateGroup, entry_bytes
from kvref.planning.ranks import hybrid_block_size

#: How much more layers the largest kind may have, if all groups are to be as large.
NEARLY_EVEN = Fraction(3, 2)


@dataclass(frozen=True)
class Table:
    """Layers of one kind, cut into groups of equal size."""

    kind: str
    """A kind of entries, or `state`."""
    num_layers: int
    num_groups: int
    """Block tables that these layers have."""
    block_size: int
    """Tokens in a block; 0 for states."""
    blocks: int
    """Blocks that each table has of the request."""


@dataclass(frozen=True)
class Allocation:
    """What one request takes of a pool of equal blocks."""

    tables: tuple[Table, ...]
    group_size: int
    """Layers of a group; a block has a part for each."""
    part_bytes: int
    """Bytes that one layer has of a block."""

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of the pool."""
        return self.group_size * self.part_bytes

    @property
    def bytes(self) -> int:
        """Bytes of all blocks of the request, padding included."""
        return sum(table.num_groups * table.blocks for table in self.tables) * self.block_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the parts that states have, those of layers that are not there left out."""
        return sum(t.num_layers * t.blocks for t in self.tables if t.kind == "state") * self.part_bytes

    @property
    def bytes_per_token(self) -> Fraction:
        """Bytes of a token for which every table has a slot: what is left if windows are not thought of."""
        each = [Fraction(t.num_groups * self.block_bytes, t.block_size) for t in self.tables if t.block_size]
        return sum(each, Fraction(0))


def allocation_of(
    geometry: CacheGeometry,
    num_tokens: int,
    form: Form = "bfloat16",
    *,
    block_size: int = 16,
    num_drafts: int = 0,
    num_scheduled_tokens: int = 1,
) -> Allocation | None:
    """Return what a request of so many tokens takes, running, on one rank; None where this is not how.

    `block_size` is of layers that attend; a hybrid's is a multiple of it. Of a window the last tokens before
    those scheduled are kept as well. Models that compress entries, and that keep keys of an indexer beside
    windows or states, are laid out in other ways.
    Raises: ArgumentError if a count is none; FormatError as `entry_bytes`.
    """
    check_count("num_tokens", num_tokens)
    stored = [group for group in geometry.groups if group.layers]
    mixed = bool(geometry.states) or len({group.window for group in stored}) > 1
    odd = any(group.tokens_per_entry > 1 or (mixed and group.kind == "indexer") for group in stored)
    if odd or not (stored or geometry.states):
        return None
    if not mixed:
        return _one_table(stored, num_tokens, form, block_size, num_scheduled_tokens)
    if geometry.states and any(group.window is None for group in stored):
        block_size = hybrid_block_size(geometry, form, multiple=block_size)
    sizes = [math.ceil(block_size * Fraction(entry_bytes(group, form))) for group in stored]
    part = max([*sizes, *(state.recurrent_bytes + state.conv_bytes for state in geometry.states)])
    counts = [*(len(group.layers) for group in stored), *(len(state.layers) for state in geometry.states)]
    size = max(counts) if max(counts) < NEARLY_EVEN * min(counts) else min(counts)
    tables = [
        _table(group, block_size * (part // own), num_tokens, num_scheduled_tokens, size)
        for group, own in zip(stored, sizes, strict=True)
    ]
    tables += [_states(state, 2 + num_drafts, size) for state in geometry.states]
    return Allocation(tuple(tables), size, part)


def _one_table(
    stored: list[LayerGroup], num_tokens: int, form: Form, block_size: int, scheduled: int
) -> Allocation:
    """All layers in one group: a block has a part for each, whatever their sizes."""
    part = sum((len(g.layers) * Fraction(entry_bytes(g, form)) for g in stored), Fraction(0)) * block_size
    table = _table(stored[0], block_size, num_tokens, scheduled, len(stored[0].layers))
    return Allocation((table,), 1, math.ceil(part))


def _table(group: LayerGroup, block_size: int, num_tokens: int, scheduled: int, size: int) -> Table:
    blocks = -(-num_tokens // block_size)
    if group.window is not None and group.kind != "chunked":
        held = min(group.window - 1 + scheduled, num_tokens)
        blocks = min(blocks, -(-held // block_size) + 1)
    elif group.window is not None:
        blocks = min(blocks, -(-(group.window + scheduled) // block_size))
    count = len(group.layers)
    return Table(group.kind, count, -(-count // size), block_size, blocks)


def _states(state: StateGroup, blocks: int, size: int) -> Table:
    count = len(state.layers)
    return Table("state", count, -(-count // size), 0, blocks)
