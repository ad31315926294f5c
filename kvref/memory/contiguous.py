"""Memory in one piece a request, as serving systems had it before paging.

A request reserves a run of adjacent slots when it begins, as many as it might ever need, and keeps it to the
end: token i lies in slot first + i. What it reserved and does not fill is empty and of no use to others; and
once pieces of unequal length come and go, free slots lie in gaps that no new request fits, although together
they would do.

Realises: KV-BLOCK-020 token-slot, with one block a request.
For porters: nothing here is needed to serve; it is what `kvref.memory.tables` is measured against.
Source: PagedAttention (Kwon et al. 2023, section 3.1) describes the systems that did this.
"""

from bisect import insort
from dataclasses import dataclass

from kvref.arrays import check_count
from kvref.errors import LengthError, OutOfBlocksError, UnknownRequestError


@dataclass(slots=True)
class Piece:
    """The slots from `first` to below `first + reserved`, of which the first `stored` hold tokens."""

    first: int
    reserved: int
    stored: int = 0


class ContiguousPool:
    """Slots 0 to num_slots − 1, reserved in pieces: each request's in the lowest gap that it fits.

    Raises: ArgumentError if there is no slot.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = check_count("num_slots", num_slots)
        self._pieces: dict[int, Piece] = {}
        self._bounds: list[tuple[int, int]] = []  # (first, stop) of every piece, the lowest first

    @property
    def num_slots(self) -> int:
        """How many slots there are."""
        return self._num_slots

    @property
    def num_reserved(self) -> int:
        """How many slots belong to some request."""
        return sum(piece.reserved for piece in self._pieces.values())

    @property
    def num_stored(self) -> int:
        """How many slots hold a token."""
        return sum(piece.stored for piece in self._pieces.values())

    @property
    def num_free(self) -> int:
        """How many slots belong to nobody, in gaps of any length."""
        return self._num_slots - self.num_reserved

    @property
    def largest_gap(self) -> int:
        """The longest reservation that would succeed now, in slots."""
        return max(stop - first for first, stop in self.gaps())

    def gaps(self) -> list[tuple[int, int]]:
        """List what lies between the pieces as (first, stop), the lowest first; some may be empty."""
        firsts = [first for first, _ in self._bounds]
        stops = [stop for _, stop in self._bounds]
        return list(zip([0, *stops], [*firsts, self._num_slots], strict=True))

    def add(self, request: int, num_slots: int) -> int:
        """Reserve a piece for a new request in the lowest gap that it fits, and return its first slot.

        Raises: OutOfBlocksError if no gap is long enough; UnknownRequestError if the request is there;
        ArgumentError.
        """
        own = check_count("request", request, minimum=0)
        wanted = check_count("num_slots", num_slots)
        if own in self._pieces:
            raise UnknownRequestError(
                f"request = {own} is there already, expected a new request (KV-BLOCK-033 request-known)"
            )
        fits = (first for first, stop in self.gaps() if stop - first >= wanted)
        first = next(fits, None)
        if first is None:
            raise OutOfBlocksError(
                f"num_slots = {wanted}, but {self.num_free} slots are free in gaps of at most "
                f"{self.largest_gap} (KV-BLOCK-003 alloc-complete)"
            )
        self._pieces[own] = Piece(first, wanted)
        insort(self._bounds, (first, first + wanted))
        return first

    def append(self, request: int, num_tokens: int) -> list[int]:
        """Return the slots of the next tokens of a request.

        Raises: LengthError if its piece is too short; UnknownRequestError; ArgumentError.
        """
        piece = self._pieces[self._known(request)]
        count = check_count("num_tokens", num_tokens, minimum=0)
        if piece.stored + count > piece.reserved:
            raise LengthError(
                f"num_tokens = {count}, but {piece.reserved - piece.stored} of the {piece.reserved} slots of "
                f"request {request} are empty (KV-BLOCK-020 token-slot)"
            )
        start = piece.first + piece.stored
        slots = list(range(start, start + count))
        piece.stored += count
        return slots

    def free(self, request: int) -> None:
        """End a request and give back its piece.

        Raises: UnknownRequestError; ArgumentError.
        """
        own = self._known(request)
        piece = self._pieces.pop(own)
        self._bounds.remove((piece.first, piece.first + piece.reserved))

    def check_invariants(self) -> None:
        """Assert that pieces do not overlap, stay inside, and hold no more than they reserve."""
        pieces = sorted((piece.first, piece.first + piece.reserved) for piece in self._pieces.values())
        assert pieces == self._bounds, "the bounds are not those of the pieces"
        assert all(first <= stop for first, stop in self.gaps()), "two pieces overlap, or one leaves the pool"
        assert all(0 <= p.stored <= p.reserved for p in self._pieces.values()), "a piece holds too much"

    def _known(self, request: int) -> int:
        own = check_count("request", request, minimum=0)
        if own not in self._pieces:
            raise UnknownRequestError(
                f"request = {own}, expected one of the {len(self._pieces)} requests there "
                "(KV-BLOCK-033 request-known)"
            )
        return own
