"""What a prefix cache does for one request: find its hit, take its blocks, publish what it computed.

The rules of a profile are here: how many tokens may be hit, what a hit that ends inside a block costs, which
blocks are published. A part of a block is never shared: it is copied into a block of the request's own. The
block it is copied from is held until that is done, so copying costs a block more than computing the part, and
is given up where it would not fit.

Realises: KV-PREFIX-002 hit-leaves-one, KV-PREFIX-003 hit-on-grid, KV-PREFIX-018 evict-before-refuse,
KV-PREFIX-025 outputs-cached, KV-PREFIX-028 writes-private.
For porters: under the canonical profile a hit is whole blocks, and `take` and `publish` are a few lines.
Source: the profiles' sources; that a tail is published when its request lets go of it follows from
KV-PREFIX-028: until then the request goes on writing the block.
"""

from kvref.errors import OutOfBlocksError
from kvref.memory.admission import hit_limit, scheduled_until
from kvref.memory.prefix import PrefixIndex
from kvref.memory.prefix_request import PrefixRequest
from kvref.memory.tables import Copy


def take(index: PrefixIndex[bytes], new: PrefixRequest, max_new_tokens: int | None) -> list[Copy]:
    """Hold a new request's hit and blocks for its scheduled tokens; return what to copy first.

    Raises: OutOfBlocksError, and nothing has changed.
    """
    blocks, cached = hit(index, new)
    part = cached % new.block_size
    try:
        return _take(index, new, blocks, cached, max_new_tokens)
    except OutOfBlocksError:
        if not part:
            raise
    return _take(index, new, blocks, cached - part, max_new_tokens)


def hit(index: PrefixIndex[bytes], new: PrefixRequest) -> tuple[list[int], int]:
    """Find the blocks of the longest cached prefix, and how many of its tokens may be hit."""
    profile, size = index.profile, new.block_size
    limit = hit_limit(profile.last_token, new.num_prompt, size)
    blocks = index.match(*new.of_blocks(0, min(len(new.keys), -(-limit // size))))
    cached = len(blocks) * size
    if profile.tail == "keyed" and len(blocks) == len(new.keys):
        blocks += index.match(*new.of_tail())
        cached = min(len(blocks) * size, new.num_prompt)
    return blocks, min(cached, limit)


def publish(index: PrefixIndex[bytes], own: PrefixRequest, num_tokens: int) -> int:
    """Publish the full blocks of a request's first tokens that are not published; return the first of them.

    Where a second copy is its request's alone, the first may have been evicted meanwhile. The copy takes its
    place then, or what comes behind it could not be hit.
    """
    until = num_tokens if index.profile.cached_outputs else min(num_tokens, own.num_prompt)
    start, stop = own.num_published, until // own.block_size
    if start < stop:
        if index.profile.duplicates == "free":
            start = len(index.match(*own.of_blocks(0, start)))
        keys, contents = own.of_blocks(start, stop)
        index.publish(keys, own.row, start, contents)
        own.num_published = stop
    return start


def publish_tail(index: PrefixIndex[bytes], own: PrefixRequest) -> None:
    """Publish what the full blocks of a computed prompt leave over, where the profile keys it."""
    at = own.num_prompt // own.block_size
    if index.profile.tail == "keyed" and own.num_computed >= own.num_prompt and own.num_published <= at:
        keys, contents = own.of_tail()
        index.publish(keys, own.row, at, contents)


def _take(
    index: PrefixIndex[bytes], new: PrefixRequest, blocks: list[int], cached: int, max_new_tokens: int | None
) -> list[Copy]:
    full, part = divmod(cached, new.block_size)
    stop = scheduled_until(cached, new.num_prompt, max_new_tokens)
    sources = blocks[full : full + 1] if part else []
    fresh = index.take(blocks[:full] + sources, -(-stop // new.block_size) - full)
    new.row, new.sources = blocks[:full] + fresh, sources
    new.num_scheduled, new.num_computed, new.num_published = stop, cached, full
    return [Copy(source, fresh[0], part) for source in sources]
