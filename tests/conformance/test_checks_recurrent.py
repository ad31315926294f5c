"""Checks of recurrent layers: each way to be wrong is seen by the check of its own rule, and told where."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.checks.recurrent_drawn import any_claimed_scan_is_the_recurrence
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.scans_drawn import drawn_scans
from kvref_conformance.runner.evaluate import Evidence, evaluate
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.verbs_of_scans import UPDATES

Failing = Callable[..., list[Evidence]]
SMALL = replace(Scanned.claims, dtypes=("float32",), head_dims=(32,), conv_widths=(4,), state_dims=(16,))


def broken(**methods: Any) -> type[Scanned]:
    """A subject with some methods replaced; each is given the subject first."""
    return type("Broken", (Scanned,), {"claims": SMALL, **methods})


def honest(name: str) -> Callable[..., Any]:
    """The method that a fault goes on with."""
    return getattr(Scanned, name)  # type: ignore[no-any-return]


def _joined(self: Scanned, starts: Array, request: int) -> Any:
    """Chunks on one grid for all requests."""
    rows = self.rows_of(starts, request)
    edges = [rows.start, *range((rows.start // 16 + 1) * 16, rows.stop, 16), rows.stop]
    yield from (slice(a, b) for a, b in pairwise(edges) if b > a)


def _dropped(self: Scanned, starts: Array, request: int) -> Any:
    """A last chunk of one token is left out."""
    yield from (rows for rows in honest("chunks")(self, starts, request) if rows.stop - rows.start > 1)


def _unsolved(self: Scanned, lower: Array, right: Array) -> Array:
    """The first step of the triangular solve alone."""
    return np.asarray(right - lower @ right)


#: Requirement, topic, verbs, and a subject that breaks it.
FAULTS: dict[str, tuple[str, str, tuple[str, ...], type[Scanned]]] = {
    "weights reversed": (
        *("KV-RNN-001", "recurrent_conv", ("causal_conv",)),
        broken(weight_of=lambda self, j, width: width - 1 - j),
    ),
    "state of outputs": (
        *("KV-RNN-002", "recurrent_conv", ("causal_conv",)),
        broken(kept_inputs=lambda self, window, x, width: 2 * window[len(window) - width + 1 :].T),
    ),
    "state newest first": (
        *("KV-RNN-002", "recurrent_conv", ("causal_conv",)),
        broken(kept_inputs=lambda self, window, x, width: window[len(window) - width + 1 :][::-1].T),
    ),
    "short step padded with zeros": (
        *("KV-RNN-003", "recurrent_conv", ("causal_conv",)),
        broken(
            kept_inputs=lambda self, window, x, width: (
                np.concatenate([np.zeros_like(window), x])[1 - width :].T
            )
        ),
    ),
    "bias behind the activation": (
        *("KV-RNN-004", "recurrent_conv", ("causal_conv", "causal_conv_update")),
        broken(
            with_bias=lambda self, y, bias: (
                honest("activated")(self, y, "silu") + (0 if bias is None else bias)
            ),
            activated=lambda self, y, activation: y,
        ),
    ),
    "window not moved": (
        *("KV-RNN-031", "recurrent_conv", ("causal_conv_update",)),
        broken(kept_inputs=lambda self, window, x, width: window[: width - 1].T),
    ),
    "chunk of one token left out": (
        *("KV-RNN-023", "recurrent_states", ("ssd_scan", "gated_delta_rule")),
        broken(chunks=_dropped),
    ),
    "fresh requests not cleared": (
        *("KV-RNN-005", "recurrent_states", ("causal_conv", "kimi_delta_attention")),
        broken(first_state=lambda self, initial, flags, request: self.loaded(initial[request])),
    ),
    "NaN times zero": (
        *("KV-RNN-005", "recurrent_states", ("selective_scan",)),
        broken(
            first_state=lambda self, initial, flags, request: (
                self.loaded(initial[request]) * np.float32(1 if flags is None else flags[request])
            )
        ),
    ),
    "state of the neighbour": (
        *("KV-RNN-006", "recurrent_packing", ("gated_delta_rule",)),
        broken(
            first_state=lambda self, initial, flags, request: honest("first_state")(
                self, initial, flags, max(request - 1, 0)
            )
        ),
    ),
    "padding is the last slot": (
        *("KV-RNN-009", "recurrent_states", ("ssd_update", "causal_conv_update")),
        broken(live=lambda self, indices: enumerate(int(slot) for slot in indices)),
    ),
    "padding is the first slot": (
        *("KV-RNN-009", "recurrent_states", ("gated_delta_rule_update",)),
        broken(live=lambda self, indices: enumerate(max(int(slot), 0) for slot in indices)),
    ),
    "decay behind the read": (
        *("KV-RNN-010", "recurrent_delta", ("gated_delta_rule_update", "kimi_delta_attention_update")),
        broken(
            delta_step=lambda self, q, k, v, decay, beta, state: honest("delta_step")(
                self,
                q,
                k,
                v + self.read(k, self.decayed(state, decay[:, 0]) - state),
                decay,
                beta,
                state,
            )
        ),
    ),
    "nothing corrected": (
        *("KV-RNN-011", "recurrent_delta", ("gated_delta_rule", "kimi_delta_attention")),
        broken(solved=lambda self, lower, right: right),
    ),
    "one step of the solve": (
        *("KV-RNN-011", "recurrent_delta", ("gated_delta_rule", "kimi_delta_attention")),
        broken(solved=_unsolved),
    ),
    "key heads tiled": (
        *("KV-RNN-013", "recurrent_delta", ("gated_delta_rule", "gated_delta_rule_update")),
        broken(key_heads=lambda self, values, keys: np.arange(values) % keys),
    ),
    "softplus of the gate without its bias": (
        *("KV-RNN-014", "recurrent_delta", ("decay_gate",)),
        broken(pre_gate=lambda self, a, dt_bias: a.astype(np.float32)),
    ),
    "mean decay of the channels": (
        *("KV-RNN-015", "recurrent_delta", ("kimi_delta_attention", "kimi_delta_attention_update")),
        broken(channel_decay=lambda self, g: np.broadcast_to(g.mean(axis=-1, keepdims=True), g.shape)),
    ),
    "bound on the wrong side of the rate": (
        *("KV-RNN-016", "recurrent_delta", ("decay_gate",)),
        broken(bounded_gate=lambda self, rate, pre, bound: rate * bound / (1 + np.exp(-pre))),
    ),
    "state read before its own token": (
        *("KV-RNN-017", "recurrent_mamba", ("selective_scan",)),
        broken(
            selective_read=lambda self, states, before, C: honest("selective_read")(
                self, np.concatenate([before[None], states[:-1]]), before, C
            )
        ),
    ),
    "gate before the skip": (
        *("KV-RNN-018", "recurrent_mamba", ("ssd_scan", "selective_state_update")),
        broken(
            finished=lambda self, y, x, factor, z: (
                (y if z is None else self.gated(y, z.astype(np.float32)))
                + (0 if factor is None else factor.astype(np.float32) * x)
            )
        ),
    ),
    "groups tiled": (
        *("KV-RNN-019", "recurrent_mamba", ("ssd_scan", "ssd_update")),
        broken(group_of_heads=lambda self, heads, groups: np.arange(heads) % groups),
    ),
    "dt not clipped": (
        *("KV-RNN-020", "recurrent_mamba", ("ssd_update",)),
        broken(limited=lambda self, size, limit: size),
    ),
    "values first, undeclared": (
        *("KV-RNN-021", "recurrent_states", ("gated_delta_rule", "kimi_delta_attention_update")),
        broken(value_first=lambda self: True),
    ),
    "state rounded to float16": (
        *("KV-RNN-022", "recurrent_packing", ("ssd_scan", "selective_scan")),
        broken(loaded=lambda self, state: np.asarray(state, np.float16).astype(np.float32)),
    ),
    "positive exponents": (
        *("KV-RNN-026", "recurrent_packing", ("gated_delta_rule", "kimi_delta_attention")),
        broken(
            apart=lambda self, decay: (
                np.exp(self.running(decay))[:, :, None]
                * np.exp(-self.running(decay))[:, None]
                * np.tri(decay.shape[1], dtype=np.float32)[:, :, None]
            )
        ),
    ),
    "only a decay below zero is applied": (
        *("KV-RNN-027", "recurrent_packing", ("gated_delta_rule", "gated_delta_rule_update")),
        broken(decayed=lambda self, state, decay: np.where(decay < 0, np.exp(decay), 0)[..., None] * state),
    ),
    "length without what stands beside it": (
        *("KV-RNN-029", "recurrent_delta", ("gated_delta_rule", "kimi_delta_attention_update")),
        broken(unit_length=lambda self, x: x / np.sqrt((x * x).sum(axis=-1, keepdims=True) + 1e-12)),
    ),
    "rows counted in 16 bits": (
        *("KV-RNN-032", "recurrent_extents", ("ssd_scan", "kimi_delta_attention")),
        broken(
            put=lambda self, out, rows, y: honest("put")(self, out, rows, y if rows.start < 2**15 else 0 * y)
        ),
    ),
    "lengths counted in eight bits": (
        *("KV-RNN-032", "recurrent_extents", ("selective_scan", "gated_delta_rule")),
        broken(
            rows_of=lambda self, starts, request: slice(
                int(starts[request]),
                int(starts[request] + (starts[request + 1] - starts[request]) % 256),
            )
        ),
    ),
    "requests counted in seven bits": (
        *("KV-RNN-032", "recurrent_extents", ("causal_conv", "ssd_scan")),
        broken(
            first_state=lambda self, initial, flags, request: honest("first_state")(
                self, initial, flags, request % 128
            )
        ),
    ),
    "heads counted in eight bits": (
        *("KV-RNN-032", "recurrent_extents", ("ssd_scan", "ssd_update")),
        broken(
            log_decay=lambda self, size, A: honest("log_decay")(
                self, size[:, np.arange(len(A)) % 256], A[np.arange(len(A)) % 256]
            )
        ),
    ),
    **{
        f"slots counted in {bits} bits": (
            *("KV-RNN-032", "recurrent_extents", ("causal_conv_update", "kimi_delta_attention_update")),
            broken(
                live=lambda self, indices, bits=bits: (
                    (row, slot % 2**bits) for row, slot in honest("live")(self, indices)
                )
            ),
        )
        for bits in (7, 8, 15)
    },
    "requests on an axis of 65535": (
        *("KV-RNN-028", "recurrent_extents", ("ssd_scan", "gated_delta_rule")),
        broken(num_requests=lambda self, starts: min(honest("num_requests")(self, starts), 2**16 - 1)),
    ),
    "states clipped at 100": (
        *("KV-RNN-022", "recurrent_packing", ("causal_conv", "ssd_update", "gated_delta_rule")),
        broken(loaded=lambda self, state: np.clip(honest("loaded")(self, state), -100, 100)),
    ),
    "states of no more than 65504": (
        *("KV-RNN-022", "recurrent_packing", ("selective_scan", "kimi_delta_attention_update")),
        broken(loaded=lambda self, state: np.clip(honest("loaded")(self, state), -65504, 65504)),
    ),
    "softplus is its argument above 7": (
        *("KV-RNN-020", "recurrent_mamba", ("ssd_scan", "selective_state_update")),
        broken(
            step_size=lambda self, dt, extras: np.where(
                extras.dt_softplus & (dt > 7), dt, honest("step_size")(self, dt, extras)
            ).astype(np.float32)
        ),
    ),
    "a third key head is never read": (
        *("KV-RNN-013", "recurrent_delta", ("gated_delta_rule", "gated_delta_rule_update")),
        broken(key_heads=lambda self, values, keys: np.minimum(honest("key_heads")(self, values, keys), 1)),
    ),
    "no scale is 1": (
        *("KV-RNN-011", "recurrent_delta", ("gated_delta_rule", "kimi_delta_attention_update")),
        broken(scaled=lambda self, q, scale: honest("scaled")(self, q, 1.0 if scale is None else scale)),
    ),
    "padding of another number than -1": (
        *("KV-RNN-009", "recurrent_states", ("ssd_update", "causal_conv_update")),
        broken(
            live=lambda self, indices: (
                (row, max(int(slot), -1)) for row, slot in enumerate(indices) if slot != -1
            )
        ),
    ),
    "update of every second token": (
        *("KV-RNN-030", "recurrent_states", ("gated_delta_rule_update",)),
        broken(save=lambda self, pool, slot, state: None),
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_seen(failing: Failing, fault: str) -> None:
    """A check that does not fail for the fault it is about says nothing about anybody."""
    requirement, topic, verbs, subject = FAULTS[fault]
    for verb in verbs:
        found = failing(topic, subject(), requirement, verbs=(verb,))
        assert found, verb
        assert {e.failure for e in found} <= {"", "error"}  # a transposed state may not fit


def test_one_grid_for_all_requests_is_no_fault(failing: Failing) -> None:
    """What matters is that no chunk joins two requests; where the grid lies is the kernel's own affair."""
    assert failing("recurrent_packing", broken(chunks=_joined)(), "KV-RNN-008") == []


