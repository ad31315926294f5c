"""What a scan refuses, and that what it refuses changes nothing."""

from typing import Any

import numpy as np
import pytest
from recurrent.problems import SCANS, UPDATES, problem

from kvref.errors import ArgumentError, DTypeError, KVError, LengthError, ShapeError, StateError
from kvref.recurrent.conv import causal_conv
from kvref.recurrent.gates import decay_gate, write_gate

DELTA = ("gated_delta_rule", "kimi_delta_attention")


def changed(name: str, **changes: Any) -> Any:
    """Call a scan of five tokens with some arguments replaced."""
    p = problem(name, (2, 3))
    arguments = {**p.tokens, **p.weights, "initial_state": p.state, "query_start_loc": p.query_start_loc}
    return SCANS[name](**{**arguments, **changes})


@pytest.mark.parametrize("name", sorted(SCANS))
@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"query_start_loc": [0, 4, 3, 5]}, LengthError, r"request 1 would have a negative length"),
        ({"query_start_loc": [0, 2, 6]}, LengthError, r"goes from 0 to 6, expected from 0 to 5"),
        ({"query_start_loc": []}, ShapeError, r"query_start_loc has shape \[0\]"),
        ({"chunk_size": 0}, ArgumentError, r"chunk_size = 0, expected an integer >= 1"),
        ({"dtype": np.float16}, DTypeError, r"expected float64 or float32"),
    ],
)
def test_calls_that_are_none(name: str, changes: dict[str, Any], error: type[KVError], message: str) -> None:
    """The message names the argument, what was found and what was expected."""
    with pytest.raises(error, match=message):
        changed(name, **changes)


@pytest.mark.parametrize("name", sorted(SCANS))
def test_states_that_are_none(name: str) -> None:
    """NaN would never leave a state, and a state of another layout is another state (KV-RNN-021)."""
    state = problem(name, (2, 3)).state
    broken = state.copy()
    broken[1, 2] = np.inf
    with pytest.raises(StateError, match=r"initial_state\[1, 2, .*\] = inf, expected finite numbers"):
        changed(name, initial_state=broken)
    with pytest.raises(ShapeError, match=r"the other way round.*KV-RNN-021 state-layout"):
        changed(name, initial_state=np.swapaxes(state, -1, -2))
    with pytest.raises(ShapeError, match=r"initial_state has shape .*KV-RNN-021 state-layout"):
        changed(name, initial_state=state[:1])


@pytest.mark.parametrize("name", DELTA)
@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("g", 0.5, r"g\[.*\] = 0.5, expected at most 0 \(KV-RNN-010"),
        ("g", np.nan, r"g\[.*\] = nan, expected finite numbers"),
        ("g", -np.inf, r"g\[.*\] = -inf, expected finite numbers"),
        ("beta", 1.5, r"beta\[.*\] = 1.5, expected numbers from 0 to 1 \(KV-RNN-011"),
        ("beta", -0.5, r"beta\[.*\] = -0.5, expected numbers from 0 to 1"),
        ("v", np.nan, r"v\[.*\] = nan, expected finite numbers"),
    ],
)
def test_gates_out_of_range(name: str, argument: str, value: float, message: str) -> None:
    """A decay that grows, or a write stronger than the difference, is a mistake of the caller."""
    x = problem(name, (2, 3)).tokens[argument].copy()
    x[3, 1] = value
    with pytest.raises(ArgumentError, match=message):
        changed(name, **{argument: x})


@pytest.mark.parametrize("name", DELTA)
def test_overshooting_writes_are_announced(name: str) -> None:
    """Models with negative eigenvalues have write strengths up to 2, and say so."""
    beta = np.full((5, 6), 1.5)
    assert np.isfinite(changed(name, beta=beta, negative_eigenvalues=True).out).all()
    with pytest.raises(ArgumentError, match=r"expected numbers from 0 to 2"):
        changed(name, beta=2 * beta, negative_eigenvalues=True)


