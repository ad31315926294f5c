"""One judged call: the comparison with the bound, and what a failure says.

The message names the worst component, the arithmetic it was held to, and the known fault that gives the same
answer, if there is one.

Realises: KV-CONF-016 nan-fails, KV-CONF-017 derived-bounds.
For porters: not needed; this is the edge to other people's tests.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array, dtype_name
from kvref.attention.arithmetic import REFERENCE, Arithmetic
from kvref.attention.bounds import Bound, exceeds
from kvref.attention.bounds.compare import worst
from kvref.attention.masks import VariantArgs
from kvref.attention.merge import State
from kvref.errors import ArgumentError


@dataclass(frozen=True)
class Case:
    """One judged call: what went in, and the arithmetic it is held to."""

    verb: str
    tensors: dict[str, Array]
    variant: VariantArgs
    facts: Arithmetic


def hold(
    case: Case,
    out: Array,
    lse: Array | None,
    judge: Callable[[Arithmetic], tuple[State, Bound]],
    rows: Array,
) -> None:
    """Compare the chosen rows of an output, and of its lse, with what `judge` says under an arithmetic."""
    state, bound = judge(case.facts)
    total = case.tensors["q" if "q" in case.tensors else "out_a"].shape[0]
    if np.isnan(state.out).any():
        at = tuple(int(i) for i in np.argwhere(np.isnan(state.out))[0])
        raise ArgumentError(
            f"{_place(case, int(rows[at[0]]), at)}: the exact answer is NaN, expected inputs that are finite "
            "where they are attended to"
        )
    pairs = [("out", out, state.out, bound.out)]
    pairs += [] if lse is None else [("lse", lse, state.lse, bound.lse)]
    for name, whole, expected, allowed in pairs:
        form = [total, *expected.shape[1:]]
        if list(whole.shape) != form:
            raise AssertionError(f"{name} has shape {list(whole.shape)}, expected {form}")
        observed = whole[rows]
        outside = exceeds(observed, expected, allowed)
        if not outside.any():
            continue
        at = worst(observed.astype(np.float64), expected, allowed, outside)
        token = int(rows[at[0]])
        sample = "" if len(rows) == total else f"; {len(rows)} of {total} query tokens were checked"
        message = (
            f"{_place(case, token, at)}: {name} = {float(observed[at]):.6g}, expected "
            f"{expected[at]:.6g} ± {allowed[at]:.2g} ({int(outside.sum())} of {outside.size} outside{sample})"
        )
        answer = {"out": out} if lse is None else {"out": out, "lse": lse}
        raise AssertionError(message + diagnosis(case, answer) + _held_to(case))
    size = np.abs(state.out)
    # a pass that zeros would get says nothing, unless the answer is 0 as far as the reference can tell
    if size.size and (size <= bound.out).all() and (size > judge(REFERENCE)[1].out).any():
        raise ArgumentError(
            f"the bound is {bound.out.max():.2g} and no expected number is above {size.max():.2g}, expected "
            "outputs that tell a kernel from zeros: shorter contexts, values that do not cancel, or an "
            "`arithmetic` with the `depth` of the kernel's sums"
        )


def _place(case: Case, token: int, at: tuple[int, ...]) -> str:
    channel = f", channel {at[2]}" if len(at) > 2 else ""
    place = f"token {token}, head {at[1]}{channel}"
    if "query_start_loc" not in case.tensors:
        return place
    request = int(np.searchsorted(case.tensors["query_start_loc"], token, side="right") - 1)
    return f"request {request}, {place}"


def _held_to(case: Case) -> str:
    """Return the arithmetic behind the bound, since declaring another may be what a test lacks."""
    facts = case.facts.resolve(dtype_name(case.tensors["q" if "q" in case.tensors else "out_a"]))
    return (
        f"\nheld to: sums in {facts.accumulate}, P in {facts.probabilities}, logits in {facts.scores}, "
        f"output in {facts.output}"
    )


def diagnosis(case: Case, answer: dict[str, Array]) -> str:
    """Return the faults that give the same answer, each as a line."""
    from kvref_conformance.runner.asserted import known_faults

    sentences = known_faults(case.verb, {**case.tensors, **case.variant}, answer, case.facts)
    return "".join(f"\nas if: {sentence}" for sentence in sentences)
