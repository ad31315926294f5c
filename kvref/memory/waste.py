"""What two disciplines waste on the same requests: one reserved piece each, or blocks as they are needed.

The counting rule: memory is counted in slot-steps, one slot for one step. A request with a prompt of P tokens
and an output of O tokens is there for O steps, the prompt's and one a token; after step k it stores

    P + k − 1 tokens, for k = 1 … O,

because the last token is never stored. A piece is there in full for all O steps; what it does not store is
filled later by its own request, or never. A table has ceil(tokens / block_size) blocks at each step. Requests
weigh as much as the slots they hold for as long as they hold them. Not counted: gaps between pieces
(`ContiguousPool.largest_gap` shows those), sharing, and memory that no request has.

How much of a piece is empty depends on how long a piece is: `RESERVATIONS` names three rules. The wide range
of published shares comes from that choice and from the length allowed, not from the discipline alone.

Realises: KV-BLOCK-032 waste-bound.
For porters: nothing here is needed to serve.
Source: PagedAttention (Kwon et al. 2023, section 3.1 and figure 2), which says that 20.4 % to 38.2 % of the
memory of earlier systems held tokens; Orca (Yu et al. 2022) reserves the maximum.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kvref.arrays import check_count, check_word
from kvref.errors import ArgumentError, LengthError, shown

#: How long a piece is, from prompt, output and the longest length allowed, in tokens.
RESERVATIONS: dict[str, Callable[[int, int, int], int]] = {
    "maximum": lambda prompt, output, longest: longest,
    "power_of_two": lambda prompt, output, longest: min(longest, prompt + (1 << (output - 1).bit_length())),
    "exact": lambda prompt, output, longest: prompt + output - 1,
}


@dataclass(frozen=True, kw_only=True)
class Waste:
    """Memory of two disciplines on the same requests, in slot-steps."""

    stored: int
    """Slots that hold a token: the same for both."""
    filled_later: int
    """Slots of pieces, empty now, that their own request fills later."""
    never_filled: int
    """Slots of pieces that stay empty to the end."""
    paged_empty: int
    """Slots of blocks that are empty: the tail of each request's last block."""

    @property
    def contiguous_share(self) -> float:
        """The share of all pieces that is empty."""
        empty = self.filled_later + self.never_filled
        return empty / (self.stored + empty)

    @property
    def paged_share(self) -> float:
        """The share of all blocks in tables that is empty."""
        return self.paged_empty / (self.stored + self.paged_empty)


def waste(
    requests: Iterable[tuple[int, int]], *, longest: int, block_size: int, reserve: str = "maximum"
) -> Waste:
    """Count what `requests`, pairs (prompt, output) in tokens, waste under both disciplines.

    Exact integers, in closed form: no step is run.
    Raises: LengthError if there is no request, or one stores more than `longest` tokens; ArgumentError if a
    length is no positive integer or `reserve` is not one of `RESERVATIONS`.
    """
    most, size = check_count("longest", longest), check_count("block_size", block_size)
    check_word("reserve", reserve, RESERVATIONS)
    stored = later = never = paged = 0
    for at, (p, o) in enumerate(_checked(requests)):
        end = p + o - 1
        if end > most:
            raise LengthError(f"requests[{at}] stores {end} tokens, expected at most longest = {most}")
        own = o * end - o * (o - 1) // 2
        stored += own
        later += o * (o - 1) // 2
        never += o * (RESERVATIONS[reserve](p, o, most) - end)
        paged += size * (_blocks_up_to(end, size) - _blocks_up_to(p - 1, size)) - own
    if not stored:
        raise LengthError("requests is empty, expected at least one request")
    return Waste(stored=stored, filled_later=later, never_filled=never, paged_empty=paged)


def _checked(requests: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    if not isinstance(requests, Iterable):
        raise ArgumentError(f"requests = {shown(requests)}, expected pairs (prompt, output)")
    for at, pair in enumerate(requests):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ArgumentError(f"requests[{at}] = {shown(pair)}, expected a pair (prompt, output)")
        yield check_count(f"requests[{at}][0]", pair[0]), check_count(f"requests[{at}][1]", pair[1])


def _blocks_up_to(num_tokens: int, block_size: int) -> int:
    """Sum ceil(i / block_size) over i = 1 … num_tokens."""
    full, rest = divmod(num_tokens, block_size)
    return block_size * full * (full + 1) // 2 + rest * (full + 1)
