"""Every model of the catalogue against sizes that were computed by somebody else, and the shares of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvref.errors import ArgumentError
from kvref.planning.catalog import catalog, geometry_by_name
from kvref.planning.ranks import geometry_of_rank, hybrid_block_size

EXPECTED: dict[str, Any] = json.loads(
    (Path(__file__).parents[1] / "data" / "models_expected.json").read_text(encoding="utf-8")
)


def test_every_model_has_an_expectation() -> None:
    """And nothing is expected of a model that is not there."""
    assert set(EXPECTED) == set(catalog())


@pytest.mark.parametrize("name", catalog())
def test_a_model_takes_what_is_expected(name: str) -> None:
    """Bytes a token in two formats, full windows, both parts of states: to the byte."""
    found, due = geometry_by_name(name), EXPECTED[name]
    assert found.bytes_per_token("bfloat16") == due["bf16_bytes_per_token"]
    assert found.bytes_per_token("fp8_e4m3") == due["fp8_bytes_per_token"]
    assert found.window_bytes() == due["window_bytes_bf16_full"]
    assert found.recurrent_bytes == due["recurrent_state_bytes_fp32"]
    assert found.conv_bytes == due["conv_state_bytes_bf16"]


@pytest.mark.parametrize(
    ("name", "ranks", "form", "multiple", "due"),
    [
        ("Kimi-K3", 8, "bfloat16", 128, 768),
        ("Kimi-K3", 8, "fp8_e4m3", 128, 1536),
        ("Kimi-K3", 4, "bfloat16", 128, 1536),
        ("Kimi-K3", 1, "bfloat16", 128, 5760),
        ("Qwen3.5-27B", 1, "bfloat16", 16, 784),
    ],
)
def test_hybrid_blocks_are_those_of_recipes(
    name: str, ranks: int, form: str, multiple: int, due: int
) -> None:
    """768, 1536 and 784 stand in LMCache's recipes; 768 is a property of eight ranks, not of the model."""
    rank = geometry_of_rank(geometry_by_name(name), ranks)
    assert hybrid_block_size(rank, form, multiple=multiple) == due


def test_one_rank_keeps_all() -> None:
    """Sharing among one changes nothing."""
    for name in catalog():
        assert geometry_of_rank(geometry_by_name(name), 1) == geometry_by_name(name)


def test_ranks_that_cannot_share_are_refused() -> None:
    """Nobody has a third of a head."""
    with pytest.raises(ArgumentError, match="3 ranks cannot share out 8 KV heads"):
        geometry_of_rank(geometry_by_name("Llama-3.1-8B"), 3)
    with pytest.raises(ArgumentError, match="5 ranks cannot share out 96 heads of kda layers"):
        geometry_of_rank(geometry_by_name("Kimi-K3"), 5)
    with pytest.raises(ArgumentError, match="is no hybrid"):
        hybrid_block_size(geometry_by_name("Llama-3.1-8B"))
