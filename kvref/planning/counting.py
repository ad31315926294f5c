"""How hits are counted: the rule, and the rates that it gives.

Two papers that replay one trace print different hit rates, and both are right: each counts by a rule of its
own. So a rate here comes with its rule, and a rule says:

    touch      which end of a request becomes recent first: the tail (tail_first, as in caches that
               evict leaves first, which keeps heads longer) or the head (head_first)
    tail       whether the partial last block of a prompt is a block that can hit (keyed), or none
               (full_blocks)
    warm_up    the share of requests, from the first, that fill the cache and are not counted

The weight is no part of the rule, because all four are given: hits as a share of blocks, of input tokens,
of input and output tokens, and the mean over requests of each one's share of input tokens.

Realises: KV-PREFIX-004 hit-contiguous, in that only a run of blocks from the start counts.
For porters: `rates_of` is the whole of it.
Source: the rules of the Mooncake paper (FAST 2025), of kvcache-simulator 0.1.3 (second half of the requests,
by token) and of libcachesim (blocks), told apart by their numbers.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np

from kvref.arrays import Array, check_word
from kvref.errors import ArgumentError, shown
from kvref.planning.traces import Tail, Trace

Touch = Literal["tail_first", "head_first"]
TOUCHES: tuple[Touch, ...] = ("tail_first", "head_first")
TAILS: tuple[Tail, ...] = ("keyed", "full_blocks")


@dataclass(frozen=True, kw_only=True)
class Counting:
    """A rule by which hits are counted, apart from their weight.

    Raises: ArgumentError if a member of it is unknown.
    """

    touch: Touch = "tail_first"
    tail: Tail = "keyed"
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("touch", TOUCHES), ("tail", TAILS)):
            check_word(name, getattr(self, name), known)
        if type(self.warm_up) not in (int, float) or not 0 <= self.warm_up < 1:
            raise ArgumentError(
                f"warm_up = {shown(self.warm_up)}, expected a share of requests, 0 <= share < 1"
            )

    def __str__(self) -> str:
        tail = "partial tails are blocks" if self.tail == "keyed" else "full blocks only"
        share = f"{100 * self.warm_up:.4g}%"
        counted = f"after the first {share} of requests" if self.warm_up else "over all requests"
        return f"hits of prefixes, {self.touch.replace('_', '-')} touch, {tail}, {counted}"

    def applied_to(self, trace: Trace) -> Trace:
        """Return the trace with the blocks that can hit under this rule.

        Raises: ArgumentError if the rule counts partial tails and the trace has no ids for them, or the
        trace tells lengths alone.
        """
        if not isinstance(trace, Trace):
            raise ArgumentError(f"trace = {shown(trace)}, expected a Trace")
        if not trace.has_blocks:
            raise ArgumentError(f"{trace.name} tells lengths alone, expected a trace with hash_ids")
        if self.tail == "full_blocks":
            return trace.full_blocks()
        if trace.tail != "keyed" and np.any(trace.input_lengths % trace.block_size):
            raise ArgumentError(f"tail = 'keyed', but {trace.name} has no ids for partial tails")
        return trace

    def first_counted(self, trace: Trace) -> int:
        """Return the first request that is counted."""
        share = Fraction(str(self.warm_up))  # as it is written: 0.29 of 100 requests are 29, and not 28.99…
        return math.floor(share * trace.num_requests)


@dataclass(frozen=True, kw_only=True)
class HitRates:
    """What hit at one capacity, under every weight."""

    capacity: int | None
    """Blocks of the cache; None if it never evicts."""
    hit_blocks: int
    """Blocks that hit."""
    blocks: int
    """Blocks asked for, by the requests that count."""
    hit_tokens: int
    """Tokens in them."""
    input_tokens: int
    """Tokens of the prompts."""
    output_tokens: int
    """Tokens of the answers."""
    mean_of_requests: float
    """Mean over requests of the share of their input tokens that hit."""
    refused: int = 0
    """Requests that were turned away because they do not fit the cache by themselves."""

    @property
    def of_blocks(self) -> float:
        """Hits as a share of blocks."""
        return self.hit_blocks / self.blocks if self.blocks else 0.0

    @property
    def of_input_tokens(self) -> float:
        """Hits as a share of input tokens."""
        return self.hit_tokens / self.input_tokens

    @property
    def of_all_tokens(self) -> float:
        """Hits as a share of input and output tokens."""
        return self.hit_tokens / (self.input_tokens + self.output_tokens)

    def as_dict(self) -> dict[str, float | int | None]:
        """Return counts and shares by name."""
        return {
            "capacity": self.capacity,
            "of_blocks": self.of_blocks,
            "of_input_tokens": self.of_input_tokens,
            "of_all_tokens": self.of_all_tokens,
            "mean_of_requests": self.mean_of_requests,
            "hit_blocks": self.hit_blocks,
            "blocks": self.blocks,
            "hit_tokens": self.hit_tokens,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "refused": self.refused,
        }


def rates_of(
    trace: Trace,
    counting: Counting,
    capacity: int | None,
    hit_blocks: Array,
    hit_tokens: Array,
    *,
    refused: int = 0,
) -> HitRates:
    """Return the rates that the hits of each request amount to.

    Shapes: hit_blocks and hit_tokens [num_requests]. `trace` is what `counting.applied_to` returned.
    """
    counted = slice(counting.first_counted(trace), None)
    inputs = trace.input_lengths[counted]
    shares = np.divide(hit_tokens[counted], inputs, out=np.zeros(len(inputs)), where=inputs > 0)
    return HitRates(
        capacity=capacity,
        hit_blocks=int(hit_blocks[counted].sum()),
        blocks=int(np.diff(trace.starts)[counted].sum()),
        hit_tokens=int(hit_tokens[counted].sum()),
        input_tokens=int(inputs.sum()),
        output_tokens=int(trace.output_lengths[counted].sum()),
        mean_of_requests=float(shares.mean()),
        refused=refused,
    )
