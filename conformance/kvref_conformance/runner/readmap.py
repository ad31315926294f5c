"""Which slots a subject reads for one query token, found by asking it.

The failing call is asked again with every query zero, so that all attended tokens weigh the same, and with
values that are one in one channel and zero elsewhere, a different channel for each slot. Whatever comes back
non-zero in a channel is the weight of that channel's slot. A few calls map the whole cache of a small case.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.batch import Batch
from kvref.attention.masks import VariantArgs
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING, Call, Failed
from kvref_conformance.host import Host
from kvref_conformance.oracle import with_choices
from kvref_conformance.problems import Problem
from kvref_conformance.report.model import Picture

#: Slots of the largest cache that is mapped, and of the largest that is drawn.
MAX_SLOTS = 1024
#: Slots in a row where keys are packed and there are no blocks.
PACKED_ROW = 16
_VARIANT = ("scale", "causal", "window", "chunk_size", "softcap", "sinks", "alibi_slopes", "span_ids", "mask")


def picture(call: Call, host: Host | None, claims: Claims, token: int, head: int) -> Picture | None:
    """Return the cache of a call as seen from one query token; None where there is nothing to draw.

    Without a host, what was read stays empty.
    """
    if call.verb not in ATTENDING or token >= call.tensors["q"].shape[0]:
        return None
    batch = _batch(call, claims)
    request = int(np.searchsorted(batch.query_start_loc, token, side="right") - 1)
    num_slots, block_size = _extent(call)
    if num_slots > MAX_SLOTS:
        return None
    should = _slots_of(call, batch, request)[batch.allowed(request, np.array([token]))[0]]
    read = () if host is None else slots_read(call, host, token, head)
    return Picture(
        request=request,
        token=token,
        head=head,
        block_size=block_size,
        num_blocks=-(-num_slots // block_size),
        owners=tuple(_owners(call, batch, block_size)),
        should=tuple(sorted(int(slot) for slot in should)),
        read=read,
    )


def slots_read(call: Call, host: Host, token: int, head: int) -> tuple[int, ...]:
    """Return the slots with weight in one query token's answer; empty where the subject gives none."""
    num_slots, _ = _extent(call)
    values = "v" if call.verb == "attention" else "v_cache"
    width = call.tensors[values].shape[-1]
    found: list[int] = []
    for start in range(0, num_slots, width):
        try:
            answer = host.call(_census(call, range(start, min(start + width, num_slots))))
        except Failed:
            return ()
        row = np.asarray(answer.outputs["out"]).astype(np.float64)[token, head]
        found += [start + int(channel) for channel in np.flatnonzero(~(row == 0))]
    return tuple(slot for slot in found if slot < num_slots)


def _census(call: Call, slots: range) -> Call:
    """Return the call with queries and keys zero, and each of `slots` marked in its own channel."""
    tensors: dict[str, Array] = dict(call.tensors)
    tensors["q"] = np.zeros_like(tensors["q"])
    names = ("k", "v") if call.verb == "attention" else ("k_cache", "v_cache")
    width = tensors[names[1]].shape[-1]
    tensors[names[0]] = np.zeros_like(tensors[names[0]])
    marks = np.zeros((_extent(call)[0], width), tensors[names[1]].dtype)
    marks[list(slots), np.arange(len(slots))] = 1
    if call.verb == "append_and_attend":
        written = np.asarray(tensors["slot_mapping"])
        tensors["k"] = np.zeros_like(tensors["k"])
        new = np.where((written >= 0)[:, None], marks[np.maximum(written, 0)], marks.dtype.type(0))
        tensors["v"] = np.broadcast_to(new[:, None, :], tensors["v"].shape).copy()
    shape = tensors[names[1]].shape
    spread = marks.reshape(*shape[: len(shape) - 2], 1, width)
    tensors[names[1]] = np.broadcast_to(spread, shape).copy()
    return replace(call, tensors=tensors)


def _batch(call: Call, claims: Claims) -> Batch:
    """Return lengths and variant of a call, in the canonical spelling of the subject's choices."""
    given: dict[str, Any] = {**call.tensors, **call.params}
    starts, lens = np.asarray(given["query_start_loc"]), np.asarray(given["seq_lens"])
    nothing = np.zeros((int(lens.sum()), 1, 1))
    variant = {name: given[name] for name in _VARIANT if name in given}
    problem = Problem(given["q"], nothing, nothing, lens, np.diff(starts), variant, "float32")
    arguments: VariantArgs = with_choices(problem, claims).variant  # type: ignore[assignment]
    return Batch.of(given["q"], starts, lens, arguments)


def _extent(call: Call) -> tuple[int, int]:
    """Return (number of slots, slots in a block) of what a call reads."""
    if call.verb == "attention":
        return call.tensors["k"].shape[0], PACKED_ROW
    num_blocks, block_size = call.tensors["k_cache"].shape[:2]
    return num_blocks * block_size, block_size


def _slots_of(call: Call, batch: Batch, request: int) -> Array:
    positions = np.arange(int(batch.seq_lens[request]))
    if call.verb == "attention":
        return np.asarray(batch.context_start_loc[request] + positions)
    block_size = call.tensors["k_cache"].shape[1]
    table = np.asarray(call.tensors["block_tables"])[request]
    return np.asarray(table[positions // block_size].astype(np.int64) * block_size + positions % block_size)


def _owners(call: Call, batch: Batch, block_size: int) -> list[tuple[int, int, int, int]]:
    if call.verb == "attention":
        return []
    tables = np.asarray(call.tensors["block_tables"])
    return [
        (int(tables[request, entry]), request, entry, min(int(n) - entry * block_size, block_size))
        for request, n in enumerate(batch.seq_lens)
        for entry in range(-(-int(n) // block_size))
    ]
