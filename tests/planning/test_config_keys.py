"""Keys of configs: each is known, of other things, or refused, at every depth; absent and null differ."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from kvref.errors import ConfigError
from kvref.planning.catalog import catalog, config_of
from kvref.planning.config_keys import MAX_DEPTH
from kvref.planning.geometry import geometry_of
from kvref.planning.indifferent_keys import may_decide, of_other_things

LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_size": 600,
}
#: As MiniMax-M3 is published: what its indexers do stands in an object of its own.
MINIMAX_M3: dict[str, Any] = {
    "model_type": "minimax_m3_vl",
    "text_config": {
        "num_hidden_layers": 60, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "hidden_size": 6144, "rotary_dim": 64, "use_qk_norm": True, "qk_norm_type": "per_head",
        "attention_output_gate": False, "max_position_embeddings": 1048576, "num_local_experts": 128,
        "moe_layer_freq": [0] * 3 + [1] * 57, "n_shared_experts": 1, "num_mtp_modules": 7,
        "sparse_attention_config": {
            "use_sparse_attention": True, "sparse_index_dim": 128, "sparse_num_index_heads": 4,
            "sparse_topk_blocks": 16, "sparse_block_size": 128, "sparse_score_type": "max",
            "sparse_init_block": 0, "sparse_local_block": 1,
            "sparse_disable_index_value": [0] * 3 + [1] * 57, "sparse_attention_freq": [0] * 3 + [1] * 57,
        },
    },
    "vision_config": {"num_hidden_layers": 32, "num_attention_heads": 16},
}  # fmt: skip


def objects_within(part: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object that is about the decoder, with the path of its keys."""
    yield path, part
    for name, value in part.items():
        if isinstance(value, dict) and not of_other_things(name):
            yield from objects_within(value, f"{path}{name}.")
        for i, one in enumerate(value if isinstance(value, list) else ()):
            if isinstance(one, dict):
                attention = one.get("attention", one)
                yield from objects_within(attention, f"{path}{name}[{i}].attention.")


@pytest.mark.parametrize("name", catalog())
def test_an_unknown_key_is_refused_at_every_depth(name: str) -> None:
    """With the path that leads to it, whatever object of a real config it stands in."""
    places = [path for path, _ in objects_within(config_of(name))]
    for path in {places[0], places[-1], *places[1:6]}:
        config = copy.deepcopy(config_of(name))
        dict(objects_within(config))[path]["kv_share_stride"] = 4
        with pytest.raises(ConfigError, match="kv_share_stride = 4 is a key that may decide") as refused:
            geometry_of(config)
        assert f"{path}kv_share_stride" in str(refused.value)


def test_an_object_that_nobody_reads_is_looked_into() -> None:
    """Its name says nothing, and a key of it may."""
    with pytest.raises(ConfigError, match=r"extras\.more\.num_anchor_layers = 3 is a key that may decide"):
        geometry_of({**LLAMA, "extras": {"more": {"num_anchor_layers": 3}}})
    assert geometry_of({**LLAMA, "extras": {"more": {"rms_norm_eps": 3}}})
    assert geometry_of({**LLAMA, "rope_scaling": {"num_anchor_layers": 3}})


def test_objects_in_objects_without_end_are_refused() -> None:
    """An object that holds itself is none of a config; one that was parsed is never that deep."""
    extras: dict[str, Any] = {}
    extras["more"] = extras
    with pytest.raises(ConfigError, match=f"nested deeper than {MAX_DEPTH}"):
        geometry_of({**LLAMA, "extras": extras})


@pytest.mark.parametrize("name", ["kv_share_stride", "attnWindow", "num_anchor_layers", "mamba_extra"])
def test_a_name_that_speaks_of_the_cache_may_decide(name: str) -> None:
    """In whatever case it is written."""
    assert may_decide(name)


