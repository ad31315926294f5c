"""The declared order of eviction, followed by the reference beside the subject.

Which blocks go first is declared; much that moves the order is not: what becomes of a second copy, where a
block that holds nothing published joins the queue, how long a node is. So hits are compared only while none
of this comes up: requests one after another, of whole blocks, each computing what is nowhere in the cache. A
reset begins anew. A request that is refused changes nothing, so what follows it is determined too: another
holds blocks all the while, of other prefixes.
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
    """The twin under the declared order, as long as it can be followed."""

    def __init__(self, declared: str, num_blocks: int, block_size: int) -> None:
        self._declared, self._num_blocks, self._block_size = declared, num_blocks, block_size
        self._twin: Twin | None = None
        self._over = False
        """Whether what follows the request that is being admitted is not determined."""
        self._refuses = False
        """Whether the twin has refused that request."""
        self._last: int | None = None
        """The request that was admitted last."""
        self.begin()

    def begin(self) -> None:
        """Begin anew with an empty cache; there is nothing to follow in a pool of a null block alone."""
        self._refuses, self._last = False, None
        if self._declared == "all_at_once":
            self._twin = AllAtOnce(self._num_blocks, self._block_size)
        elif self._declared != "unspecified" and self._num_blocks:
            self._twin = under(self._declared, self._num_blocks, self._block_size)

    def lose(self) -> None:
        """Follow no more: what comes is not determined."""
        self._twin = None

    def refuse(self) -> None:
        """Follow a refusal if the twin refuses as well, and a look is no use: it is where a split renews."""
        if not self._refuses or self._declared == "lru_node_renewed":
            self.lose()

    def expected(self, cache: "WatchedCache", request: int, prompt: Prompt, most: int) -> int | None:
        """Return how many tokens an admission must hit; None if that is not determined.

        A block that is in the cache and cannot be hit is computed once more. Which of the two is then evicted
        under its prefix is not declared, but this hit is.
        """
        count = len(prompt.tokens)
        if self._twin is None or not self._is_open(cache, prompt) or count % self._block_size or most < count:
            self.lose()
            return None
        ends = list(cache.ledger.ends(count))
        self._refuses = False
        try:
            hit: int = self._twin.admit(request, prompt.tokens, most, **prompt.given.arguments())[0]
        except KVError:
            self._refuses = True
            return None
        self._last = request
        if self._declared != "all_at_once" and cache.is_there(prompt.labels[ends[-1]]):
            self.lose()
            return None
        by_block = self._declared in ("lru_tail_first", "lru_head_first")
        self._over = by_block and any(end >= hit and cache.is_there(prompt.labels[end]) for end in ends)
        return hit

    def follow(self, due: int | None, hit: int) -> bool:
        """Say whether a subject hits what it must, and follow it no more if that leaves the rest open."""
        if self._over or due != hit:  # None was expected of a request that the twin refuses
            self._over = False
            self.lose()
        return due in (None, hit)

    def _is_open(self, cache: "WatchedCache", prompt: Prompt) -> bool:
        """Say whether nothing is shared with a request that is there, published or not."""
        begins = {one.prompt.labels[0] for one in cache.live.values()}
        return not begins or (self._declared != "all_at_once" and prompt.labels[0] not in begins)

    def commit(self, request: int) -> None:
        """Let a request be computed."""
        if self._twin is not None:
            self._twin.commit(request)

    def end(self, request: int, operation: str) -> None:
        """End a request; only one that finishes can be followed, and that was the last to be admitted."""
        if operation != "finish" or request != self._last:
            self.lose()
        if self._twin is not None:
            self._twin.finish(request)


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
