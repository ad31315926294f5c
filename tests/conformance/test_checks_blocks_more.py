"""Tests of the checks of blocks: the unusual that is right passes, and what is wrong in a rare way fails."""

from collections.abc import Iterable
from typing import Any

import pytest
from blocks_judged import failed, with_managers

from kvref.errors import OutOfBlocksError
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate, plan
from kvref_conformance.runner.suite import run_suite
from kvref_conformance.subjects.lists.allocator import ListAllocator
from kvref_conformance.subjects.lists.tables import NULL, Appended, ListTables

FLIGHT = ("pin", "steps")
SLIDES = ("groups", "pruning")


def broken(subject: Any, requirement: str) -> set[str]:
    """Return what the checks of a requirement find broken at the quick level."""
    host = InProcessHost(subject)
    planned = plan(host.hello().verbs, subject.claims, "quick")
    asked = [(check, case) for check, case in planned if check.requirement == requirement]
    oracle = Oracle(subject.claims)
    found = (evaluate(check, case, host, oracle) for check, case in asked)
    return {one.requirement for one in found if one.status == "fail"}


def breaks(subject: Any, requirement: str) -> bool:
    """Say whether a check of a requirement fails at the quick level, by whatever is broken."""
    return bool(broken(subject, requirement))


class Padded(ListTables):
    """Every row is as long as the longest could be."""

    def block_table(self, request: int, group: int) -> list[int]:
        row = super().block_table(request, group)
        return row + [NULL] * (self.pool.num_blocks - len(row))


class Sorted(ListAllocator):
    """The blocks of one allocation are listed by their ids."""

    def take(self, count: int) -> list[int]:
        return sorted(super().take(count))


@pytest.mark.parametrize(
    "subject",
    [
        with_managers(tables=Padded, features=SLIDES),
        with_managers(Sorted, features=FLIGHT, choices={"free-order": "fifo"}),
        with_managers(tables=ListTables, block_sizes=(1024,)),
    ],
    ids=["padded rows", "sorted ids", "blocks of 1024 slots"],
)
def test_honest_managers_may_differ(subject: Any) -> None:
    """A rule that binds them otherwise would be one that nobody has written."""
    assert failed(subject) == []


@pytest.mark.parametrize("left_out", [("fork",), ("truncate",), ("fork", "truncate")])
def test_features_are_asked_of_those_who_do_not_fork(left_out: tuple[str, ...]) -> None:
    """Groups and windows need no children, and nobody is held to have claimed them in vain."""
    every = ("add", "append", "fork", "truncate", "prune", "free", "block_table", "num_free")

    def make(**opens: Any) -> Any:
        tables = ListTables(**opens)
        offered = {name: getattr(tables, name) for name in every if name not in left_out}
        return type("Some", (), {name: staticmethod(method) for name, method in offered.items()})()

    report = run_suite(InProcessHost(with_managers(tables=staticmethod(make), features=SLIDES)))
    verdicts = {area.area: (area.verdict, area.reason) for area in report.areas}
    assert verdicts["block_tables"] == ("conformant", "")


class FewAtOnce(ListAllocator):
    """What is offered is not supported."""

    def allocate(self, num_blocks: int) -> list[int]:
        if num_blocks > 1:
            raise NotImplementedError
        return super().allocate(num_blocks)


class PinsInAByte(ListAllocator):
    def pin(self, blocks: list[int]) -> None:
        super().pin(blocks)
        self.pins = [count % 256 for count in self.pins]


class PinsAsASet(ListAllocator):
    def pin(self, blocks: list[int]) -> None:
        super().pin(list(dict.fromkeys(blocks)))


class StepsInAByte(ListAllocator):
    """Step 0 follows step 255, and is taken for an earlier one."""

    def begin_step(self) -> int:
        self.steps_begun = (self.steps_begun + 1) % 256
        self.steps.append(self.steps_begun)
        return self.steps_begun


