"""The block hashes of vLLM under `sha256_cbor`, which any process and any language can compute.

    hash(block) = SHA-256( CBOR( [hash of the block before it, [token, …], extra keys or null] ) )

The first block follows SHA-256(CBOR(seed)). The extra keys of a block, in this order:

    ["lora", name, path]        in every block of a request with an adapter
    ["mm", digest, offset]      for each item in the block; offset − first token, so perhaps below 0
    ["cache_salt", salt]        in the first block, from where the chain carries it
    ["prompt_embeds", SHA-256]  of the block's rows of embeddings, in every block of a request that has any

A namespace's adapter is the name, its version the path. There is no place for a model: a store that several
models share must keep them apart itself.

Realises: KV-PREFIX-033 key-scheme.
For porters: canonical CBOR needs five kinds of values here (`cbor`): null, integers, bytes, text and arrays.
Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (hash_block_tokens, generate_block_hash_extra_keys,
init_none_hash), vllm/utils/hashing.py (sha256_cbor); RFC 8949, section 4.2 (shortest heads).
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeAlias

from kvref.arrays import check_count
from kvref.errors import ArgumentError, LengthError, shown
from kvref.memory.ids import as_ids
from kvref.memory.keys import check_spans
from kvref.memory.namespace import COMMON, Namespace, check_namespace, check_text

Value: TypeAlias = "int | bytes | str | tuple[Value, ...] | None"

#: Where the chain starts unless PYTHONHASHSEED is set: its text then takes this one's place.
SEED = "vllm-none-hash"


def vllm_block_keys(
    tokens: Sequence[int],
    block_size: int,
    namespace: Namespace = COMMON,
    *,
    embeddings: Sequence[bytes] | None = None,
    seed: str = SEED,
) -> list[bytes]:
    """Return vLLM's hash of each full block.

    `embeddings` holds the bytes of the prompt's rows of embeddings, one a token; decoded tokens have none.
    Raises: ArgumentError if a token is no integer from 0 to 2^64 − 1, `embeddings` holds anything but bytes,
    or the namespace names a model or spans of embeddings, for which these hashes have no place; LengthError
    if there are more rows of embeddings than tokens.
    """
    ids, size = as_ids("tokens", tokens), check_count("block_size", block_size)
    _check(ids, namespace)
    if embeddings is not None:
        _check_embeddings(embeddings, len(ids))
    key, keys = none_hash(seed), []
    for start in range(0, len(ids) - size + 1, size):
        extra = _extra_keys(namespace, start, start + size, embeddings)
        key = sha256(cbor((key, tuple(ids[start : start + size]), extra or None))).digest()
        keys.append(key)
    return keys


def none_hash(seed: str = SEED) -> bytes:
    """Return the hash that the first block follows."""
    return sha256(cbor(check_text("seed", seed))).digest()


def with_group(key: bytes, group: int) -> bytes:
    """Return the name of a block of one group of layers: the hash and the group, 4 bytes, big-endian.

    Raises: ArgumentError if the hash is none, or the group no such number.
    """
    if check_count("group", group, minimum=0) >= 1 << 32:
        raise ArgumentError(f"group = {group}, expected a number of 4 bytes")
    return _hash(key) + int(group).to_bytes(4, "big")


def of_larger_blocks(keys: Sequence[bytes], factor: int) -> list[bytes]:
    """Return the hashes of blocks `factor` times as large: each is that of the last small block in it."""
    step = check_count("factor", factor)
    return list(keys[step - 1 :: step])


def event_hash(key: bytes) -> int:
    """Return the number that events carry where integers are asked for: the last 8 bytes of the hash.

    Raises: ArgumentError if the hash is none.
    """
    return int.from_bytes(_hash(key)[-8:], "big")


def cbor(value: Value) -> bytes:
    """Write a value as canonical CBOR.

    Raises: ArgumentError if it is none of those that these hashes need.
    """
    if value is None:
        return b"\xf6"
    if type(value) is int and -(1 << 64) <= value < 1 << 64:
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        raw = check_text("value", value).encode()
        return _head(3, len(raw)) + raw
    if isinstance(value, tuple):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    raise ArgumentError(
        f"value = {shown(value)}, expected None, an integer of 64 bits, bytes, text or a tuple"
    )


def _head(major: int, number: int) -> bytes:
    """Write a kind and a number in as few bytes as hold it."""
    if number < 24:
        return bytes([major << 5 | number])
    power = 0 if number < 1 << 8 else 1 if number < 1 << 16 else 2 if number < 1 << 32 else 3
    return bytes([major << 5 | 24 + power]) + number.to_bytes(1 << power, "big")


def _extra_keys(
    namespace: Namespace, start: int, stop: int, embeddings: Sequence[bytes] | None
) -> tuple[Value, ...]:
    keys: list[Value] = []
    if namespace.adapter:
        keys.append(("lora", namespace.adapter, namespace.adapter_version))
    keys += [
        ("mm", s.digest, s.offset - start) for s in namespace.spans if s.offset < stop and start < s.stop
    ]
    if namespace.salt and not start:
        keys.append(("cache_salt", namespace.salt))
    if embeddings is not None:
        keys.append(("prompt_embeds", sha256(b"".join(embeddings[start:stop])).digest()))
    return tuple(keys)


def _check(ids: list[int], namespace: Namespace) -> None:
    if ids and not (min(ids) >= 0 and max(ids) < 1 << 64):
        raise ArgumentError(
            f"tokens holds {shown(min(ids))} to {shown(max(ids))}, expected token ids from 0 to 2^64 - 1"
        )
    check_spans(check_namespace(namespace), len(ids))
    if namespace.model:
        raise ArgumentError(
            f"model = {shown(namespace.model)}, expected '': vLLM's hashes have no place for it"
        )
    if any(span.kind != "media" for span in namespace.spans):
        raise ArgumentError("spans has embeddings, expected their rows as `embeddings`")


def _hash(key: bytes) -> bytes:
    if not isinstance(key, bytes):
        raise ArgumentError(f"key = {shown(key)}, expected the hash of a block")
    return key


def _check_embeddings(embeddings: Sequence[bytes], num_tokens: int) -> None:
    listed = isinstance(embeddings, list | tuple)
    if not listed or not all(isinstance(row, bytes) for row in embeddings):
        raise ArgumentError(f"embeddings = {shown(embeddings)}, expected a list of bytes, one row a token")
    if len(embeddings) > num_tokens:
        raise LengthError(
            f"embeddings has {len(embeddings)} rows, expected at most {num_tokens}, one a token"
        )
