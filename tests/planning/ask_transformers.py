"""What classes of transformers say where a config is silent, and what their caches hold: prints JSON.

    python tests/planning/ask_transformers.py > tests/data/transformers_caches.json

Asked for are the configs of the catalogue and those of `families_of_models`, of twelve layers at most and
with windows of sixteen tokens. Models are built and run on the meta device: shapes are real, and no number
exists. Of each config there is, for each number of tokens: elements of entries, of recurrent parts, of
convolution parts, and channels of these; or what went wrong. The attributes of a cache's layers say which is
which.
"""

import contextlib
import dataclasses
import json
import sys
import warnings
from math import prod
from pathlib import Path
from typing import Any

from families_of_models import KNOWN

with contextlib.redirect_stdout(sys.stderr):
    import torch  # type: ignore[import-not-found, unused-ignore]
    import transformers  # type: ignore[import-not-found, unused-ignore]
    from transformers import CONFIG_MAPPING, AutoModel, AutoModelForCausalLM

PLANNING = Path(__file__).parents[2] / "kvref" / "planning"
#: Tokens of the requests: within the windows, past them, and past them by more than any entry holds.
LENGTHS = (8, 128, 256)
LAYERS, WINDOW = 12, 16
#: Types whose own code is that of another, which transformers has.
SAME = {"kimi_k2": "deepseek_v3", "mistral4_text": "mistral4", "step3p5_text": "step3p5"}
#: Where a text part stands, and by what other names things are known that are cut.
PARTS = ("text_config", "thinker_config")
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")
WINDOWS = ("sliding_window", "sliding_window_size", "attention_window_size", "attention_chunk_size")
NAMED = ("hybrid_layer_ids", "attn_layer_indices", "full_attn_idxs", "local_layer_ids")
NUMBERED = ("kda_layers", "full_attn_layers")


def layers_of(config: dict[str, Any]) -> int:
    """How many layers a config has, or 0 where it does not say."""
    for name in COUNTS:
        if type(config.get(name)) is int:
            return int(config[name])
    return len(config.get("layers_block_type") or config.get("layer_types") or ())


def shallow(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same config with fewer layers, and smaller windows."""
    kept = min(layers, LAYERS)
    found: dict[str, Any] = {}
    for name, value in config.items():
        if name.startswith("_"):
            continue
        if name in COUNTS and value is not None:
            value = kept
        elif name in WINDOWS and type(value) is int:
            value = min(value, WINDOW)
        elif name in NAMED and value is not None:
            value = [i for i in value if i < kept]
        elif name in NUMBERED and value is not None:
            value = [i for i in value if i <= kept]
        elif name == "num_kv_shared_layers" and value:
            value = 2
        elif isinstance(value, dict):
            value = shallow(value, layers_of(value) or layers)
        elif isinstance(value, list | str) and len(value) >= layers > 1:
            value = value[:kept]
        found[name] = value
    return found


def text_part(config: Any) -> Any:
    """The part of a config that describes the decoder."""
    for name in PARTS:
        if getattr(config, name, None) is not None:
            return text_part(getattr(config, name))
    return config


def held_by(layers: list[Any]) -> list[int]:
    """Elements of entries, of recurrent parts, of convolution parts, and channels of these."""
    entries = recurrent = conv = channels = 0
    for layer in layers:
        for name, value in vars(layer).items():
            each = (
                value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            )
            for one in each:
                if not isinstance(one, torch.Tensor) or not one.is_floating_point():
                    continue
                if name == "conv_states":
                    conv, channels = conv + prod(one.shape), channels + prod(one.shape[:-1])
                elif name == "recurrent_states":
                    recurrent += prod(one.shape)
                else:
                    entries += prod(one.shape)
    return [entries, recurrent, conv, channels]


def caches_of(config: dict[str, Any]) -> list[list[int]] | str:
    """What the cache of a model holds of requests of each length, or what went wrong."""
    given = dict(config)
    while given.get("model_type") not in CONFIG_MAPPING and isinstance(given.get("text_config"), dict):
        given = dict(given["text_config"])
    try:
        model_type = given.pop("model_type", "no model_type")
        part = text_part(CONFIG_MAPPING[SAME.get(model_type, model_type)](**given))
        part._experts_implementation, part.pad_token_id = "batched_mm", None
        kind = AutoModelForCausalLM if type(part) in AutoModelForCausalLM._model_mapping else AutoModel
        found = []
        with torch.device("meta"), torch.no_grad():
            model = kind.from_config(part, dtype=torch.bfloat16).eval()
            for length in LENGTHS:
                ran = model(torch.zeros(1, length, dtype=torch.long), use_cache=True)
                cache = ran["past_key_values"] if "past_key_values" in ran else ran["cache_params"]
                found.append(held_by(cache.layers))
        return found
    except Exception as error:
        return f"{type(error).__name__}: {error}".replace("\n", " ")[:160]


def defaults_of(model_type: str) -> dict[str, Any]:
    """The whole numbers and flags that a class has for keys that are not there."""
    fields = dataclasses.fields(CONFIG_MAPPING[model_type])
    return {f.name: f.default for f in fields if type(f.default) in (int, bool)}


def main() -> None:
    """Print what was asked for."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    configs = {p.stem: json.loads(p.read_text()) for p in sorted(PLANNING.glob("configs/*.json"))}
    configs |= {name: config for name, (config, _) in KNOWN.items()}
    defaults, models = {}, {}
    with contextlib.redirect_stdout(sys.stderr):
        for model_type, keys in json.loads((PLANNING / "class_defaults.json").read_text()).items():
            own = defaults_of(model_type)
            defaults[model_type] = {key: own.get(key) for key in keys}
        for name, config in configs.items():
            print(name, file=sys.stderr, flush=True)
            cut = shallow(config, layers_of(config))
            models[name] = [cut, caches_of(cut)]
    told = {
        "about": f"transformers {transformers.__version__}: defaults of classes, caches of shallow models",
        "lengths": LENGTHS,
        "defaults": defaults,
    }
    lines = ",\n".join(f'  "{name}": {json.dumps(found)}' for name, found in models.items())
    print(f'{json.dumps(told)[:-1]},\n "models": {{\n{lines}\n }}}}')


main()
