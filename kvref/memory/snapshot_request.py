"""One request of a snapshot cache: its tokens and blocks, its running state, and the states it is saving.

A step starts from the state in `source` and leaves the state after its last token in `state`. Between steps
the two are one slot, but in two cases: a restored request copies a snapshot into a slot of its own, and so
does one whose kept tokens end at a snapshot after some were rejected.

Realises: KV-SNAP-007 zero-start-of-request, KV-SNAP-009 running-state-private, KV-SNAP-018 saves-in-step.
For porters: the states being saved are held, and nobody's snapshots before the step is committed.
Source: the definition; that rejected drafts need a state for every number of accepted ones follows from a
recurrence, which cannot take a token back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from kvref.memory.keys import Digest
from kvref.memory.namespace import Namespace
from kvref.memory.prefix_request import NULL, PrefixRequest
from kvref.memory.snapshot_groups import AttentionGroup, GroupKey
from kvref.memory.snapshots import Prefix

#: The source of a step that starts from zeros.
ZEROS = -1


class SnapshotStep(NamedTuple):
    """What one step of a request is given.

    The runner copies the state in `source` into `state`, unless they are one (−1: it starts from zeros),
    scans the tokens of the step, and leaves the state after the last of them in `state`. After
    `save_positions[i]` tokens, counted from the request's first, it copies the running state into
    `save_states[i]`. `slots` are those of the first group of attention layers.
    """

    slots: list[int]
    source: int
    state: int
    save_positions: list[int]
    save_states: list[int]


class SnapshotAdmission(NamedTuple):
    """What an admitted request was given: its hit, and its first step; `slots` are of both."""

    num_cached_tokens: int
    slots: list[int]
    source: int
    state: int
    save_positions: list[int]
    save_states: list[int]


@dataclass(slots=True)
class SnapshotRequest:
    """What a cache knows of a request it has admitted."""

    groups: Sequence[AttentionGroup]
    rows: list[PrefixRequest]
    """Its tokens, what names them and the blocks they lie in, once a group."""
    source: int = ZEROS
    """Where its next step finds the state after all scheduled tokens."""
    state: int = ZEROS
    """The state slot it writes."""
    before: int = ZEROS
    """The source of its last step."""
    held: list[int] = field(default_factory=list)
    """Snapshots held until the steps that restore them are committed."""
    saves: dict[int, int] = field(default_factory=dict)
    """Position -> state slot, of the steps that are not committed."""
    due: set[int] = field(default_factory=set)
    """Positions of `saves` that become snapshots; the others are kept for a rejection alone."""
    num_drafts: int = 0
    """Of the scheduled tokens, the last that may be rejected."""
    junction: int = 0
    """Where its blocks were hit to, if its state was not."""

    @property
    def prefix(self) -> PrefixRequest:
        """Its tokens, as the first group has them; the counts of tokens are the same in all."""
        return self.rows[0]

    @property
    def is_in_flight(self) -> bool:
        """Whether a step of it is not committed."""
        return self.prefix.num_computed < self.prefix.num_scheduled

    @property
    def states(self) -> list[int]:
        """The state slots it holds."""
        return [self.state, *self.held, *self.saves.values()]

    @property
    def blocks(self) -> list[int]:
        """The blocks it holds, those of the first tokens first, whatever their group."""
        places = [
            ((at + 1) * group.block_size, number, block)
            for number, (group, prefix) in enumerate(zip(self.groups, self.rows, strict=True))
            for at, block in enumerate(prefix.row)
            if block != NULL
        ]
        return [block for _, _, block in sorted(places)]

    def join(self, raw: bytes) -> None:
        """Let written tokens join."""
        for prefix in self.rows:
            prefix.join(raw)

    def missing(self, stop: int) -> list[int]:
        """Count the blocks that each group lacks for the first `stop` tokens."""
        pairs = zip(self.groups, self.rows, strict=True)
        return [group.num_blocks(stop) - len(prefix.row) for group, prefix in pairs]

    def schedule(self, stop: int, missing: Sequence[int], blocks: Sequence[int]) -> None:
        """Let the first `stop` tokens be scheduled, over so many new blocks a group."""
        fresh = iter(blocks)
        for prefix, count in zip(self.rows, missing, strict=True):
            prefix.row += [next(fresh) for _ in range(count)]
            prefix.num_scheduled = stop

    def slots(self, start: int, stop: int, group: int = 0) -> list[int]:
        """List the slots of the tokens from `start` to below `stop`, −1 where the block is held no more."""
        return [max(NULL, slot) for slot in self.rows[group].slots(start, stop)]

    def keys(self, group: int, start: int, stop: int) -> list[GroupKey]:
        """List what names full blocks of a group."""
        return [(group, key) for key in self.rows[group].keys[start:stop]]

    def prefix_of(self, position: int) -> Prefix:
        """Return what names its first tokens, which end a block in every group."""
        block = position // self.prefix.block_size - 1
        keys, contents = self.prefix.of_blocks(block, block + 1)
        return Prefix(keys[0], contents[0] if contents else None)

    def needs(self, position: int) -> list[GroupKey]:
        """List what names the blocks without which nobody can resume at a position.

        Without a window they are all of them, and the last stands for all: it is evicted first.
        """
        found: list[GroupKey] = []
        for number, group in enumerate(self.groups):
            stop = position // group.block_size
            first = stop - 1 if group.window is None else min(stop - 1, group.first_block(position))
            found += self.keys(number, first, stop)
        return found

    def check_invariants(self) -> None:
        """Assert that tokens and states fit each other."""
        counts = {(p.num_tokens, p.num_scheduled, p.num_computed) for p in self.rows}
        assert len(counts) == 1, "groups disagree on tokens"
        for prefix in self.rows:
            prefix.check_invariants()
        assert self.source in (self.state, *self.held), "a request goes on from a state it does not hold"
        written = [self.state, *self.saves.values()]
        assert len({*written, *self.held}) == len(written) + len(self.held), "a state slot is held for two"
        assert self.due <= self.saves.keys(), "a state is to be kept and is not saved"
        in_flight = self.prefix.num_scheduled - self.prefix.num_computed
        assert self.num_drafts <= in_flight, "a kept token is a draft"
        assert in_flight or not self.saves, "a state is to be saved by no step"
        late = [position for position in self.saves if position < self.prefix.num_computed]
        assert not late, "a state is still to be saved that the request has passed"


def new_request_of(
    groups: Sequence[AttentionGroup], namespace: Namespace, digest: Digest, raw: bytes, num_prompt: int
) -> SnapshotRequest:
    """Return a request that is given its prompt, and nothing else yet."""
    rows = [PrefixRequest(namespace, group.block_size, digest, verified=True) for group in groups]
    for prefix in rows:
        prefix.join(raw)
        prefix.num_prompt = num_prompt
    return SnapshotRequest(groups, rows)


def positions_saved(start: int, stop: int, interval: int, saves: str, extra: Iterable[int] = ()) -> list[int]:
    """List the positions in a step from `start` to `stop` tokens whose states are kept, rising.

    `interval` is the distance between them, and `extra` are more of them (junctions).
    """
    multiples = range(start // interval * interval + interval, stop + 1, interval)
    ends = [stop] if stop % interval == 0 and start < stop else []
    kept = {"interval": multiples, "chunk_end": ends, "branch": ()}[saves]
    return sorted({*kept, *(position for position in extra if start < position <= stop)})
