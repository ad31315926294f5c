"""Checks of rotary embedding: pairs, the channels that stay, positions, and rotating twice.

What turns is held to the bound of `kvref.attention.bounds.rope`: float32 angles, everything else in the
output's format. What does not turn is held to its bits.
"""

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds.rope import rope_bound
from kvref.attention.rope import channel_pairs
from kvref_conformance.cases import Case
from kvref_conformance.checks.check import check
from kvref_conformance.probes.rotations import present_rope, rotation_cases, vectors
from kvref_conformance.trial import Result, Trial

VERB = ("apply_rope",)
#: Positions far enough that slow pairs have turned too, near enough for any table of angles.
NEAR = (1, 2, 3, 17, 50, 101, 511)
#: In no order, one of them twice, the first and the far ones included.
SCATTERED = (130, 0, 2047, 7, 7, 1024, 1)


@check("KV-ATTN-080", ring="numeric", verbs=VERB, cases=rotation_cases)
def pairs_turn_by_their_own_frequency(trial: Trial) -> None:
    """All channels turn, then half of them: pair i of the style by position · base^(−2i / rotary_dim)."""
    case = trial.case
    for rotary_dim in (case.head_dim, case.head_dim // 4 * 2):
        _hold(trial, vectors(case), _positions(case, NEAR), rotary_dim)


@check("KV-ATTN-081", verbs=VERB, cases=rotation_cases)
def channels_past_the_rotated_part_stay(trial: Trial) -> None:
    """Half of the channels turn, then two: the rest come back bit for bit, negative zeros included."""
    case = trial.case
    x = vectors(case)
    for rotary_dim in (case.head_dim // 4 * 2, 2):
        result = trial.call(present_rope(x, _positions(case, NEAR), case, rotary_dim))
        out = np.asarray(result.answer.outputs["out"])
        trial.expect_bits(
            f"out past channel {rotary_dim}", result, out[..., rotary_dim:], x[..., rotary_dim:]
        )


@check("KV-ATTN-082", ring="numeric", verbs=VERB, cases=rotation_cases)
def each_token_has_its_own_position(trial: Trial) -> None:
    """Positions in no order, far apart and repeated, as a batch of many requests has them."""
    _hold(trial, vectors(trial.case), _positions(trial.case, SCATTERED), trial.case.head_dim)


@check("KV-ATTN-083", ring="numeric", verbs=VERB, cases=rotation_cases)
def rotations_add_up(trial: Trial) -> None:
    """Rotated by a and then by b, a vector is where a + b would have put it, within both bounds.

    The first rotation's error is rotated along: it can mix the two components of a pair, no more.
    """
    case, width = trial.case, trial.case.head_dim
    x, a, b = vectors(case), _positions(case, NEAR), _positions(case, SCATTERED)
    once = trial.call(present_rope(x, a, case, width))
    between = np.asarray(once.answer.outputs["out"])
    twice = trial.call(present_rope(between, b, case, width))
    _, first = _expected(trial, x, a, width)
    _, second = _expected(trial, between, b, width)
    exact, _ = _expected(trial, x, a + b, width)
    one, other = channel_pairs(width, width, case.option("style"))
    carried = np.zeros_like(first)
    carried[..., one] = carried[..., other] = first[..., one] + first[..., other]
    trial.expect_within("out rotated twice", twice, twice.out, exact, carried + second)


@check("KV-ATTN-085", verbs=VERB, cases=rotation_cases)
def nothing_turns_without_rotated_channels(trial: Trial) -> None:
    """`rotary_dim` is 0 and positions are not: the vectors come back bit for bit."""
    x = vectors(trial.case)
    result = trial.call(present_rope(x, _positions(trial.case, NEAR), trial.case, 0))
    trial.expect_bits("out", result, np.asarray(result.answer.outputs["out"]), x)


def _hold(trial: Trial, x: Array, positions: Array, rotary_dim: int) -> Result:
    result = trial.call(present_rope(x, positions, trial.case, rotary_dim))
    exact, bound = _expected(trial, x, positions, rotary_dim)
    trial.expect_within(f"out (rotary_dim {rotary_dim})", result, result.out, exact, bound)
    return result


def _expected(trial: Trial, x: Array, positions: Array, rotary_dim: int) -> tuple[Array, Array]:
    return rope_bound(
        x,
        positions=positions,
        base=trial.case.option("base"),
        rotary_dim=rotary_dim,
        style=trial.case.option("style"),
        arithmetic=trial.claims.arithmetic,
    )


def _positions(case: Case, some: tuple[int, ...]) -> Array:
    return np.resize(np.array(some, np.int64), case.num_tokens)
