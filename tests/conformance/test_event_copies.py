"""Tests of the choice event-copies: a cache that tells of each copy is held to a mirror that counts."""

from typing import Any

import pytest

from kvref_conformance.cases import opening
from kvref_conformance.checks.prefix_events import TWICE
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.programs.asking import sized
from kvref_conformance.programs.asking_caches import case_of, served
from kvref_conformance.programs.running import run
from kvref_conformance.subjects.lists.naming import Name
from kvref_conformance.subjects.lists.prefix import PrefixLists

#: Both copies of a prefix are evicted, one after the other, and hits are asked for in between.
COPIES = (
    f"{TWICE}; abort 4; serve 5 5 3b; admit 6 1 2b 2 b 4 1; abort 6; serve 7 6 6b; serve 8 1 2b 4 1; "
    "serve 9 7 8b; admit 10 1 2b 4 1"
)


class EachCopy(PrefixLists):
    """Tells of each block that holds a name, and of each that loses it."""

    def store(self, name: Name, block: int) -> None:
        if (name, block) not in self.known:
            self.known.append((name, block))
            self.events.stored(name)

    def forget(self, block: int) -> None:
        for name in [name for name, known in self.known if known == block]:
            self.known.remove((name, block))
            self.events.removed(name)


class RemovesOnce(EachCopy):
    """Tells of each copy that is stored, but of a removal only when the last is gone."""

    def forget(self, block: int) -> None:
        PrefixLists.forget(self, block)


def breaches(cache: Any, answer: str, program: str = COPIES) -> set[str]:
    """The requirements that a cache breaks under a declaration."""
    subject = type("Subject", (), {"prefix_cache": cache})
    case = case_of("prefix_cache", sized(served(program), 4), 4, num_blocks=8)
    session = InProcessHost(subject()).open("prefix_cache", **opening(case))
    claims = Claims(block_sizes=(4,), features=("events",), choices={"event-copies": answer})
    return {breach.requirement for breach in run(case.option("program"), session, case, claims).breaches}


def test_each_declaration_fits_its_cache() -> None:
    """Both ways of telling are whole: nothing is breached by whoever declares what it does."""
    assert breaches(PrefixLists, "once") == set()
    assert breaches(EachCopy, "each_copy") == set()


@pytest.mark.parametrize(
    ("cache", "answer", "requirement"),
    [
        (EachCopy, "once", "KV-PREFIX-041"),
        (EachCopy, "once", "KV-PREFIX-042"),
        (RemovesOnce, "each_copy", "KV-PREFIX-046"),
    ],
)
def test_other_declaration_is_seen(cache: Any, answer: str, requirement: str) -> None:
    """A set loses a key whose other copy is there; a count of stores alone never goes back to nothing."""
    assert requirement in breaches(cache, answer)
