"""How large a state is: the shapes of its two parts for each family of layers, and their bytes.

The recurrent part is nearly always float32. The conv part has the dtype of activations and never that of the
KV cache. The two are counted apart, because engines keep them in different dtypes and pad them apart.

Realises: KV-RNN-002 conv-state-inputs, KV-RNN-021 state-layout.
For porters: shapes are those of one layer and one request, in the layouts of `kvref.recurrent.layouts`.
Source: the cache classes of transformers; Kimi K3, whose 69 layers keep 414 MiB of recurrent state a request.
"""

from dataclasses import dataclass
from math import prod

from kvref.arrays import check_count, dtype_of
from kvref.errors import ArgumentError


@dataclass(frozen=True)
class StateShape:
    """The state of one layer and one request: the shape of each part, `()` where there is none."""

    recurrent: tuple[int, ...]
    conv: tuple[int, ...]
    """Channels, and inputs kept of each; the oldest first."""

    @property
    def recurrent_elements(self) -> int:
        """Return the numbers in the recurrent part."""
        return prod(self.recurrent) if self.recurrent else 0

    @property
    def conv_elements(self) -> int:
        """Return the numbers in the conv part."""
        return prod(self.conv) if self.conv else 0

    def recurrent_bytes(self, dtype: str = "float32") -> int:
        """Return the bytes of the recurrent part.

        Raises: DTypeError if the dtype has no name.
        """
        return self.recurrent_elements * dtype_of(dtype).itemsize

    def conv_bytes(self, dtype: str = "bfloat16", *, redundant_columns: int = 0) -> int:
        """Return the bytes of the conv part, with columns that an engine keeps beyond those that are read.

        Raises: DTypeError if the dtype has no name; ArgumentError.
        """
        extra = check_count("redundant_columns", redundant_columns, minimum=0)
        columns = self.conv[1] + extra if self.conv else 0
        return (self.conv[0] * columns if self.conv else 0) * dtype_of(dtype).itemsize

    def state_bytes(self, recurrent: str = "float32", conv: str = "bfloat16") -> int:
        """Return the bytes of both parts.

        >>> kda_state(num_heads=96, head_k_dim=128, head_v_dim=128, conv_width=4).state_bytes()
        6512640
        """
        return self.recurrent_bytes(recurrent) + self.conv_bytes(conv)


def mamba1_state(*, num_channels: int, state_dim: int, conv_width: int) -> StateShape:
    """Return the state of a Mamba-1 layer: Mamba, FalconMamba, Jamba.

    Raises: ArgumentError if a size is no positive integer, here and in every function below.
    """
    _check(num_channels=num_channels, state_dim=state_dim, conv_width=conv_width)
    return StateShape((num_channels, state_dim), (num_channels, conv_width - 1))


def mamba2_state(
    *, num_heads: int, head_dim: int, state_dim: int, num_groups: int, conv_width: int
) -> StateShape:
    """Return the state of a Mamba-2 layer, whose convolution runs over x, B and C: Nemotron-H, Granite 4."""
    _check(num_heads=num_heads, head_dim=head_dim, state_dim=state_dim, conv_width=conv_width)
    _check_groups("num_heads", num_heads, "num_groups", num_groups)
    channels = num_heads * head_dim + 2 * num_groups * state_dim
    return StateShape((num_heads, head_dim, state_dim), (channels, conv_width - 1))


def gdn_state(
    *, num_k_heads: int, num_v_heads: int, head_k_dim: int, head_v_dim: int, conv_width: int
) -> StateShape:
    """Return the state of a Gated DeltaNet layer, whose convolution runs over q, k and v: Qwen3-Next."""
    _check(num_v_heads=num_v_heads, head_k_dim=head_k_dim, head_v_dim=head_v_dim, conv_width=conv_width)
    _check_groups("num_v_heads", num_v_heads, "num_k_heads", num_k_heads)
    channels = 2 * num_k_heads * head_k_dim + num_v_heads * head_v_dim
    return StateShape((num_v_heads, head_k_dim, head_v_dim), (channels, conv_width - 1))


def kda_state(*, num_heads: int, head_k_dim: int, head_v_dim: int, conv_width: int) -> StateShape:
    """Return the state of a KDA layer: Kimi Linear, Kimi K3, GLM-5.3-Flash."""
    return gdn_state(
        num_k_heads=num_heads,
        num_v_heads=num_heads,
        head_k_dim=head_k_dim,
        head_v_dim=head_v_dim,
        conv_width=conv_width,
    )


def rwkv7_state(*, num_heads: int, head_dim: int) -> StateShape:
    """Return the state of an RWKV-7 layer: a matrix a head, and the last inputs of its two halves.

    A token shift looks back by one token, as a convolution of width 2 over both halves would.
    """
    _check(num_heads=num_heads, head_dim=head_dim)
    return StateShape((num_heads, head_dim, head_dim), (2 * num_heads * head_dim, 1))


def lightning_state(*, num_heads: int, head_dim: int) -> StateShape:
    """Return the state of a lightning attention layer, which has no convolution: MiniMax-Text-01, M1."""
    _check(num_heads=num_heads, head_dim=head_dim)
    return StateShape((num_heads, head_dim, head_dim), ())


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        check_count(name, size)


def _check_groups(name: str, size: int, shared: str, count: int) -> None:
    check_count(name, size)
    check_count(shared, count)
    if size % count:
        raise ArgumentError(f"{name} = {size} and {shared} = {count}, expected a multiple")
