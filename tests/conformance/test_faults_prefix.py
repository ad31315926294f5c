"""Tests of the checks of prefix caches: faults of hits, counts, numbers and refusals, of a method or two."""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from faults_of_prefixes import Faults, base_of, failing, noting

from kvref.errors import OutOfBlocksError, OwnershipError
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request

FAULTS: Faults = []
shows = noting(FAULTS)


@shows(1)
class TokensOfFewBits(PrefixLists):
    """Tokens are floating point numbers of 24 bits."""

    def key(self, name: Name) -> Any:
        """Round."""
        return name[0], tuple((float(np.float32(item[0])), *item[1:]) for item in name[1])


@shows(1)
class BlocksInAnyOrder(PrefixLists):
    """A chain that does not depend on the order of its blocks."""

    def key(self, name: Name) -> Any:
        """Sort blocks."""
        size = self.block_size
        return name[0], tuple(sorted(name[1][at : at + size] for at in range(0, len(name[1]), size)))


@shows(1)
class BlocksAddedUp(PrefixLists):
    """A block is known by the sum of its tokens."""

    def key(self, name: Name) -> Any:
        """Add up."""
        size, items = self.block_size, name[1]
        sums = [sum(item[0] for item in items[at : at + size]) for at in range(0, len(items), size)]
        return name[0], tuple(sums), tuple(item[1:] for item in items)


@shows(6)
class AbortForgetsCopies(PrefixLists):
    """An abort forgets the names of its blocks, though others hold them as well."""

    def abort(self, request: int) -> None:
        """Forget names."""
        one = self.requests.get(request)
        ends = range(one.hit + self.block_size, one.computed + 1, self.block_size)
        names = [self.name(one.content, end) for end in ends]
        self.known = [entry for entry in self.known if entry[0] not in names]
        super().abort(request)


@shows(22)
class AbortInFlightLetsGo(PrefixLists):
    """An abort in flight lets go of the first block of its hit, if one other request reads it."""

    def abort(self, request: int) -> None:
        """Let go twice."""
        one = self.requests.get(request)
        flying, hit = one.computed < one.scheduled, one.blocks[: bool(one.hit)]
        super().abort(request)
        self.release([block for block in hit if flying and self.holders[block]])


@shows(5)
class CommitsForAll(PrefixLists):
    """The end of one request's step publishes what others have in flight."""

    def commit(self, request: int) -> None:
        """Publish for all."""
        super().commit(request)
        for one in self.requests.live:
            self.publish(one, one.scheduled)


class _OneForAll:
    known: ClassVar[list[tuple[Name, int]]] = []


@shows(5)
class OneIndexForAll(PrefixLists):
    """What is known belongs to the class."""

    @property
    def known(self) -> Any:
        """Everybody's."""
        return _OneForAll.known

    @known.setter
    def known(self, known: Any) -> None:
        _OneForAll.known = known