def test_a_state_written_beside_its_slot_is_seen(failing: Failing) -> None:
    """The slot of nobody behind a request's own holds NaN or loud numbers, and keeps its bits."""

    def spilled(self: Scanned, pool: Array, slot: int, state: Array) -> None:
        pool[slot] = state
        pool[(slot + 1) % len(pool), 0] = state[0]

    found = failing("recurrent_states", broken(save=spilled)(), "KV-RNN-025", verbs=("ssd_update",))
    assert found
    assert all("slots" in e.message and "of no request" in e.message for e in found)


def test_a_write_between_slots_is_seen(failing: Failing) -> None:
    """In a strided pool the elements between two slots belong to another layer."""

    def contiguous(self: Scanned, pool: Array, slot: int, state: Array) -> None:
        pool[slot] = state
        if not pool.flags.c_contiguous:
            step = pool.strides[0] // pool.itemsize
            flat = np.lib.stride_tricks.as_strided(pool, (len(pool) * step - step + 1,), (pool.itemsize,))
            flat[min(slot * step + state.size, len(flat) - 1)] = 7

    found = failing("recurrent_states", broken(save=contiguous)(), "KV-RNN-025", verbs=("ssd_update",))
    assert any("between the slots" in e.message for e in found)


def test_a_failure_says_where(failing: Failing) -> None:
    """Request, token and head: there a recurrence goes wrong, and the rest follows."""
    subject = broken(key_heads=lambda self, values, keys: np.arange(values) % keys)
    messages = [e.message for e in failing("recurrent_delta", subject(), "KV-RNN-013")]
    assert any(m.startswith("request 0, token 0 of ") and ", head 1: out[" in m for m in messages)