def test_minimax_m3_keeps_a_key_of_an_indexer_in_its_sparse_layers() -> None:
    """60 layers of 4 heads, 57 of them with one key of 128, and no more for four heads of queries."""
    found = geometry_of(MINIMAX_M3)
    assert found.bytes_per_token() == 2 * (60 * 2 * 4 * 128 + 57 * 128) == 137_472
    assert [(g.kind, len(g.layers), g.num_heads) for g in found.groups] == [
        ("full", 60, 4),
        ("indexer", 57, 1),
    ]
    assert found.groups[1].layers == tuple(range(3, 60))


def altered_m3(**keys: Any) -> dict[str, Any]:
    """MiniMax-M3 with keys of its inner object set, or left out."""
    config = copy.deepcopy(MINIMAX_M3)
    inner = config["text_config"]["sparse_attention_config"]
    inner.update(keys)
    config["text_config"]["sparse_attention_config"] = {k: v for k, v in inner.items() if v is not None}
    return config


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sparse_attention_freq": None}, "sparse_attention_freq is missing"),
        ({"sparse_attention_freq": [1] * 59}, "sparse_attention_freq = a list of 59"),
        ({"sparse_attention_freq": [0] * 59 + [2]}, r"sparse_attention_freq\[59\] = 2"),
        ({"sparse_disable_index_value": [0] * 60}, r"sparse_disable_index_value\[3\] = 0"),
        ({"sparse_index_dim": 0}, "sparse_index_dim = 0"),
        ({"sparse_index_dim": "128"}, "sparse_index_dim = '128'"),
        ({"use_sparse_attention": "yes"}, "use_sparse_attention = 'yes'"),
        ({"sparse_index_window": 5}, "sparse_index_window = 5 is a key that may decide"),
    ],
)
def test_what_an_inner_object_leaves_open_is_refused(keys: dict[str, Any], said: str) -> None:
    """With the path of the key."""
    with pytest.raises(ConfigError, match=rf"text_config\.sparse_attention_config\.{said}"):
        geometry_of(altered_m3(**keys))


def test_sparse_attention_can_be_turned_off() -> None:
    """Then no layer has an indexer; and a width that is not said is that of the class."""
    assert geometry_of(altered_m3(use_sparse_attention=False)).bytes_per_token() == 2 * 60 * 1024
    found = geometry_of(altered_m3(sparse_index_dim=None))
    assert found.bytes_per_token() == 137_472
    assert "text_config.index_head_dim is absent: 128 is the default of the class" in found.warnings


@pytest.mark.parametrize(
    ("config", "head_dim", "heads", "window"),
    [
        ({"model_type": "qwen3"}, 128, 32, None),
        ({"model_type": "gemma"}, 256, 16, None),
        ({"model_type": "mistral"}, 80, 8, 4096),
        ({"model_type": "mistral", "sliding_window": None}, 80, 8, None),
        ({"model_type": "mistral", "num_key_value_heads": None}, 80, 32, 4096),
        ({"model_type": "mistral", "num_key_value_heads": 4, "sliding_window": 9}, 80, 4, 9),
        ({"model_type": "llama"}, 80, 32, None),
    ],
)
def test_what_a_config_leaves_out_its_class_says(
    config: dict[str, Any], head_dim: int, heads: int, window: int | None
) -> None:
    """As a warning, and not where the key is there and null."""
    whole = {"num_hidden_layers": 1, "num_attention_heads": 32, "hidden_size": 2560}
    found = geometry_of({**whole, **config})
    (group,) = found.groups
    assert (group.k_dim, group.num_heads, group.window) == (head_dim, heads, window)
    for key in ("head_dim", "num_key_value_heads", "sliding_window"):
        assert key not in config or f"{key} is absent" not in " ".join(found.warnings)


def test_a_part_within_leaves_out_what_its_class_says() -> None:
    """A whole config that did would describe no model."""
    found = geometry_of({"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}})
    assert found.bytes_per_token() == 2 * 32 * 2 * 32 * 128
    assert len(found.warnings) == 4
    with pytest.raises(ConfigError, match="num_hidden_layers is missing"):
        geometry_of({"model_type": "llama", "vocab_size": 32064})
