"""A naive reader of configs: one entry a layer in a list, and every decision a method.

It knows the keys that the spec's chapter on sizes names, in the chapter's order, and refuses a config as soon
as a layer is of a kind that it has no word for.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvref.errors import KVError

Config = Mapping[str, Any]

#: Where the decoder may be described, the first that is there.
PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
#: What a layer is called, and what it is here.
WORDS = {
    **dict.fromkeys(("full_attention", "attention"), "full"),
    "sliding_attention": "window",
    "linear_attention": "state",
    "mamba": "state",
    **dict.fromkeys(("moe", "mlp"), "nothing"),
}
LETTERS = {"*": "full", "M": "state", "E": "nothing", "-": "nothing"}
#: Parts of the names of keys that speak of the cache; those that are known, and say nothing of sizes.
SPEAKING = ("kv_", "cache", "window")
KNOWN = (
    *("kv_lora_rank", "num_kv_shared_layers", "mamba_ssm_cache_dtype", "sliding_window"),
    *("sliding_window_pattern", "use_sliding_window", "max_window_layers", "attention_k_eq_v", "use_cache"),
    *("window_length", "use_prefill_window_in_sink_attention"),
)
LARGEST = 2**40
#: What classes say where a config does not.
DEFAULTS: Mapping[str, Config] = {
    "qwen3": {"head_dim": 128},
    "mistral": {"num_key_value_heads": 8, "sliding_window": 4096},
}


@dataclass
class Stored:
    """What one layer stores for so many tokens."""

    elements: int
    tokens: int = 1
    window: int | None = None
    heads: int = 0
    """KV heads that ranks share out; 0 where there are none."""


@dataclass
class State:
    """What one recurrent layer keeps."""

    heads: int
    head_elements: int
    conv: list[tuple[int, int]]
    """(how many, channels of each): what the convolution runs over."""
    columns: int
    dtype: str
    conv_dtype: str
    copied: bool = False


@dataclass
class Layer:
    """All that one layer keeps."""

    stored: list[Stored] = field(default_factory=list)
    state: State | None = None
    reads: int | None = None
    """The layer whose entries it reads."""


class LayerReader:
    """Makes a list of layers out of the text of a config."""

    def parsed(self, config: str) -> Config:
        """Return the config as an object. Raises: KVError."""
        try:
            found = json.loads(config)
        except (ValueError, RecursionError):
            raise KVError("config is no JSON") from None
        if not isinstance(found, dict) or not found:
            raise KVError("config is no object with keys")
        return found

    def decoder(self, config: Config) -> Config:
        """Return the part that describes the decoder."""
        for name in PARTS:
            part = config.get(name)
            if isinstance(part, dict):
                return self.decoder(part)
        return config

    def number(self, text: Config, *names: str, least: int = 1) -> int:
        """Return a whole number by its first name that is there. Raises: KVError."""
        for name in names:
            value = text.get(name)
            if value is None:
                continue
            if type(value) is not int or not least <= value <= LARGEST:
                raise KVError(f"{name} = {value!r:.40}, expected a whole number from {least}")
            return value
        raise KVError(f"config has no {names[0]}")

    def layers(self, config: str) -> list[Layer]:
        """Return what each layer keeps. Raises: KVError."""
        text = self.completed(self.decoder(self.parsed(config)))
        self.refuse_unknown(text)
        kinds = self.kinds(text)
        found = [self.layer(text, kind, at) for at, kind in enumerate(kinds)]
        return self.without_readers(text, found)

    def refuse_unknown(self, text: Config) -> None:
        """Refuse what speaks of the cache in words that are not known, also within. Raises: KVError."""
        for part in self.parts(text):
            self.refuse_unknown(part)
        for name in text:
            if any(part in name for part in SPEAKING) and name not in KNOWN and not name.startswith("swa_"):
                raise KVError(f"nobody here knows what {name} does")

    def completed(self, text: Config) -> Config:
        """Return the config with what its class says of keys that are not there."""
        return {**DEFAULTS.get(str(text.get("model_type")), {}), **text}

    def parts(self, text: Config) -> list[Config]:
        """Return the objects within that say what layers are."""
        blocks = text.get("block_configs", ())
        lists = [text["linear_attn_config"]] if "linear_attn_config" in text else []
        return [*lists, *(block["attention"] for block in blocks if "attention" in block)]

    def num_layers(self, text: Config) -> int:
        """Return how many layers there are, those that draft apart."""
        if "layers_block_type" in text and text.get("num_hidden_layers") is None:
            return len(text["layers_block_type"])
        return self.number(text, "num_hidden_layers")

    def kinds(self, text: Config) -> list[str]:
        """Return what each layer is. Raises: KVError."""
        count = self.num_layers(text)
        if count > 4096:
            raise KVError(f"{count} layers are no model")
        found = self.listed(text, count) or self.ruled(text, count)
        if len(found) != count:
            raise KVError(f"{len(found)} layers are described, and there are {count}")
        return found

    def listed(self, text: Config, count: int) -> list[str]:
        """Return what a list says of each layer; nothing where there is no list. Raises: KVError."""
        if "linear_attn_config" in text:
            return self.one_based(text["linear_attn_config"], count)
        for name in ("layer_types", "layers_block_type"):
            if name in text:
                return [self.word(word) for word in text[name]]
        if "hybrid_override_pattern" in text:
            return [self.word(letter, LETTERS) for letter in text["hybrid_override_pattern"]]
        if "hybrid_layer_pattern" in text:
            return ["window" if own else "full" for own in text["hybrid_layer_pattern"]]
        if "attn_type_list" in text:
            return ["full" if own else "state" for own in text["attn_type_list"]]
        if "block_configs" in text:
            return ["nothing" if self.left_out(block) else "full" for block in text["block_configs"]]
        if "compress_ratios" in text:
            return ["compressed"] * count
        return []

    def word(self, word: Any, words: Mapping[str, str] = WORDS) -> str:
        """Return what a layer of this name is. Raises: KVError."""
        if not isinstance(word, str) or word not in words:
            raise KVError(f"{word!r:.40} is no kind of layer")
        return words[word]

    def one_based(self, lists: Config, count: int) -> list[str]:
        """Return what two lists of layers say, which count from 1. Raises: KVError."""
        found = ["?"] * count
        for name, kind in (("full_attn_layers", "full"), ("kda_layers", "state")):
            for layer in lists[name]:
                if not 1 <= layer <= count:
                    raise KVError(f"{name} names layer {layer} of {count}")
                found[layer - 1] = kind
        if "?" in found:
            raise KVError("a layer is in no list")
        return found

    def left_out(self, block: Config) -> bool:
        """Say whether a layer has no attention."""
        return block["attention"].get("n_heads_in_group") is None

    def ruled(self, text: Config, count: int) -> list[str]:
        """Return what a rule says of each layer."""
        if "attn_layer_period" in text:
            period, offset = text["attn_layer_period"], text["attn_layer_offset"]
            return ["full" if at % period == offset else "state" for at in range(count)]
        if "full_attention_interval" in text:
            return self.each_nth(text["full_attention_interval"], count, "state")
        if "sliding_window_pattern" in text:
            return self.each_nth(text["sliding_window_pattern"], count, "window")
        return self.by_type(text, count)

    def each_nth(self, every: int, count: int, other: str) -> list[str]:
        """Return full for each layer of that number, counted from 1."""
        return ["full" if at % every == 0 else other for at in range(1, count + 1)]

    def by_type(self, text: Config, count: int) -> list[str]:
        """Return what the class of a model says where its config says nothing."""
        kind = text.get("model_type")
        if kind == "mamba2":
            return ["state"] * count
        if kind == "falcon_h1":
            return ["both"] * count
        if kind == "gemma3_text":
            return self.each_nth(6, count, "window")
        if kind == "llama4_text":
            return self.each_nth(4, count, "chunk")
        if kind == "mistral":
            return ["full" if text.get("sliding_window") is None else "window"] * count
        if text.get("use_sliding_window"):
            first = text["max_window_layers"]
            return ["full" if at < first else "window" for at in range(count)]
        return ["full"] * count

    def layer(self, text: Config, kind: str, at: int) -> Layer:
        """Return what a layer of a kind keeps."""
        if kind == "compressed":
            return Layer(self.compressed(text, text["compress_ratios"][at]))
        stored = self.entries(text, kind, at) if kind in ("full", "window", "chunk", "both") else []
        return Layer(stored, self.state(text) if kind in ("state", "both") else None)

    def entries(self, text: Config, kind: str, at: int) -> list[Stored]:
        """Return what a layer that attends stores."""
        if text.get("kv_lora_rank") is not None:
            return [self.latent(text), *self.index(text, at)]
        heads, k_dim, v_dim = self.heads(text, kind), *self.widths(text, kind)
        return [Stored(heads * (k_dim + v_dim), window=self.window(text, kind), heads=heads)]

    def latent(self, text: Config) -> Stored:
        """Return the one vector that latent attention stores."""
        rank = self.number(text, "kv_lora_rank")
        return Stored(rank + self.number(text, "qk_rope_head_dim", least=0))

    def index(self, text: Config, at: int) -> list[Stored]:
        """Return the key that an indexer stores, in the layers that select for themselves."""
        own = "index_head_dim" in text and text.get("indexer_types", {at: "full"})[at] == "full"
        return [Stored(self.number(text, "index_head_dim"))] if own else []

    def compressed(self, text: Config, ratio: int) -> list[Stored]:
        """Return what a layer stores that compresses so many tokens into one entry: at least its window."""
        width = self.number(text, "head_dim")
        found = [Stored(width, window=self.number(text, "sliding_window"))]
        if ratio:
            found.append(Stored(width, tokens=ratio))
        if ratio == 4:
            found.append(Stored(self.number(text, "index_head_dim"), tokens=ratio))
        return found

    def heads(self, text: Config, kind: str) -> int:
        """Return how many KV heads a layer has."""
        if "block_configs" in text:
            group = next(
                b["attention"]["n_heads_in_group"] for b in text["block_configs"] if not self.left_out(b)
            )
            return self.number(text, "num_attention_heads") // int(group)
        own = {"window": "swa_num_key_value_heads", "full": "num_global_key_value_heads"}.get(kind, "")
        return self.number(text, own, "num_key_value_heads", "num_attention_heads")

    def widths(self, text: Config, kind: str) -> tuple[int, int]:
        """Return how wide a key and a value are."""
        prefix = {"window": "swa_", "full": "global_"}.get(kind, "")
        if text.get(f"{prefix}head_dim") is None and text.get("head_dim") is None:
            width = self.divided(text)
            return width, width
        k_dim = self.number(text, f"{prefix}head_dim", "head_dim")
        uneven = text.get("v_head_dim") is not None
        return k_dim, self.number(text, f"{prefix}v_head_dim", "v_head_dim") if uneven else k_dim

    def divided(self, text: Config) -> int:
        """Return how wide a head is where no key says so. Raises: KVError."""
        hidden, heads = self.number(text, "hidden_size"), self.number(text, "num_attention_heads")
        if hidden % heads:
            raise KVError(f"{heads} heads do not divide hidden_size {hidden}, and there is no head_dim")
        return hidden // heads

    def window(self, text: Config, kind: str) -> int | None:
        """Return how many of the last tokens a layer keeps; None: all."""
        if kind == "chunk":
            return self.number(text, "attention_chunk_size")
        return self.number(text, "sliding_window") if kind == "window" else None

    def without_readers(self, text: Config, layers: list[Layer]) -> list[Layer]:
        """Return the layers, those without entries that read what others store."""
        own = len(layers) - (text.get("num_kv_shared_layers") or 0)
        names = text.get("layer_types", [""] * len(layers))
        last = {name: at for at, name in enumerate(names[:own])}
        return [*layers[:own], *(Layer(reads=last.get(name)) for name in names[own:])]

    def state(self, text: Config) -> State:
        """Return what a recurrent layer keeps."""
        dtype = text.get("mamba_ssm_dtype") or text.get("mamba_ssm_cache_dtype") or "float32"
        conv_dtype = text.get("dtype") or text.get("torch_dtype") or "bfloat16"
        heads, elements, conv, columns, copied = self.shape(text)
        return State(heads, elements, conv, columns, dtype, conv_dtype, copied)

    def shape(self, text: Config) -> tuple[int, int, list[tuple[int, int]], int, bool]:
        """Return heads, elements of each, what the convolution runs over, its columns, and copies."""
        if "linear_attn_config" in text:
            own = text["linear_attn_config"]
            heads, width = own["num_heads"], own["head_dim"]
            return heads, width * width, [(heads, width)] * 3, own["short_conv_kernel_size"] - 1, False
        if "linear_num_value_heads" in text:
            heads, keys = text["linear_num_value_heads"], text["linear_num_key_heads"]
            k_dim, v_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
            conv = [(keys, k_dim), (keys, k_dim), (heads, v_dim)]
            return heads, k_dim * v_dim, conv, text["linear_conv_kernel_dim"] - 1, False
        if "attn_type_list" in text:
            width = self.widths(text, "full")[0]
            return self.number(text, "num_attention_heads"), width * width, [], 0, False
        columns = self.number(text, "conv_kernel", "mamba_d_conv") - 1
        states = self.number(text, "ssm_state_size", "mamba_d_state", "state_size")
        if text.get("model_type") == "jamba":
            channels = text["mamba_expand"] * text["hidden_size"]
            return channels, states, [(channels, 1)], columns, False
        heads = self.number(text, "mamba_num_heads", "mamba_n_heads", "num_heads")
        width = self.number(text, "mamba_head_dim", "mamba_d_head", "head_dim")
        groups = self.number(text, "n_groups", "mamba_n_groups")
        return heads, width * states, [(heads, width), (groups, states), (groups, states)], columns, True