class EndsWhateverIsInFlight(ListAllocator):
    """A step that has ended is taken for the oldest in flight."""

    def end_step(self, step: int) -> None:
        super().end_step(step if step in self.steps or not self.steps else self.steps[0])


class BeginningForgets(ListAllocator):
    """Two steps are all that a block waits for."""

    def begin_step(self) -> int:
        if len(self.steps) == 2:
            for block, _ in self.waiting:
                self.put_back(block)
            self.waiting.clear()
        return super().begin_step()


class UnpinnedGoFirst(ListAllocator):
    def unpin(self, blocks: list[int]) -> None:
        before = len(self.free_blocks)
        super().unpin(blocks)
        self.free_blocks = self.free_blocks[before:] + self.free_blocks[:before]


class EndedGoFirst(ListAllocator):
    def end_step(self, step: int) -> None:
        before = len(self.free_blocks)
        super().end_step(step)
        self.free_blocks = self.free_blocks[before:] + self.free_blocks[:before]


class FreshStaysInTheList(ListAllocator):
    """A block that was never handed out may be held, and is handed out all the same."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self.fresh = set(self.free_blocks)

    def take(self, count: int) -> list[int]:
        taken = super().take(count)
        self.fresh -= set(taken)
        return taken

    def check_somebody_holds(self, blocks: Iterable[int]) -> None:
        super().check_somebody_holds(set(blocks) - self.fresh)


class LosesOneInAHundred(ListAllocator):
    """Nobody is told."""

    calls = lost = 0

    def allocate(self, num_blocks: int) -> list[int]:
        blocks = super().allocate(num_blocks)
        self.calls += 1
        if self.calls % 100 == 0 and self.free_blocks:
            self.free_blocks.pop()
            self.lost += 1
        return blocks

    def num_free(self) -> int:
        return super().num_free() + self.lost


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [
        (FewAtOnce, 3),
        (PinsInAByte, 12),
        (PinsAsASet, 12),
        (StepsInAByte, 11),
        (EndsWhateverIsInFlight, 11),
        (BeginningForgets, 11),
        (UnpinnedGoFirst, 10),
        (EndedGoFirst, 10),
        (FreshStaysInTheList, 1),
        (LosesOneInAHundred, 9),
    ],
)
def test_allocator_is_wrong_in_a_rare_way(cheat: type[ListAllocator], caught: int) -> None:
    """Each goes wrong in one place, and the quick level goes there."""
    subject = with_managers(cheat, features=FLIGHT, choices={"free-order": "fifo"})
    assert breaks(subject, f"KV-BLOCK-{caught:03d}")


class ThirdNotPruned(ListTables):
    """Two groups were all there were."""

    def first_attended(self, num_tokens: int, group: int) -> int:
        return super().first_attended(num_tokens, group) if group < 2 else 0


class WideWindow(ListTables):
    """A window of several blocks is one token too narrow."""

    def first_attended(self, num_tokens: int, group: int) -> int:
        wide = self.windows[group] > 2 * self.block_sizes[group]
        return super().first_attended(num_tokens, group) + wide


class WindowInAByte(ListTables):
    def first_attended(self, num_tokens: int, group: int) -> int:
        window = self.windows[group] % 256
        return max(0, num_tokens - window + 1) if self.windows[group] else 0


class LongAppendsDoNotCopy(ListTables):
    """What needs several new blocks is not looked at for a shared last one."""

    num_tokens = 0

    def append(self, request: int, num_tokens: int) -> Appended:
        self.num_tokens = num_tokens
        return super().append(request, num_tokens)

    def needs_copy(self, request: int, group: int) -> bool:
        return self.num_tokens <= 2 * max(self.block_sizes) and super().needs_copy(request, group)


class OnceSharedAlwaysCopied(ListTables):
    """A block that was shared once is copied by its last holder too, who may have no room for that."""

    def __init__(self, **opens: Any) -> None:
        super().__init__(**opens)
        self.once: set[int] = set()

    def share(self, blocks: Iterable[int]) -> None:
        self.once |= set(blocks)
        super().share(blocks)

    def needs_copy(self, request: int, group: int) -> bool:
        broken = self.lengths[request] % self.block_sizes[group]
        return bool(broken) and self.tables[request][group][-1] in self.once


class NothingKeepsAHolder(ListTables):
    """An append of no token holds the shared last block once more."""

    def append(self, request: int, num_tokens: int) -> Appended:
        if request in self.tables and not num_tokens and self.needs_copy(request, 0):
            self.pool.hold(self.tables[request][0][-1])
        return super().append(request, num_tokens)


class RefusedForkHolds(ListTables):
    """A fork into a request that is there holds the parent's blocks before it is refused."""

    def fork(self, parent: int, child: int) -> None:
        if parent in self.tables and child in self.tables:
            self.share(self.tables[parent][0])
        super().fork(parent, child)


