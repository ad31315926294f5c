"""A naive radix cache: a list of runs of blocks, each with everything it follows written out.

A run is the child of another if it begins where that one ends and continues it. What the tree holds is not
free and not a request's own; a request reads the tree's blocks up to `kept` tokens. The run used longest ago
goes first, as a whole, if nothing continues it and no request reads it.
"""

from dataclasses import dataclass

from kvref.errors import OwnershipError
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request


@dataclass(eq=False)
class Run:
    """Blocks of one prefix, from one position on."""

    name: Name
    """The whole prefix that it ends."""
    start: int
    blocks: list[int]
    used: int

    @property
    def end(self) -> int:
        """The position behind its last token."""
        return len(self.name[1])

    def up_to(self, stop: int) -> Name:
        """Return the name of the prefix that ends at a position of it."""
        return self.name[0], self.name[1][:stop]


class RadixLists(PrefixLists):
    """Whose tokens are computed already, kept as runs."""

    eviction_order = "lru_node"

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        self.runs: list[Run] = []
        self.now = 0

    # --- operations

    def commit(self, request: int) -> None:
        """Let what is scheduled be computed; the full blocks of the prompt join the tree."""
        one = self.requests.get(request)
        one.computed = one.scheduled
        self.publish(one, min(one.computed, one.prompt_len))

    def finish(self, request: int) -> None:
        """End a request: what it decoded joins the tree, and all that it read was used now."""
        one = self.requests.get(request)
        for end in (one.prompt_len, one.computed if self.cached_outputs == "yes" else 0):
            self.publish(one, min(end, one.computed))
        self.use(self.path(self.name(one.content, one.kept)))
        self.end(one)

    def num_free(self) -> int:
        """Count the blocks that are free, and those of runs that no request reads."""
        return len(self.waiting) + sum(len(run.blocks) for run in self.runs if not self.readers(run))

    def reset(self) -> None:
        """Forget every run."""
        if self.requests.live:
            raise OwnershipError("requests hold blocks, expected none (KV-PREFIX-015)")
        self.waiting += [block for run in self.runs for block in run.blocks]
        self.runs.clear()
        self.events.cleared()

    # --- what they are made of

    def find(self, content: Content, most: int) -> list[int]:
        """Return the blocks of the longest prefix, and change nothing."""
        blocks: list[int] = []
        while (found := self.next_run(content, len(blocks) * self.block_size, most)) is not None:
            run, common = found
            blocks += run.blocks[:common]
            if common < len(run.blocks):
                break
        return blocks

    def next_run(self, content: Content, start: int, most: int) -> tuple[Run, int] | None:
        """Return the run that continues a prefix, and how many of its blocks do."""
        name = self.name(content, start)
        for run in self.runs:
            if run.start != start or run.up_to(start) != name:
                continue
            common = 0
            while (stop := start + (common + 1) * self.block_size) <= min(most, run.end):
                if run.up_to(stop) != self.name(content, stop):
                    break
                common += 1
            if common:
                return run, common
        return None

    def path(self, name: Name) -> list[Run]:
        """Return the runs that a prefix passes."""
        return [run for run in self.runs if (name[0], name[1][: run.end]) == run.name]

    def readers(self, run: Run) -> list[Request]:
        """Return the requests that read a run."""
        return [one for one in self.requests.live if one.kept >= run.end and self.passes(one, run)]

    def passes(self, one: Request, run: Run) -> bool:
        """Say whether a request continues a run."""
        return self.name(one.content, run.end) == run.name

    def taken_by(self, hits: list[int]) -> int:
        """Count the blocks of a hit that could be evicted now."""
        idle = [run for run in self.runs if not self.readers(run)]
        return sum(block in hits for run in idle for block in run.blocks)

    def begin(self, one: Request, hits: list[int]) -> None:
        """Let a request read its hit, which ends with a run from now on."""
        one.kept = one.computed = one.scheduled = one.hit
        one.blocks = list(hits)
        self.requests.live.append(one)
        self.part(self.name(one.content, one.hit))

    def part(self, name: Name) -> None:
        """Split the run in which a prefix ends, and use the prefix now."""
        stop = len(name[1])
        for run in list(self.runs):
            if run.start < stop < run.end and run.up_to(stop) == name:
                self.split(run, stop)
        self.use(self.path(name))

    def split(self, run: Run, stop: int) -> None:
        """Make two runs of one."""
        count = (stop - run.start) // self.block_size
        self.runs.append(Run(run.up_to(stop), run.start, run.blocks[:count], run.used))
        run.start, run.blocks = stop, run.blocks[count:]

    def use(self, runs: list[Run]) -> None:
        """Use runs now."""
        self.now += 1
        for run in runs:
            run.used = self.now

    def publish(self, one: Request, stop: int) -> None:
        """Put a request's full blocks into the tree, those of its prompt for now."""
        stop = stop // self.block_size * self.block_size
        if stop > one.inserted:
            self.insert(one, stop)
            one.inserted = stop

    def insert(self, one: Request, stop: int) -> None:
        """Put a prefix into the tree, and read the tree's blocks instead of the request's own copies."""
        size = self.block_size
        there = self.find(one.content, stop)
        known = len(there) * size
        self.part(self.name(one.content, known))
        new = one.blocks[len(there) : stop // size]
        duplicates = [own for own, tree in zip(one.blocks, there, strict=False) if own != tree]
        one.blocks[: len(there)] = there
        if new:
            self.now += 1
            self.runs.append(Run(self.name(one.content, stop), known, new, self.now))
        for at in range(known + size, stop + 1, size):
            self.events.stored(self.name(one.content, at))
        one.kept = stop
        self.waiting = duplicates + self.waiting

    def continued(self, run: Run) -> bool:
        """Say whether another run continues this one."""
        return any(other.start == run.end and other.up_to(run.end) == run.name for other in self.runs)

    def take(self, count: int) -> list[int]:
        """Hand out blocks from the front, evicting as many as are missing."""
        while len(self.waiting) < count:
            self.evict(self.victim())
        blocks = self.waiting[:count]
        del self.waiting[:count]
        return blocks

    def victim(self) -> Run:
        """Return the run that goes first."""
        idle = [run for run in self.runs if not self.readers(run) and not self.continued(run)]
        return min(idle, key=lambda run: run.used)

    def evict(self, run: Run) -> None:
        """Let all blocks of a run be free."""
        self.runs.remove(run)
        self.waiting += run.blocks
        for stop in range(run.end, run.start, -self.block_size):
            self.events.removed(run.up_to(stop))

    def end(self, one: Request) -> None:
        """Let go of a request's own blocks, and of the tree's."""
        self.requests.live.remove(one)
        self.waiting = one.blocks[one.kept // self.block_size :] + self.waiting
