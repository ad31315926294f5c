"""A mirror of a prefix cache, kept from its events alone, as a router in front of an engine keeps one.

Events come as a JSON list. An event is an object with a `type`, as vLLM publishes them:

    BlockStored         block_hashes, parent_block_hash, token_ids, block_size
    BlockRemoved        block_hashes
    AllBlocksCleared

Other fields may stand beside these: adapter, medium, group.
A hash is an integer or a text. An event may also be a list: the type, then the values in this order.

Under the choice `event-copies: each_copy` a hash is told once for each block that holds it, and is there
until it was removed as often.
"""

import json
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.ledger import Ledger
from kvref_conformance.programs.prompts import Prompt
from kvref_conformance.programs.running import Session, attempt

#: Events a list may spell without names -> the names of its values.
FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}
Meaning = tuple[Hashable, tuple[int, ...]]


class _MalformedError(ValueError):
    """Events that say nothing."""


@dataclass
class Mirror:
    """What the events so far say is cached."""

    ledger: Ledger
    log: Log
    offered: bool
    """Whether events are claimed, and have made sense so far."""
    each_copy: bool = False
    """Whether events tell of each copy of a block, and not of the hash once."""
    stored: dict[Hashable, Meaning] = field(default_factory=dict)
    """Hash -> the hash before it, and the tokens of the block."""
    meanings: dict[Hashable, Meaning] = field(default_factory=dict)
    """The same of every hash that ever was."""
    copies: Counter[Hashable] = field(default_factory=Counter)
    """How often a hash that is stored was told again, where each copy is told."""
    cleared: set[Hashable] = field(default_factory=set)
    owed: int = 0
    """How many copies of one prefix requests computed at most, and kept."""
    told: bool = False
    """Whether any copy was told."""
    piled: int = 0
    """Steps whose events are still to be left."""
    _plain: bool = True
    _run: int | None = None

    def predict(self, prompt: Prompt) -> None:
        """Remember what the events say a request hits; nothing once namespaces have come up."""
        self._plain &= prompt.given.is_plain
        self._run = None
        if not self.offered or not self._plain or self.piled:
            return
        following = {meaning: own for own, meaning in self.stored.items()}
        size, at, parent = self.ledger.block_size, 0, None
        while (own := following.get((parent, tuple(prompt.tokens[at : at + size])))) is not None:
            at, parent = at + size, own
        self._run = min(at, self.ledger.most(len(prompt.tokens)))

    def compare(self, said: str, hit: int) -> None:
        """Hold a hit to what was predicted; beyond whole blocks events say nothing."""
        if not self.offered or self._run is None:
            return
        size = self.ledger.block_size
        whole = hit if self._run % size else hit - hit % size
        if whole != self._run:
            self.log.breach(f"{said}, by the events {self._run}", "KV-PREFIX-046")

    def take(self, session: Session) -> None:
        """Take the events since the last time, and judge each."""
        if not self.offered or self.piled:
            return
        try:
            answer = attempt(session, "take_events")
        except Failed as failed:
            if failed.kind != "unsupported":
                raise
            self.offered = False
            return
        try:
            if isinstance(answer, Failed):
                raise _MalformedError(str(answer))
            for event in _events(answer["events"]):
                self._apply(event)
        except _MalformedError as error:
            self.log.breach(f"take_events(): {error}", "KV-PREFIX-046")
            self.offered = False

    def pile(self, steps: int) -> bool:
        """Leave the events of some steps; say whether there is anything to leave."""
        if not self.offered or self.piled or steps < 1:
            return False
        self.piled = steps
        return True

    def step(self, session: Session) -> None:
        """Note that a step was performed, and take the events that were left for it."""
        if self.piled:
            self.piled -= 1
            self.take(session)

    def expect_empty(self) -> None:
        """Hold the mirror to hold nothing: the cache was reset."""
        if self.piled:
            return
        if self.offered and self.stored:
            said = f"{len(self.stored)} blocks are stored by the events after a reset"
            self.log.breach(said, "KV-PREFIX-045")
        self._clear()

    def judge_copies(self) -> None:
        """Hold events that are declared to tell of each copy to have told of one."""
        if self.offered and self.each_copy and self.owed > 1 and not self.told:
            said = f"{self.owed} blocks held one prefix, and no key was stored a second time"
            self.log.breach(f"{said}: each_copy is declared", "KV-PREFIX-041")

    def _apply(self, event: Mapping[str, Any]) -> None:
        if event["type"] == "AllBlocksCleared":
            self._clear()
        elif event["type"] == "BlockRemoved":
            for own in event["block_hashes"]:
                self._remove(own)
        else:
            self._store(event)

    def _clear(self) -> None:
        self.cleared |= self.stored.keys()
        self.stored.clear()
        self.copies.clear()

    def _remove(self, own: Hashable) -> None:
        if self.copies[own]:
            self.copies[own] -= 1
        elif self.stored.pop(own, None) is None:
            requirement = "KV-PREFIX-045" if own in self.cleared else "KV-PREFIX-042"
            self.log.breach(f"BlockRemoved names {own}, which is not stored", requirement)

    def _store(self, event: Mapping[str, Any]) -> None:
        hashes, parent, tokens = event["block_hashes"], event["parent_block_hash"], event["token_ids"]
        size = self.ledger.block_size
        if event["block_size"] != size or len(tokens) != size * len(hashes):
            found = f"{len(tokens)} tokens in {len(hashes)} blocks of {event['block_size']}"
            self.log.breach(f"BlockStored has {found}, blocks are of {size}", "KV-PREFIX-043")
        if parent is not None and parent not in self.stored:
            requirement = "KV-PREFIX-045" if parent in self.cleared else "KV-PREFIX-040"
            self.log.breach(f"BlockStored follows {parent}, which is not stored", requirement)
        for at, own in enumerate(hashes):
            if own in self.stored and self.each_copy:
                self.copies[own] += 1
                self.told = True
            elif own in self.stored:
                self.log.breach(f"BlockStored names {own}, which is stored already", "KV-PREFIX-041")
            meaning = (parent, tuple(tokens[at * size : at * size + size]))
            if self.meanings.setdefault(own, meaning) != meaning:
                self.log.breach(f"BlockStored gives {own} another meaning than before", "KV-PREFIX-044")
            self.stored[own] = meaning
            self.cleared.discard(own)
            parent = own


def _events(text: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(text)
    except ValueError:
        raise _MalformedError(f"{text!r:.80} is no JSON") from None
    if not isinstance(found, list):
        raise _MalformedError(f"{text!r:.80} is no list of events")
    return [_event(each) for each in found]


def _event(raw: Any) -> Mapping[str, Any]:
    if isinstance(raw, list) and raw and raw[0] in FIELDS:
        raw = {"type": raw[0], **dict(zip(FIELDS[raw[0]], raw[1:], strict=False))}
    kind = raw.get("type") if isinstance(raw, dict) else None
    if kind not in FIELDS or not set(FIELDS[kind]) <= set(raw):
        raise _MalformedError(f"{raw!r:.80} is no event")
    event = dict(raw)
    for name in FIELDS[kind]:
        value = event[name]
        if name in ("block_hashes", "token_ids"):
            fine = isinstance(value, list) and all(isinstance(x, int | str) for x in value)
        else:
            fine = value is None or isinstance(value, int | str)
        if not fine:
            raise _MalformedError(f"{kind} has {name} = {value!r:.60}")
    return event
