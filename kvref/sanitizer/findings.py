"""What the sanitizer finds: which requirement was broken, at which line, by whom, and what led to it.

For porters: the requirement and the line are the finding; the excerpt is what saves an hour of reading.
Source: the requirements of the chapter on memory.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

#: The requirements that a history can break, by id.
RULES = MappingProxyType(
    {
        "KV-BLOCK-001": "alloc-distinct",
        "KV-BLOCK-004": "counts-add-up",
        "KV-BLOCK-005": "last-holder",
        "KV-BLOCK-006": "double-free",
        "KV-BLOCK-007": "foreign-block",
        "KV-BLOCK-008": "null-block",
        "KV-BLOCK-011": "fenced-free",
        "KV-BLOCK-012": "pinned-stays",
        "KV-BLOCK-020": "token-slot",
        "KV-BLOCK-021": "reads-own-tokens",
        "KV-BLOCK-022": "write-private",
        "KV-BLOCK-033": "request-known",
        "KV-BLOCK-034": "truncate-within",
        "KV-BLOCK-040": "computed-once",
        "KV-BLOCK-041": "no-starvation",
        "KV-BLOCK-042": "history-wellformed",
        "KV-BLOCK-043": "use-after-free",
        "KV-BLOCK-044": "no-leak",
        "KV-BLOCK-045": "write-published",
        "KV-PREFIX-001": "hit-own-prefix",
        "KV-PREFIX-002": "hit-leaves-one",
        "KV-PREFIX-005": "hit-computed",
        "KV-PREFIX-007": "adapter-apart",
        "KV-PREFIX-008": "adapter-version-apart",
        "KV-PREFIX-009": "salt-apart",
        "KV-PREFIX-010": "media-apart",
        "KV-PREFIX-011": "media-offset-apart",
        "KV-PREFIX-012": "embeddings-apart",
        "KV-PREFIX-015": "reset-forgets",
        "KV-PREFIX-016": "held-not-evicted",
        "KV-PREFIX-017": "evicted-not-hit",
        "KV-PREFIX-042": "event-removed-was-stored",
    }
)

#: A line of the history and what happened there.
Fact = tuple[int, str]


@dataclass(frozen=True)
class Finding:
    """One breach of a requirement."""

    requirement: str
    line: int
    message: str
    """Who did what to which block, and whose it was."""
    excerpt: tuple[Fact, ...]
    """The earlier lines that it takes to understand it, in their order."""

    @property
    def slug(self) -> str:
        """The slug of the requirement."""
        return RULES[self.requirement]

    def told(self) -> str:
        """Return the finding as a report shows it: one line, and one more for each line of the excerpt."""
        head = f"FAIL  {self.requirement:<13} {self.slug:<23} line {self.line}: {self.message}"
        return "\n".join([head, *(f"      line {line:<6} {text}" for line, text in self.excerpt)])

    def as_json(self) -> dict[str, Any]:
        """Return the finding for a program."""
        return {
            "requirement": self.requirement,
            "slug": self.slug,
            "line": self.line,
            "message": self.message,
            "excerpt": [{"line": line, "text": text} for line, text in self.excerpt],
        }


def in_order(facts: Iterable[Fact | None]) -> tuple[Fact, ...]:
    """Return what is known of some facts, in the order of their lines."""
    return tuple(sorted({fact for fact in facts if fact is not None and fact[0]}))
