"""What an attention output says about the slots that were read.

Contexts whose values are codes let an output be decoded: a needle's row is copied to the output as it is, so
the output names the position it came from, and poison names itself.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.contracts import Call
from kvref_conformance.problems import POISON_VALUE, Problem


@dataclass(frozen=True)
class Reading:
    """Where an output row seems to come from."""

    request: int
    position: int | None = None
    block: int | None = None
    offset: int | None = None
    poisoned: bool = False
    sentence: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as JSON values."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}


def what_was_read(problem: Problem, call: Call, token: int, head: int, row: Array) -> Reading:
    """Decode one output row: which position of which request it equals, if any."""
    request = problem.request_of(token)
    if not np.isfinite(row).all():
        return Reading(request, sentence="; not a finite number")
    if (row == POISON_VALUE).all():
        return Reading(request, poisoned=True, sentence="; that is what a dead slot holds")
    group = problem.q.shape[1] // problem.k.shape[1]
    values = problem.v.astype(np.float64)
    matches = np.argwhere((values == row).all(axis=-1))
    if len(matches) != 1:
        return Reading(request)
    flat, kv_head = (int(i) for i in matches[0])
    owner = int(np.searchsorted(problem.context_start_loc, flat, side="right") - 1)
    position = flat - int(problem.context_start_loc[owner])
    whose = "" if owner == request else f" of request {owner}"
    heads = "" if kv_head == head // group else f", kv head {kv_head} instead of {head // group}"
    place = _place(call, owner, position)
    where = "" if place is None else f" (block {place[0]}, slot {place[1]})"
    block, offset = place or (None, None)
    return Reading(
        owner, position, block, offset, sentence=f"; read position {position}{whose}{where}{heads}"
    )


def _place(call: Call, request: int, position: int) -> tuple[int, int] | None:
    if "block_tables" not in call.tensors:
        return None
    block_size = call.tensors["k_cache" if "k_cache" in call.tensors else "kv_cache"].shape[1]
    return int(call.tensors["block_tables"][request, position // block_size]), position % block_size
