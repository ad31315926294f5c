"""Stages of a pipeline: runs of layers, dealt out as vLLM deals them out, each sized at what it keeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import ArgumentError
from kvref.planning.catalog import catalog, geometry_by_name
from kvref.planning.geometry import geometry_of
from kvref.planning.ranks import geometry_of_rank
from kvref.planning.stages import geometry_of_stage, stages_of

SHARING = {
    "model_type": "gemma4_text", "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "hidden_size": 64, "sliding_window": 8, "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "stages", "due"),
    [
        (61, 1, (61,)),
        (61, 2, (31, 30)),
        (61, 4, (15, 15, 16, 15)),
        (62, 4, (15, 16, 16, 15)),
        (63, 4, (16, 16, 16, 15)),
        (64, 4, (16, 16, 16, 16)),
        (4, 4, (1, 1, 1, 1)),
        (93, 8, (11, 11, 12, 12, 12, 12, 12, 11)),
    ],
)
def test_layers_left_over_go_before_the_last_stage(layers: int, stages: int, due: tuple[int, ...]) -> None:
    """To the last but one first, as `get_pp_indices` of vLLM gives them."""
    assert stages_of(layers, stages) == due


@given(st.integers(1, 200), st.integers(1, 200))
def test_stages_have_all_layers_and_differ_by_one(layers: int, stages: int) -> None:
    """Whatever their number is, unless there are more of them than layers."""
    if stages > layers:
        with pytest.raises(ArgumentError, match="at most one for each"):
            stages_of(layers, stages)
        return
    found = stages_of(layers, stages)
    assert (len(found), sum(found)) == (stages, layers)
    assert max(found) - min(found) <= 1
    assert found[-1] == min(found)


@pytest.mark.parametrize("name", catalog())
def test_stages_keep_together_what_the_model_keeps(name: str) -> None:
    """Every byte of it once, where no layer reads another stage's."""
    whole = geometry_by_name(name)
    first, kept, snapshots, drafts = 0, 0, 0, 0
    for count in stages_of(whole.num_layers, 2):  # of V4.1 both halves begin with a layer that stores
        stage = geometry_of_stage(whole, first, count)
        first += count
        kept, snapshots = kept + stage.kv_bytes(1000), snapshots + stage.snapshot_bytes
        drafts += len(stage.drafts)
        assert all(stage.kinds_of(i) == whole.kinds_of(i) for i in range(first - count, first))
    assert (kept, snapshots, drafts) == (whole.kv_bytes(1000), whole.snapshot_bytes, len(whole.drafts))


def test_a_layer_that_reads_another_stages_entries_is_refused() -> None:
    """With both layers; on the stage of its source it is told as a reader."""
    found = geometry_of(SHARING)
    assert [group.sources for group in found.groups] == [(2,), (3,)]
    with pytest.raises(ArgumentError, match="layer 4 reads what layer 2 stores, which is on another stage"):
        geometry_of_stage(found, 4, 2)
    stage = geometry_of_stage(found, 2, 4)
    assert [(g.layers, g.readers, g.sources) for g in stage.groups] == [
        ((2,), (4,), (2,)),
        ((3,), (5,), (3,)),
    ]


def test_a_layer_of_two_attentions_is_one_layer_of_a_stage() -> None:
    """28 layers with 56 latent caches."""
    config = {"model_type": "longcat_flash", "num_layers": 4, "kv_lora_rank": 64, "qk_rope_head_dim": 16}
    stage = geometry_of_stage(geometry_of(config), 1, 2)
    assert stage.bytes_per_token() == 4 * 80 * 2
    with pytest.raises(ArgumentError, match="at most the 4 layers"):
        geometry_of_stage(geometry_of(config), 3, 2)


@pytest.mark.parametrize(("first", "count"), [(-1, 2), (0, 0), (0, 33), (32, 1)])
def test_what_is_no_run_of_layers_is_refused(first: int, count: int) -> None:
    """Before the first, of none, or behind the last."""
    with pytest.raises(ArgumentError):
        geometry_of_stage(geometry_by_name("Llama-3.1-8B"), first, count)


@pytest.mark.parametrize(("ranks", "groups"), [(8, 1), (8, 2), (8, 8), (16, 4)])
def test_a_group_of_ranks_is_sized_as_so_many_ranks(ranks: int, groups: int) -> None:
    """Whatever the other groups do with their requests."""
    for name in ("Llama-3.1-8B", "Kimi-K3", "Gemma-3-27B"):
        found = geometry_by_name(name)
        assert geometry_of_rank(found, ranks, dp_attention=groups) == geometry_of_rank(found, ranks // groups)


@pytest.mark.parametrize("groups", [0, 3, 16])
def test_groups_of_unequal_size_are_refused(groups: int) -> None:
    """Three among eight ranks, or more than there are."""
    with pytest.raises(ArgumentError, match="dp_attention"):
        geometry_of_rank(geometry_by_name("Llama-3.1-8B"), 8, dp_attention=groups)
