"""The rules of KV-cache events: each event is held against what the events before it said.

A mirror is kept as they come, right or wrong, and a breach is told where it shows first, with the lines that
it contradicts. Behind a hole in the numbers of a source nothing is said of what it holds, until it tells
that everything was cleared; what an event says of itself is judged all the same.

Realises: KV-PREFIX-030 keys-chained, KV-PREFIX-033 key-scheme, KV-PREFIX-040 event-parent-present,
KV-PREFIX-041 event-stored-once, KV-PREFIX-042 event-removed-was-stored, KV-PREFIX-043 event-span-fits,
KV-PREFIX-044 event-one-meaning, KV-PREFIX-045 event-after-clear.
For porters: judge first, then let it happen; every rule is one question to the mirror.
Source: the chapter on memory, events and indexes.
"""

from collections.abc import Iterable

from kvref.sanitizer.findings import Fact, in_order
from kvref.sanitizer.kv_event_content import Content, contents_of
from kvref.sanitizer.kv_event_fields import Key, spelled
from kvref.sanitizer.kv_event_findings import EventFinding, KVEventReport
from kvref.sanitizer.kv_event_kinds import DEVICE, Cleared, Event, Place, Removed, Source, Stored
from kvref.sanitizer.kv_event_meanings import Identity, Meaning, Point
from kvref.sanitizer.kv_event_scheme import VllmScheme, is_of
from kvref.sanitizer.mirror import Gone, Mirror
from kvref.sanitizer.state import EnoughFound


