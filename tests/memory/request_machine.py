"""A state machine over the requests of a cache: prompts that share stems, steps, ends, in any order."""

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvref.memory.namespace import COMMON, Namespace, Span

NAMESPACES = (
    COMMON,
    Namespace(salt="x"),
    Namespace(adapter="x"),
    Namespace(spans=(Span(kind="media", digest="cat", offset=2, length=3),)),
    Namespace(spans=(Span(kind="media", digest="cat", offset=3, length=3),)),
    Namespace(spans=(Span(kind="media", digest="dog", offset=2, length=3),)),
    Namespace(spans=(Span(kind="embeddings", digest="cat", offset=2, length=3),)),
)
STEMS = ((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13), (1, 2, 3, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9), (7,) * 13)


class RequestMachine(RuleBasedStateMachine):
    """Any operations on the requests of a cache that a shadow stands beside."""

    def __init__(self) -> None:
        super().__init__()
        self.shadow = self.shadowed()
        self.next = 0
        self.asked: list[tuple[list[int], Namespace]] = []

    def shadowed(self) -> Any:
        """Return the cache and its shadow."""
        raise NotImplementedError

    @rule(
        stem=st.sampled_from(STEMS),
        cut=st.integers(1, 13),
        tail=st.lists(st.integers(0, 2), max_size=5),
        namespace=st.sampled_from(NAMESPACES),
        most=st.none() | st.integers(1, 9),
    )
    def admit(
        self, stem: tuple[int, ...], cut: int, tail: list[int], namespace: Namespace, most: int | None
    ) -> None:
        """A prompt that shares a stem with others."""
        self._admit([*stem[:cut], *tail], namespace, most)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), tail=st.lists(st.integers(0, 2), max_size=2), served=st.booleans())
    def ask_again(self, data: st.DataObject, tail: list[int], served: bool) -> None:
        """A prompt that was asked before, as far as it goes or a little further, perhaps served at once."""
        tokens, namespace = data.draw(st.sampled_from(self.asked))
        if self._admit(tokens + tail, namespace, None) and served:
            self.shadow.commit(self.next - 1)
            self.shadow.check()
            self.shadow.end(self.next - 1, abort=False)

    @precondition(lambda self: self.shadow.live)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 2), max_size=6), most=st.none() | st.integers(1, 9))
    def extend(self, data: st.DataObject, tokens: list[int], most: int | None) -> None:
        """Decoded tokens join, and tokens are scheduled."""
        self.shadow.extend(self._one(data), tokens, most)

    @precondition(lambda self: self.shadow.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """A step is done."""
        self.shadow.commit(self._one(data))

    @precondition(lambda self: self.shadow.live)
    @rule(data=st.data(), abort=st.booleans())
    def end(self, data: st.DataObject, abort: bool) -> None:
        """A request ends, one way or the other."""
        self.shadow.end(self._one(data), abort=abort)

    @rule()
    def reset(self) -> None:
        """The weights change."""
        self.shadow.reset()

    @invariant()
    def holds(self) -> None:
        """After each operation."""
        self.shadow.check()

    def teardown(self) -> None:
        """When all requests have ended, all memory is free."""
        for request in list(self.shadow.live):
            self.shadow.end(request, abort=False)
        self.check_all_free()

    def check_all_free(self) -> None:
        """Assert that nothing is held."""
        raise NotImplementedError

    def _admit(self, tokens: list[int], namespace: Namespace, most: int | None) -> bool:
        if namespace.spans and namespace.spans[-1].stop > len(tokens):
            namespace = COMMON
        self.asked.append((tokens, namespace))
        self.next += 1
        return self.shadow.admit(self.next - 1, tokens, namespace, most) is not None

    def _one(self, data: st.DataObject) -> int:
        return data.draw(st.sampled_from(sorted(self.shadow.live)))
