"""Checks of caches that are views: far apart, with gaps, in another order of axes.

A subject is compared with itself over the same contexts in a contiguous cache, so what fails is the address.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import dtype_of
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.probes.imprints import CACHES, imprint
from kvref_conformance.probes.needles import edges, hunt_in_turn, hunt_near, needles
from kvref_conformance.problems import VIEWS, Placement, viewed
from kvref_conformance.trial import Trial

PAGED = ("paged_attention", "append_and_attend")


def _some(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Half of the lattice: addresses do not depend on the group."""
    return lattice(claims, verb, level)[::2]


def _wide(claims: Claims, verb: str, level: Level) -> list[Case]:
    """One small case in the smallest dtype and with few heads: its memory is almost all untouched."""
    dtype = min(claims.dtypes, key=lambda name: dtype_of(name).itemsize)
    size = min(claims.block_sizes, key=lambda b: abs(b - 16))
    changes: dict[str, Any] = {
        "dtype": dtype,
        "block_size": size,
        "seq_lens": (size + 1, 3),
        "query_lens": (1, 1),
    }
    changes |= {"num_kv_heads": 1, "group": 3, "head_dim": min(claims.head_dims)}
    return [replace(case, **changes) for case in lattice(claims, verb, "quick")[:1]]


@check("KV-ATTN-018", verbs=PAGED, features=("strided",), cases=_wide)
def offsets_beyond_two_to_the_32(trial: Trial) -> None:
    """Blocks 2^30 elements apart: offsets that 31 bits do not hold, one that 32 bits take for small."""
    case = trial.case
    problem = needles(case, hunt_near(case, 0, -1, -case.block_size))
    near = Placement(seed=case.seed, tables=np.array([[4, 2, 0], [3, 0, 0]]), num_blocks=5)
    far = replace(near, block_stride=2**30 + 64)
    what = "blocks lie 2^30 elements apart"
    trial.expect_same(what, problem, trial.attend(problem, far), trial.attend(problem, near))


@check("KV-ATTN-018", verbs=("paged_attention",), features=("strided",), cases=_wide)
def block_ids_beyond_16_bits(trial: Trial) -> None:
    """Block ids above 65536, of a view whose blocks lie over each other so that it takes little memory."""
    case, apart = trial.case, trial.case.block_size
    problem = needles(case, hunt_near(case, 0, -1, -case.block_size))
    tables = np.array([[3, 1, 0], [2, 0, 0]])
    near = Placement(seed=case.seed, tables=tables, num_blocks=4)
    high = replace(
        near,
        tables=2**16 + apart * tables,  # so that no two of them share a slot
        num_blocks=2**16 + 4 * apart,
        block_stride=case.num_kv_heads * case.head_dim,
    )
    what = f"block ids are {2**16} and above"
    trial.expect_same(what, problem, trial.attend(problem, high), trial.attend(problem, near))


@check("KV-ATTN-019", verbs=PAGED, features=("strided",), cases=_some)
def strides_of_the_cache_are_honoured(trial: Trial) -> None:
    """Views with a gap after every block, another for values than for keys, and with heads before offsets."""
    case = trial.case
    problem = needles(case, hunt_in_turn(case, edges(case)))
    dense = trial.attend(problem, Placement(seed=case.seed))
    for view in VIEWS:
        result = trial.attend(problem, Placement(seed=case.seed, view=view))
        trial.expect_same(f"the caches are views with {view}", problem, result, dense)


@check("KV-ATTN-019", verbs=("write_kv",), features=("strided",), cases=_some)
def strides_are_honoured_in_writing(trial: Trial) -> None:
    """Written through the same views, every slot holds what it holds in a contiguous cache."""
    write = imprint(trial.case)
    dense = trial.call(write.call)
    for view in VIEWS:
        caches = {name: viewed(write.call.tensors[name], view, name) for name in CACHES}
        result = trial.call(replace(write.call, tensors={**write.call.tensors, **caches}))
        for name in CACHES:
            seen, due = (np.asarray(x.answer.outputs[name]) for x in (result, dense))
            trial.expect_bits(f"{name}, a view with {view}, ", result, seen, due)
            beyond = name in result.answer.overrun
            trial.expect(
                not beyond, f"{name}, a view with {view}: bytes between its elements changed", result
            )