class Rules:
    """Judges events and lets them happen."""

    def __init__(
        self, mirror: Mirror, report: KVEventReport, *, scheme: VllmScheme | None, max_findings: int
    ) -> None:
        self.mirror, self.report, self.scheme = mirror, report, scheme
        self.max_findings = max_findings
        self.sparse: set[Place] = set()
        """Places that keep only some blocks of a prefix."""
        self.uncertain: dict[Source, Fact] = {}
        """Sources that have lost batches, and where."""

    def happen(self, point: Point, source: Source, event: Event) -> None:
        """Judge an event other than a lookup, and let it happen.

        Raises: HistoryError if the mirror is full; EnoughFound.
        """
        if isinstance(event, Stored):
            self._stored(point, source, event)
        elif isinstance(event, Removed):
            self._removed(point, Place(source, event.where), event)
        elif isinstance(event, Cleared):
            self.mirror.clear(source, point)
            self.uncertain.pop(source, None)

    def breach(
        self,
        requirement: str,
        point: Point,
        place: Place,
        message: str,
        facts: Iterable[Fact | None] = (),
    ) -> None:
        """Note a breach.

        Raises: EnoughFound.
        """
        told, unit = f"{whose(place)}{message}", self.report.unit
        found = EventFinding(requirement, point.line, told, in_order(facts), point.event, unit)
        self.report.findings.append(found)
        if len(self.report.findings) >= self.max_findings:
            raise EnoughFound

    def pass_over(self, requirement: str, count: int = 1) -> None:
        """Count what could not be judged."""
        self.report.unjudged[requirement] = self.report.unjudged.get(requirement, 0) + count

    def _stored(self, point: Point, source: Source, event: Stored) -> None:
        place = Place(source, event.where)
        if event.sparse:
            self.sparse.add(place)
        self._span(point, place, event)
        if event.parent is not None and event.keys and not event.opaque:
            self._parent(point, place, event)
        parent = event.parent
        for at, (key, content) in enumerate(zip(event.keys, contents_of(event), strict=True)):
            self._once(point, place, key)
            if content is not None:
                self._meaning(point, place, key, parent, content)
            meaning = self.mirror.store(place, key, parent, content, point)
            if self.scheme is not None and content is not None and not event.sparse:
                self._scheme(point, place, event, at, meaning)
            parent = key

    def _removed(self, point: Point, place: Place, event: Removed) -> None:
        for key in event.keys:
            if self.mirror.remove(place, key, point):
                continue
            if place.source in self.uncertain:
                self.pass_over("KV-PREFIX-042")
                continue
            requirement, why, facts = self._why_missing(place, key, "KV-PREFIX-042")
            self.breach(requirement, point, place, f"key {spelled(key)} is removed, {why}", facts)

    def _span(self, point: Point, place: Place, event: Stored) -> None:
        count = len(event.keys)
        if not event.fits and event.hashes is None:
            found = f"{len(event.tokens) // event.width} tokens"
            message = f"{count} blocks of {event.size} tokens are stored with {found}"
            self.breach("KV-PREFIX-043", point, place, f"{message}, expected {count * event.size}")
        if event.extras is not None and len(event.extras) != count:
            message = f"{count} blocks are stored with extra keys of {len(event.extras)}"
            self.breach("KV-PREFIX-043", point, place, message)

    def _parent(self, point: Point, place: Place, event: Stored) -> None:
        """Hold the parent to be there; a slower tier may lean on what the device holds."""
        parent = event.parent
        assert parent is not None
        if parent in event.keys:
            message = f"key {spelled(event.keys[0])} is stored behind {spelled(parent)}"
            self.breach("KV-PREFIX-040", point, place, f"{message}, which is stored by the same event")
            return
        if self.mirror.held(place, parent) is not None or event.sparse:
            return
        others = self._elsewhere(place, parent)
        if place.where.medium != DEVICE and any(o.where.group == place.where.group for o in others):
            return
        if place.source in self.uncertain:
            self.pass_over("KV-PREFIX-040")
            return
        requirement, why, facts = self._why_missing(place, parent, "KV-PREFIX-040")
        message = f"key {spelled(event.keys[0])} is stored behind {spelled(parent)}, {why}"
        self.breach(requirement, point, place, message, facts)

    def _once(self, point: Point, place: Place, key: Key) -> None:
        held = None if self.mirror.each_copy else self.mirror.held(place, key)
        if held is None:
            return
        if place.source in self.uncertain:
            self.pass_over("KV-PREFIX-041")
            return
        facts = [(held.point.line, f"event {held.point.event}: key {spelled(key)} was stored")]
        message = f"key {spelled(key)} is stored, but it is there already"
        self.breach("KV-PREFIX-041", point, place, message, facts)

    def _meaning(self, point: Point, place: Place, key: Key, parent: Key | None, content: Content) -> None:
        """Hold a key to what it stood for before, and a prefix to the key it had."""
        worker, group, meanings = place.source.worker, place.where.group, self.mirror.meanings
        known = meanings.get(Identity(worker, group, key))
        if known is not None and known.differs(parent, content):
            message = f"key {spelled(key)} stands for another prefix: "
            told = _difference(known, parent, content)
            self.breach("KV-PREFIX-044", point, place, f"{message}{told}", [_told(key, known)])
            return
        other = meanings.name(worker, group, parent, content)
        if other is None or other == key:
            return
        before = meanings.get(Identity(worker, group, other))
        if before is not None and not before.cleared:
            message = (
                f"key {spelled(key)} stands for the prefix that key {spelled(other)} stands for: "
                f"the same tokens {_behind(parent)}"
            )
            self.breach("KV-PREFIX-030", point, place, message, [_told(other, before)])

    def _scheme(self, point: Point, place: Place, event: Stored, at: int, meaning: Meaning) -> None:
        """Hold a key to be the hash of its tokens behind its parent."""
        assert self.scheme is not None
        key, parent = event.keys[at], meaning.parent
        if meaning.full is not None:
            return
        before: bytes | None = self.scheme.first
        if isinstance(parent, bytes):
            before = parent
        elif parent is not None:
            known = self.mirror.meanings.get(Identity(place.source.worker, place.where.group, parent))
            before = (known.full or None) if known is not None else None
        hashes = None if before is None else self.scheme.hashes(event, at, before)
        if hashes is None:
            self.pass_over("KV-PREFIX-033")
            return
        meaning.full = next((full for full in hashes if is_of(key, full)), b"")
        if not meaning.full:
            message = (
                f"key {spelled(key)} is not the hash of its tokens {_behind(parent)}: "
                f"that is {hashes[0].hex()}"
            )
            self.breach("KV-PREFIX-033", point, place, message)

    def _why_missing(self, place: Place, key: Key, requirement: str) -> tuple[str, str, list[Fact | None]]:
        """Return the requirement that a missing key breaks, why it is missing, and where that was told."""
        gone = self.mirror.gone(place, key)
        if gone is None:
            never = "which is not stored" if self.mirror.forgets else "which was never stored"
            for other in self._elsewhere(place, key)[:1]:
                never += f" there, but on {other.where.medium} in group {other.where.group}"
            return requirement, never, []
        facts: list[Fact | None] = [told_gone(key, gone)]
        if gone.how == "cleared":
            return "KV-PREFIX-045", "which went when everything was cleared", facts
        return requirement, "which was removed before", facts

    def _elsewhere(self, place: Place, key: Key) -> list[Place]:
        """List the other places of a source that hold a key."""
        places = self.mirror.places_of(place.source)
        return [other for other in places if other != place and self.mirror.held(other, key) is not None]


def whose(place: Place) -> str:
    """Return whose place it is, for the front of a message, as far as it is not the only kind there is."""
    (medium, group), source = place.where, str(place.source)
    parts = [source, "" if medium == DEVICE else medium, f"group {group}" if group else ""]
    named = ", ".join(part for part in parts if part)
    return f"{named}: " if named else ""


def told_gone(key: Key, gone: Gone) -> Fact:
    """Return the fact that a key was removed, or went with everything."""
    what = f"key {spelled(key)} was removed" if gone.how == "removed" else "everything was cleared"
    return gone.point.line, f"event {gone.point.event}: {what}"


def _told(key: Key, meaning: Meaning) -> Fact:
    told = f"event {meaning.point.event}: key {spelled(key)} was stored {_behind(meaning.parent)}"
    return meaning.point.line, told


def _behind(parent: Key | None) -> str:
    return "at the start" if parent is None else f"behind {spelled(parent)}"


def _difference(known: Meaning, parent: Key | None, content: Content) -> str:
    was = known.content
    assert was is not None
    found = []
    if was.tokens != content.tokens:
        found.append("other tokens")
    if was.adapter != content.adapter:
        found.append(f"adapter {content.adapter!r} instead of {was.adapter!r}")
    if was.extra != content.extra:
        found.append("other extra keys")
    if known.parent != parent:
        found.append(f"{_behind(parent)} instead of {_behind(known.parent)}")
    return ", ".join(found)
