"""Keys of blocks: equal contents, equal keys, in every process; unequal contents, unequal keys."""

import hashlib
import os
import struct
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory.request_machine import NAMESPACES

from kvref.errors import ArgumentError
from kvref.memory.keys import block_keys, namespace_key
from kvref.memory.namespace import COMMON, Namespace, Span

IMAGE = Namespace(
    model="m", adapter="a", salt="é", spans=(Span(kind="media", digest="cat", offset=3, length=4),)
)
TOKENS = st.lists(st.integers(0, 1), min_size=6, max_size=14)


def test_key_is_what_the_definition_says() -> None:
    """Written out by hand for two blocks, of which the second has two rows of an image."""
    spans = (Span(kind="media", digest="cat", offset=1, length=4),)
    first = hashlib.sha256(b"kvref namespace 1" + b"\x00\x00\x00\x00" * 3 + b"\x01\x00\x00\x00s").digest()
    rows = b"\x05\x00\x00\x00media\x03\x00\x00\x00cat"
    one = hashlib.sha256(
        struct.pack("<II", 3, 40) + struct.pack("<3Q", 5, 6, 7) + rows + struct.pack("<3Q", 0, 1, 2) + first
    ).digest()
    two = hashlib.sha256(
        struct.pack("<II", 3, 40)
        + struct.pack("<3Q", 8, 9, 1 << 40)
        + rows
        + struct.pack("<3Q", 2, 0, 2)
        + one
    ).digest()
    three = hashlib.sha256(struct.pack("<II", 3, 0) + struct.pack("<3Q", 1, 2, 3) + two).digest()
    tail = hashlib.sha256(struct.pack("<II", 1, 0) + struct.pack("<Q", 4) + three).digest()
    tokens, namespace = [5, 6, 7, 8, 9, 1 << 40, 1, 2, 3, 4], Namespace(salt="s", spans=spans)
    assert namespace_key(namespace) == first
    assert block_keys(tokens, 3, namespace) == [one, two, three]
    assert block_keys(tokens, 3, namespace, tail=True) == [one, two, three, tail]


def test_keys_stay_what_they_were() -> None:
    """Another version of kvref must find the blocks of this one."""
    keys = [key.hex()[:16] for key in block_keys(range(14), 4, IMAGE, tail=True)]
    assert keys == ["42686162dc77fcd9", "6b2c7effd3cd14ba", "940346f794bc2507", "87098032a8760a81"]


def contents(tokens: list[int], size: int, namespace: Namespace) -> list[Any]:
    """What a key must tell apart: everything up to the end of its block."""
    base = (namespace.model, namespace.adapter, namespace.adapter_version, namespace.salt)
    at = {
        span.offset + row: (span.kind, span.digest, row)
        for span in namespace.spans
        for row in range(span.length)
    }
    cells = [(token, at.get(position)) for position, token in enumerate(tokens)]
    return [(base, tuple(cells[:stop])) for stop in range(size, len(cells) + 1, size)]


@given(st.lists(st.tuples(TOKENS, st.sampled_from(NAMESPACES)), min_size=2, max_size=8), st.integers(1, 5))
def test_keys_are_equal_iff_contents_are(requests: list[tuple[list[int], Namespace]], size: int) -> None:
    """Of all blocks of all requests; two tokens, so that many prefixes agree."""
    keys: dict[bytes, Any] = {}
    for tokens, namespace in requests:
        found, wanted = block_keys(tokens, size, namespace), contents(tokens, size, namespace)
        assert len(found) == len(tokens) // size
        for key, content in zip(found, wanted, strict=True):
            assert keys.setdefault(key, content) == content
    assert len(set(keys.values())) == len(keys)


