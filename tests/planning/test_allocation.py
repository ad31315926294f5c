"""What a manager of equal blocks takes, against the groups of layers that vLLM makes and what it logs."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kvref.errors import ArgumentError, FormatError
from kvref.planning.allocation import Allocation, allocation_of
from kvref.planning.catalog import geometry_by_name
from kvref.planning.geometry import geometry_of
from kvref.planning.groups import CacheGeometry
from kvref.planning.ranks import geometry_of_rank

RECORDED = Path(__file__).parents[1] / "data" / "vllm_groups.json"
SCRIPT = Path(__file__).parent / "ask_vllm_groups.py"
#: What a hybrid of latent attention is a multiple of.
OF_LATENT = 128


@cache
def recorded() -> dict[str, Any]:
    """Groups of vLLM 0.32.0."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def geometry_named(name: str) -> CacheGeometry:
    """A model of the catalogue, one of its ranks, or one of full layers and of layers with a window."""
    words = name.split()
    if len(words) == 1:
        return geometry_by_name(name)
    if words[1] == "on":
        return geometry_of_rank(geometry_by_name(words[0]), int(words[2]))
    full, window = int(words[0]), int(words[2])
    kinds = ["full_attention"] * full + ["sliding_attention"] * window
    config = {"model_type": "gemma3_text", "num_hidden_layers": full + window, "num_attention_heads": 3}
    config |= {"num_key_value_heads": 3, "head_dim": 24, "layer_types": kinds, "sliding_window": 40}
    return geometry_of(config)


def allocated(name: str, num_tokens: int, **options: Any) -> Allocation:
    """What a request of a model takes."""
    found = geometry_named(name)
    latent = any(group.kind == "latent" for group in found.groups)
    allocation = allocation_of(found, num_tokens, block_size=OF_LATENT if latent else 16, **options)
    assert allocation is not None
    return allocation


@pytest.mark.parametrize("name", recorded()["cases"])
def test_layers_are_cut_as_vllm_cuts_them(name: str) -> None:
    """As many groups, parts as large, blocks as long and as many of them; groups at most as large."""
    block_size, groups = recorded()["cases"][name]
    found = allocated(name, recorded()["context"])
    one_table = len(groups) == 1
    layers = [layers for layers, *_ in groups]
    assert found.group_size == (1 if one_table else max(layers))
    assert found.part_bytes == groups[0][1] * (layers[0] if one_table else 1)
    there = sorted((size, blocks) for _, _, size, blocks in groups)
    kept = [(t.block_size or block_size, t.blocks) for t in found.tables for _ in range(t.num_groups)]
    assert sorted(kept) == there


def test_a_token_in_every_table_takes_what_logs_of_vllm_say() -> None:
    """73,728 bytes a token of gpt-oss-120b, where its entries grow by 36,864."""
    assert allocated("gpt-oss-120b", 1).bytes_per_token == 73_728 == 2 * 36_864
    assert geometry_by_name("gpt-oss-120b").bytes_per_token() == 36_864


def test_a_running_request_has_two_states() -> None:
    """931 MiB on eight ranks of Kimi K3, where a snapshot takes 428.6; and one more for each draft."""
    found = allocated("Kimi-K3 on 8", 100_000)
    assert 8 * found.state_bytes == 8 * 2 * 69 * 884_736 == 976_748_544
    assert allocated("Kimi-K3 on 8", 100_000, num_drafts=3).state_bytes == 5 * found.state_bytes // 2
    assert found.part_bytes == 768 * 576 * 2


@pytest.mark.parametrize(
    ("num_tokens", "blocks"), [(1, 1), (16, 1), (17, 2), (127, 8), (129, 9), (10_000, 9)]
)
def test_a_window_takes_one_block_more_than_it_fills(num_tokens: int, blocks: int) -> None:
    """But not more than the request has."""
    assert {t.kind: t.blocks for t in allocated("gpt-oss-20b", num_tokens).tables}["window"] == blocks


def test_scheduled_tokens_are_kept_beside_the_window() -> None:
    """Those before them are let go of when the step is done."""
    (window, _) = allocated("gpt-oss-20b", 10_000, num_scheduled_tokens=512).tables
    assert window.blocks == -(-(127 + 512) // 16) + 1


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "DeepSeek-R1", "DeepSeek-V3.2", "Mixtral-8x7B"])
def test_where_nothing_is_mixed_only_the_last_block_is_not_full(name: str) -> None:
    """Up to fifteen slots, or 127."""
    found = geometry_by_name(name)
    for num_tokens in (1, 1000, 1024):
        taken = allocation_of(found, num_tokens)
        assert taken is not None
        assert taken.bytes == found.kv_bytes(-(-num_tokens // 16) * 16)


@pytest.mark.parametrize("name", ["DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash", "GLM-5.3-Flash"])
def test_what_is_laid_out_in_other_ways_is_not_guessed(name: str) -> None:
    """Entries for several tokens, and keys of indexers beside states."""
    assert allocation_of(geometry_by_name(name), 1000) is None


def test_what_cannot_be_allocated_is_refused() -> None:
    """No tokens, and formats that do not hold the entries."""
    with pytest.raises(ArgumentError, match="num_tokens = 0"):
        allocation_of(geometry_by_name("gpt-oss-20b"), 0)
    with pytest.raises(FormatError, match="fp8_ds_mla"):
        allocation_of(geometry_by_name("gpt-oss-20b"), 9, "fp8_ds_mla")


def test_what_was_recorded_is_what_vllm_says() -> None:
    """Of the version that is installed where KVREF_VLLM_PYTHON says."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vllm")
    command = [os.environ["KVREF_VLLM_PYTHON"], "-P", str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert json.loads(done.stdout) == recorded()
