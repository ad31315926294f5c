"""Layers that store nothing because they read what another layer stored.

Configs say it in four ways: the last layers share (`num_kv_shared_layers`), each layer names its source
(`kv_source_layers`), the sources are listed (`kv_source_layer_ids`), or only index keys are shared
(`indexer_types` and the numbers it is derived from). A layer that shares reads the nearest source before it
that keeps the same kind of entries.

Realises: KV-SIZE-009 shared-layers, KV-SIZE-011 indexer-keys.
For porters: a layer's source, or itself; everything else follows.
Source: Gemma 3n and Gemma 4, DeepSeek-V4.1, Mistral Large 4, GLM-5.2, by their classes in transformers
5.24.0.
"""

from kvref.planning.config_keys import ABSURD, MAX_LAYERS, MISSING, UNDECIDED, Keys


def kv_sources(keys: Keys, kinds: tuple[str, ...], compressed: tuple[bool, ...]) -> list[int]:
    """Return for each layer the layer whose entries it reads; its own number where it stores them.

    `compressed` says which layers have entries that a listed source may share.
    Raises: ConfigError if a source is none, or comes after its reader.
    """
    n = len(kinds)
    sources = list(range(n))
    shared = keys.count("num_kv_shared_layers", at_most=MAX_LAYERS, minimum=0) or 0
    if shared >= n > 0 and shared:
        keys.refuse(UNDECIDED, "num_kv_shared_layers", f"fewer than the {n} layers")
    for i in range(n - shared, n):
        before = [j for j in range(n - shared) if kinds[j] == kinds[i]]
        if not before:
            keys.refuse(
                UNDECIDED,
                "num_kv_shared_layers",
                f"a layer that stores before each that shares; layer {i} has none",
            )
        sources[i] = before[-1]
    _grouped(keys, sources)
    _named(keys, sources)
    _listed(keys, sources, compressed)
    return sources


def _grouped(keys: Keys, sources: list[int]) -> None:
    """Hunyuan's cross-layer attention: each group of so many layers reads what its first one stores."""
    used, factor = keys.flag("use_cla"), keys.count("cla_share_factor", at_most=MAX_LAYERS)
    if not used:
        return
    if factor is None:
        keys.refuse(UNDECIDED, "cla_share_factor", "a whole number, as use_cla is true", found=MISSING)
    sources[:] = [i - i % factor for i in range(len(sources))]


def _named(keys: Keys, sources: list[int]) -> None:
    named = keys.items("kv_source_layers", len(sources))
    for i, source in enumerate(named or []):
        own = keys.checked(f"kv_source_layers[{i}]", source, len(sources) - 1, 0)
        if own > i or named is None or named[own] != own:
            keys.refuse(
                UNDECIDED,
                f"kv_source_layers[{i}]",
                "the layer itself, or one before it that stores",
                found=source,
            )
        sources[i] = own


def _listed(keys: Keys, sources: list[int], compressed: tuple[bool, ...]) -> None:
    listed = keys.layer_ids("kv_source_layer_ids", len(sources))
    keys.passed("index_source_layer_ids")
    if listed is None:
        return
    for i in range(len(sources)):
        before = [j for j in listed if j <= i]
        if compressed[i] and not before:
            keys.refuse(
                UNDECIDED, "kv_source_layer_ids", f"a source at or before layer {i}, which is compressed"
            )
        if i in listed and not compressed[i]:
            keys.refuse(UNDECIDED, "kv_source_layer_ids", f"layers that are compressed; layer {i} is not")
        if compressed[i]:
            sources[i] = before[-1]


def has_indexer(keys: Keys, num_layers: int) -> list[bool]:
    """Return for each layer whether an indexer of its own would store index keys there.

    Raises: ConfigError.
    """
    listed = keys.items("indexer_types", num_layers)
    pattern = keys.get("index_topk_pattern")
    period = keys.count("index_topk_freq", at_most=MAX_LAYERS) or 1
    offset = keys.count("index_skip_topk_offset", at_most=MAX_LAYERS, minimum=0)
    words = {"full": True, "shared": False, "F": True, "S": False}
    if listed is not None:
        return [words[keys.one_of(f"indexer_types[{i}]", word, words)] for i, word in enumerate(listed)]
    if pattern is not None:
        if not isinstance(pattern, str | list) or len(pattern) != num_layers:
            rule = UNDECIDED if isinstance(pattern, str | list) else ABSURD
            keys.refuse(rule, "index_topk_pattern", f"{num_layers} letters F or S, one a layer")
        return [words[keys.one_of(f"index_topk_pattern[{i}]", word, words)] for i, word in enumerate(pattern)]
    if period > 1 and offset is None:
        offset = 2
        keys.warn("index_skip_topk_offset is absent: 2 is the default of the class")
    return [max(i - (offset or 2) + 1, 0) % period == 0 for i in range(num_layers)]