class AddedAgainLosesTokens(ListTables):
    """The addition of a request that is there forgets its broken block, and is refused."""

    def add(self, request: int) -> None:
        if request in self.lengths:
            self.lengths[request] -= self.lengths[request] % self.block_sizes[0]
        super().add(request)


class TableInBytes(ListTables):
    def block_table(self, request: int, group: int) -> list[int]:
        return [block % 256 if block >= 0 else block for block in super().block_table(request, group)]


class CutInAByte(ListTables):
    def truncate(self, request: int, num_tokens: int) -> None:
        super().truncate(request, num_tokens)
        super().truncate(request, num_tokens % 256)


class LosesOneInFiftyPrunes(ListTables):
    prunes = 0

    def prune(self, request: int) -> None:
        super().prune(request)
        self.prunes += 1
        if self.prunes % 50 == 0 and self.pool.free_blocks:
            self.pool.free_blocks.pop()


class SlotsInTwoBytes(ListTables):
    def slot(self, request: int, group: int, position: int) -> int:
        return super().slot(request, group, position) % 2**16


class ShortRequests(ListTables):
    """A request has no more tokens than a signed number of two bytes counts."""

    def append(self, request: int, num_tokens: int) -> Appended:
        if self.lengths.get(request, 0) + num_tokens >= 2**15:
            raise OutOfBlocksError("too long")
        return super().append(request, num_tokens)


@pytest.mark.parametrize(
    ("cheat", "caught"),
    [
        (ThirdNotPruned, 30),
        (WideWindow, 30),
        (WindowInAByte, 30),
        (LongAppendsDoNotCopy, 24),
        (OnceSharedAlwaysCopied, 3),
        (NothingKeepsAHolder, 9),
        (RefusedForkHolds, 33),
        (AddedAgainLosesTokens, 33),
        (TableInBytes, 20),
        (CutInAByte, 26),
        (LosesOneInFiftyPrunes, 30),
        (SlotsInTwoBytes, 20),
        (ShortRequests, 20),
    ],
)
def test_tables_are_wrong_in_a_rare_way(cheat: type[ListTables], caught: int) -> None:
    """Each goes wrong in one place, and the quick level goes there."""
    subject = with_managers(tables=cheat, features=SLIDES, block_sizes=(4, 1, 3, 16))
    assert breaks(subject, f"KV-BLOCK-{caught:03d}")


def test_what_was_wrong_without_the_odd_steps_is_not_theirs() -> None:
    """A manager that loses a block at each end of a request refuses strangers as it should."""

    class Leaks(ListTables):
        def free(self, request: int) -> None:
            super().free(request)
            if self.pool.free_blocks:
                self.pool.free_blocks.pop()

    subject = with_managers(tables=Leaks)
    assert breaks(subject, "KV-BLOCK-009")
    assert "KV-BLOCK-033" not in broken(subject, "KV-BLOCK-033")
