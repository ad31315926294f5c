"""Keys of blocks: what names the contents of a full block and of everything before it.

    key(block) = digest( count ‖ length of rows ‖ tokens ‖ rows ‖ key(block before it) )

The first block follows the digest of the namespace. Numbers are little-endian, 64 bits a token, and every
part is written with its length, so equal messages mean equal contents. Nothing of the process goes in: the
same request has the same keys everywhere. A block that is not full has no key, unless the caller keys the
tail of a prompt, whose count then says that it is one.

Keys tell blocks apart as far as the digest does. With a digest that can be made to collide, a hit must be
verified against tokens and namespace (`content` holds them).

Realises: KV-PREFIX-030 keys-chained, KV-PREFIX-031 keys-stable, KV-PREFIX-032 keys-full-blocks.
For porters: write the tokens of the request once; a block's message is a slice of them between two constants.
Source: the definition; the chain is that of vLLM's block hashes and of LMCache's chunk hashes.
"""

import hashlib
import struct
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from kvref.arrays import check_count
from kvref.errors import ArgumentError, shown
from kvref.memory.ids import as_ids
from kvref.memory.namespace import (
    COMMON,
    Namespace,
    check_namespace,
    rows_between,
    written,
    written_rows,
)

Digest = Callable[[bytes], bytes]

_HEAD = struct.Struct("<II")  # tokens in the block, bytes of its rows
#: Bytes of a written token.
TOKEN = 8


def sha256(message: bytes) -> bytes:
    """The digest of keys: 32 bytes nobody can make collide."""
    return hashlib.sha256(message).digest()


def check_digest(digest: Any) -> Digest:
    """Return a function that can be called; whether it makes bytes shows when it is.

    Raises: ArgumentError.
    """
    if not callable(digest):
        raise ArgumentError(f"digest = {shown(digest)}, expected a function of bytes that returns bytes")
    return cast("Digest", digest)


def block_keys(
    tokens: Sequence[int],
    block_size: int,
    namespace: Namespace = COMMON,
    *,
    parent: bytes | None = None,
    start: int = 0,
    digest: Digest = sha256,
    tail: bool = False,
) -> list[bytes]:
    """Return one key a full block, and one for what is left over if `tail`.

    `parent` is the key of the block before `tokens`, and `start` the position of the first token in the
    request, which the spans of the namespace count from.
    Raises: ArgumentError if a token is no integer from 0 to 2^64 − 1, a span ends behind the tokens,
    `start` is not the end of a block, or `digest` is no digest.
    """
    check_digest(digest)
    size = check_count("block_size", block_size)
    first = check_count("start", start, minimum=0)
    check_namespace(namespace)
    if parent is not None and not isinstance(parent, bytes):
        raise ArgumentError(f"parent = {shown(parent)}, expected the key of a block")
    if first % size or (first and parent is None):
        raise ArgumentError(f"start = {first}, expected the end of the block that `parent` names")
    if namespace.spans and parent is not None and not first:
        raise ArgumentError("start = 0, expected where the tokens stand, which spans count from")
    raw = written_tokens(tokens)
    check_spans(namespace, first + len(raw) // TOKEN)
    before = namespace_key(namespace, digest) if parent is None else parent
    full = len(raw) - (0 if tail else len(raw) % (size * TOKEN))
    return chained(messages(raw[:full], size, namespace, first), before, digest)


def namespace_key(namespace: Namespace, digest: Digest = sha256) -> bytes:
    """Return what the first block follows: the digest of model, adapter and salt.

    Raises: ArgumentError if the digest makes no bytes.
    """
    key = digest(written(namespace))
    if not isinstance(key, bytes):
        raise ArgumentError(f"digest makes {shown(key)}, expected a function of bytes that returns bytes")
    return key


def chained(messages: Iterable[bytes], before: bytes, digest: Digest = sha256) -> list[bytes]:
    """Return the keys of blocks that follow the key `before`, given what is written for each."""
    keys = []
    for message in messages:
        before = digest(message + before)
        keys.append(before)
    return keys


def messages(raw: bytes, block_size: int, namespace: Namespace = COMMON, start: int = 0) -> list[bytes]:
    """Write what is digested for each block of written tokens at `start`; the last may not be full."""
    if not raw:
        return []
    step = block_size * TOKEN
    blocks = [raw[low : low + step] for low in range(0, len(raw), step)]
    if namespace.spans or len(raw) % step:
        return [_message(block, namespace, start + i * block_size) for i, block in enumerate(blocks)]
    head = _HEAD.pack(block_size, 0)
    return [head + block for block in blocks]


def written_tokens(tokens: Iterable[int]) -> bytes:
    """Write token ids, 8 bytes each.

    Raises: ArgumentError if they are no list of integers from 0 to 2^64 − 1.
    """
    ids = as_ids("tokens", tokens)
    try:
        raw = array("Q", ids)
    except OverflowError:
        found = next(token for token in ids if not 0 <= token < 1 << 64)
        raise ArgumentError(f"tokens holds {shown(found)}, expected token ids from 0 to 2^64 - 1") from None
    if sys.byteorder == "big":
        raw.byteswap()
    return raw.tobytes()


def read_tokens(raw: bytes) -> list[int]:
    """Read written token ids."""
    ids = array("Q", raw)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tolist()


def check_spans(namespace: Namespace, num_tokens: int) -> None:
    """Check that no span ends behind the last token.

    Raises: ArgumentError.
    """
    if namespace.spans and namespace.spans[-1].stop > num_tokens:
        last = namespace.spans[-1]
        raise ArgumentError(
            f"spans has rows of {shown(last.digest)} up to position {last.stop - 1}, "
            f"expected none behind the {num_tokens} tokens"
        )


def _message(block: bytes, namespace: Namespace, start: int) -> bytes:
    count = len(block) // TOKEN
    rows = written_rows(rows_between(namespace, start, start + count))
    return _HEAD.pack(count, len(rows)) + block + rows
