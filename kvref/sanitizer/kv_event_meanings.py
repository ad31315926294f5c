"""What keys stand for: the key before it and the contents of its block, and which key stands for these.

What is held somewhere is known for as long. What is not is remembered as far as there is room, the last to go
the longest, so that a key which comes back with another meaning is noticed.

Realises: KV-PREFIX-030 keys-chained, KV-PREFIX-044 event-one-meaning.
For porters: one dictionary each way; bound what is dead, or the process grows for as long as it runs.
Source: the definition of a key.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import NamedTuple

from kvref.sanitizer.kv_event_content import Content
from kvref.sanitizer.kv_event_fields import Key, Name


class Point(NamedTuple):
    """A place in a stream: the line, and the event in it, both from 1."""

    line: int
    event: int


class Identity(NamedTuple):
    """A key of a worker's group of layers: the unit that has one meaning."""

    worker: Name
    group: int
    key: Key


@dataclass(slots=True)
class Meaning:
    """What a key stands for, as far as it was told."""

    parent: Key | None
    content: Content | None
    """None if its tokens were not told."""
    point: Point
    """Where it was told."""
    holders: int = 0
    """Places that hold it."""
    cleared: bool = False
    """Whether it went when everything was cleared."""
    full: bytes | None = None
    """The hash of its tokens by the scheme, once it was held to one; empty if the key is another."""

    def differs(self, parent: Key | None, content: Content | None) -> bool:
        """Return whether it is another prefix; blocks of different sizes may end one prefix."""
        mine = self.content
        if mine is None or content is None or mine.size != content.size:
            return False
        return mine != content or self.parent != parent


class Meanings:
    """The meanings of all keys; `past` is how many of those held nowhere are remembered."""

    def __init__(self, past: int) -> None:
        self._past = past
        self._live: dict[Identity, Meaning] = {}
        self._dead: OrderedDict[Identity, Meaning] = OrderedDict()
        self._names: dict[tuple[Name, int, Key | None, Content], Key] = {}

    def get(self, identity: Identity) -> Meaning | None:
        """Return what a key stands for, or stood for when it was last held."""
        return self._live.get(identity) or self._dead.get(identity)

    def name(self, worker: Name, group: int, parent: Key | None, content: Content) -> Key | None:
        """Return the key that stands for some contents behind another key."""
        return self._names.get((worker, group, parent, content))

    def learn(self, identity: Identity, parent: Key | None, content: Content | None, point: Point) -> Meaning:
        """Note what a key stands for; it is remembered once `hold` was called."""
        known = self.get(identity)
        if known is None:
            known = self._live[identity] = Meaning(parent, content, point)
        elif content is not None and (known.content is None or known.differs(parent, content)):
            self._unname(identity, known)
            known.parent, known.content, known.point, known.full = parent, content, point, None
        else:
            return known
        if content is not None:
            self._names[(identity.worker, identity.group, parent, content)] = identity.key
        return known

    def hold(self, identity: Identity) -> None:
        """Let one more place hold a key, whose meaning was learned."""
        meaning = self._live.get(identity)
        if meaning is None:
            meaning = self._live[identity] = self._dead.pop(identity)
            meaning.cleared = False
        meaning.holders += 1

    def release(self, identity: Identity, *, cleared: bool) -> None:
        """Let one place hold a key no longer."""
        meaning = self._live[identity]
        meaning.holders -= 1
        if meaning.holders:
            return
        meaning.cleared = cleared
        del self._live[identity]
        self._dead[identity] = meaning
        while len(self._dead) > self._past:
            self._unname(*self._dead.popitem(last=False))

    def _unname(self, identity: Identity, meaning: Meaning) -> None:
        if meaning.content is None:
            return
        name = (identity.worker, identity.group, meaning.parent, meaning.content)
        if self._names.get(name) == identity.key:
            del self._names[name]
