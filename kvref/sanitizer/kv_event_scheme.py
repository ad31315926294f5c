"""Keys held to the scheme they are said to follow: the block hashes of vLLM under `sha256_cbor`.

An event tells the tokens of its blocks and, untagged, what else went into their hashes. The path of an
adapter is hashed and not told, so blocks under an adapter are judged only if the path is given. Where keys
are integers they are the last 8 bytes of a hash, and the whole hash is carried along from the first block.

Realises: KV-PREFIX-033 key-scheme.
For porters: an untagged text may be a salt or a digest; try each before you call a hash wrong.
Source: vLLM 0.32.0, vllm/v1/core/kv_cache_utils.py (to_event_extra_keys, maybe_convert_block_hash).
"""

from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from hashlib import sha256
from itertools import product

from kvref.memory.vllm_keys import SEED, Value, cbor, event_hash, none_hash
from kvref.sanitizer.kv_event_fields import Extra, Key
from kvref.sanitizer.kv_event_kinds import Stored

_MASK = (1 << 64) - 1
#: Most items of a block whose two readings are tried.
_AMBIGUOUS = 4


class VllmScheme:
    """Computes what the key of a block has to be."""

    def __init__(self, seed: str = SEED, adapters: Mapping[str, str] | None = None) -> None:
        self.first = none_hash(seed)
        self.adapters = dict(adapters or {})
        """Name of an adapter -> its path."""

    def hashes(self, event: Stored, at: int, parent: bytes) -> list[bytes] | None:
        """Return the hashes that a block of an event may have; None if the event does not tell enough."""
        if event.width != 1 or event.hashes is not None:
            return None
        tokens = tuple(event.tokens[at * event.size : (at + 1) * event.size])
        listed = event.extras[at] if event.extras is not None and at < len(event.extras) else None
        items = list(listed or ())
        lora: list[Value] = []
        if event.adapter is not None:
            path = self.adapters.get(str(event.adapter))
            if path is None:
                return None
            lora = [("lora", str(event.adapter), path)]
            items = items[1:] if items[:1] == [event.adapter] else items
        readings = [list(_read(item)) for item in items]
        if sum(len(reading) > 1 for reading in readings) > _AMBIGUOUS:
            return None
        return [
            sha256(cbor((parent, tokens, tuple(lora + list(extra)) or None))).digest()
            for extra in product(*readings)
        ]


def is_of(key: Key, full: bytes) -> bool:
    """Return whether a key names a hash: it is the hash, or the integer of its last 8 bytes."""
    if isinstance(key, int):
        return key & _MASK == event_hash(full)
    return key == full


def _read(item: Extra | int | str | bytes) -> Iterator[Value]:
    """Yield what an untagged extra key may stand for, the likeliest first."""
    if isinstance(item, tuple):
        yield ("mm", *item)
    elif isinstance(item, bytes):
        yield ("prompt_embeds", item)
    else:
        yield ("cache_salt", item)
        for read in (bytes.fromhex, b64decode):
            try:
                digest = read(str(item))
            except (ValueError, Error):
                continue
            if len(digest) == sha256().digest_size:
                yield ("prompt_embeds", digest)
