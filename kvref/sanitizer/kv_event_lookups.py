"""Lookups: what a cache answered, held against what its events say it holds.

A cache hits whole blocks and leaves at least the last token to compute, so an answer is compared in blocks,
up to the last block that ends before the last token. A group of layers that keeps only some blocks of a
prefix can shorten a hit and never lengthen it: where there is one, an answer may be too long, not too short.

Realises: KV-PREFIX-046 mirror-equals.
For porters: drain the events before you ask, or the answer is newer than the mirror.
Source: vLLM, KVCacheManager.get_computed_blocks and take_events.
"""

from math import lcm

from kvref.sanitizer.findings import Fact
from kvref.sanitizer.kv_event_fields import Key, spelled
from kvref.sanitizer.kv_event_kinds import Lookup, Place, Source, Where
from kvref.sanitizer.kv_event_meanings import Point
from kvref.sanitizer.kv_event_rules import Rules, told_gone
from kvref.sanitizer.mirror import Run


def look_up(rules: Rules, point: Point, source: Source, asked: Lookup) -> None:
    """Judge an answer of a cache.

    Raises: EnoughFound.
    """
    source = _meant(rules, source)
    if source in rules.uncertain:
        rules.pass_over("KV-PREFIX-046")
        return
    places = [
        place
        for place in rules.mirror.places_of(source)
        if place.where.medium == asked.medium and asked.group in (None, place.where.group)
    ]
    whole = [place for place in places if place not in rules.sparse]
    if places and not whole:
        rules.pass_over("KV-PREFIX-046")
        return
    runs = [(rules.mirror.run(place, asked), place) for place in whole]
    expected, answer = _compared(rules, asked, runs)
    if answer == expected:
        return
    if answer < expected and len(whole) < len(places):
        rules.pass_over("KV-PREFIX-046")
        return
    what = "tokens" if asked.tokens is not None else "blocks"
    message = f"the cache answers {asked.answer} of {_many(asked)} {what}, by the events {expected}"
    place = Place(source, Where(asked.medium, asked.group or 0))
    facts: list[Fact | None] = []
    if runs:
        run, place = min(runs, key=lambda pair: pair[0].tokens or len(pair[0].keys))
        at = asked.answer // (rules.mirror.size_of(place) or 1) if asked.tokens is not None else asked.answer
        key = run.keys[at] if at < len(run.keys) else run.missing
        if expected < run.tokens <= asked.answer:
            message += f"; {run.tokens} are there, and the last token has to be computed"
        why, facts = _why(rules, place, key)
        message += why
    rules.breach("KV-PREFIX-046", point, place, message, facts)


def _compared(rules: Rules, asked: Lookup, runs: list[tuple[Run, Place]]) -> tuple[int, int]:
    """Return what the answer should be and what it is, both in whole blocks."""
    if asked.tokens is None:
        found = min((len(run.keys) for run, _ in runs), default=0)
        return found if asked.limit is None else min(found, asked.limit), asked.answer
    unit = lcm(*(rules.mirror.size_of(place) or 1 for _, place in runs))
    found = min((run.tokens for run, _ in runs), default=0)
    most = len(asked.tokens) // asked.width - 1 if asked.limit is None else asked.limit
    return max(0, min(found, most)) // unit * unit, asked.answer // unit * unit


def _meant(rules: Rules, source: Source) -> Source:
    """Return whom a lookup without a rank concerns: the only rank of its worker, if there is one."""
    if source.rank is not None or rules.mirror.places_of(source):
        return source
    sources = {place.source for place in rules.mirror.places if place.source.worker == source.worker}
    return sources.pop() if len(sources) == 1 else source


def _many(asked: Lookup) -> int:
    if asked.tokens is not None:
        return len(asked.tokens) // asked.width
    return len(asked.keys or asked.hashes or ())


def _why(rules: Rules, place: Place, key: Key | None) -> tuple[str, list[Fact | None]]:
    """Say what became of the block in which the two differ."""
    if key is None:
        return "", []
    held, gone = rules.mirror.held(place, key), rules.mirror.gone(place, key)
    if held is not None:
        fact = (held.point.line, f"event {held.point.event}: key {spelled(key)} was stored")
        return f"; key {spelled(key)} is there", [fact]
    if gone is not None:
        how = "was removed" if gone.how == "removed" else "went when everything was cleared"
        return f"; key {spelled(key)} {how}", [told_gone(key, gone)]
    return "", []
