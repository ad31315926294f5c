"""What a request asks of a prefix cache and what it is given: the part that every kind of cache shares.

A request is admitted with all the tokens of its prompt. It hits some; of the rest, as many as the caller
schedules get slots, the others when it is extended. Tokens pass from known to scheduled to computed:

    num_cached <= num_computed <= num_scheduled <= num_tokens.

Realises: KV-PREFIX-027 prefix-request-known, KV-PREFIX-002 hit-leaves-one.
For porters: check the whole call here, before anything is looked up; a refused call then has nothing to undo.
Read the tokens first of all: if they are made as they are read, who makes them may call the cache.
Source: vLLM's scheduler (a request is tokens with and without slots; prefill and decode differ in nothing).
"""

from collections.abc import Container
from typing import Any, NamedTuple

from kvref.arrays import check_count
from kvref.errors import ArgumentError, OutOfBlocksError, UnknownRequestError, shown
from kvref.memory.tables import Copy


class Admission(NamedTuple):
    """What an admitted request was given.

    `slots` are those of the cached tokens and of the scheduled ones. If the hit ends inside a block, that
    block is shared no further: its slots are the request's own, and `copies` says what to copy into them
    before anything is computed.
    """

    num_cached_tokens: int
    slots: list[int]
    copies: list[Copy]


def hit_limit(last_token: str, num_tokens: int, block_size: int) -> int:
    """Return how many tokens of a prompt may be hit, under a profile's rule for the last one."""
    if last_token == "none":
        return num_tokens
    return (num_tokens - 1) // block_size * block_size if last_token == "block_floor" else num_tokens - 1


def scheduled_until(num_scheduled: int, num_tokens: int, max_new_tokens: Any) -> int:
    """Return where the next scheduled tokens end; all of them are scheduled if no number is given.

    Raises: ArgumentError if the number is no positive count.
    """
    if max_new_tokens is None:
        return num_tokens
    return min(num_tokens, num_scheduled + check_count("max_new_tokens", max_new_tokens))


def new_request(request: Any, known: Container[int]) -> int:
    """Return the name of a request that is not there yet.

    Raises: ArgumentError if it is no integer from 0; UnknownRequestError if it is there.
    """
    own = check_count("request", request, minimum=0)
    if own in known:
        raise UnknownRequestError(
            f"request = {own} is there already, expected a new one (KV-PREFIX-027 prefix-request-known)"
        )
    return own


def check_fits(num_tokens: int, block_size: int, capacity: int) -> None:
    """Check that a prompt has tokens, and that they would fit if the cache were empty.

    Raises: ArgumentError; OutOfBlocksError.
    """
    if not num_tokens:
        raise ArgumentError("tokens is empty, expected at least one token to compute")
    if num_tokens > capacity * block_size:
        raise OutOfBlocksError(
            f"tokens has {num_tokens} tokens, but {capacity} blocks of {block_size} are all there is "
            "(KV-PREFIX-027 prefix-request-known)"
        )


def unknown_request(request: Any) -> UnknownRequestError:
    """Return the error about a request that is not there."""
    return UnknownRequestError(
        f"request = {shown(request)}, expected one that was admitted (KV-PREFIX-027 prefix-request-known)"
    )
