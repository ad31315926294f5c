"""What a search found: how much was tried, and the files that bring each find back."""

from dataclasses import dataclass, field
from typing import Any

#: Finds saved for one requirement; after that it is known to be broken.
FINDS_EACH = 3


@dataclass
class Finds:
    """What a search did."""

    seed: int
    cases: int = 0
    operations: int = 0
    """Operations on managers."""
    outside: int = 0
    """Cases that lay outside a check's domain."""
    saved: list[str] = field(default_factory=list)
    """File names, one for each find."""
    messages: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return what to print."""
        found = [f"FOUND  {name}: {message}" for name, message in zip(self.saved, self.messages, strict=True)]
        done = f"{self.cases} cases" + (f", {self.operations} operations" if self.operations else "")
        return [*found, f"seed {self.seed}: {done}, {len(self.saved)} finds"]

    def to_dict(self) -> dict[str, Any]:
        """Return the search as JSON values."""
        return {
            "seed": self.seed,
            "cases": self.cases,
            "operations": self.operations,
            "saved": self.saved,
            "messages": self.messages,
        }
