"""vLLM's `sha256_cbor` block hashes: recorded vectors, live ones, and the CBOR they are made of."""

import json
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError
from kvref.memory.keys import block_keys
from kvref.memory.namespace import COMMON, Namespace, Span
from kvref.memory.vllm_keys import (
    SEED,
    cbor,
    event_hash,
    none_hash,
    of_larger_blocks,
    vllm_block_keys,
    with_group,
)

RECORDED = Path(__file__).parents[1] / "data" / "vllm_sha256_cbor.json"
EXTRAS = ("lora", "salt", "media", "embeddings", "seed")
SCRIPT = Path(__file__).parent / "ask_vllm_keys.py"


def recorded() -> list[dict[str, Any]]:
    """Requests with the hashes that vLLM 0.32.0 gave them."""
    cases: list[dict[str, Any]] = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]
    return cases


@cache
def asked() -> list[dict[str, Any]]:
    """The same requests, hashed now."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vLLM")
    command = [os.environ["KVREF_VLLM_PYTHON"], str(SCRIPT)]
    answer = subprocess.run(command, capture_output=True, check=False, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    cases: list[dict[str, Any]] = json.loads(answer.stdout)["cases"]
    return cases


def keys_of(case: dict[str, Any]) -> list[bytes]:
    """kvref's answer to a recorded request."""
    adapter, path = case.get("lora", ("", ""))
    spans = tuple(
        Span(kind="media", digest=digest, offset=offset, length=length)
        for digest, offset, length in case.get("media", [])
    )
    rows = [bytes.fromhex(row) for row in case["embeddings"]] if "embeddings" in case else None
    return vllm_block_keys(
        case["tokens"],
        case["block_size"],
        Namespace(adapter=adapter, adapter_version=path, salt=case.get("salt", ""), spans=spans),
        embeddings=rows,
        seed=case.get("seed", SEED),
    )


@pytest.mark.parametrize("case", recorded(), ids=lambda case: "-".join(n for n in EXTRAS if n in case))
def test_hashes_are_those_of_vllm(case: dict[str, Any]) -> None:
    """Bit for bit: the chain, its seed, its extra keys, and what is derived from a hash."""
    keys = keys_of(case)
    assert [key.hex() for key in keys] == case["keys"]
    assert none_hash(case.get("seed", SEED)).hex() == case["none_hash"]
    assert [key.hex() for key in of_larger_blocks(keys, 2)] == case["of_two_blocks"]
    if keys:
        assert with_group(keys[-1], 3).hex() == case["with_group_3"]
        assert str(event_hash(keys[-1])) == case["event_hash"]


def test_recorded_hashes_cover_every_extra_key() -> None:
    """A vector that is not there cannot disagree."""
    assert {name for case in recorded() for name in case} >= set(EXTRAS)
    assert sum(len(case["keys"]) for case in recorded()) > 50


def test_vllm_still_hashes_so() -> None:
    """The vectors are what the script prints, asked now."""
    assert asked() == recorded()


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (0, "00"),
        (10, "0a"),
        (23, "17"),
        (24, "1818"),
        (100, "1864"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"),
        (18446744073709551615, "1bffffffffffffffff"),
        (-1, "20"),
        (-10, "29"),
        (-100, "3863"),
        (-1000, "3903e7"),
        (None, "f6"),
        (b"", "40"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("", "60"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ("\u6c34", "63e6b0b4"),
        ((), "80"),
        ((1, (2, 3), (4, 5)), "8301820203820405"),
        (tuple(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ],
)
def test_cbor_is_that_of_the_rfc(value: Any, written: str) -> None:
    """The examples of RFC 8949, appendix A, of the five kinds that are needed."""
    assert cbor(value).hex() == written


@given(
    st.lists(st.integers(0, 2), min_size=4, max_size=9), st.lists(st.integers(0, 2), min_size=4, max_size=9)
)
def test_both_schemes_tell_the_same_apart(a: list[int], b: list[int]) -> None:
    """Blocks are equal under vLLM's keys where they are under kvref's."""
    ours = [x == y for x, y in zip(block_keys(a, 2), block_keys(b, 2), strict=False)]
    assert [x == y for x, y in zip(vllm_block_keys(a, 2), vllm_block_keys(b, 2), strict=False)] == ours


BAD: dict[str, Callable[[], object]] = {
    "model = 'm', expected '': vLLM's hashes": lambda: vllm_block_keys([1], 1, Namespace(model="m")),
    "spans has embeddings, expected their rows": lambda: vllm_block_keys(
        [1], 1, Namespace(spans=(Span(kind="embeddings", digest="a", offset=0, length=1),))
    ),
    "rows of 'a' up to position 1, expected none behind": lambda: vllm_block_keys(
        [1], 1, Namespace(spans=(Span(kind="media", digest="a", offset=0, length=2),))
    ),
    "namespace = 'a', expected a Namespace": lambda: vllm_block_keys([1], 1, "a"),  # type: ignore[arg-type]
    r"tokens\[0\] = 1.0, expected an integer": lambda: vllm_block_keys([1.0], 1),  # type: ignore[list-item]
    "tokens holds -1 to 2, expected token ids from 0": lambda: vllm_block_keys([2, -1], 1),
    "block_size = 0": lambda: vllm_block_keys([1], 0),
    "seed = 0, expected text": lambda: vllm_block_keys([1], 1, COMMON, seed=0),  # type: ignore[arg-type]
    "group = -1": lambda: with_group(b"", -1),
    "factor = 0": lambda: of_larger_blocks([], 0),
}


@pytest.mark.parametrize("message", BAD)
def test_impossible_request_is_refused(message: str) -> None:
    """What the scheme has no place for would be left out in silence."""
    with pytest.raises(ArgumentError, match=message):
        BAD[message]()
