"""What is wrong with a slot that is read or hit, and which requirement says so.

Realises: KV-BLOCK-021 reads-own-tokens, KV-PREFIX-001 hit-own-prefix, KV-PREFIX-007 adapter-apart,
KV-PREFIX-008 adapter-version-apart, KV-PREFIX-009 salt-apart, KV-PREFIX-010 media-apart, KV-PREFIX-011
media-offset-apart, KV-PREFIX-012 embeddings-apart.
For porters: that a slot is wrong takes one comparison; whose it is and since when is what people need.
Source: the chapter on memory.
"""

from kvref.memory.labels import ROWS, Labels, without_namespace
from kvref.memory.namespace import Span, written
from kvref.sanitizer.requests import Request
from kvref.sanitizer.shadow import Block, Written
from kvref.sanitizer.state import State

#: Field of a namespace -> the requirement that keeps its values apart.
_APART = {
    "model": "KV-PREFIX-001",
    "adapter": "KV-PREFIX-007",
    "adapter_version": "KV-PREFIX-008",
    "salt": "KV-PREFIX-009",
}


def read_fault(
    state: State, line: int, request: Request, block: int, known: Block, lo: int, hi: int, base: int
) -> bool:
    """Report a stretch of slots that does not hold the reader's own positions; return whether it does not."""
    found = known.fault(lo, hi, base, request.labels)
    if found is None:
        return False
    slot, held = found
    position = base + slot
    message = f"request {request.name} reads position {position} in slot {slot} of block {block}, "
    facts = known.facts(block, "allocated", "freed", "written")
    if held is None:
        why, more = empty(known, slot)
        state.report("KV-BLOCK-021", line, message + why, [*facts, *known.facts(block, *more)])
    else:
        _, why = mismatch(request, held, slot, base)
        state.report("KV-BLOCK-021", line, message + why, [*facts, *request.facts()])
    return True


def empty(known: Block, slot: int) -> tuple[str, tuple[str, ...]]:
    """Say why a slot holds nothing of use, and which facts show it."""
    if known.arriving is not None:
        return f"which {known.arriving.title} has not delivered", ("arriving",)
    if known.emptied:
        return f"whose contents are lost ({known.emptied_how})", ("emptied",)
    stale = known.stale
    if stale is not None and stale.lo <= slot < stale.hi:
        return f"which still holds what request {stale.who} wrote there before", ("stale",)
    return "which was never written", ()


def mismatch(request: Request, held: Written, slot: int, base: int) -> tuple[str, str]:
    """Say how a slot's contents differ from a request's own: the requirement that a hit breaks, and words."""
    source, who = held.source, f"request {held.who}"
    if source is None:
        return "KV-PREFIX-001", f"which holds what {who} wrote before it let go of the block"
    if held.base != base:
        return "KV-PREFIX-001", f"which holds position {held.base + slot} of {who}"
    position = base + slot
    rule, other = _other_namespace(request.labels, source, position)
    if rule:
        return rule, f"which holds {other}, written by {who}"
    rule, other = _other_rows(request.labels, source, base + held.lo, position)
    if rule:
        return rule, f"which holds {other}, written by {who}"
    if held.who == request.name:
        return "KV-PREFIX-001", "which holds what the request itself wrote there for other tokens"
    return "KV-PREFIX-001", f"which holds a prefix of {who}"


def _other_namespace(labels: Labels, source: Labels, position: int) -> tuple[str, str]:
    """Return requirement and words if the same tokens were written under another model, adapter or salt."""
    ours, theirs = labels.namespace, source.namespace
    if written(ours) == written(theirs):
        return "", ""
    mine = without_namespace(labels.label(position), position, ours)
    if mine != without_namespace(source.label(position), position, theirs):
        return "", ""
    field = next(name for name in _APART if getattr(ours, name) != getattr(theirs, name))
    found, expected = getattr(theirs, field), getattr(ours, field)
    return _APART[field], f"the same tokens under {field} {found!r} instead of {expected!r}"


def _other_rows(labels: Labels, source: Labels, start: int, position: int) -> tuple[str, str]:
    """Return requirement and words if the tokens are the same where neither has rows, and the rows differ."""
    ours, theirs = labels.namespace.spans, source.namespace.spans
    mine = next((s for s in ours if s not in theirs and s.offset <= position), None)
    other = next((s for s in theirs if s not in ours and s.offset <= position), None)
    if mine is None and other is None:
        return "", ""
    for at in range(start, position + 1):
        a, b = labels.symbol(at), source.symbol(at)
        if a != b and a < ROWS and b < ROWS:
            return "", ""
    mine, other = _at(ours, position) or mine, _at(theirs, position) or other
    found = "a token" if other is None else f"a row of {other.kind} {other.digest!r}"
    expected = "a token" if mine is None else f"a row of {mine.kind} {mine.digest!r}"
    if "embeddings" in (mine and mine.kind, other and other.kind):
        rule = "KV-PREFIX-012"
    else:
        same = {s.digest for s in ours} == {s.digest for s in theirs}
        rule = "KV-PREFIX-011" if same else "KV-PREFIX-010"
    return rule, f"{found} instead of {expected}" if found != expected else f"{found} from another position"


def _at(spans: tuple[Span, ...], position: int) -> Span | None:
    return next((span for span in spans if span.offset <= position < span.stop), None)
