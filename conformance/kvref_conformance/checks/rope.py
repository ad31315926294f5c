"""Checks of rotary embedding: pairs, the channels that stay, positions, and rotating twice.

What turns is held to the bound of `kvref.attention.bounds.rope`: float32 angles, everything else in the
output's format. What does not turn is held to its bits.
"""

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import exceeds, rope_bound
from kvref.attention.rope import Yarn
from kvref_conformance.cases import Case
from kvref_conformance.checks.check import check
from kvref_conformance.probes.rotations import present_rope, rotation_cases, vectors
from kvref_conformance.trial import Result, Trial

VERB = ("apply_rope",)
#: Positions far enough that slow pairs have turned too, near enough for any table of angles.
NEAR = (1, 2, 3, 17, 50, 101, 511)
#: In no order, one of them twice, the first and the far ones included.
SCATTERED = (130, 0, 2047, 7, 7, 1024, 1)
#: Around what 16 bits hold, and as far as the longest contexts reach.
FAR = (65535, 65536, 65537, 1000000, 131073, 3, 262144)
#: Of DeepSeek-V3 but for the magnitude, and others that stretch less, with a ramp of other ends.
STRETCHED = (
    Yarn(factor=40.0, original_context=4096, mscale=1.369),
    Yarn(factor=4.0, original_context=32768, mscale=1.0),
    Yarn(factor=2.5, original_context=2000, beta_fast=24.0, beta_slow=2.0, mscale=0.75),
)
#: By how much a whole context is moved.
SHIFT = 300


@check("KV-ATTN-080", ring="numeric", verbs=VERB, cases=rotation_cases)
def pairs_turn_by_their_own_frequency(trial: Trial) -> None:
    """All channels turn, then half of them: pair i of the style by position · base^(−2i / rotary_dim)."""
    case = trial.case
    for rotary_dim, some in ((case.head_dim, NEAR), (case.head_dim // 4 * 2, NEAR), (case.head_dim, FAR)):
        _hold(trial, vectors(case), _positions(case, some), rotary_dim)


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
    for some in (SCATTERED, FAR):
        _hold(trial, vectors(trial.case), _positions(trial.case, some), trial.case.head_dim)


@check("KV-ATTN-083", ring="numeric", verbs=VERB, cases=rotation_cases)
def rotations_add_up(trial: Trial) -> None:
    """Rotated by a and then by b, the same for all or one each, a vector is where the subject puts a + b.

    Three errors are allowed for: of the first rotation, which is rotated along, of the second, and of the one
    by a + b; in each channel the largest of any pair, for who pairs channels wrongly may still add up.
    """
    case, width = trial.case, trial.case.head_dim
    x, a = vectors(case), _positions(case, NEAR)
    once = trial.call(present_rope(x, a, case, width))
    between = np.asarray(once.answer.outputs["out"])
    _, first = _expected(trial, x, a, width)
    for b in (np.full_like(a, SHIFT), _positions(case, SCATTERED)):
        twice = trial.call(present_rope(between, b, case, width))
        at_once = trial.call(present_rope(x, a + b, case, width))
        _, second = _expected(trial, between, b, width)
        _, whole = _expected(trial, x, a + b, width)
        what = f"rotated by {a.tolist()}, then by {b.tolist()}, against both together"
        slack = (2 * first + second + whole).max(axis=-1, keepdims=True, initial=0.0)
        trial.expect_alike(what, twice, twice.out, at_once.out, np.broadcast_to(slack, x.shape))


@check("KV-ATTN-084", ring="numeric", verbs=VERB, features=("yarn",), cases=rotation_cases)
def frequencies_are_stretched_along_the_ramp(trial: Trial) -> None:
    """Fast, slow and interpolated pairs of stretched models, near and far; magnitudes on both sides of 1."""
    case = trial.case
    x, positions = vectors(case), _positions(case, NEAR)
    exact, bound = _expected(trial, x, positions, case.head_dim)
    plain = trial.call(present_rope(x, positions, case, case.head_dim))
    if exceeds(plain.out, exact, bound).any():
        return  # a fault of every rotation, and the check of its own rule says so
    for yarn in STRETCHED:
        for rotary_dim, some in ((case.head_dim, NEAR), (case.head_dim // 4 * 2, FAR)):
            _hold(trial, x, _positions(case, some), rotary_dim, yarn)


@check("KV-ATTN-085", verbs=VERB, cases=rotation_cases)
def nothing_turns_without_rotated_channels(trial: Trial) -> None:
    """`rotary_dim` is 0 and positions are not: the vectors come back bit for bit."""
    x = vectors(trial.case)
    result = trial.call(present_rope(x, _positions(trial.case, NEAR), trial.case, 0))
    trial.expect_bits("out", result, np.asarray(result.answer.outputs["out"]), x)


def _hold(trial: Trial, x: Array, positions: Array, rotary_dim: int, yarn: Yarn | None = None) -> Result:
    result = trial.call(present_rope(x, positions, trial.case, rotary_dim, yarn))
    exact, bound = _expected(trial, x, positions, rotary_dim, yarn)
    trial.expect_within(f"out (rotary_dim {rotary_dim})", result, result.out, exact, bound)
    return result


def _expected(
    trial: Trial, x: Array, positions: Array, rotary_dim: int, yarn: Yarn | None = None
) -> tuple[Array, Array]:
    return rope_bound(
        x,
        positions=positions,
        base=trial.case.option("base"),
        rotary_dim=rotary_dim,
        style=trial.case.option("style"),
        yarn=yarn,
        arithmetic=trial.claims.arithmetic,
    )


def _positions(case: Case, some: tuple[int, ...]) -> Array:
    return np.resize(np.array(some, np.int64), case.num_tokens)
