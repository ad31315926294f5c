"""The numbers behind state slots: for every recurrent layer an array of recurrent and one of conv parts.

A state slot is one row of every array. Reading widens a row exactly; writing rounds it once, to the dtype
that the part is kept in. Copying a state copies every row of its slot, both parts of all layers, bit by bit:
there is no way to move one part alone, so no slot ever holds half of a state.

Realises: KV-SNAP-004 snapshot-all-or-nothing, KV-SNAP-005 restore-copies, KV-SNAP-007 zero-start-of-request.
For porters: the two parts differ in dtype, and neither follows the dtype of the KV cache. A state that is
kept in fewer bits than it runs in is rounded once a save, not once a token.
Source: vLLM's and SGLang's state pools (float32 recurrent parts, bfloat16 conv parts); llama.cpp keeps both
in float32.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kvref.arrays import DTYPES, Array, check_count, check_word, dtype_of, is_index, narrow, widen
from kvref.errors import ArgumentError, DTypeError, ShapeError, StateError, shown
from kvref.memory.ids import as_ids
from kvref.recurrent.layouts import CANONICAL, STATE_LAYOUTS, convert_state
from kvref.recurrent.sizes import StateShape

#: The slot of nobody: it reads as zeros.
ZEROS = -1
#: What a part may be kept in.
FLOATS = tuple(name for name in DTYPES if name.startswith(("float", "bfloat")))


class LayerState(NamedTuple):
    """The states of one layer in some slots, one row a slot: float64, the recurrent part as `key_value`."""

    recurrent: Array
    conv: Array


class StateArrays:
    """The states of `layers`, in slots 0 to num_states − 1, which hold poison until they are written.

    `recurrent_layout` is how the recurrent part lies in the arrays; what is read and written is `key_value`.
    Raises: ArgumentError if there is no layer, a number is no count or the layout has no name; DTypeError if
    a dtype has no name, or is of whole numbers, which hold no poison.
    """

    def __init__(
        self,
        num_states: int,
        layers: Sequence[StateShape],
        *,
        recurrent_dtype: str = "float32",
        conv_dtype: str = "bfloat16",
        recurrent_layout: str = CANONICAL,
    ) -> None:
        self.num_states = check_count("num_states", num_states)
        self.layers = _checked_layers(layers)
        kinds = _float_of("recurrent_dtype", recurrent_dtype), _float_of("conv_dtype", conv_dtype)
        self.layout = check_word("recurrent_layout", recurrent_layout, STATE_LAYOUTS)
        self.recurrent = [
            np.empty((self.num_states, *self._stored(layer.recurrent)), kinds[0]) for layer in self.layers
        ]
        self.conv = [np.empty((self.num_states, *layer.conv), kinds[1]) for layer in self.layers]
        self.poison(range(self.num_states))

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent parts of one state, over all layers."""
        return sum(array[0].nbytes for array in self.recurrent)

    @property
    def conv_bytes(self) -> int:
        """Bytes of the conv parts of one state, over all layers."""
        return sum(array[0].nbytes for array in self.conv)

    def gather(self, layer: int, slots: Sequence[int]) -> LayerState:
        """Read the states of a layer, widened exactly; slot −1 reads as zeros.

        Raises: ArgumentError if there is no such layer or a slot is no integer; StateError if there is no
        such slot.
        """
        at, rows = self._layer(layer), self._slots("slots", slots, ZEROS)
        parts = []
        for array in (self.recurrent[at], self.conv[at]):
            part = widen("state", array[[max(0, slot) for slot in rows]]).copy()
            part[[slot == ZEROS for slot in rows]] = 0
            parts.append(part)
        return LayerState(self._turned(parts[0], self.layout, CANONICAL), parts[1])

    def scatter(self, layer: int, slots: Sequence[int], recurrent: Array, conv: Array) -> None:
        """Write the states of a layer, each number rounded once.

        Shapes: as `gather` returns them.
        Raises: ShapeError; ArgumentError if there is no such layer or a slot is no integer; StateError if a
        slot is not there or is named twice. Nothing has changed then.
        """
        at, rows = self._layer(layer), self._slots("slots", slots, 0)
        if len(set(rows)) < len(rows):
            raise StateError(f"slots = {shown(slots)}, expected each slot once")
        shape = self.layers[at]
        wide = [widen("recurrent", recurrent), widen("conv", conv)]
        for name, part, expected in zip(
            ("recurrent", "conv"), wide, (shape.recurrent, shape.conv), strict=True
        ):
            if part.shape != (len(rows), *expected):
                found, due = list(part.shape), [len(rows), *expected]
                raise ShapeError(
                    f"{name} has shape {found}, expected {due} (KV-SNAP-004 snapshot-all-or-nothing)"
                )
        turned = self._turned(wide[0], CANONICAL, self.layout)
        self.recurrent[at][rows] = narrow(turned, self.recurrent[at].dtype)
        self.conv[at][rows] = narrow(wide[1], self.conv[at].dtype)

    def copy(self, source: int, target: int) -> None:
        """Copy a whole state, both parts of all layers, bit by bit; source −1 writes zeros.

        Raises: StateError if a slot is not there; ArgumentError if it is no integer.
        """
        (old,), (new,) = self._slots("source", [source], ZEROS), self._slots("target", [target], 0)
        for array in (*self.recurrent, *self.conv):
            array[new] = array[old] if old != ZEROS else 0

    def poison(self, slots: Sequence[int]) -> None:
        """Fill states with NaN: whoever reads one that nobody wrote shows it.

        Raises: StateError if a slot is not there; ArgumentError if it is no integer.
        """
        rows = self._slots("slots", slots, 0)
        for array in (*self.recurrent, *self.conv):
            array[rows] = np.nan

    def _stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape if self.layout == CANONICAL else (*shape[:-2], *shape[-2:][::-1])

    def _turned(self, part: Array, source: str, target: str) -> Array:
        return part if source == target or part.ndim < 3 else convert_state(part, source, target)

    def _layer(self, layer: int) -> int:
        if not is_index(layer, len(self.layers)):
            raise ArgumentError(f"layer = {shown(layer)}, expected 0 to {len(self.layers) - 1}")
        return int(layer)

    def _slots(self, name: str, slots: Sequence[int], least: int) -> list[int]:
        rows = as_ids(name, slots)
        for slot in rows:
            if not least <= slot < self.num_states:
                raise StateError(
                    f"{name} names slot {shown(slot)}, expected {least} to {self.num_states - 1}"
                )
        return rows


def _checked_layers(layers: Any) -> tuple[StateShape, ...]:
    """Return the shapes of the layers' states.

    Raises: ArgumentError.
    """
    found = tuple(layers) if isinstance(layers, list | tuple) else ()
    if not found or not all(isinstance(layer, StateShape) for layer in found):
        raise ArgumentError(f"layers = {shown(layers)}, expected a list of at least one StateShape")
    return found


def _float_of(name: str, dtype: Any) -> np.dtype[Any]:
    """Return a dtype of real numbers, given its name.

    Raises: DTypeError.
    """
    if not isinstance(dtype, str) or dtype not in FLOATS:
        raise DTypeError(f"{name} = {shown(dtype)}, expected one of {', '.join(FLOATS)}")
    return dtype_of(dtype)
