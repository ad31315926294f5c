"""The state of a recurrent layer, by family: shapes of the recurrent part and of the convolution part.

The two parts are apart because nothing else about them is the same. The recurrent part is kept in float32
unless the config says otherwise. The convolution part holds the last inputs of a short convolution, one
column fewer than the convolution is wide, in the dtype of activations whatever the KV cache is kept in.

Realises: KV-SIZE-007 state-parts-apart, KV-SIZE-008 conv-dtype-own.
For porters: one function a family; check the shapes against the arrays that an engine allocates.
Source: the papers named in `kvref.recurrent`; keys and shapes from transformers 5.24.0 and vLLM 0.32.0.
"""

from collections.abc import Callable

from kvref.arrays import DTYPES
from kvref.planning.config_keys import MAX_HEADS, MISSING, UNDECIDED, Keys
from kvref.planning.entry_widths import Width, head_dim, q_heads
from kvref.planning.groups import StateGroup

_FLOATS = ("float32", "bfloat16", "float16", "float64")
_GROUPS = ("n_groups", "mamba_n_groups", "mamba_ngroups", "mamba_num_groups")

#: Keys of states, which say nothing where no layer has one.
KEYS = (
    "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
    "linear_conv_kernel_dim", "linear_num_heads", "linear_head_dim", "short_conv_kernel_size", "conv_kernel",
    "conv_kernel_size", "conv_L_cache", "conv_dim", "conv_dim_out", "mamba_d_conv", "mamba_d_state",
    "mamba_expand",
    "mamba_n_heads", "mamba_num_heads", "mamba_d_head", "mamba_head_dim", "mamba_n_groups", "ssm_state_size",
    "n_groups", "expand", "mamba_ssm_dtype", "mamba_ssm_cache_dtype", "mamba_dt_rank", "state_size",
)  # fmt: skip


def state_of(keys: Keys, family: str, width: Width | None = None) -> StateGroup:
    """Return the state of one layer of a family, with no layers yet; `width` is of the layer's own entries.

    Raises: ConfigError that names the key.
    """
    return _entry_conv(keys, width) if family == "entry_conv" and width else _FAMILIES[family](keys)


def activation_dtype(keys: Keys) -> str:
    """Return the dtype of activations; bfloat16, with a warning, where the config has none.

    Raises: ConfigError at a dtype that has no name here.
    """
    found = dtype_word(keys, "dtype", "torch_dtype")
    if found is None:
        keys.warn("dtype is absent: convolution states are sized as bfloat16")
    return found or "bfloat16"


def dtype_word(keys: Keys, *names: str) -> str | None:
    """Return a dtype by any of its spellings, or None.

    Raises: ConfigError at a dtype that no state is kept in.
    """
    word = keys.word(*names)
    if word is None or word == "auto":
        return None
    name = word.removeprefix("torch.")
    if name not in DTYPES or name not in _FLOATS:
        keys.refuse(UNDECIDED, next(n for n in names if n in keys), f"one of {', '.join(_FLOATS)}")
    return name


def _recurrent_dtype(keys: Keys) -> str:
    return dtype_word(keys, "mamba_ssm_dtype", "mamba_ssm_cache_dtype") or "float32"


def _group(
    keys: Keys,
    family: str,
    recurrent: tuple[int, ...],
    conv: tuple[int, ...],
    num_groups: int = 0,
    channels: int = 0,
) -> StateGroup:
    return StateGroup(
        family, (), recurrent, conv, _recurrent_dtype(keys), activation_dtype(keys) if conv else "bfloat16",
        num_groups, channels,
    )  # fmt: skip


def _mamba1(keys: Keys) -> StateGroup:
    inner = None if _attends(keys) else keys.count("intermediate_size")  # that of an MLP, if layers attend
    if inner is None:
        inner = keys.needed("hidden_size", "d_model") * keys.needed("expand", "mamba_expand", at_most=64)
    keys.passed("n_mamba_heads", "mamba_dt_rank", "expand", "mamba_expand")
    columns = keys.needed("conv_kernel", "mamba_d_conv", at_most=4096) - 1
    states = keys.needed("state_size", "mamba_d_state")
    return _group(keys, "mamba1", (inner, states), (inner, columns))


