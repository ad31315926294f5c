"""The geometry of a model's cache, read from its config: what every layer keeps, and why.

The text part is found, then the number of layers, the kind of each, the width of its entries or the shape of
its state, who reads whose entries, and the draft layers. At the end every key that was not read is judged. A
config that leaves something open is refused with the key that did; a number that only a default gives is a
warning in the result.

Realises: KV-SIZE-001 layer-kinds, KV-SIZE-002 text-part, KV-SIZE-009 shared-layers, KV-SIZE-010
compressed-layers, KV-SIZE-011 indexer-keys, KV-SIZE-013 undecided-key-refused, KV-SIZE-021
no-attention-layers.
For porters: never one number for a model; a list of what each layer keeps, and then sums.
Source: Hugging Face configs; the layer kinds that vLLM 0.32.0 and transformers 5.24.0 allocate.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from kvref.errors import ConfigError, shown
from kvref.planning import compression, config_text, draft_layers, layer_sharing
from kvref.planning.class_defaults import defaults_of
from kvref.planning.config_keys import MAX_LENGTH, MISSING, UNDECIDED, Keys
from kvref.planning.entry_widths import is_latent, pass_widths, width_of
from kvref.planning.families import Family, family_of
from kvref.planning.groups import CacheGeometry, LayerGroup, StateGroup
from kvref.planning.layer_kinds import WINDOWED, LayerKinds, kinds_of_layers, window_of
from kvref.planning.layer_lists import number_of_layers
from kvref.planning.layer_overrides import Overrides, overrides_of
from kvref.planning.state_shapes import KEYS as STATE_KEYS
from kvref.planning.state_shapes import pass_kda, state_of

_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length", "seq_length", "max_seq_len",
            "max_context_length")  # fmt: skip
_STATEFUL = ("linear", "hybrid", "hybrid_window", "conv")


def geometry_of(
    config: Mapping[str, Any], name: str = "", *, ignore: Collection[str] = (), read_as: str | None = None
) -> CacheGeometry:
    """Return what the model of a config keeps of a request.

    `ignore` names keys that the caller knows to leave the cache alone; each is a warning. `read_as` is the
    model type whose class the caller knows to do the same; that is a warning, too.
    Raises: ConfigError that names the key: missing, impossible, contradicted by another, or not known.
    """
    warnings: list[str] = []
    keys, around = config_text.text_keys(config, warnings)
    model_type, family = _class_of(keys, around, warnings, read_as)
    keys.defaults = defaults_of(model_type, bool(keys.path))
    n, drafts = number_of_layers(keys), draft_layers.number_of_drafts(keys)
    ratios = compression.ratios_listed(keys, n, drafts)
    if ratios is not None:
        found = LayerKinds(tuple(compression.kinds_of_ratios(ratios[:n])), "compress_ratios")
    else:
        found = kinds_of_layers(keys, family, n, drafts)
        if family is None and model_type and found.by_class:
            keys.refuse(
                UNDECIDED, "model_type",
                "one that kvref knows, or a list of layers: nothing else says what they are",
                found=model_type,
            )  # fmt: skip
    if {"csa", "hca"} & set(found.kinds) and (family is None or not family.vector):
        keys.refuse(
            UNDECIDED, "model_type", "one whose compressed entries kvref knows", found=model_type or MISSING
        )
    reader = _Reader(keys, family, found, ratios or [], overrides_of(keys, n, family))
    groups, states = reader.groups(), reader.states()
    drafted = reader.drafts(drafts)
    context = keys.count(*_CONTEXT, at_most=MAX_LENGTH) or keys.count("model_max_length", at_most=MAX_LENGTH)
    keys.passed("model_max_length", *(family.unused if family else ()))
    for level in around:
        level.refuse_unread(frozenset(ignore), around=True)
    keys.refuse_unread(frozenset(ignore))
    warnings.extend(f"{key} was ignored, as asked" for key in ignore)
    times = 1 if family is None else family.attentions
    return CacheGeometry(name, n * times, groups, states, drafted, context, tuple(warnings), times)


def _class_of(
    keys: Keys, around: list[Keys], warnings: list[str], read_as: str | None
) -> tuple[str, Family | None]:
    """The model type that decides, and its family if there is one that kvref knows."""
    model_type = config_text.model_type_of(keys, around)
    spelled = f"model_type = {model_type}" if model_type else "model_type is absent"
    if read_as is not None:
        if family_of(read_as) is None:
            raise ConfigError(f"read_as = {shown(read_as)}, expected a model type that kvref knows")
        warnings.append(f"{spelled}, read as {read_as}, as asked")
        model_type = read_as
    family = family_of(model_type)
    if family is None:
        warnings.append(f"{spelled}: no family that kvref knows, read by its keys alone")
    elif family.must and not any(name in keys for name in family.must):
        keys.refuse(UNDECIDED, family.must[0], f"a value, as model_type = {model_type}", found=MISSING)
    return model_type, family


class _Reader:
    """One config, once the kinds of its layers are known."""

    def __init__(
        self, keys: Keys, family: Family | None, found: LayerKinds, ratios: list[int], overrides: Overrides
    ) -> None:
        self.keys, self.family, self.found, self.ratios, self.overrides = (
            keys,
            family,
            found,
            ratios,
            overrides,
        )
        kinds = found.kinds
        self.mixed = any(kind in WINDOWED for kind in kinds) and ("full" in kinds or "hybrid" in kinds)
        self.indexed = self._layers_with_indexer()

    def groups(self) -> tuple[LayerGroup, ...]:
        """Layers with entries of one shape, together."""
        kinds = self.found.kinds
        compressed = tuple(kind in ("csa", "hca") for kind in kinds)
        sources = layer_sharing.kv_sources(self.keys, kinds, compressed)
        entries: list[LayerGroup] = []
        for i in range(len(kinds)):
            for entry in self._entries(i):
                shares = sources[i] != i and (not compressed[i] or entry.kind != "window")
                own, readers, read = ((), (i,), (sources[i],)) if shares else ((i,), (), ())
                entries.append(replace(entry, layers=own, readers=readers, sources=read))
        if not entries:
            pass_widths(self.keys)
        times = 1 if self.family is None else self.family.attentions
        return _together(entries) if times == 1 else _together(_repeated(entries, times))

    def states(self) -> tuple[StateGroup, ...]:
        """Recurrent layers, each kind together."""
        joined: dict[str, list[int]] = {}
        for i, kind in enumerate(self.found.kinds):
            if kind in _STATEFUL:
                joined.setdefault(kind, []).append(i)
        if not joined:
            self.keys.passed(*STATE_KEYS)
            pass_kda(self.keys)
        return tuple(self._state(kind, tuple(layers)) for kind, layers in joined.items())

    def _state(self, kind: str, layers: tuple[int, ...]) -> StateGroup:
        family = "short_conv" if kind == "conv" else self._linear()
        if not family:
            self.keys.refuse(
                UNDECIDED, "model_type", "a family whose recurrence is known, as layers are linear"
            )
        width = None
        if kind in ("hybrid", "hybrid_window"):
            width = width_of(self.keys, self.family, windowed=kind in WINDOWED, mixed=self.mixed)
        return replace(state_of(self.keys, family, width), layers=layers, decided_by=self.found.decided_by)

    def drafts(self, number: int) -> tuple[LayerGroup, ...]:
        """Draft layers, which store what a full layer stores."""
        if not number:
            return ()
        n, extra = len(self.found.kinds), self.ratios[len(self.found.kinds) :]
        kinds = compression.kinds_of_ratios(extra) if extra else ["draft"] * number
        if self.family is not None and self.family.vector and not extra:
            kinds = ["window"] * number
        entries = [
            replace(entry, layers=(n + j,), decided_by="draft layers")
            for j, kind in enumerate(kinds)
            for entry in self._entries(n + j, kind)
        ]
        return _together(entries)

    def _entries(self, i: int, kind: str = "") -> list[LayerGroup]:
        """What layer i stores, were it to store all of it."""
        keys, kind = self.overrides.at(i), kind or self.found.kinds[i]
        if kind in ("linear", "conv", "none"):
            return []
        windowed = kind in WINDOWED
        width = width_of(keys, self.family, windowed=windowed, mixed=self.mixed)
        latent = is_latent(keys, self.family)
        if kind in ("csa", "hca"):
            window = LayerGroup(
                "window", (), *width, window=window_of(keys, kind), decided_by="sliding_window"
            )
            return [window, *self._compressed(i, kind, width[1])]
        word = "window" if windowed else "chunked" if kind == "chunked" else "latent" if latent else "full"
        entry = LayerGroup(word, (), *width, window=window_of(keys, kind), decided_by=self.found.decided_by)
        indexed = self.indexed and (kind == "draft" or (i < len(self.indexed) and self.indexed[i]))
        return [entry, *([self._index_key(self._pool())] if indexed else [])]

    def _compressed(self, i: int, kind: str, width: int) -> list[LayerGroup]:
        ratio = self.ratios[i] if self.ratios else compression.ratio_of(self.keys, kind)
        entry = LayerGroup("compressed", (), 1, width, 0, ratio, decided_by=self.found.decided_by)
        return [entry, self._index_key(ratio)] if kind == "csa" else [entry]

    def _index_key(self, tokens: int) -> LayerGroup:
        keys, said = self.keys, ("index_head_dim", "indexer_head_dim", "sparse_index_dim")
        inside = keys.inside("sparse_attention_config")
        if inside is not None and "sparse_index_dim" in inside:
            keys = keys.replaced({said[-1]: inside.get(said[-1])}, "sparse_attention_config.")
        name = next((one for one in said if one in keys), said[0])
        return LayerGroup("indexer", (), 1, keys.needed(*said), 0, tokens, decided_by=name)

    def _pool(self) -> int:
        return self.keys.count("index_kpool", "indexer_compress_ratio") or 1

    def _layers_with_indexer(self) -> list[bool]:
        kinds = self.found.kinds
        listed = "indexed" in kinds
        latent = "index_head_dim" in self.keys and is_latent(self.keys, self.family)
        if not listed and not latent:
            return []
        own = layer_sharing.has_indexer(self.keys, len(kinds))
        return [
            has and kind == ("indexed" if listed else "full") for has, kind in zip(own, kinds, strict=True)
        ]

    def _linear(self) -> str:
        if self.family is not None and self.family.linear:
            return self.family.linear
        inside = self.keys.config.get("linear_attn_config")
        return "kda" if inside is not None else ""


def _together(entries: list[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Join entries of one shape, in the order in which shapes first appear."""
    joined: dict[LayerGroup, list[LayerGroup]] = {}
    for entry in entries:
        joined.setdefault(replace(entry, layers=(), readers=(), sources=()), []).append(entry)
    return tuple(
        replace(
            shape,
            layers=tuple(i for one in same for i in one.layers),
            readers=tuple(i for one in same for i in one.readers),
            sources=tuple(i for one in same for i in one.sources),
        )
        for shape, same in joined.items()
    )


def _repeated(entries: list[LayerGroup], times: int) -> list[LayerGroup]:
    """Give a layer with several attentions as many numbers."""
    return [
        replace(entry, layers=tuple(times * i + j for i in entry.layers))
        for entry in entries
        for j in range(times)
    ]


__all__ = ["CacheGeometry", "LayerGroup", "StateGroup", "geometry_of"]