@given(TOKENS, st.sampled_from(NAMESPACES), st.integers(1, 4), st.integers(0, 3))
def test_keys_go_on_from_any_block(tokens: list[int], namespace: Namespace, size: int, blocks: int) -> None:
    """Tokens that join later are keyed as if they had been there."""
    whole, start = block_keys(tokens, size, namespace), blocks * size
    if 0 < blocks <= len(whole):
        rest = block_keys(tokens[start:], size, namespace, parent=whole[blocks - 1], start=start)
        assert whole[:blocks] + rest == whole


@given(TOKENS, st.integers(1, 4))
def test_tail_has_a_key_of_its_own(tokens: list[int], size: int) -> None:
    """It is no block's: neither that of the block when it is full, nor that of a shorter part."""
    keys = [block_keys(tokens[:stop], size, tail=True)[-1] for stop in range(1, len(tokens) + 1)]
    assert len(set(keys)) == len(tokens)
    assert keys[size - 1 :: size] == block_keys(tokens, size)


def test_keys_are_the_same_in_another_process() -> None:
    """Whatever the seed of Python's own hashes."""
    code = (
        "from kvref.memory.keys import block_keys; from kvref.memory.namespace import *; "
        "n = Namespace(model='m', adapter='a', salt='\\u00e9', "
        "spans=(Span(kind='media', digest='cat', offset=3, length=4),)); "
        "print([key.hex() for key in block_keys(range(50), 4, n)])"
    )
    wanted = str([key.hex() for key in block_keys(range(50), 4, IMAGE)])
    for seed in ("0", "1", "12345"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == wanted


def test_numpy_tokens_are_tokens() -> None:
    """Of any integer dtype; what a tokenizer returns is what was meant."""
    wanted = block_keys([1, 2, 3, 4], 2)
    assert block_keys(np.array([1, 2, 3, 4], np.int32), 2) == wanted  # type: ignore[arg-type]
    assert block_keys((1, 2, np.uint8(3), 4), 2) == wanted  # type: ignore[arg-type]


def test_digest_may_be_another() -> None:
    """A digest of no bytes makes all keys equal; the message it is given still tells them apart."""
    messages = set()

    def none(message: bytes) -> bytes:
        messages.add(message)
        return b""

    assert block_keys([1, 2, 3], 1, digest=none) == [b"", b"", b""]
    assert len(messages) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": [1, 2.0]}, r"tokens\[1\] = 2.0, expected an integer"),
        ({"tokens": [True]}, r"tokens\[0\] = True, expected an integer"),
        ({"tokens": "12"}, "tokens is a str, expected a list of integers"),
        ({"tokens": {1, 2}}, "tokens is a set, expected a list of integers"),
        ({"tokens": None}, "tokens = None, expected a list of integers"),
        ({"tokens": [3, -1]}, "tokens holds -1, expected token ids from 0 to"),
        ({"tokens": [1 << 64]}, "tokens holds 18446744073709551616, expected token ids from 0"),
        ({"block_size": 0}, "block_size = 0, expected an integer >= 1"),
        ({"block_size": 2.0}, "block_size = 2.0, expected an integer >= 1"),
        ({"namespace": "x"}, "namespace = 'x', expected a Namespace"),
        ({"namespace": None}, "namespace = None, expected a Namespace"),
        ({"parent": "00"}, "parent = '00', expected the key of a block"),
        ({"parent": b"k", "start": 3}, "start = 3, expected the end of the block"),
        ({"start": 2}, "start = 2, expected the end of the block"),
        ({"parent": b"k", "namespace": IMAGE}, "start = 0, expected where the tokens stand"),
        ({"namespace": IMAGE}, "rows of 'cat' up to position 6, expected none behind the 4 tokens"),
    ],
)
def test_impossible_request_is_refused(arguments: dict[str, Any], message: str) -> None:
    """A key of something else than tokens would be a key of nothing."""
    whole: dict[str, Any] = {"tokens": [1, 2, 3, 4], "block_size": 2, "namespace": COMMON} | arguments
    with pytest.raises(ArgumentError, match=message):
        block_keys(**whole)
