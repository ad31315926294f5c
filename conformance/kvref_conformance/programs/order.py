"""The declared order of eviction, followed by the reference beside the subject.

Which blocks go first is declared; much that moves the order is not: what becomes of a second copy, where a
block that holds nothing published joins the queue, how long a node is. So hits are compared only while none
of this comes up: requests one after another, of whole blocks, each computing what is nowhere in the cache. A
reset begins anew.
"""

from typing import TYPE_CHECKING

from kvref.errors import KVError
from kvref_conformance.programs.prompts import Prompt
from kvref_conformance.subjects.reference_prefix import CacheOfReference, under

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_cache import WatchedCache


class Order:
    """The reference under the declared order, as long as it can be followed."""

    def __init__(self, declared: str, num_blocks: int, block_size: int) -> None:
        self._declared, self._num_blocks, self._block_size = declared, num_blocks, block_size
        self._twin: CacheOfReference | None = None
        self.begin()

    def begin(self) -> None:
        """Begin anew with an empty cache."""
        if self._declared != "unspecified":
            self._twin = under(self._declared, self._num_blocks, self._block_size)

    def lose(self) -> None:
        """Follow no more: what comes is not determined."""
        self._twin = None

    def expected(self, cache: "WatchedCache", request: int, prompt: Prompt, most: int) -> int | None:
        """Return how many tokens an admission hits; None if that is not determined."""
        count = len(prompt.tokens)
        if self._twin is None or cache.live or count % self._block_size or most < count:
            self.lose()
            return None
        try:
            hit, _ = self._twin.admit(request, prompt.tokens, most, **prompt.given.arguments())
        except KVError:
            self.lose()
            return None
        ends = list(cache.ledger.ends(count))
        again = ends[-1:] if self._declared == "lru_node" else [end for end in ends if end >= hit]
        if any(cache.is_there(prompt.labels[end]) for end in again):
            self.lose()
        return hit if self._twin is not None else None

    def commit(self, request: int) -> None:
        """Let a request be computed."""
        if self._twin is not None:
            self._twin.commit(request)

    def end(self, request: int, operation: str) -> None:
        """End a request; only one that finishes can be followed."""
        if operation != "finish":
            self.lose()
        elif self._twin is not None:
            self._twin.finish(request)
