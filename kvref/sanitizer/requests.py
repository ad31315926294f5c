"""One request as a history tells it: its tokens, its tables, and how far it has been computed and read.

Realises: KV-BLOCK-020 token-slot.
For porters: `computed` and `verified` make the common step cheap: what was verified stays so until somebody
else changes a block of the request, and then it is set back.
Source: the definition.
"""

from array import array

from kvref.memory.labels import Labels
from kvref.sanitizer.findings import Fact
from kvref.sanitizer.shadow import Block, Flight, Name


class Request:
    """A request that is live, or that has ended and still holds blocks."""

    __slots__ = (
        "computed",
        "cut",
        "ended",
        "freed",
        "holds",
        "how",
        "labels",
        "line",
        "name",
        "preempted",
        "progress",
        "starved",
        "stateless",
        "step",
        "symbols",
        "table",
        "tables",
        "tail",
        "tail_stop",
        "verified",
    )

    def __init__(self, name: Name, labels: Labels, groups: int, line: int, progress: int) -> None:
        self.name = name
        self.labels = labels
        self.symbols: array[int] = labels.symbols
        self.tables: list[list[int]] = [[] for _ in range(groups)]
        self.table = self.tables[0]
        self.holds = 0
        """How many entries of its tables hold a block."""
        self.computed = 0
        """How many of its first tokens are computed, or were found."""
        self.verified = 0
        """How many of its first tokens lie where they were read and found right, if nobody wrote since."""
        self.tail: Block | None = None
        """The block that it wrote last and may go on in."""
        self.tail_stop = 0
        """The first position behind that block."""
        self.step: Flight | None = None
        """The step it took part in last."""
        self.progress = progress
        """How many steps had ended when it was last computed, or arrived."""
        self.starved = False
        self.stateless = 0
        """Where it hit blocks whose recurrent state it has not been given."""
        self.line = line
        self.freed = 0
        """Where it last let go of blocks."""
        self.cut = 0
        """Where it was cut back last."""
        self.preempted = 0
        self.ended = 0
        self.how = ""

    def end(self, line: int, how: str) -> None:
        """Take no further part."""
        self.ended, self.how, self.tail = line, how, None

    def back_to(self, position: int) -> None:
        """Verify again from a position on."""
        self.verified = min(self.verified, position)
        self.tail = None

    def facts(self) -> list[Fact | None]:
        """Return what happened to it."""
        return [
            (self.preempted, f"request {self.name} was preempted"),
            (self.cut, f"request {self.name} was cut back"),
            (self.freed, f"request {self.name} let go of blocks"),
            (self.ended, f"request {self.name} {self.how}"),
        ]