def test_refusals_are_failures(failing: Failing) -> None:
    """A claimed verb that refuses an ordinary problem has failed, and the report says how."""

    def refuse(self: Scanned, *tensors: Array, **rest: Any) -> Any:
        raise NotImplementedError("no scans today")

    found = failing("recurrent_mamba", broken(ssd_scan=refuse)(), "KV-RNN-017", verbs=("ssd_scan",))
    assert {e.failure for e in found} == {"unsupported"}


def test_a_wrong_formula_is_no_fault_of_company_or_cuts(failing: Failing) -> None:
    """Rules about neighbours, grids and parts hold a subject to its own answer, right or wrong."""

    def negated(self: Scanned, *tensors: Any) -> tuple[Array, ...]:
        q, k, v, decay, beta = honest("prepared")(self, *tensors)
        return q, k, -v, decay, beta

    subject = broken(prepared=negated)
    for requirement, topic in (
        *(("KV-RNN-006", "recurrent_packing"), ("KV-RNN-008", "recurrent_packing")),
        ("KV-RNN-007", "recurrent_states"),
    ):
        assert failing(topic, subject(), requirement, verbs=("gated_delta_rule",)) == []
    assert failing("recurrent_delta", subject(), "KV-RNN-011", verbs=("gated_delta_rule",))


