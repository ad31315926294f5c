"""Configs from strangers: whatever stands under a key, the answer is a size or a ConfigError, and soon.

Every key of every config of the catalogue and of the families beside it is replaced by what it cannot be, or
left out. What the result then says is right or refused: nothing is taken for a number that is none, and a key
that decides something does not do so in silence.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning.families_of_models import KNOWN

from kvref.errors import ConfigError
from kvref.planning.catalog import catalog, config_of
from kvref.planning.geometry import CacheGeometry, geometry_of

CONFIGS = {name: config_of(name) for name in catalog()} | {
    name: config for name, (config, _) in KNOWN.items()
}
#: What no number of layers, no width, no list and no word is.
IMPOSSIBLE = (-1, 10**18, 3.5, math.nan, math.inf, [None], {"x": {}}, "", b"x", object())
#: What something is, and hardly ever what stood there.
UNLIKELY = (None, 0, 1, True, False, "x", [], {}, [0], [[]], "5")
#: Keys that may be 0 and mean it, may be false, or whose lists may be as long as they like.
MEANT = {
    "qk_rope_head_dim", "num_kv_shared_layers", "compress_ratios[0]", "use_cla", "multi_query",
    "new_decoder_architecture", "multi_query_attention", "no_op", "replace_with_linear", "use_sliding_window",
    "attn_layer_indices", "text_config", "attn_config", "full_attn_mod", "block_types", "is_mamba",
}  # fmt: skip

Path = tuple[str | int, ...]


def sites(part: dict[str, Any], path: Path = ()) -> Iterator[Path]:
    """Every key, at every depth, and the first entry of every list."""
    for name, value in part.items():
        if name.startswith("_"):
            continue
        yield (*path, name)
        if isinstance(value, dict):
            yield from sites(value, (*path, name))
        elif isinstance(value, list) and value:
            yield (*path, name, 0)
            if isinstance(value[0], dict):
                yield from sites(value[0], (*path, name, 0))


def put(config: dict[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A config in which something else stands at a place."""
    found = copy.deepcopy(config)
    part: Any = found
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return found


def spelled(path: Path) -> str:
    """The last key of a path."""
    return f"{path[-2]}[0]" if isinstance(path[-1], int) else path[-1]


def sums(found: CacheGeometry) -> tuple[Any, ...]:
    """What a config decides."""
    return (
        found.bytes_per_token(), found.window_bytes(), found.recurrent_bytes, found.conv_bytes,
    )  # fmt: skip


def sized(config: dict[str, Any]) -> CacheGeometry | None:
    """The geometry, or None where it is refused; any other error is a fault."""
    try:
        found = geometry_of(config)
    except ConfigError:
        return None
    found.kv_bytes(1000)
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_what_cannot_be_is_refused_or_decides_nothing(name: str) -> None:
    """Numbers below zero and beyond all bounds, fractions, NaN, objects of another kind."""
    config, due = CONFIGS[name], sums(geometry_of(CONFIGS[name]))
    for i, path in enumerate(sites(config)):
        for value in IMPOSSIBLE[i % 3 :: 3]:
            found = sized(put(config, path, value))
            if found is not None and spelled(path) not in ("model_type", "text_config"):
                assert sums(found) == due, (path, value)


@given(data=st.data())
@settings(max_examples=300)
def test_what_is_unlikely_is_refused_or_meant(data: st.DataObject) -> None:
    """And where a key may be left out, its class has a default, and that is a warning."""
    name = data.draw(st.sampled_from(list(CONFIGS)))
    config = CONFIGS[name]
    path = data.draw(st.sampled_from(list(sites(config))))
    value = data.draw(st.sampled_from(UNLIKELY))
    found, whole = sized(put(config, path, value)), geometry_of(config)
    if found is None or value is None or spelled(path) in MEANT:
        return
    same = sums(found) == sums(whole)
    assert same or (type(value) is int and value == 1) or found.warnings != whole.warnings, (
        name,
        path,
        value,
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_lists_that_are_too_short_or_too_long_are_refused(name: str) -> None:
    """If they have an entry for each layer, unless they are what layers are counted by, or decide nothing."""
    config = CONFIGS[name]
    whole = geometry_of(config)
    layers = whole.num_layers
    for path in sites(config):
        value: Any = config
        for key in path:
            value = value[key]
        if isinstance(value, list | str) and len(value) == layers > 2 and spelled(path) != "value_dim":
            for other in (value[:-1], value + value[-1:]):
                found = sized(put(config, path, other))
                counted = found is not None and found.num_layers == len(other)
                assert found is None or counted or sums(found) == sums(whole), path


@pytest.mark.parametrize("model_type", ["novel", "x" * 200])
def test_a_class_that_nobody_knows_is_not_guessed(model_type: str) -> None:
    """Unless keys say what each layer is, and how wide."""
    for config in CONFIGS.values():
        if "text_config" in config or "model_type" not in config:
            continue
        found, whole = sized({**config, "model_type": model_type}), geometry_of(config)
        assert found is None or sums(found) == sums(whole), config
