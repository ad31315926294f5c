"""Which kind each layer is: from the keys that list layers, or else from what a model's code does.

The keys are asked in a fixed order and must agree where several are there. If none is there, the family's
rule decides, and a number that then comes from the code alone is a warning. If the family has no rule, the
config has left it open.

Realises: KV-SIZE-001 layer-kinds, KV-SIZE-005 window-bound, KV-SIZE-006 chunked-bound, KV-SIZE-013
undecided-key-refused.
For porters: `kinds_of_layers` is the order of the keys.
Source: transformers 5.24.0, configuration classes; facts about each key at its reader in
`kvref.planning.layer_lists`.
"""

from dataclasses import dataclass, replace

from kvref.planning import layer_lists as lists
from kvref.planning.config_keys import MAX_LENGTH, MISSING, UNDECIDED, Keys
from kvref.planning.families import Family
from kvref.planning.layer_overrides import block_kinds

#: Kinds that keep the last so many tokens.
WINDOWED = ("window", "hybrid_window")
_WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "window_size")


@dataclass(frozen=True)
class LayerKinds:
    """A word a layer, and what decided it."""

    kinds: tuple[str, ...]
    decided_by: str
    by_class: bool = False
    """Whether no key of the config lists the layers."""


def kinds_of_layers(keys: Keys, family: Family | None, num_layers: int, drafts: int = 0) -> LayerKinds:
    """Return the kind of every layer.

    Raises: ConfigError if keys disagree, or none decides.
    """
    if keys.count("full_attn_mod", at_most=2**20) not in (None, 1):
        keys.refuse(UNDECIDED, "full_attn_mod", "1, for each layer")
    found = lists.agreed(keys, _listed(keys, family, num_layers, drafts))
    if found is not None:
        name, kinds = found
        keys.passed("max_window_layers", *_WINDOWS, "attention_chunk_size")
        if keys.flag("use_sliding_window") is False and any(kind in WINDOWED for kind in kinds):
            keys.refuse(UNDECIDED, "use_sliding_window", f"true, as {name} lists layers with a window")
        return LayerKinds(tuple(kinds), name)
    return replace(_by_rule(keys, family, num_layers), by_class=True)


def window_of(keys: Keys, kind: str) -> int | None:
    """Return how many tokens a layer of a kind keeps; None: all.

    Raises: ConfigError if a window is needed and not there.
    """
    if kind in WINDOWED or kind in ("csa", "hca"):
        halved = keys.count("local_attention", at_most=MAX_LENGTH, minimum=2)
        return halved // 2 if halved is not None else keys.needed(*_WINDOWS, at_most=MAX_LENGTH)
    if kind == "chunked":
        return keys.needed("attention_chunk_size", at_most=MAX_LENGTH)
    return None


def _listed(keys: Keys, family: Family | None, n: int, drafts: int) -> list[tuple[str, lists.Kinds]]:
    """Every key that lists layers, with what it says."""
    others = "linear" if family is not None and family.linear else "window"
    found = {
        "linear_attn_config": lists.linear_attn_config(keys, n),
        "layer_types": lists.words_of_layers(keys, "layer_types", n, drafts),
        "layers_block_type": lists.words_of_layers(keys, "layers_block_type", n),
        "attention_layers": lists.words_of_layers(keys, "attention_layers", n),
        "block_types": lists.repeated_words(keys, n),
        "sparse_attention_config": lists.sparse_layers(keys, n),
        "block_configs": block_kinds(keys, n),
        "hybrid_override_pattern": lists.override_pattern(keys, n),
        "hybrid_layer_pattern": lists.numbers_of_layers(keys, "hybrid_layer_pattern", n, ("full", "window")),
        "attn_type_list": lists.numbers_of_layers(keys, "attn_type_list", n, ("linear", "full")),
        "local_layer_ids": lists.named_layers(keys, "local_layer_ids", n, "window", "full"),
        "attn_layer_indices": lists.named_layers(keys, "attn_layer_indices", n, "full", "linear"),
        "full_attn_idxs": lists.named_layers(keys, "full_attn_idxs", n, "full", "conv"),
        "hybrid_layer_ids": lists.named_layers(keys, "hybrid_layer_ids", n, "hybrid", "linear"),
        "attn_layer_period": _period(keys, family, n),
        "full_attention_interval": lists.every_so_many(keys, n, ("full_attention_interval",), "linear"),
    }
    if others == "window" and "sliding_window" in keys:
        names = ("sliding_window_pattern", "_sliding_window_pattern", "layer_switch")
        order = keys.word("order_of_interleaved_layers")
        if order not in (None, "local_attn_first"):
            keys.refuse(UNDECIDED, "order_of_interleaved_layers", "local_attn_first")
        found[names[0]] = lists.every_so_many(keys, n, names, "window")
        found["global_attn_every_n_layers"] = (
            None if family is not None and family.rule == "first_of"
            else lists.every_so_many(keys, n, ("global_attn_every_n_layers",), "window")
        )  # fmt: skip
    return [(name, kinds) for name, kinds in found.items() if kinds is not None]


