"""Tests of the checks of namespaces, events, keys and indexes: faults of a method or two each."""

from collections.abc import Sequence
from typing import Any

import pytest
from faults_of_prefixes import Faults, base_of, failing, noting

from kvref_conformance.subjects.lists.index import IndexLists
from kvref_conformance.subjects.lists.keys import KeyLists
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.requests import Request

FAULTS: Faults = []
shows = noting(FAULTS)


@shows(7)
class EightAdapters(PrefixLists):
    """Adapters are known by one of eight places, which are used again."""

    def name(self, content: Content, stop: int) -> Name:
        """Name the place."""
        texts, items = super().name(content, stop)
        places = self.__dict__.setdefault("places", {})
        place = str(places.setdefault(texts[0], len(places)) % 8) if texts[0] else ""
        return (place, *texts[1:]), items


@shows(9)
class TextsCut(PrefixLists):
    """Texts have sixteen characters at most."""

    def name(self, content: Content, stop: int) -> Name:
        """Cut."""
        texts, items = super().name(content, stop)
        return tuple(text[:16] for text in texts), items


@shows(9)
class TextsInOneCase(PrefixLists):
    """Texts are the same in capital letters."""

    def name(self, content: Content, stop: int) -> Name:
        """Fold."""
        texts, items = super().name(content, stop)
        return tuple(text.lower() for text in texts), items


@shows(14)
class LaterChunksWithoutTexts(PrefixLists):
    """What a second chunk and outputs fill is stored in no namespace."""

    def publish(self, one: Request, stop: int) -> None:
        """Drop texts behind the first chunk."""
        first = self.__dict__.setdefault("first", {}).setdefault(id(one), stop)
        for at in range(stop // self.block_size):
            end = (at + 1) * self.block_size
            texts, items = self.name(one.content, end)
            self.store((texts if end <= first else ("", "", ""), items), one.blocks[at])


@shows(10)
class MediaOfOneBlock(PrefixLists):
    """A key has all tokens, and the media of its own block alone."""

    def key(self, name: Name) -> Any:
        """Drop earlier media."""
        own = len(name[1]) - self.block_size
        return name[0], tuple(item[:1] for item in name[1][:own]), name[1][own:]


@shows(9)
class SaltOrAdapter(PrefixLists):
    """A salt counts where there is no adapter."""

    def key(self, name: Name) -> Any:
        """Drop it."""
        adapter, version, salt = name[0]
        return (adapter, version, "" if adapter else salt), name[1]


@shows(12)
class MediaOrEmbeddings(PrefixLists):
    """Embeddings count where there are no media."""

    def key(self, name: Name) -> Any:
        """Drop them."""
        media = any(item[1:2] == ("media",) for item in name[1])
        return name[0], tuple(
            item if item[1:2] != ("embeddings",) or not media else item[:1] for item in name[1]
        )


@shows(24)
class EvictedInEveryNamespace(PrefixLists):
    """A block that goes is forgotten under its tokens, in every namespace."""

    def forget(self, block: int) -> None:
        """Forget tokens."""
        gone = [[item[0] for item in name[1]] for name, known in self.known if known == block]
        super().forget(block)
        self.known = [entry for entry in self.known if [item[0] for item in entry[0][1]] not in gone]


@shows(11)
class ZeroIsNoToken(PrefixLists):
    """Token 0 is padding."""

    def key(self, name: Name) -> Any:
        """Drop it."""
        return name[0], tuple(item for item in name[1] if item[0] or len(item) > 1)


@shows(12)
class OneKindOfRow(PrefixLists):
    """A digest is a digest, of a medium or of embeddings."""

    def key(self, name: Name) -> Any:
        """Drop the kind."""
        return name[0], tuple((*item[:1], *item[2:]) for item in name[1])


@shows(34)
class CollisionsByTokens(PrefixLists):
    """Where keys collide, tokens are compared, and not namespaces."""

    def key(self, name: Name) -> Any:
        """Compare tokens."""
        return tuple(item[0] for item in name[1]) if self.hash_bits else name


@shows(41)
class HashesWithoutTexts(PrefixLists):
    """Events name a block by its tokens alone."""

    def __init__(self, num_blocks: int, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(num_blocks, block_size, hash_bits)
        chained = self.events.hash_of
        self.events.hash_of = lambda name: chained(((), name[1]))  # type: ignore[method-assign]


@shows(42)
class RemovalsFirst(PrefixLists):
    """What was removed since the last time is told before what was stored."""

    def take_events(self) -> str:
        """Sort."""
        self.events.waiting.sort(key=lambda event: event["type"] == "BlockStored")
        return super().take_events()


@shows(46)
class FewEventsKept(PrefixLists):
    """The last sixteen events are kept until they are taken."""

    def take_events(self) -> str:
        """Drop the others."""
        del self.events.waiting[:-16]
        return super().take_events()


@shows(46)
class RefusedResetTold(PrefixLists):
    """A reset is told, and then refused."""

    def reset(self) -> None:
        """Tell first."""
        self.events.cleared()
        super().reset()


@shows(46)
class OldestCopyTold(PrefixLists):
    """A removal is told when the oldest copy goes, and others are there."""

    def forget(self, block: int) -> None:
        """Tell of the first."""
        for name in [name for name, known in self.known if known == block]:
            oldest = self.look_up(name) == block
            self.known.remove((name, block))
            if oldest:
                self.events.removed(name)


@shows(30)
class GivenBefore(KeyLists):
    """What is not given is what was given before."""

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Remember texts."""
        texts = self.__dict__.setdefault("texts", {})
        texts.update({name: value for name, value in given.items() if isinstance(value, str)})
        return super().keys(tokens, **{**given, **texts})


@shows(30, tail_block="keyed")
class TailsPadded(KeyLists):
    """The tail of a prompt is filled up with placeholders."""

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Fill up."""
        return super().keys([*tokens, *[0] * (-len(tokens) % self.block_size)], **given)


@shows(32)
class FewKeys(KeyLists):
    """A prompt has 255 keys at most."""

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Cut."""
        return super().keys(tokens, **given)[:255]


@shows(50)
class ShortPaths(IndexLists):
    """A path is followed for 64 blocks."""

    def match(self, keys: Sequence[str]) -> tuple[list[int], list[int]]:
        """Cut."""
        return super().match(keys[:64])


@shows(51)
class FirstOfManyRemoved(IndexLists):
    """Of keys that are removed together the first goes."""

    def remove(self, worker: int, keys: Sequence[str]) -> None:
        """Remove one."""
        super().remove(worker, keys[:1])


@shows(53)
class WorkersAsBits(IndexLists):
    """Workers are bits of a word."""

    def store(self, worker: int, parent: str, keys: Sequence[str]) -> None:
        """Wrap."""
        super().store(worker % 64, parent, keys)


@pytest.mark.parametrize(("requirement", "fault", "choices"), FAULTS, ids=lambda each: str(each)[:40])
def test_fault_fails_its_requirement(requirement: str, fault: Any, choices: dict[str, str]) -> None:
    """A check names it, and what the fault is made of passes."""
    assert failing(requirement, fault, choices)
    assert failing(requirement, base_of(fault), {}) == 0
