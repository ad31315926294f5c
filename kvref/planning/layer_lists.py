"""Which kind each layer is, where a config lists its layers: a dozen keys that say the same thing.

Each function reads one key, or a few that belong together, and returns a word a layer, or None if the key is
not there. Layers are counted from 0 here; `linear_attn_config` counts them from 1, and the last layer of a
model may stand outside the pattern of the others.

Realises: KV-SIZE-001 layer-kinds, KV-SIZE-021 no-attention-layers.
For porters: keep the table of words and refuse every other word.
Source: Hugging Face configs of the families named at each function.
"""

from collections.abc import Callable

from kvref.errors import shown
from kvref.planning.config_keys import ABSURD, LAYER_COUNTS, MAX_LAYERS, MISSING, UNDECIDED, Keys, Said

#: Words of configs -> kind. `linear`, `hybrid` and `indexed` mean what the family makes of them.
WORDS = {
    "full_attention": "full",
    "attention": "full",
    "global": "full",
    "global_attention": "full",
    "full": "full",
    "sliding_attention": "window",
    "sliding_window_attention": "window",
    "local": "window",
    "local_attention": "window",
    "sliding": "window",
    "chunked_attention": "chunked",
    "indexed_attention": "indexed",
    "deepseek_sparse_attention": "indexed",
    "qwen_sparse_attention": "indexed",
    "minimax_m3_sparse": "indexed",
    "linear_attention": "linear",
    "mamba": "linear",
    "mamba2": "linear",
    "recurrent": "linear",
    "conv": "conv",
    "hybrid": "hybrid",
    "hybrid_sliding": "hybrid_window",
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
    "moe": "none",
    "mlp": "none",
}
_PATTERN = {"M": "linear", "*": "full", "E": "none", "-": "none"}

#: How a sparse layer of MiniMax-M3 chooses.
_CHOOSING = (
    "sparse_num_index_heads", "sparse_topk_blocks", "sparse_block_size", "sparse_score_type",
    "sparse_init_block", "sparse_local_block",
)  # fmt: skip

Kinds = list[str]


def number_of_layers(keys: Keys) -> int:
    """Return how many layers a model has, draft layers apart.

    Raises: ConfigError if no key says it, or one says what cannot be.
    """
    found = keys.count(*LAYER_COUNTS, at_most=MAX_LAYERS)
    if found is not None:
        return found
    for name in ("layers_block_type", "layer_types", "hybrid_override_pattern", "block_configs"):
        listed = keys.config.get(name)
        if isinstance(listed, list | tuple | str) and listed:
            return keys.checked(name, len(listed), MAX_LAYERS)
    return keys.refuse(ABSURD, "num_hidden_layers", "a whole number", found=MISSING)


def words_of_layers(keys: Keys, name: str, num_layers: int, drafts: int = 0) -> Kinds | None:
    """Read a list with a word a layer (`layer_types`, `layers_block_type`); draft layers may follow.

    Raises: ConfigError at a word that is not known.
    """
    listed = keys.items(name)
    if listed is None:
        return None
    if len(listed) not in (num_layers, num_layers + drafts):
        keys.items(name, num_layers)
    return [WORDS[keys.one_of(f"{name}[{i}]", word, WORDS)] for i, word in enumerate(listed)][:num_layers]


def linear_attn_config(keys: Keys, num_layers: int) -> Kinds | None:
    """Read the two lists of Kimi's models, which count layers from 1.

    Raises: ConfigError if a layer is in both or in none.
    """
    inside = keys.inside("linear_attn_config")
    if inside is None or not ("kda_layers" in inside or "full_attn_layers" in inside):
        return None
    linear = inside.layer_ids("kda_layers", num_layers, first=1)
    full = inside.layer_ids("full_attn_layers", num_layers, first=1)
    if linear is None or full is None:
        inside.refuse(
            UNDECIDED, "kda_layers" if linear is None else "full_attn_layers", "a list", found=MISSING
        )
    kinds = []
    for i in range(num_layers):
        if (i in linear) == (i in full):
            where = "both lists" if i in linear else "no list"
            found = Said(f"a list of {len(full)}; layer {i + 1} is in {where}")
            expected = "each layer, counted from 1, in one of the two lists"
            inside.refuse(UNDECIDED, "full_attn_layers", expected, found=found)
        kinds.append("linear" if i in linear else "full")
    return kinds


def override_pattern(keys: Keys, num_layers: int) -> Kinds | None:
    """Read Nemotron-H's text of a letter a layer.

    Raises: ConfigError.
    """
    pattern = keys.word("hybrid_override_pattern")
    if pattern is None:
        return None
    if len(pattern) != num_layers or not set(pattern) <= set(_PATTERN):
        keys.refuse(UNDECIDED, "hybrid_override_pattern", f"{num_layers} letters of {', '.join(_PATTERN)}")
    return [_PATTERN[letter] for letter in pattern]


