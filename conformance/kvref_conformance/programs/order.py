"""The declared order of eviction, followed by the reference beside the subject.

Which blocks go first is declared; much that moves the order is not: what becomes of a second copy, where a
block that holds nothing published joins the queue, how long a node is. So hits are compared only while none
of this comes up: requests one after another, of whole blocks, each computing what is nowhere in the cache. A
reset begins anew.

A declared order may leave something open all the same. Then there is a twin for each way to fill it in, and a
subject has to keep to one of them.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from kvref.errors import KVError
from kvref_conformance.programs.prompts import Prompt
from kvref_conformance.subjects.reference_prefix import under

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_cache import WatchedCache


class Twin(Protocol):
    """A cache that evicts as declared."""

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Begin a request; the first thing given back is its hit. Raises: KVError."""

    def commit(self, request: int) -> None:
        """Let a request be computed."""

    def finish(self, request: int) -> None:
        """End a request."""


class Order:
    """The twins under the declared order, as long as they can be followed."""

    def __init__(self, declared: str, num_blocks: int, block_size: int) -> None:
        self._declared, self._num_blocks, self._block_size = declared, num_blocks, block_size
        self._twins: list[Twin] = []
        self._hits: list[int] = []
        """What each twin has hit, of the request that is being admitted."""
        self.begin()

    def begin(self) -> None:
        """Begin anew with an empty cache; there is nothing to follow in a pool of a null block alone."""
        if self._declared == "all_at_once":
            self._twins = [AllAtOnce(self._num_blocks, self._block_size)]
        elif self._declared != "unspecified" and self._num_blocks:
            self._twins = [*under(self._declared, self._num_blocks, self._block_size)]

    def lose(self) -> None:
        """Follow no more: what comes is not determined."""
        self._twins = []

    def expected(self, cache: "WatchedCache", request: int, prompt: Prompt, most: int) -> list[int]:
        """Return how many tokens an admission may hit; nothing if that is not determined."""
        count = len(prompt.tokens)
        if cache.live or count % self._block_size or most < count:
            self.lose()
        try:
            given = prompt.given.arguments()
            self._hits = [twin.admit(request, prompt.tokens, most, **given)[0] for twin in self._twins]
        except KVError:
            self.lose()
        if any(cache.is_there(prompt.labels[end]) for end in self._again(list(cache.ledger.ends(count)))):
            self.lose()
        return sorted(set(self._hits)) if self._twins else []

    def _again(self, ends: list[int]) -> list[int]:
        """Return the ends of blocks that are not hit and must not be in the cache already."""
        if self._declared == "lru_node":
            return ends[-1:]
        return (
            []
            if self._declared == "all_at_once"
            else [end for end in ends if end >= min(self._hits, default=0)]
        )

    def follow(self, hit: int) -> bool:
        """Follow the twins that have hit as much as the subject, and say whether there is one."""
        self._twins = [twin for twin, own in zip(self._twins, self._hits, strict=True) if own == hit]
        return bool(self._twins)

    def commit(self, request: int) -> None:
        """Let a request be computed."""
        for twin in self._twins:
            twin.commit(request)

    def end(self, request: int, operation: str) -> None:
        """End a request; only one that finishes can be followed."""
        if operation != "finish":
            self.lose()
        for twin in self._twins:
            twin.finish(request)


class AllAtOnce:
    """Requests one after another, of whole blocks, in a cache that forgets everything when it lacks room."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._num_blocks, self._block_size = num_blocks, block_size
        self._known: set[tuple[Any, ...]] = set()
        """Prefixes of whole blocks that are cached."""
        self._own: list[tuple[Any, ...]] = []

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> tuple[int]:
        """Hit what is known, and forget the rest if there is no room for what is new.

        Raises: KVError if the last block is known, so that it would be there twice.
        """
        size, space = self._block_size, (repr(sorted(given.items())),)
        self._own = [(*space, *tokens[:end]) for end in range(size, len(tokens) + 1, size)]
        most = (len(tokens) - 1) // size
        hit = next((at for at, name in enumerate(self._own[:most]) if name not in self._known), most)
        if len(self._own) > self._num_blocks or self._own[-1] in self._known:
            raise KVError("what comes of this is not determined")
        if len(self._own) - hit > self._num_blocks - len(self._known):
            self._known = set(self._own[:hit])
        return (hit * size,)

    def commit(self, request: int) -> None:
        """Wait for the end."""

    def finish(self, request: int) -> None:
        """Know the whole request."""
        self._known.update(self._own)