def test_heads_that_do_not_divide() -> None:
    """Value heads are shared out among key heads, heads among groups (KV-RNN-013, KV-RNN-019)."""
    with pytest.raises(ShapeError, match=r"KV-RNN-013 key-head-groups"):
        changed("gated_delta_rule", q=np.ones((5, 4, 5)), k=np.ones((5, 4, 5)))
    with pytest.raises(ShapeError, match=r"KV-RNN-019 ssd-groups"):
        changed("ssd_scan", B=np.ones((5, 4, 3)), C=np.ones((5, 4, 3)))


@pytest.mark.parametrize("name", ["selective_scan", "ssd_scan"])
def test_steps_and_rates_out_of_range(name: str) -> None:
    """A positive A grows for ever, a negative step runs backwards."""
    p = problem(name, (2, 3))
    with pytest.raises(ArgumentError, match=r"A\[.*expected at most 0 \(KV-RNN-017 mamba-recurrence\)"):
        changed(name, A=-p.weights["A"])
    with pytest.raises(ArgumentError, match=r"dt\[.*\] = nan"):
        changed(name, dt=np.full_like(p.tokens["dt"], np.nan))
    options = {"dt_limit": (0.0, np.inf)} if name == "ssd_scan" else {}
    with pytest.raises(ArgumentError, match=r"KV-RNN-020 dt-transform"):
        changed(name, dt=np.full_like(p.tokens["dt"], -9.0), dt_softplus=False, **options)
    if name == "ssd_scan":
        with pytest.raises(ArgumentError, match=r"dt_limit = \(2, 1\), expected two numbers"):
            changed(name, dt_limit=(2, 1))


def test_gates_refuse_what_is_no_gate() -> None:
    """A bound that is not negative, an A_log that overflows, a b that is no number."""
    a = np.zeros((2, 3))
    with pytest.raises(ArgumentError, match=r"lower_bound = 0.0, expected a negative number"):
        decay_gate(a, np.zeros(3), np.zeros(3), lower_bound=0.0)
    with pytest.raises(ArgumentError, match=r"A_log gives the log decay -inf for head 1"):
        decay_gate(a, [0, 1000.0, 0], np.zeros(3))
    with pytest.raises(ShapeError, match=r"a has shape \[2\]"):
        decay_gate(np.zeros(2), np.zeros(2), np.zeros(2))
    with pytest.raises(ArgumentError, match=r"b\[0\] = nan"):
        write_gate([np.nan])


def test_convolutions_that_are_none() -> None:
    """A kernel without taps, an activation without a name, a state of the other width."""
    x, weight = np.ones((5, 3)), np.ones((3, 4))
    with pytest.raises(ShapeError, match=r"conv_width 0"):
        causal_conv(x, np.ones((3, 0)), query_start_loc=[0, 5])
    with pytest.raises(ArgumentError, match=r"activation = 'gelu', expected one of none, silu"):
        causal_conv(x, weight, query_start_loc=[0, 5], activation="gelu")
    with pytest.raises(ShapeError, match=r"conv_width - 1\] = \[1, 3, 3\]"):
        causal_conv(x, weight, query_start_loc=[0, 5], initial_state=np.zeros((1, 3, 4)))


@pytest.mark.parametrize("name", sorted(UPDATES))
def test_refused_update_changes_nothing(name: str) -> None:
    """Whatever is wrong, no slot has changed (KV-RNN-025)."""
    p = problem(name, (1, 1))
    pool = np.concatenate([p.state, p.state])
    before = pool.tobytes()
    arguments = {**p.tokens, **p.weights, "state": pool, "state_indices": [0, 3]}
    key = next(iter(p.tokens))
    nan = np.full_like(p.tokens[key], np.nan)
    for changes, error, message in (
        ({"state_indices": [2, 2]}, StateError, r"state_indices names slot 2 2 times"),
        ({"state_indices": [0, 4]}, StateError, r"state_indices\[1\] = 4, but state has 4 slots"),
        ({"state_indices": [0]}, ShapeError, r"state_indices has shape \[1\]"),
        ({key: nan}, ArgumentError, rf"{key}\[.*\] = nan"),
        ({"dtype": np.float32}, DTypeError, r"cannot hold exactly"),
    ):
        with pytest.raises(error, match=message):
            UPDATES[name](**{**arguments, **changes})
        assert pool.tobytes() == before
    pool.flags.writeable = False
    with pytest.raises(DTypeError, match=r"state is read-only"):
        UPDATES[name](**arguments)