def _mamba2(keys: Keys) -> StateGroup:
    names = (
        ("mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
        if _attends(keys)
        else ("num_heads", "mamba_num_heads")
    )
    heads = keys.needed(*names, at_most=MAX_HEADS)
    dim = _mamba2_head_dim(keys, heads)
    states = keys.needed("ssm_state_size", "mamba_d_state", "mamba_state_dim", "state_size")
    groups = keys.needed(*_GROUPS, at_most=MAX_HEADS)
    columns = keys.needed("conv_kernel", "mamba_d_conv", at_most=4096) - 1
    if heads % groups:
        keys.refuse(UNDECIDED, keys.spelling(groups, *_GROUPS), f"a divisor of {heads} heads", found=groups)
    keys.passed("expand", "mamba_expand", "mamba_intermediate")
    conv = (heads * dim + 2 * groups * states, columns)
    return _group(keys, "mamba2", (heads, dim, states), conv, groups, 2 * states)


def _mamba2_head_dim(keys: Keys, heads: int) -> int:
    """The head's width: as it is said, or the inner width shared out; `mamba_d_ssm` must agree."""
    names = (
        ("mamba_head_dim", "mamba_d_head", "mamba_headdim")
        if _attends(keys)
        else ("head_dim", "mamba_head_dim")
    )
    name, dim = keys.spelled(*names)
    inner = keys.count("mamba_d_ssm")
    if dim is None or dim == "auto":
        if inner is None:
            inner = keys.needed("hidden_size") * keys.needed("mamba_expand", "expand", at_most=64)
        if inner % heads:
            keys.refuse(
                UNDECIDED,
                names[0],
                f"a whole number, as {inner} channels are no multiple of {heads} heads",
                found=MISSING,
            )
        return inner // heads
    dim = keys.checked(name, dim, 2**20)
    if inner is not None and inner != heads * dim:
        keys.refuse(UNDECIDED, "mamba_d_ssm", f"{heads} heads x {dim}{keys.by_class(*names)}", found=inner)
    return dim


def _attends(keys: Keys) -> bool:
    """Whether the keys of attention are taken: then those of the recurrence have names of their own."""
    return any(
        n in keys for n in ("num_attention_heads", "mamba_num_heads", "mamba_n_heads", "n_mamba_heads")
    )


def _gated_delta(keys: Keys) -> StateGroup:
    k_heads = keys.needed("linear_num_key_heads", at_most=MAX_HEADS)
    v_heads = keys.needed("linear_num_value_heads", at_most=MAX_HEADS)
    k_dim, v_dim = keys.needed("linear_key_head_dim"), keys.needed("linear_value_head_dim")
    columns = keys.needed("linear_conv_kernel_dim", at_most=4096) - 1
    if v_heads % k_heads:
        keys.refuse(UNDECIDED, "linear_num_value_heads", f"a multiple of {k_heads} key heads", found=v_heads)
    channels = 2 * k_heads * k_dim + v_heads * v_dim
    return _group(keys, "gated_delta", (v_heads, k_dim, v_dim), (channels, columns))


def _kda(keys: Keys) -> StateGroup:
    inside = keys.inside("linear_attn_config")
    if inside is not None and "num_heads" in inside:
        heads, dim = inside.needed("num_heads", at_most=MAX_HEADS), inside.needed("head_dim")
        columns = inside.needed("short_conv_kernel_size", at_most=4096) - 1
    else:
        heads, dim = keys.needed("linear_num_heads", at_most=MAX_HEADS), keys.needed("linear_head_dim")
        columns = keys.needed("linear_conv_kernel_dim", "short_conv_kernel_size", at_most=4096) - 1
    keys.passed("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim", "short_conv_kernel_size")
    return _group(keys, "kda", (heads, dim, dim), (3 * heads * dim, columns))


def pass_kda(keys: Keys) -> None:
    """Count what a config of KDA says of states as read, where no layer has one."""
    inside = keys.inside("linear_attn_config")
    if inside is not None:
        inside.passed("num_heads", "head_dim", "short_conv_kernel_size")


def _lightning(keys: Keys) -> StateGroup:
    heads = q_heads(keys)
    if heads is None:
        keys.refuse(UNDECIDED, "num_attention_heads", "a whole number", found=MISSING)
    dim = head_dim(keys)
    return _group(keys, "lightning", (heads, dim, dim), ())


def _short_conv(keys: Keys) -> StateGroup:
    columns = keys.needed("conv_L_cache", at_most=4096) - 1
    width = keys.count("conv_dim") or keys.needed("hidden_size")
    keys.passed("conv_dim_out")
    return _group(keys, "short_conv", (), (width, columns))


def _entry_conv(keys: Keys, width: Width) -> StateGroup:
    """Inkling: short convolutions over keys, over values, and behind attention and MLP."""
    columns = keys.needed("conv_kernel_size", "sconv_kernel_size", at_most=4096) - 1
    channels = width.num_heads * (width.k_dim + width.v_dim) + 2 * keys.needed("hidden_size")
    return _group(keys, "entry_conv", (), (channels, columns))


def _rg_lru(keys: Keys) -> StateGroup:
    width = keys.count("lru_width") or keys.needed("hidden_size")
    columns = keys.needed("conv1d_width", at_most=4096) - 1
    return _group(keys, "rg_lru", (width,), (width, columns))


def _rwkv(keys: Keys) -> StateGroup:
    """RWKV-4: numerator, denominator and their common exponent; two shifted tokens."""
    hidden = keys.needed("hidden_size")
    width = keys.count("attention_hidden_size") or hidden
    keys.passed("context_length")
    return _group(keys, "rwkv", (3, width), (hidden, 2))


def _rwkv7(keys: Keys) -> StateGroup:
    hidden = keys.needed("hidden_size")
    dim = keys.needed("head_dim", "head_size", default=64)
    if hidden % dim:
        keys.refuse(
            UNDECIDED,
            keys.spelling(dim, "head_dim", "head_size"),
            f"a divisor of hidden_size = {hidden}",
            found=dim,
        )
    keys.passed("num_heads", "value_dim", "attention_hidden_size")
    return _group(keys, "rwkv7", (hidden // dim, dim, dim), (hidden, 2))


_FAMILIES: dict[str, Callable[[Keys], StateGroup]] = {
    "mamba1": _mamba1,
    "mamba2": _mamba2,
    "gated_delta": _gated_delta,
    "kda": _kda,
    "lightning": _lightning,
    "short_conv": _short_conv,
    "rg_lru": _rg_lru,
    "rwkv": _rwkv,
    "rwkv7": _rwkv7,
}
