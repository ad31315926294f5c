"""Events of a request's life: it arrives, gets tokens, is forked, cut back, preempted, and ends.

Realises: KV-BLOCK-033 request-known, KV-BLOCK-040 computed-once, KV-BLOCK-023 fork-shares.
For porters: the tokens are known here alone; everything else speaks of positions.
Source: the chapter on memory, histories.
"""

from kvref.errors import ArgumentError, HistoryError
from kvref.memory.history import Event
from kvref.memory.labels import Labels
from kvref.memory.namespace import COMMON, Namespace, Span
from kvref.sanitizer.requests import Request
from kvref.sanitizer.state import State

_TEXTS = ("model", "adapter", "adapter_version", "salt")


def arrive(state: State, line: int, event: Event) -> None:
    """`request`: a request with its prompt and namespace."""
    tokens, namespace = event["tokens"], COMMON
    if len(event) > 3:
        namespace = _namespace(event)
        if namespace.spans and namespace.spans[-1].stop > len(tokens):
            raise HistoryError(
                f"request.spans has rows up to position {namespace.spans[-1].stop - 1}, "
                f"expected none behind the {len(tokens)} tokens"
            )
    if _is_new(state, line, event):
        labels = Labels(namespace, stride=state.stride)
        if namespace.spans:
            labels.extend(tokens)
        else:
            labels.symbols.fromlist(tokens)  # they were tested when the line was read
        state.begin(Request(event["request"], labels, len(state.sizes), line, state.steps))


def tokens(state: State, line: int, event: Event) -> None:
    """`tokens`: tokens of one request, decoded, drafted, or more of its prompt."""
    request = state.request(event["request"], line, "tokens")
    if request is not None:
        request.labels.extend(event["tokens"])
        state.count_tokens(len(event["tokens"]))


def decode(state: State, line: int, event: Event) -> None:
    """`decode`: one token for each request of a batch."""
    requests, unknown = state.requests, 0
    for name, token in zip(event["requests"], event["tokens"], strict=True):
        request = requests.get(name)
        if request is None or request.ended:
            state.request(name, line, "a token")
            unknown += 1
        else:
            request.symbols.append(token)
    state.count_tokens(len(event["tokens"]) - unknown)


def truncate(state: State, line: int, event: Event) -> None:
    """`truncate`: a request keeps its first tokens; what it wrote for the others counts no more."""
    request = state.request(event["request"], line, "a cut")
    if request is None:
        return
    count, had = event["count"], len(request.symbols)
    if count > had:
        message = f"request {request.name} is cut to {count} tokens, but it has {had}"
        state.report("KV-BLOCK-034", line, message)
        return
    for size, table in zip(state.sizes, request.tables, strict=True):
        for block in table[count // size :]:
            known = state.blocks[block] if block >= 0 else None
            if known is not None and (known.refs > 1 or known.published):
                known.settle(request.labels, keep=True)
            elif known is not None:
                known.cut(request.labels, count)
    request.labels.cut(count)
    state.tokens -= had - count
    request.cut, request.computed = line, min(request.computed, count)
    whole = request.holds == sum(map(len, request.tables))
    for window in state.windows:  # one that has moved on may have let go of what it reaches again
        request.back_to(count if whole or window is None else max(0, count - window + 1))


def fork(state: State, line: int, event: Event) -> None:
    """`fork`: a request with the tokens and the blocks of another."""
    parent = state.request(event["parent"], line, "a fork")
    if parent is None or not _is_new(state, line, event):
        return
    child = Request(event["request"], parent.labels.copy(), len(state.sizes), line, state.steps)
    child.computed, child.verified, child.stateless = parent.computed, parent.verified, parent.stateless
    state.begin(child)
    state.count_entries(sum(map(len, parent.tables)))
    for group, table in enumerate(parent.tables):
        child.tables[group][:] = table
        for block in table:
            if block >= 0:
                state.hold(state.blocks[block], child.name, line)
                child.holds += 1
    parent.tail = None


def preempt(state: State, line: int, event: Event) -> None:
    """`preempt`: a request waits again, and will compute or find all of its tokens anew."""
    request = state.request(event["request"], line, "a preemption")
    if request is not None:
        request.preempted, request.computed, request.stateless = line, 0, 0
        request.back_to(0)


def finish(state: State, line: int, event: Event) -> None:
    """`finish`: a request has all its tokens, and each but the last was computed."""
    request = state.request(event["request"], line, "the end")
    if request is None:
        return
    if request.computed < len(request.symbols) - 1:
        message = (
            f"request {request.name} finishes with {len(request.symbols)} tokens, "
            f"of which {request.computed} are computed, expected all but the last"
        )
        arrived = (request.line, f"request {request.name} arrived")
        state.report("KV-BLOCK-040", line, message, [arrived, *request.facts()])
    request.end(line, "finished")
    state.forget(request)


def abort(state: State, line: int, event: Event) -> None:
    """`abort`: a request ends early."""
    request = state.request(event["request"], line, "the end")
    if request is not None:
        request.end(line, "was aborted")
        state.forget(request)


def _is_new(state: State, line: int, event: Event) -> bool:
    known = state.requests.get(event["request"])
    if known is None:
        return True
    message = f"request {known.name} begins, but it is there already"
    arrived = (known.line, f"request {known.name} arrived")
    state.report("KV-BLOCK-033", line, message, [arrived, *known.facts()])
    return False


def _namespace(event: Event) -> Namespace:
    spans = tuple(Span(**span) for span in event.get("spans", ()))
    try:
        return Namespace(**{name: event.get(name, "") for name in _TEXTS}, spans=spans)
    except ArgumentError as error:
        raise HistoryError(f"request.{error}") from None
