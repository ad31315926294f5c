"""Named layouts of states, and exact converters between them.

The recurrent part of a delta rule has keys before values (`key_value`, canonical: transformers, ONNX,
flash-linear-attention) or values before keys (`value_key`: vLLM's decode kernels, ONNX Runtime). Of the conv
part engines keep `conv_width − 1` columns (canonical) or `conv_width`, one of which is never read again. A
converter moves numbers and rounds none: every bit comes through, NaN and negative zero included.

Realises: KV-RNN-002 conv-state-inputs, KV-RNN-021 state-layout.
For porters: a state of equal widths looks the same in both layouts; carry the layout's name beside it.
Source: vllm#41292, where one layout was read as the other.
"""

import numpy as np

from kvref.arrays import Array, check_array, check_count, check_word
from kvref.errors import ShapeError

CANONICAL = "key_value"
STATE_LAYOUTS = (CANONICAL, "value_key")


def convert_state(state: Array, source: str, target: str) -> Array:
    """Return the recurrent part of a delta rule in another layout, as a new array.

    Shapes: [..., head_k_dim, head_v_dim] as `key_value`, [..., head_v_dim, head_k_dim] as `value_key`.
    Raises: ArgumentError if a layout has no name here (KV-RNN-021 state-layout); ShapeError, DTypeError.
    """
    check_word("source", source, STATE_LAYOUTS)
    check_word("target", target, STATE_LAYOUTS)
    check_array("state", state)
    if state.ndim < 2:
        raise ShapeError(
            f"state has shape {list(state.shape)}, expected at least two axes (KV-RNN-021 state-layout)"
        )
    turned = state if source == target else np.swapaxes(state, -1, -2)
    return np.array(turned, order="C")


def convert_conv_state(state: Array, conv_width: int, num_columns: int) -> Array:
    """Return a conv state with another number of columns, as a new array, the newest inputs last.

    Shapes: [..., num_channels, n] -> [..., num_channels, num_columns]. Columns that are added stand for
    inputs nobody reads again and are zeros; what is dropped is never any of the last `conv_width − 1`.
    Raises: ArgumentError, ShapeError if either side has fewer than conv_width − 1 columns (KV-RNN-002
    conv-state-inputs); DTypeError.
    """
    needed = check_count("conv_width", conv_width) - 1
    check_count("num_columns", num_columns, minimum=0)
    check_array("state", state)
    if state.ndim < 2 or state.shape[-1] < needed or num_columns < needed:
        raise ShapeError(
            f"state has shape {list(state.shape)} and num_columns = {num_columns}, expected at least "
            f"conv_width - 1 = {needed} columns in both (KV-RNN-002 conv-state-inputs)"
        )
    result = np.zeros((*state.shape[:-1], num_columns), state.dtype)
    if needed:
        result[..., num_columns - needed :] = state[..., state.shape[-1] - needed :]
    return result
