"""Families that the catalogue does not have: what their layers keep, or why nobody can say.

The numbers are worked out by hand and stand in `families_of_models` beside what they follow from.
"""

from typing import Any

import pytest
from planning.families_of_models import KNOWN, REFUSED, Config, Due

from kvref.errors import ConfigError
from kvref.planning.catalog import catalog, config_of
from kvref.planning.geometry import geometry_of


@pytest.mark.parametrize("name", KNOWN)
def test_a_family_keeps_what_its_description_says(name: str) -> None:
    """To the byte, in all four parts."""
    config, due = KNOWN[name]
    found = geometry_of(config, name)
    kept = Due(int(found.bytes_per_token()), found.window_bytes(), found.recurrent_bytes, found.conv_bytes)
    assert kept == due
    assert not any("no family that kvref knows" in warning for warning in found.warnings)


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_description_leaves_open_is_refused_by_its_key(name: str) -> None:
    """The message begins with the key."""
    config, key = REFUSED[name]
    with pytest.raises(ConfigError) as refused:
        geometry_of(config, name)
    assert str(refused.value).split(" ")[0].removeprefix("text_config.") == key


def test_no_family_here_is_one_of_the_catalogue() -> None:
    """But for those whose configs are spelled in another way, or leave out what others say."""
    kept = {type_of(config_of(name)) for name in catalog()}
    again = {type_of(config) for config, _ in KNOWN.values()} & kept
    assert again == {"llama", "gemma3_text", "nemotron_h", "deepseek_v3", "mistral_large4_text"}


def type_of(config: Config) -> Any:
    """The type of the decoder."""
    return config.get("text_config", config).get("model_type")


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        (
            "MPT-7B",
            {"kv_n_heads": 4, "attn_config": {"kv_n_heads": 2}},
            "kv_n_heads = 4, expected the same as",
        ),
        ("Phi-4-mini", {"full_attn_mod": 2}, "full_attn_mod = 2, expected 1"),
        ("LongCat-Flash", {"attention_method": "MHA"}, "attention_method = 'MHA', expected MLA"),
        ("OpenELM-270M", {"num_kv_heads": [3] * 15}, "num_kv_heads = a list of 15"),
        (
            "OpenELM-270M",
            {"num_query_heads": [12] * 16},
            "layer 12: num_kv_heads = 5, expected a divisor",
        ),
        ("DeciLM-7B", {"num_key_value_heads_per_layer": [4] * 31 + [0]}, r"per_layer\[31\] = 0"),
        ("Falcon-Mamba-7B", {"intermediate_size": -1}, "intermediate_size = -1"),
    ],
)
def test_what_a_family_spells_must_go_together(name: str, keys: dict[str, Any], said: str) -> None:
    """Two keys that part, lists that are too short, numbers that are none."""
    with pytest.raises(ConfigError, match=said):
        geometry_of({**KNOWN[name][0], **keys})


def test_an_inner_width_that_is_said_is_no_product() -> None:
    """Of Falcon-Mamba, whose `expand` is 16 beside an `intermediate_size` of twice the hidden size."""
    config = dict(KNOWN["Falcon-Mamba-7B"][0])
    del config["intermediate_size"]
    assert geometry_of(config).states[0].recurrent == (16 * 4096, 16)
