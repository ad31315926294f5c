"""Draft layers: what a model carries for guessing tokens ahead, counted apart from its own layers.

Whether drafts run is a switch of the engine, not a fact about the model. So their entries are sized and told
apart, and no figure includes them unless it is asked to.

Realises: KV-SIZE-012 draft-layers-apart.
For porters: never add them to `num_hidden_layers`.
Source: DeepSeek-V3 (`num_nextn_predict_layers`) and the spellings of other families.
"""

from kvref.planning.config_keys import MAX_LAYERS, Keys
from kvref.planning.layer_lists import WORDS

_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")


def number_of_drafts(keys: Keys) -> int:
    """Return how many draft layers the config names, those without attention left out.

    Raises: ConfigError.
    """
    modules = keys.count("num_mtp_modules", at_most=MAX_LAYERS, minimum=0)
    deep = keys.count("mtp_transformer_layers", at_most=MAX_LAYERS, minimum=0)
    counts = {name: keys.count(name, at_most=MAX_LAYERS, minimum=0) for name in _COUNTS}
    given = {name: count for name, count in counts.items() if count is not None}
    if modules is not None:
        given = {"num_mtp_modules": modules * (1 if deep is None else deep), **given}
    if keys.flag("use_mtp") is False:
        return 0
    if len(set(given.values())) > 1:
        told = ", ".join(f"{name} = {count}" for name, count in given.items())
        keys.warn(f"draft layers are counted differently ({told}): the first is taken")
    number = next(iter(given.values()), 0)
    return number * _attentions(keys)


def _attentions(keys: Keys) -> int:
    """How many of a draft's own layers have attention, where the config lists them."""
    names = ("mtp_layers_block_type", "mtp_layer_types")
    name, listed = next(((name, listed) for name in names if (listed := keys.items(name))), ("", None))
    pattern = keys.word("mtp_hybrid_override_pattern")
    keys.passed("mtp_layer_types", "mtp_layers_block_type", "mtp_local_layer_ids")
    if pattern is not None:
        return pattern.count("*")
    if listed is None:
        return 1
    words = [keys.one_of(f"{name}[{i}]", word, WORDS) for i, word in enumerate(listed)]
    return sum(WORDS[word] in ("full", "indexed") for word in words)
