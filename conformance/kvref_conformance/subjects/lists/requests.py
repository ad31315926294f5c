"""Requests of the naive prefix caches, and the order in which they may be asked what."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kvref.errors import ArgumentError, UnknownRequestError
from kvref_conformance.subjects.lists.naming import Content, check_tokens, content_of


@dataclass
class Request:
    """One request that is there."""

    number: int
    content: Content
    prompt_len: int
    hit: int = 0
    scheduled: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    kept: int = 0
    """In a cache with a tree: tokens whose blocks are the tree's."""
    inserted: int = 0
    """Tokens it has put into the tree, whether they were new there or not."""

    @property
    def num_tokens(self) -> int:
        """Tokens so far, decoded ones included."""
        return len(self.content.tokens)


class Requests:
    """A list of requests."""

    def __init__(self) -> None:
        self.live: list[Request] = []

    def get(self, number: int) -> Request:
        """Return a request.

        Raises: UnknownRequestError.
        """
        for one in self.live:
            if one.number == number:
                return one
        raise UnknownRequestError(f"request = {number}, expected one that was admitted (KV-PREFIX-027)")

    def read(self, number: int, tokens: Sequence[int], most: int, given: dict[str, Any]) -> Request:
        """Read an admission.

        Raises: UnknownRequestError if the request is there; ArgumentError, as `content_of`.
        """
        if any(one.number == number for one in self.live):
            raise UnknownRequestError(f"request = {number} is there already (KV-PREFIX-027)")
        check_most(most)
        content = content_of(tokens, given)
        return Request(number, content, len(content.tokens))

    def idle(self, number: int, tokens: Sequence[int], most: int) -> Request:
        """Return a request that may be extended.

        Raises: UnknownRequestError; ArgumentError if it has a step in flight, or nothing to schedule.
        """
        one = self.get(number)
        check_most(most)
        check_tokens(tokens)
        if one.computed < one.scheduled or one.num_tokens + len(tokens) == one.scheduled:
            raise ArgumentError(f"request {number} has a step in flight or nothing to schedule")
        return one


def check_most(most: int) -> None:
    """Check a limit of tokens.

    Raises: ArgumentError.
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ArgumentError(f"max_new_tokens = {most!r:.80}, expected a positive integer")
