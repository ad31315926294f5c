"""Deterministic workloads whose hits and evictions on real engines are known (`management_oracles.json`).

W1 shared documents: 2,000 requests, one at a time: one of 50 documents of 2,048 tokens and 128 tokens of its
own. W3 many turns: 200 conversations of 10 turns; a turn sends the whole history and 64 new tokens, then 64
decoded tokens join the history. Both run on 65,536 tokens of cache in blocks of 16, one request at a time.
Source: the workload definitions that came with the answers of vLLM, nano-vllm and SGLang; `digest` says that
the tokens are the same.
"""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

VOCAB = 32_000
BLOCK_SIZE, NUM_BLOCKS = 16, 4_096


@cache
def oracles() -> dict[str, Any]:
    """The exact answers of the engines."""
    path = Path(__file__).parents[1] / "data" / "management_oracles.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def w1(n: int = 2_000, docs: int = 50, doc_len: int = 2_048, tail: int = 128) -> list[list[int]]:
    """Prompts in the order of service."""
    rng = np.random.default_rng(20250101)
    documents = rng.integers(0, VOCAB, size=(docs, doc_len))
    pick = rng.integers(0, docs, size=n)
    tails = rng.integers(0, VOCAB, size=(n, tail))
    return [np.concatenate([documents[pick[i]], tails[i]]).tolist() for i in range(n)]


def w3(
    convs: int = 200, turns: int = 10, user: int = 64, decoded: int = 64
) -> list[tuple[list[int], list[int]]]:
    """Prompts and the tokens decoded after each, in the order of service."""
    rng = np.random.default_rng(20250103)
    order = np.repeat(np.arange(convs), turns)
    rng.shuffle(order)
    history: list[list[int]] = [[] for _ in range(convs)]
    requests = []
    for c in order:
        new_user = rng.integers(0, VOCAB, size=user).tolist()
        new_decoded = rng.integers(0, VOCAB, size=decoded).tolist()
        prompt = history[c] + new_user
        requests.append((prompt, new_decoded))
        history[c] = prompt + new_decoded
    return requests


def digest(requests: list[list[int]]) -> str:
    """First 16 hex digits of the SHA-256 over all tokens as int32."""
    found = hashlib.sha256()
    for tokens in requests:
        found.update(np.asarray(tokens, dtype=np.int32).tobytes())
    return found.hexdigest()[:16]
