"""A mirror of caches, kept from their events alone, as a router in front of a fleet keeps one.

For every place (a rank of a worker, a medium, a group of layers) it knows which keys are held, and of every
key what it stands for: the key before it, and the contents of its block. So it can be asked by keys, as an
index is, and by tokens, as the cache itself is.

    mirror = Mirror(each_copy=True)
    for message in read_messages(stream, Reading("events.jsonl")):
        for _, event in message.read():
            mirror.apply(message.source, event)
    mirror.match_tokens(prompt)

Memory is bounded by the keys that are held. Of keys that are gone some are remembered.

Realises: KV-PREFIX-046 mirror-equals, KV-PREFIX-050 index-longest, KV-PREFIX-051 index-cut, KV-PREFIX-052
index-counts-once (where not told to count copies), KV-PREFIX-053 index-workers-apart.
For porters: where events tell of each copy, count; with a set, the first copy that goes takes the key along.
Source: Dynamo's RadixTree; the events of vLLM.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvref.errors import HistoryError
from kvref.sanitizer.kv_event_content import Content, asked_of, contents_of, written
from kvref.sanitizer.kv_event_fields import Extra, Key, Name
from kvref.sanitizer.kv_event_kinds import (
    Cleared,
    Event,
    Lookup,
    Place,
    Removed,
    Source,
    Stored,
    Where,
)
from kvref.sanitizer.kv_event_meanings import Identity, Meaning, Meanings, Point

#: Most block sizes of one place that are tried in turn.
_SIZES = 8
_NOWHERE = Point(0, 0)
_DEVICE = Where()


@dataclass(frozen=True)
class Limits:
    """The most that a mirror holds, so that a stream cannot fill the memory."""

    keys: int = 1 << 22
    places: int = 1 << 12
    past: int = 1 << 16
    """Keys that are gone and still remembered."""


@dataclass(slots=True)
class Held:
    """A key that a place holds."""

    copies: int
    point: Point
    """Where it was stored."""


class Gone(NamedTuple):
    """How a place lost a key."""

    how: str
    point: Point


class Run(NamedTuple):
    """The longest run that a place holds from the first block of a prefix on."""

    tokens: int
    keys: list[Key]
    missing: Key | None
    """The key behind its end, if one is known."""


class Mirror:
    """What caches hold, by their events; `each_copy` says that events tell of each copy of a block."""

    def __init__(self, *, each_copy: bool = False, limits: Limits | None = None) -> None:
        self.each_copy = each_copy
        self.limits = limits or Limits()
        self.meanings = Meanings(self.limits.past)
        self.places: dict[Place, dict[Key, Held]] = {}
        self.num_held = 0
        self._of: dict[Source, list[Place]] = {}
        self._sizes: dict[Place, list[int]] = {}
        self._gone: OrderedDict[tuple[Place, Key], Gone] = OrderedDict()

    def apply(self, source: Source, event: Event, point: Point = _NOWHERE) -> None:
        """Let an event happen; a lookup changes nothing.

        Raises: HistoryError if the limits are reached.
        """
        if isinstance(event, Stored):
            place, parent = Place(source, event.where), event.parent
            for key, content in zip(event.keys, contents_of(event), strict=True):
                self.store(place, key, parent, content, point)
                parent = key
        elif isinstance(event, Removed):
            for key in event.keys:
                self.remove(Place(source, event.where), key, point)
        elif isinstance(event, Cleared):
            self.clear(source, point)

    def store(
        self, place: Place, key: Key, parent: Key | None, content: Content | None, point: Point
    ) -> Meaning:
        """Let a place hold a key, or one more copy of it, and return what the key stands for.

        Raises: HistoryError if the limits are reached.
        """
        shelf = self.places.get(place)
        if shelf is None:
            shelf = self._open(place)
        identity = Identity(place.source.worker, place.where.group, key)
        meaning = self.meanings.learn(identity, parent, content, point)
        held = shelf.get(key)
        if held is not None:
            held.copies += self.each_copy
            return meaning
        if self.num_held >= self.limits.keys:
            raise HistoryError(f"more than {self.limits.keys} keys are held, expected at most that")
        shelf[key] = Held(1, point)
        self.num_held += 1
        self.meanings.hold(identity)
        self._gone.pop((place, key), None)
        sizes = self._sizes[place]
        if content is not None and content.size not in sizes and len(sizes) < _SIZES:
            sizes.append(content.size)
            sizes.sort(reverse=True)
        return meaning

    def remove(self, place: Place, key: Key, point: Point) -> bool:
        """Let a place lose a copy of a key, and return whether it held one."""
        held = self.held(place, key)
        if held is None:
            return False
        held.copies -= 1
        if not held.copies:
            del self.places[place][key]
            self._lose(place, key, Gone("removed", point))
        return True

    def clear(self, source: Source, point: Point) -> None:
        """Let a source hold nothing, in all of its places."""
        for place in self._of.get(source, ()):
            for key in self.places[place]:
                self._lose(place, key, Gone("cleared", point))
            self.places[place] = {}

    def held(self, place: Place, key: Key) -> Held | None:
        """Return what a place holds under a key."""
        shelf = self.places.get(place)
        return None if shelf is None else shelf.get(key)

    def gone(self, place: Place, key: Key) -> Gone | None:
        """Return how a place lost a key, if it is remembered."""
        return self._gone.get((place, key))

    @property
    def forgets(self) -> bool:
        """Whether some keys that are gone are remembered no longer."""
        return len(self._gone) >= self.limits.past

    def places_of(self, source: Source) -> list[Place]:
        """List the places of a source."""
        return self._of.get(source, [])

    def size_of(self, place: Place) -> int:
        """Return the block size of a place, the largest if there are several; 0 if none was told."""
        return (self._sizes.get(place) or [0])[0]

    def match(self, keys: Iterable[Key], where: Where = _DEVICE) -> dict[Source, int]:
        """Return for each source how many keys it holds from the first on; sources without are left out."""
        asked = Lookup(where.medium, where.group, 0, keys=list(keys))
        runs = {
            place.source: len(self.run(place, asked).keys) for place in self.places if place.where == where
        }
        return {source: blocks for source, blocks in runs.items() if blocks}

    def match_tokens(
        self,
        tokens: Sequence[int],
        *,
        adapter: Name | None = None,
        salt: str | None = None,
        extras: list[Extra | None] | None = None,
        where: Where = _DEVICE,
    ) -> dict[Source, int]:
        """Return for each source how many tokens it holds from the first on; sources without are left out."""
        asked = Lookup(where.medium, where.group, 0, list(tokens), adapter=adapter, salt=salt, extras=extras)
        runs = {place.source: self.run(place, asked).tokens for place in self.places if place.where == where}
        return {source: count for source, count in runs.items() if count}

    def run(self, place: Place, asked: Lookup) -> Run:
        """Return the longest run of what is asked for that a place holds."""
        shelf = self.places.get(place, {})
        if asked.keys is not None:
            count = next((at for at, key in enumerate(asked.keys) if key not in shelf), len(asked.keys))
            return Run(0, asked.keys[:count], asked.keys[count] if count < len(asked.keys) else None)
        raw = written(asked.tokens or ())
        tokens, keys = 0, list[Key]()
        while True:
            found = self._following(place, keys, asked, raw, tokens)
            held = [(key, size) for key, size in found if key in shelf]
            if not held:
                return Run(tokens, keys, found[0][0] if found else None)
            keys.append(held[0][0])
            tokens += held[0][1]

    def _following(
        self, place: Place, keys: list[Key], asked: Lookup, raw: bytes, tokens: int
    ) -> list[tuple[Key, int]]:
        """List the keys that stand for the block behind some keys, with its size, the largest first."""
        contents: list[Content | None]
        if asked.hashes is not None:
            at = len(keys)
            contents = [Content(0, own, asked.adapter, None) for own in asked.hashes[at : at + 1]]
        else:
            contents = [asked_of(asked, raw, tokens, size) for size in self._sizes.get(place, ()) if size]
        worker, group, parent = place.source.worker, place.where.group, keys[-1] if keys else None
        names = [
            (self.meanings.name(worker, group, parent, content), content.size)
            for content in contents
            if content is not None
        ]
        return [(key, size) for key, size in names if key is not None]

    def _open(self, place: Place) -> dict[Key, Held]:
        if len(self.places) >= self.limits.places:
            raise HistoryError(
                f"more than {self.limits.places} workers, ranks, media and groups, expected at most that"
            )
        self.places[place], self._sizes[place] = {}, []
        self._of.setdefault(place.source, []).append(place)
        return self.places[place]

    def _lose(self, place: Place, key: Key, gone: Gone) -> None:
        self.num_held -= 1
        identity = Identity(place.source.worker, place.where.group, key)
        self.meanings.release(identity, cleared=gone.how == "cleared")
        self._gone[place, key] = gone
        if len(self._gone) > self.limits.past:
            self._gone.popitem(last=False)
