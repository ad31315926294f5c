"""Compressed layers: one entry for several tokens, beside a window of entries of single tokens.

DeepSeek-V4 keeps, on every layer, a window of the last tokens; on most layers also one compressed entry for
every 4 or 128 tokens, and at ratio 4 an index key with each. V4.1 compresses by 2 or not at all, stores on a
few layers alone, and its index keys stand where the compressed entries do.

Realises: KV-SIZE-010 compressed-layers.
For porters: a ratio a layer; 0 means the window alone.
Source: DeepSeek-V4's class in transformers 5.24.0; V4.1's attention in vLLM 0.33.0.
"""

from kvref.planning.config_keys import UNDECIDED, Keys, Said

_RATES = {"csa": ("compressed_sparse_attention", 4), "hca": ("heavily_compressed_attention", 128)}


def ratios_listed(keys: Keys, num_layers: int, num_drafts: int) -> list[int] | None:
    """Return the ratio of every layer and then of the draft layers, or None if no key lists them.

    Raises: ConfigError.
    """
    listed = keys.items("compress_ratios")
    if listed is None:
        return None
    if len(listed) not in (num_layers, num_layers + num_drafts):
        keys.refuse(
            UNDECIDED, "compress_ratios",
            f"{num_layers} for the layers, and {num_drafts} for draft layers or none",
            found=Said(f"a list of {len(listed)}"),
        )  # fmt: skip
    return [keys.checked(f"compress_ratios[{i}]", ratio, 2**20, 0) for i, ratio in enumerate(listed)]


def kinds_of_ratios(ratios: list[int]) -> list[str]:
    """Return the kind of layers by their ratios."""
    return ["window" if r == 0 else "csa" if r <= 4 else "hca" for r in ratios]


def ratio_of(keys: Keys, kind: str) -> int:
    """Return the ratio of a kind of layer where no list gives it.

    Raises: ConfigError.
    """
    word, default = _RATES[kind]
    legacy = keys.count(f"compress_rate_{kind}")
    rates = keys.inside("compress_rates")
    if rates is not None:
        rates.passed(*(of for of, _ in _RATES.values()))
    if legacy is not None:
        return legacy
    return (keys if rates is None else rates).needed(word, default=default)