def test_the_wrong_one_of_two_answers_is_shown(failing: Failing) -> None:
    """Together they differ from one alone, which is right: the call to look at is that of all together."""

    def shared(self: Scanned, initial: Array, flags: Array | None, request: int) -> Array:
        return honest("first_state")(self, initial, flags, 0)  # type: ignore[no-any-return]

    found = failing("recurrent_packing", broken(first_state=shared)(), "KV-RNN-006", verbs=("ssd_scan",))
    assert found
    assert all(len(e.call.tensors["query_start_loc"]) > 2 for e in found if e.call is not None)


@pytest.mark.parametrize("fault", [np.float16, np.nan, "turned"], ids=["rounded", "payload", "turned"])
def test_slots_of_nobody_keep_every_bit(failing: Failing, fault: Any) -> None:
    """They differ by place and hold what no narrow format has, so that rounding or moving them shows."""

    def updated(self: Scanned, out: Array, pool: Array, indices: Array, advance: Any) -> Array:
        honest("updated")(self, out, pool, indices, advance)
        free = np.setdiff1d(np.arange(len(pool)), indices)
        if isinstance(fault, str):
            pool[free] = pool[free[::-1]]
        elif fault is np.float16:
            pool[free] = pool[free].astype(fault).astype(pool.dtype)
        else:
            pool[free] = np.where(np.isnan(pool[free]), fault, pool[free])
        return out

    assert failing("recurrent_states", broken(updated=updated)(), "KV-RNN-025", verbs=("ssd_update",))


@pytest.mark.parametrize("verb", [*UPDATES, *UPDATES.values()])
def test_drawn_scans_are_asked_and_held(verb: str) -> None:
    """The honest subject passes whatever is drawn; one whose states begin twice as large does not."""
    twice = broken(loaded=lambda self, state: 2 * honest("loaded")(self, state))
    for subject, due in ((broken(), set[str]()), (twice, {"fail"})):
        host, oracle = InProcessHost(subject()), Oracle(subject.claims)
        cases = drawn_scans(subject.claims, verb, range(6))
        found = {evaluate(any_claimed_scan_is_the_recurrence, case, host, oracle).status for case in cases}
        assert found - {"pass"} == due
