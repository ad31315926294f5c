"""Configs that must be refused: of models of which nobody can say what they keep, and of no model at all."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvref_conformance.programs.model_sizes import NULL, Config, Model


@dataclass(frozen=True)
class Alteration:
    """A change to the part of a config that describes the decoder."""

    what: str
    keys: Callable[[Config], Config | None]
    """From that part to the keys that are set, or left out (None); None where it makes no sense."""


def _layer_list(text: Config, change: Callable[[list[Any]], list[Any]]) -> Config | None:
    name = next((n for n in ("layer_types", "layers_block_type") if n in text), None)
    return None if name is None else {name: change(list(text[name]))}


def _number(name: str, value: Any) -> Callable[[Config], Config | None]:
    return lambda text: {name: value} if text.get(name) is not None else None


def _plain(name: str, value: Any) -> Callable[[Config], Config | None]:
    """Return a change to a model of the plainest family, in which every number counts."""
    return lambda text: {name: value} if text["model_type"] == "llama" else None


#: What nobody can decide, by number.
UNDECIDED: tuple[Alteration, ...] = (
    Alteration(
        "a layer of a kind that nobody has heard of",
        lambda text: _layer_list(text, lambda kinds: [*kinds[:-1], "holographic_attention"]),
    ),
    Alteration(
        "fewer kinds of layers than layers",
        lambda text: _layer_list(text, lambda kinds: kinds[:-1]) if "num_hidden_layers" in text else None,
    ),
    Alteration(
        "a letter that stands for no layer",
        lambda text: (
            {"hybrid_override_pattern": text["hybrid_override_pattern"][:-1] + "?"}
            if "hybrid_override_pattern" in text
            else None
        ),
    ),
    Alteration(
        "no head_dim, and heads that do not divide hidden_size",
        lambda text: (
            {"head_dim": None, "num_attention_heads": 4 * text["num_attention_heads"], "hidden_size": 4097}
            if text["model_type"] == "llama"
            else None
        ),
    ),
    Alteration("a key about the cache that nobody has heard of", lambda text: {"kv_cache_keep_ratio": 0.5}),
    Alteration("attention of a kind that nobody has heard of", lambda text: {"sparse_kv_stride": 4}),
    Alteration(
        "a window, and no word about which layers have it",
        lambda text: {"sliding_window": NULL} if "sliding_attention" in text.get("layer_types", ()) else None,
    ),
    Alteration("a key that nobody has heard of, in an object within", lambda text: _within(text)),
)


def _within(text: Config) -> Config | None:
    """Put a key about the cache into the first object that says what layers are."""
    if "linear_attn_config" in text:
        return {"linear_attn_config": {**text["linear_attn_config"], "kv_share_stride": 4}}
    if "block_configs" in text:
        first, *others = text["block_configs"]
        attention = {**first["attention"], "kv_share_stride": 4}
        return {"block_configs": [{**first, "attention": attention}, *others]}
    return None


def _listed_outside(text: Config) -> Config | None:
    if "linear_attn_config" not in text:
        return None
    own = text["linear_attn_config"]
    return {"linear_attn_config": {**own, "kda_layers": [*own["kda_layers"], text["num_hidden_layers"] + 1]}}


#: What describes no model, by number; the first few are no alteration but texts of their own.
TEXTS: tuple[tuple[str, str], ...] = (
    ("a text that is no JSON", '{"num_hidden_layers": 4'),
    ("a list in place of a config", "[]"),
    ("a config without keys", "{}"),
    ("lists in lists without end", "[" * 3000 + "]" * 3000),
    ("a number in place of a config", "12"),
)
ABSURD: tuple[Alteration, ...] = (
    *(Alteration(what, lambda text: None) for what, _ in TEXTS),
    Alteration("a number of layers below zero", _number("num_hidden_layers", -3)),
    Alteration("no layer", _number("num_hidden_layers", 0)),
    Alteration("a fraction of a layer", _number("num_hidden_layers", 2.5)),
    Alteration("a text in place of a number of layers", _number("num_hidden_layers", "4")),
    Alteration("true in place of a number of layers", _number("num_hidden_layers", True)),
    Alteration("more layers than atoms", _number("num_hidden_layers", 10**30)),
    Alteration("a number of KV heads below zero", _plain("num_key_value_heads", -2)),
    Alteration("a head of no width", _plain("head_dim", 0)),
    Alteration("a head that is not a number wide", _plain("head_dim", float("nan"))),
    Alteration("a latent vector of no width", _number("kv_lora_rank", 0)),
    Alteration(
        "a window below zero",
        lambda text: {"sliding_window": -128} if "layer_types" in text and "sliding_window" in text else None,
    ),
    Alteration("a head of endless width", _plain("head_dim", float("inf"))),
    Alteration("an object in place of a number of heads", _plain("num_key_value_heads", {"a": 1})),
    Alteration("a list of layers that names one which is not there", _listed_outside),
)


def odd(model: Model, number: int) -> str | None:
    """Return a config that nobody can decide; None where the change makes no sense."""
    keys = UNDECIDED[number].keys(model.text)
    return None if keys is None else json.dumps(model.altered(**keys).config)


def absurd(model: Model, number: int) -> str | None:
    """Return a config that describes no model; None where the change makes no sense."""
    if number < len(TEXTS):
        return TEXTS[number][1]
    keys = ABSURD[number].keys(model.text)
    return None if keys is None else json.dumps(model.altered(**keys).config)