@shows(6)
class KeysOfANumber(PrefixLists):
    """Keys are kept by the number of a request, and outlive it."""

    def publish(self, one: Request, stop: int) -> None:
        """Store under the names made first."""
        names = self.__dict__.setdefault("names", {}).setdefault(one.number, [])
        for at in range(len(names), len(one.content.tokens) // self.block_size):
            names.append(self.name(one.content, (at + 1) * self.block_size))
        for name, block in zip(names[: stop // self.block_size], one.blocks, strict=False):
            self.store(name, block)


@shows(6)
class HitOfEightBlocks(PrefixLists):
    """A hit has eight blocks at most."""

    def find(self, content: Content, most: int) -> list[int]:
        """Cut."""
        return super().find(content, most)[:8]


@shows(16)
class TwoHolders(PrefixLists):
    """A block counts two holders at most."""

    def hold(self, blocks: list[int]) -> None:
        """Stop counting."""
        super().hold(blocks)
        for block in blocks:
            self.holders[block] = min(self.holders[block], 2)


@shows(18)
class NumbersOfAByte(PrefixLists):
    """Requests are known by the last byte of their numbers."""

    def admit(self, request: int, *given: Any, **more: Any) -> Any:
        """Cut."""
        return super().admit(request % 256, *given, **more)

    def commit(self, request: int) -> None:
        """Cut."""
        super().commit(request % 256)

    def slots(self, request: int) -> list[int]:
        """Cut."""
        return super().slots(request % 256)


@shows(19)
class RefusedIsThere(PrefixLists):
    """A request that was refused is there, and cannot come again."""

    def admit(self, request: int, *given: Any, **more: Any) -> Any:
        """Remember its number."""
        refused = self.__dict__.setdefault("refused", set())
        if request in refused:
            raise OwnershipError("is there")
        try:
            return super().admit(request, *given, **more)
        except OutOfBlocksError:
            refused.add(request)
            raise


@shows(19)
class RefusalRenews(PrefixLists):
    """What a refused request would have hit goes to the back of the queue."""

    def make_room(self, count: int, hits: list[int]) -> None:
        """Renew."""
        try:
            super().make_room(count, hits)
        except OutOfBlocksError:
            for block in [block for block in hits[::-1] if block in self.waiting]:
                self.waiting.remove(block)
                self.waiting.append(block)
            raise


@shows(22)
class LimitTakenForCount(PrefixLists):
    """An extension takes blocks for as many tokens as it may schedule."""

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """Take more."""
        slots = super().extend(request, tokens, max_new_tokens)
        one = self.requests.get(request)
        stop = one.scheduled - len(slots) + max_new_tokens
        one.blocks += self.take(min(-(-stop // self.block_size) - len(one.blocks), len(self.waiting)))
        return slots


@shows(26)
class DecodedAllAtOnce(PrefixLists):
    """Decoded tokens are all scheduled, whatever the limit."""

    def extend(self, request: int, tokens: Sequence[int], max_new_tokens: int) -> list[int]:
        """Ignore the limit."""
        return super().extend(request, tokens, max(max_new_tokens, len(tokens)))


@shows(27)
class PartsOfAnySize(PrefixLists):
    """A request is held against the pool by what it schedules first."""

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Look at the first chunk."""
        own, self.num_blocks = self.num_blocks, self.num_blocks * (100 if max_new_tokens == 1 else 1)
        try:
            return super().admit(request, tokens, max_new_tokens, **given)
        finally:
            self.num_blocks = own


@shows(15)
class BlocksKeepTheirNamesThroughAReset(PrefixLists):
    """A block remembers its name when all names are forgotten, and takes it along when it is evicted."""

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        self.names: dict[int, Name] = {}

    def store(self, name: Name, block: int) -> None:
        """Note the name of a block."""
        super().store(name, block)
        self.names[block] = name

    def forget(self, block: int) -> None:
        """Forget the name that was noted, whoever has it by now."""
        name = self.names.pop(block, None)
        self.known = [(known, own) for known, own in self.known if known != name]


@pytest.mark.parametrize(("requirement", "fault", "choices"), FAULTS, ids=lambda each: str(each)[:40])
def test_fault_fails_its_requirement(requirement: str, fault: Any, choices: dict[str, str]) -> None:
    """A check names it, and what the fault is made of passes."""
    assert failing(requirement, fault, choices)
    assert failing(requirement, base_of(fault), {}) == 0


class HoldersOfAByte(PrefixLists):
    """Holders are counted in a byte."""

    def hold(self, blocks: list[int]) -> None:
        """Wrap."""
        super().hold(blocks)
        for block in blocks:
            self.holders[block] %= 256


class BlocksOfAByte(PrefixLists):
    """Blocks have numbers of a byte."""

    def slot(self, one: Request, at: int) -> int:
        """Wrap."""
        return super().slot(one, at) % (256 * self.block_size)


@pytest.mark.parametrize("fault", [HoldersOfAByte, BlocksOfAByte])
def test_crowds_are_asked_at_length(fault: Any) -> None:
    """More requests, and more blocks, than a byte counts come up at the full level."""
    assert failing("KV-PREFIX-016", fault, {}, "full")
    assert failing("KV-PREFIX-016", PrefixLists, {}, "full") == 0
