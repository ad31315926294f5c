"""Arrays of states: one rounding a save, whole states alone, and a hybrid model that sees no hit."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.arrays import Array, narrow
from kvref.errors import ArgumentError, KVError, OutOfBlocksError, OutOfStatesError, ShapeError, StateError
from kvref.memory.snapshot_cache import SnapshotCache
from kvref.memory.snapshot_request import SnapshotStep
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.sizes import StateShape, kda_state
from kvref.storage.state_arrays import StateArrays

LAYERS = (StateShape((2, 3, 4), (5, 3)), StateShape((2, 3, 4), (5, 3)))


def test_a_save_rounds_once() -> None:
    """What is read back is the nearest number of the dtype, and reading it again changes nothing."""
    arrays = StateArrays(3, LAYERS, recurrent_dtype="bfloat16")
    rng = np.random.default_rng(0)
    recurrent, conv = rng.standard_normal((2, 2, 3, 4)), rng.standard_normal((2, 5, 3))
    arrays.scatter(1, [2, 0], recurrent, conv)
    read = arrays.gather(1, [2, 0])
    np.testing.assert_array_equal(read.recurrent, narrow(recurrent, arrays.recurrent[0].dtype).astype(float))
    arrays.scatter(1, [2, 0], *read)
    np.testing.assert_array_equal(arrays.gather(1, [2, 0]).conv, read.conv)


def test_a_copy_is_of_all_layers_and_parts() -> None:
    """There is no half of a state: KV-SNAP-004."""
    arrays = StateArrays(3, LAYERS)
    rng = np.random.default_rng(1)
    for layer in range(2):
        arrays.scatter(layer, [1], rng.standard_normal((1, 2, 3, 4)), rng.standard_normal((1, 5, 3)))
    arrays.copy(1, 2)
    for part in (*arrays.recurrent, *arrays.conv):
        assert part[2].tobytes() == part[1].tobytes()


def test_zeros_come_from_no_slot() -> None:
    """A fresh request starts from zeros whatever the memory holds."""
    arrays = StateArrays(2, LAYERS)
    assert np.isnan(arrays.gather(0, [0]).recurrent).all()
    assert not arrays.gather(0, [-1]).recurrent.any()
    arrays.copy(-1, 0)
    assert not arrays.gather(1, [0]).conv.any()


def test_layouts_hold_the_same_numbers() -> None:
    """Another order of axes in memory is read as the same state."""
    rng = np.random.default_rng(2)
    recurrent, conv = rng.standard_normal((1, 2, 3, 4)).astype(np.float32), np.zeros((1, 5, 3))
    arrays = StateArrays(1, LAYERS, recurrent_layout="value_key")
    arrays.scatter(0, [0], recurrent, conv)
    assert arrays.recurrent[0].shape == (1, 2, 4, 3)
    np.testing.assert_array_equal(arrays.gather(0, [0]).recurrent, recurrent)


def test_bytes_are_those_of_kimi_k3() -> None:
    """69 layers of 96 heads: 414 MiB of recurrent state, and 14.55 MiB of conv state in bfloat16."""
    layer = kda_state(num_heads=96, head_k_dim=128, head_v_dim=128, conv_width=4)
    arrays = StateArrays(1, [layer])
    assert 69 * arrays.recurrent_bytes == 434110464
    assert 69 * arrays.conv_bytes == 15261696
    assert arrays.recurrent_bytes + arrays.conv_bytes == layer.state_bytes()


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (StateError, lambda a: a.gather(0, [3])),
        (StateError, lambda a: a.gather(0, [-2])),
        (ArgumentError, lambda a: a.gather(2, [0])),
        (StateError, lambda a: a.scatter(0, [-1], np.zeros((1, 2, 3, 4)), np.zeros((1, 5, 3)))),
        (StateError, lambda a: a.scatter(0, [1, 1], np.zeros((2, 2, 3, 4)), np.zeros((2, 5, 3)))),
        (ShapeError, lambda a: a.scatter(0, [1], np.zeros((1, 2, 3, 4)), np.zeros((1, 5, 4)))),
        (ShapeError, lambda a: a.scatter(0, [1], np.zeros((1, 2, 4, 3)), np.zeros((1, 5, 3)))),
        (StateError, lambda a: a.copy(0, -1)),
        (StateError, lambda a: a.copy(5, 0)),
        (ArgumentError, lambda a: a.poison([True])),
    ],
)
def test_what_is_refused_changes_nothing(error: type[KVError], call) -> None:  # type: ignore[no-untyped-def]
    """A wrong slot or half a state: the arrays stay as they were, bit by bit."""
    arrays = StateArrays(3, LAYERS)
    before = [part.tobytes() for part in (*arrays.recurrent, *arrays.conv)]
    with pytest.raises(error):
        call(arrays)
    assert [part.tobytes() for part in (*arrays.recurrent, *arrays.conv)] == before


# --- a hybrid model in a few lines: whatever the cache does, its answers are those of a run without one

VOCAB, HEADS, WIDTH = 5, 2, 3
RNG = np.random.default_rng(7)
EMBED = RNG.standard_normal((VOCAB, 3 * HEADS * WIDTH))
CONV = RNG.standard_normal((3 * HEADS * WIDTH, 4))
DECAY, WRITE = -RNG.random((VOCAB, HEADS)), RNG.random((VOCAB, HEADS))
STEM = [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
STATE = StateShape((HEADS, WIDTH, WIDTH), (3 * HEADS * WIDTH, 3))

FRESH = np.zeros((1, *STATE.recurrent)), np.zeros((1, *STATE.conv))


def scanned(tokens: list[int], recurrent: Array, conv: Array) -> tuple[Array, Array, Array]:
    """One recurrent layer: outputs and both parts of the state after the tokens."""
    one = [0, len(tokens)]
    mixed = causal_conv(EMBED[tokens], CONV, query_start_loc=one, initial_state=conv)
    q, k, v = np.split(mixed.out.reshape(len(tokens), 3 * HEADS, WIDTH), 3, axis=1)
    g, beta = DECAY[tokens], WRITE[tokens]
    read = gated_delta_rule(q, k, v, g, beta, query_start_loc=one, initial_state=recurrent, qk_l2norm=True)
    return read.out, read.state, mixed.state


@dataclass
class Hybrid:
    """A recurrent layer and one of attention, run as a snapshot cache says, over memory full of poison."""

    cache: SnapshotCache
    kv: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.states = StateArrays(
            self.cache.num_free_states, [STATE], recurrent_dtype="float64", conv_dtype="float64"
        )

    def run(self, tokens: list[int], start: int, slots: list[int], step: SnapshotStep) -> None:
        """Run one step; its tokens must get the outputs that a run without a cache gives them."""
        if step.source != step.state:
            self.states.copy(step.source, step.state)
        cuts, outs = sorted({start, *step.save_positions, len(tokens)}), [np.zeros((0, HEADS, WIDTH))]
        for low, high in pairwise(cuts):
            out, *state = scanned(tokens[low:high], *self.states.gather(0, [step.state]))
            self.states.scatter(0, [step.state], *state)
            outs.append(out)
            if high in step.save_positions:
                self.states.copy(step.state, step.save_states[step.save_positions.index(high)])
        self.kv.update((slots[at], EMBED[tokens[at]]) for at in range(start, len(tokens)))
        attended = np.array([self.kv[slot] for slot in slots])
        np.testing.assert_array_equal(np.concatenate(outs), scanned(tokens, *FRESH)[0][start:])
        np.testing.assert_array_equal(attended, EMBED[tokens])

    def ask(self, number: int, tokens: list[int], most: int) -> bool:
        """Serve a prompt in chunks; say whether it was not refused."""
        try:
            admitted = self.cache.admit(number, tokens, max_new_tokens=most)
        except (OutOfBlocksError, OutOfStatesError):
            return False
        start, step = admitted.num_cached_tokens, SnapshotStep(*admitted[1:])
        while True:
            slots = self.cache.slots(number)
            self.run(tokens[: len(slots)], start, slots, step)
            self.cache.commit(number)
            if len(slots) == len(tokens):
                return True
            try:
                start, step = len(slots), self.cache.extend(number, max_new_tokens=most)
            except OutOfBlocksError:
                self.cache.abort(number)
                return False

    def draft(self, number: int, tokens: list[int], drafts: list[int], accepted: int) -> None:
        """Compute drafts, keep the first of them, and compute one token more."""
        for joined, keep in ((drafts, accepted), ([0], 0)):
            try:
                step = self.cache.extend(number, joined, num_drafts=len(joined) if joined is drafts else 0)
            except (OutOfBlocksError, OutOfStatesError):
                return
            self.run(tokens + joined, len(tokens), self.cache.slots(number), step)
            self.cache.commit(number, num_accepted=keep)
            tokens = tokens + joined[:keep]


@given(st.data())
def test_warm_is_cold_bit_by_bit(data: st.DataObject) -> None:
    """Chunks, other requests in between, drafts, hits, evictions: the law, made visible with numbers."""
    model = Hybrid(SnapshotCache(14, data.draw(st.integers(2, 6)), block_size=2, snapshot_interval=4))
    live: list[int] = []
    for number in range(data.draw(st.integers(1, 8))):
        tokens = STEM[: data.draw(st.integers(1, 10))] + data.draw(st.lists(st.integers(0, 4), max_size=4))
        if model.ask(number, tokens, data.draw(st.integers(1, 14))):
            live.append(number)
            drafts = data.draw(st.lists(st.integers(0, 4), max_size=3))
            model.draft(number, tokens, drafts, data.draw(st.integers(0, len(drafts))))
        while live and bool(data.draw(st.booleans())):
            model.cache.finish(live.pop(data.draw(st.integers(0, len(live) - 1))))
