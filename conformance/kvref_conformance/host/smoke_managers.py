"""A first look at a manager: one small conversation in which each offered operation has its turn.

Of the answers only the delivery is judged, as with verbs. An operation that needs what another one gives is
left out where that one is not offered.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.host import Host, Session
from kvref_conformance.managers import MANAGERS, Value
from kvref_conformance.programs.models_of_attention import llama
from kvref_conformance.programs.models_of_states import interval

NUM_BLOCKS = 4

Given = Mapping[str, Value]
#: From what was given so far, by name, to the arguments of an operation.
Arguments = Callable[[Given], dict[str, Value]]


def _only(**arguments: Value) -> Arguments:
    return lambda given: arguments


def _again(*names: str) -> Arguments:
    """Return arguments that were given before, under the same names."""
    return lambda given: {name: given[name] for name in names}


_BLOCKS, _FIRST = _again("blocks"), _only(request=0)
_TOKENS: dict[str, Value] = {"tokens": [5, 6, 7], "max_new_tokens": 4}
_KEYS: list[str] = ["00", "01"]

_CONFIG = json.dumps(llama(2, 3, 64).config)
_HYBRID = json.dumps(interval(2, 2, 1, 64, 1, 1, 64, 64).config)

#: Manager -> its operations in an order in which each makes sense, and what they are given.
CONVERSATIONS: dict[str, tuple[tuple[str, Arguments], ...]] = {
    "block_allocator": (
        ("allocate", _only(num_blocks=1)),
        ("touch", _BLOCKS),
        ("pin", _BLOCKS),
        ("unpin", _BLOCKS),
        ("begin_step", _only()),
        ("end_step", _again("step")),
        ("free", _BLOCKS),
        ("num_free", _only()),
    ),
    "block_tables": (
        ("add", _FIRST),
        ("append", _only(request=0, num_tokens=1)),
        ("fork", _only(parent=0, child=1)),
        ("truncate", _only(request=0, num_tokens=1)),
        ("prune", _FIRST),
        ("block_table", _only(request=0, group=0)),
        ("free", _FIRST),
        ("num_free", _only()),
    ),
    "prefix_cache": (
        ("reset", _only()),
        ("admit", _only(request=0, **_TOKENS)),
        ("commit", _FIRST),
        ("extend", _only(request=0, tokens=[8], max_new_tokens=3)),
        ("slots", _FIRST),
        ("finish", _FIRST),
        ("admit", _only(request=1, **_TOKENS)),
        ("abort", _only(request=1)),
        ("num_free", _only()),
        ("take_events", _only()),
    ),
    "snapshot_cache": (
        ("reset", _only()),
        ("admit", _only(request=0, **_TOKENS)),
        ("commit", _FIRST),
        ("extend", _only(request=0, tokens=[8], max_new_tokens=3)),
        ("slots", _FIRST),
        ("commit", _FIRST),
        ("finish", _FIRST),
        ("admit", _only(request=1, **_TOKENS)),
        ("abort", _only(request=1)),
        ("num_free", _only()),
        ("num_free_states", _only()),
    ),
    "block_keys": (("keys", _only(tokens=[5, 6, 7])),),
    "block_index": (
        ("store", _only(worker=0, parent="", keys=_KEYS)),
        ("match", _only(keys=_KEYS)),
        ("remove", _only(worker=0, keys=_KEYS[1:])),
        ("clear", _only(worker=0)),
    ),
    "cache_geometry": (
        ("size", _only(config=_CONFIG, num_tokens=100, element_bytes=2)),
        ("snapshot", _only(config=_HYBRID, element_bytes=2)),
        ("hybrid_block", _only(config=_HYBRID, element_bytes=2, tensor_parallel=1, multiple=16)),
    ),
}


def try_manager(
    host: Host, manager: str, operations: tuple[str, ...], claims: Claims
) -> Iterator[tuple[str, Any]]:
    """Yield (what was tried, how it failed or None) for the opening of a manager and each operation."""
    block_size = claims.block_sizes[0]
    every: dict[str, Value] = {
        "num_blocks": max(NUM_BLOCKS, -(-2 * NUM_BLOCKS // block_size)),
        "block_size": block_size,
        "block_sizes": [block_size],
        "windows": [2],
        "num_states": NUM_BLOCKS,
        "snapshot_interval": block_size,
        "window": 2,
    }
    asked = [p.name for p in MANAGERS[manager].opens if p.feature in (None, *claims.features)]
    opens = {name: every[name] for name in asked if name in every}
    try:
        session = host.open(manager, **opens)
    except Failed as failure:
        yield manager, failure
        return
    yield manager, None
    yield from _converse(session, operations)


def _converse(session: Session, operations: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    given: dict[str, Value] = {}
    for operation, arguments in CONVERSATIONS[session.manager]:
        if operation not in operations:
            continue
        try:
            given |= session.do(operation, **arguments(given))
        except KeyError:  # what it needs is given by an operation that is not offered
            continue
        except Failed as failure:
            yield f"{session.manager}.{operation}", failure
            if session.gone:
                return
            continue
        yield f"{session.manager}.{operation}", None
    try:
        session.close()
    except Failed as failure:
        yield f"closing {session.manager}", failure
