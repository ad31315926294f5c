"""Shadow memory: for each block, who holds it, whether it is published, and what was written into its slots.

What is written is not kept; its label is. A block remembers stretches of slots: who wrote them, which
positions they are, and a source that knows the label of each position. While the writer lives the source is
the request's own labels; when it goes, the few that the block needs are kept apart.

Realises: KV-BLOCK-021 reads-own-tokens.
For porters: `fault` is the one question, "does this stretch hold what this reader wrote, or would have?".
Source: shadow memory as in AddressSanitizer (Serebryany et al. 2012); labels instead of one bit.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvref.memory.labels import Labels
from kvref.sanitizer.findings import Fact

if TYPE_CHECKING:
    from kvref.sanitizer.requests import Request

Name = int | str
Source = Labels | None


@dataclass(slots=True)
class Written:
    """Slots lo to hi − 1 of a block: position base + i of a request lies in slot i."""

    lo: int
    hi: int
    base: int
    source: Source
    """Who knows the labels; None if nobody can hit or share the slots any more."""
    who: Name
    line: int

    def outside(self, lo: int, hi: int) -> list["Written"]:
        """Return what is left of it when slots lo to hi − 1 are written over."""
        parts = [(self.lo, min(self.hi, lo)), (max(self.lo, hi), self.hi)]
        return [Written(a, b, self.base, self.source, self.who, self.line) for a, b in parts if a < b]

    def told(self, block: int) -> Fact:
        """Return the fact that it was written."""
        first, last = self.base + self.lo, self.base + self.hi - 1
        positions = f"position {first}" if first == last else f"positions {first} to {last}"
        return self.line, f"request {self.who} wrote {positions} into block {block}"


class Flight:
    """A step or a transfer that has begun; only a transfer has more than a name."""

    kind: str = ""
    request: Name | None = None
    start: int = 0
    count: int = 0
    blocks: tuple[int, ...] = ()
    done: bool = False
    before: "Flight | None" = None
    """The step that began before it, if that was in flight."""

    def __init__(self, what: str, name: Name, line: int) -> None:
        self.what, self.name, self.line = what, name, line

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"{self.what} {self.name}"

    def told(self) -> Fact:
        """Return the fact that it began."""
        return self.line, f"{self.title} began"


@dataclass(slots=True)
class Block:
    """What is known of one block; lines are 0 where the thing has not happened."""

    refs: int = 0
    """Holders and pins."""
    pins: int = 0
    holder: Name | None = None
    """Who began to hold it last."""
    held: int = 0
    """The line where that was."""
    allocated: int = 0
    allocated_by: Name | None = None
    freed: int = 0
    freed_by: Name | None = None
    pinned: int = 0
    owner: "Request | None" = None
    """The request that alone holds it, has written it up to its last computed token, and may go on."""
    main: Written | None = None
    """The stretch that was written last."""
    older: tuple[Written, ...] = ()
    """What else it holds, apart from it."""
    stale: Written | None = None
    """What it held before it was handed out."""
    published: int = 0
    published_before: int = 0
    published_by: Name | None = None
    findable: int = 0
    """How many of its slots are published."""
    lost: int = 0
    """Where it could be found no longer, and why."""
    lost_how: str = ""
    emptied: int = 0
    """Where its contents were lost, and why."""
    emptied_how: str = ""
    fences: list[Flight] | tuple[()] = ()
    """What it waits for, and some that have ended."""
    arriving: Flight | None = None
    disputed: bool = False
    """Whether it was handed out while held: two believe that it is theirs, which was told."""

    def write(self, lo: int, hi: int, base: int, source: Source, who: Name, line: int) -> None:
        """Let slots lo to hi − 1 hold positions from base + lo on."""
        main = self.main
        if main is not None and main.source is source and main.base == base and main.hi == lo:
            main.hi, main.line = hi, line
        else:
            if main is not None:
                self.older = (*self.older, main)
            self.main = Written(lo, hi, base, source, who, line)
        if self.older:
            self.older = tuple(part for old in self.older for part in old.outside(lo, hi))

    def ends_at(self, hi: int) -> bool:
        """Whether nothing lies in slot hi or behind it."""
        return not self.older or all(written.hi <= hi for written in self.older)

    def at(self, slot: int) -> Written | None:
        """Return the stretch that a slot lies in."""
        for written in (self.main, *self.older):
            if written is not None and written.lo <= slot < written.hi:
                return written
        return None

    def fault(self, lo: int, hi: int, base: int, labels: Labels) -> tuple[int, Written | None] | None:
        """Return the first slot that does not hold what a request's own position would, and what it holds.

        Slots lo to hi − 1 are read as the positions from base + lo on. None if all of them do.
        """
        main = self.main
        if main is not None and main.lo <= lo and hi <= main.hi and main.base == base:
            if main.source is labels:
                return None
            last = min(base + hi, len(labels)) - 1
            if last < base + lo:
                return None
            if main.source is not None and main.source.label(last) == labels.label(last):
                return None
        for slot in range(lo, hi):
            written = self.at(slot)
            if written is None:
                return slot, None
            if not _holds(written, base + slot, base, labels):
                return slot, written
        return None

    def covered(self, lo: int, hi: int) -> int:
        """Return the first slot of lo to hi − 1 that holds nothing; hi if all hold something."""
        main = self.main
        if main is not None and main.lo <= lo and hi <= main.hi:
            return hi
        return next((slot for slot in range(lo, hi) if self.at(slot) is None), hi)

    def settle(self, labels: Labels, *, keep: bool) -> None:
        """Let go of a request's labels; those of this block are kept apart if somebody can ask for them."""
        for written in (self.main, *self.older):
            if written is not None and written.source is labels:
                first, stop = written.base + written.lo, written.base + written.hi
                written.source = labels.piece(first, stop) if keep else None

    def lose(self, line: int, how: str) -> None:
        """Be found no longer."""
        self.lost, self.lost_how = line, how
        self.published_before, self.published = self.published or self.published_before, 0

    def copied(self, count: int, own: Labels | None) -> list[Written]:
        """Return what the first slots hold for another block; labels that are not `own` are kept apart."""
        parts = []
        for w in (*self.older, self.main):
            if w is not None and w.lo < count:
                hi = min(w.hi, count)
                source = (
                    w.source
                    if w.source is own or w.source is None
                    else w.source.piece(w.base + w.lo, w.base + hi)
                )
                parts.append(Written(w.lo, hi, w.base, source, w.who, w.line))
        return parts

    def wait_for(self, flight: Flight) -> None:
        """Be free only when a step or a transfer has ended."""
        fences = self.fences
        if not isinstance(fences, list):
            self.fences = [flight]
        elif fences[-1:] != [flight]:
            fences.append(flight)
            if not len(fences) & (len(fences) - 1):  # at powers of two, so that each is looked at a few times
                fences[:] = [other for other in fences if not other.done]

    def cut(self, labels: Labels, num_tokens: int) -> None:
        """Forget what a request wrote past its first tokens."""
        for written in (self.main, *self.older):
            if written is not None and written.source is labels:
                written.hi = max(written.lo, min(written.hi, num_tokens - written.base))

    def empty(self, line: int, how: str) -> None:
        """Lose what the block holds."""
        if self.main is not None:
            self.emptied, self.emptied_how = line, how
        self.main, self.older, self.owner = None, (), None

    def facts(self, block: int, *names: str) -> list[Fact | None]:
        """Return what happened to the block, of the facts that are named."""
        known: dict[str, Fact | None] = {
            "allocated": (self.allocated, f"block {block} was handed out to request {self.allocated_by}"),
            "held": None
            if self.held == self.allocated
            else (self.held, f"request {self.holder} began to hold block {block}"),
            "freed": (self.freed, f"request {self.freed_by} let go of block {block}"),
            "pinned": (self.pinned, f"block {block} was pinned"),
            "published": (
                self.published or self.published_before,
                f"block {block} was published{_by(self.published_by)}",
            ),
            "lost": (self.lost, f"block {block} was {self.lost_how}"),
            "emptied": (self.emptied, f"what block {block} held was lost: {self.emptied_how}"),
            "stale": None if self.stale is None else self.stale.told(block),
            "arriving": None if self.arriving is None else self.arriving.told(),
        }
        facts = [known[name] for name in names if name in known]
        if "written" in names:
            facts += [written.told(block) for written in (self.main, *self.older) if written is not None]
        if "fences" in names:
            facts += [flight.told() for flight in self.fences if not flight.done]
        return facts

    def hand_out(self, line: int, who: Name) -> None:
        """Let the block be new: what it holds is stale from now on."""
        self.stale = self.main
        if self.stale is not None:
            self.stale.source = None
        self.main, self.older, self.owner, self.arriving = None, (), None, None
        if self.published:
            self.lose(line, f"handed out to request {who}")
        self.allocated = self.held = line
        self.allocated_by = self.holder = who
        self.emptied = self.findable = 0


def _holds(written: Written, position: int, base: int, labels: Labels) -> bool:
    if written.base != base:
        return False
    if written.source is labels or position >= len(labels):
        return True
    return written.source is not None and written.source.label(position) == labels.label(position)


def _by(request: Name | None) -> str:
    return "" if request is None else f" by request {request}"