def _by_rule(keys: Keys, family: Family | None, n: int) -> LayerKinds:
    rule = "full" if family is None else family.rule
    if rule == "listed":
        keys.refuse(
            UNDECIDED,
            "layer_types",
            "a list of what each layer is: nothing else in the config says it",
            found=MISSING,
        )
    if rule in ("linear", "hybrid"):
        return LayerKinds((rule,) * n, f"model_type: every layer is {rule}")
    if rule == "chunks":
        return _chunks(keys, n)
    if rule == "full":
        return LayerKinds(("full",) * n, "no key names another kind")
    return _windows(keys, family, rule, n)


def _period(keys: Keys, family: Family | None, n: int) -> lists.Kinds | None:
    """Jamba's period and offset; Zamba's mean something else, and its list says it."""
    return (
        None
        if family is not None and "attn_layer_period" in family.unused
        else lists.period_and_offset(keys, n, "full")
    )


def _windows(keys: Keys, family: Family | None, rule: str, n: int) -> LayerKinds:
    used = keys.flag("use_sliding_window")
    if rule == "unrotated":
        return _unrotated(keys, n, used)
    if rule in ("upper", "above"):
        bound = keys.count("max_window_layers", at_most=2**20, minimum=0)
        if (rule == "upper" and not used) or "sliding_window" not in keys:
            keys.passed("sliding_window")
            return LayerKinds(("full",) * n, "use_sliding_window")
        if bound is None:
            keys.refuse(UNDECIDED, "max_window_layers", "a whole number, as a window is used", found=MISSING)
        return LayerKinds(tuple("window" if i >= bound else "full" for i in range(n)), "max_window_layers")
    if "sliding_window" not in keys or used is False:
        keys.passed("sliding_window")
        return LayerKinds(("full",) * n, "sliding_window")
    if rule == "window":
        return LayerKinds(("window",) * n, "sliding_window")
    every = keys.count("global_attn_every_n_layers", at_most=4096) or (0 if family is None else family.every)
    keys.warn(f"no key lists the layers: that every {every}th has no window is the default of the class")
    at = every - 1 if rule == "last_of" else 0
    kinds = tuple("full" if i % every == at else "window" for i in range(n))
    return LayerKinds(kinds, f"default of the class: one in {every} is full")


def _unrotated(keys: Keys, n: int, used: bool | None) -> LayerKinds:
    """SmolLM3: layers that do not rotate may have a window."""
    rotates = lists.numbers_of_layers(keys, "no_rope_layers", n, ("window", "full"))
    if not used or "sliding_window" not in keys:
        keys.passed("sliding_window")
        return LayerKinds(("full",) * n, "use_sliding_window")
    if rotates is None:
        keys.refuse(UNDECIDED, "no_rope_layers", "a list, as use_sliding_window is true", found=MISSING)
    return LayerKinds(tuple(rotates), "no_rope_layers")


def _chunks(keys: Keys, n: int) -> LayerKinds:
    """Llama 4: layers that rotate attend within chunks, the others to everything."""
    if "attention_chunk_size" not in keys:
        return LayerKinds(("full",) * n, "attention_chunk_size")
    listed = keys.items("no_rope_layers")
    if listed:
        kinds = lists.numbers_of_layers(keys, "no_rope_layers", n, ("full", "chunked"))
        assert kinds is not None
        return LayerKinds(tuple(kinds), "no_rope_layers")
    every = keys.count("no_rope_layer_interval", at_most=4096)
    if every is None:
        every = 4
        keys.warn("no key lists the layers: that every 4th is not chunked is the default of the class")
    return LayerKinds(
        tuple("full" if (i + 1) % every == 0 else "chunked" for i in range(n)), "no_rope_layer_interval"
    )