def numbers_of_layers(keys: Keys, name: str, num_layers: int, meaning: tuple[str, str]) -> Kinds | None:
    """Read a list of zeros and ones (`hybrid_layer_pattern`, `attn_type_list`).

    Raises: ConfigError.
    """
    listed = keys.items(name, num_layers)
    if listed is None:
        return None
    for i, number in enumerate(listed):
        if type(number) is not int or number not in (0, 1):
            rule = UNDECIDED if type(number) is int else ABSURD
            keys.refuse(rule, f"{name}[{i}]", f"0 ({meaning[0]}) or 1 ({meaning[1]})", found=number)
    return [meaning[number] for number in listed]


def named_layers(keys: Keys, name: str, num_layers: int, named: str, others: str) -> Kinds | None:
    """Read a list that names the layers of one kind; the others are of another.

    Raises: ConfigError.
    """
    ids = keys.layer_ids(name, num_layers)
    return None if ids is None else [named if i in set(ids) else others for i in range(num_layers)]


def every_so_many(keys: Keys, num_layers: int, names: tuple[str, ...], others: str) -> Kinds | None:
    """Read a period: each n-th layer, counted from 1, is full. A text is its own pattern (`LLLG`).

    Raises: ConfigError.
    """
    name, period = keys.spelled(*names)
    if isinstance(period, str):
        if not period or not set(period) <= {"L", "G"}:
            keys.refuse(UNDECIDED, name, "letters L and G, or a whole number")
        return [others if period[i % len(period)] == "L" else "full" for i in range(num_layers)]
    if period is None:
        return None
    period = keys.checked(name, period, 4096)
    return ["full" if (i + 1) % period == 0 else others for i in range(num_layers)]


def period_and_offset(keys: Keys, num_layers: int, attention: str) -> Kinds | None:
    """Read Jamba's period and offset, counted from 0.

    Raises: ConfigError.
    """
    period = keys.count("attn_layer_period", at_most=4096)
    offset = keys.count("attn_layer_offset", at_most=4096, minimum=0)
    if period is None and offset is None:
        return None
    if period is None or offset is None or offset >= period:
        keys.refuse(UNDECIDED, "attn_layer_offset", "an offset below attn_layer_period, and both")
    return [attention if i % period == offset else "linear" for i in range(num_layers)]


def sparse_layers(keys: Keys, num_layers: int) -> Kinds | None:
    """Read MiniMax-M3's `sparse_attention_config`: which layers choose what they attend to.

    How they choose decides nothing. A layer that also kept values for choosing would store more than one key.
    Raises: ConfigError.
    """
    inside = keys.inside("sparse_attention_config")
    if inside is None:
        return None
    used = inside.flag("use_sparse_attention") is not False
    kinds = numbers_of_layers(inside, "sparse_attention_freq", num_layers, ("full", "indexed"))
    inside.passed(*_CHOOSING)
    if not used:
        inside.passed("sparse_index_dim", "sparse_disable_index_value")
        return ["full"] * num_layers
    if kinds is None and "layer_types" not in keys:
        inside.refuse(UNDECIDED, "sparse_attention_freq", "a list of which layers are sparse", found=MISSING)
    valueless = inside.items("sparse_disable_index_value", num_layers)
    for i, without in enumerate(valueless or []):
        if kinds is not None and kinds[i] == "indexed" and without not in (1, True):
            rule = UNDECIDED if type(without) in (int, bool) else ABSURD
            name = f"sparse_disable_index_value[{i}]"
            inside.refuse(rule, name, "1: values of an indexer are not sized", found=without)
    return kinds


def repeated_words(keys: Keys, num_layers: int) -> Kinds | None:
    """Read RecurrentGemma's `block_types`, repeated until all layers have one.

    Raises: ConfigError.
    """
    listed = keys.items("block_types")
    if not listed:
        return None
    kinds = {"recurrent": "linear", "attention": "window"}
    words = [keys.one_of(f"block_types[{i}]", word, kinds) for i, word in enumerate(listed)]
    return [kinds[words[i % len(words)]] for i in range(num_layers)]


def agreed(keys: Keys, found: list[tuple[str, Kinds]]) -> tuple[str, Kinds] | None:
    """Return the first of several lists, which must all say the same.

    Raises: ConfigError that names two keys and the layer where they part.
    """
    for name, kinds in found[1:]:
        first, expected = found[0]
        for i, (kind, wanted) in enumerate(zip(kinds, expected, strict=True)):
            if kind != wanted:
                keys.refuse(
                    UNDECIDED, name, f"the same layers as {keys.path}{first}, where layer {i} is {wanted}",
                    found=Said(f"{shown(keys.config.get(name))}: layer {i} is {kind}"),
                )  # fmt: skip
    return found[0] if found else None


Reader = Callable[[Keys, int], Kinds | None]
