"""Checks of delta rules and their gates: the order of decay, read and write, keys and values, lengths."""

import numpy as np

from kvref.recurrent.bounds import gate_bound
from kvref_conformance.checks.check import check
from kvref_conformance.probes.gates import Gate, gate
from kvref_conformance.probes.scans import coded, one_hot
from kvref_conformance.probes.scans_random import random_scan
from kvref_conformance.problems import cast
from kvref_conformance.scan_cases import every_second, grouped, scan_cases
from kvref_conformance.scan_judge import hold, hold_within
from kvref_conformance.trial import Trial

GATED = ("gated_delta_rule", "gated_delta_rule_update")
KIMI = ("kimi_delta_attention", "kimi_delta_attention_update")
GATE = ("decay_gate",)
#: The share of tokens that forget everything, where forgetting is the point.
OFTEN = 0.4


@check("KV-RNN-010", verbs=(*GATED, *KIMI), cases=scan_cases)
def decay_comes_before_the_read(trial: Trial) -> None:
    """Many tokens forget everything and write at once: what they write owes nothing to what was there."""
    hold(trial, coded(trial.case, trial.claims, gone=OFTEN))


@check("KV-RNN-011", verbs=(*GATED, *KIMI), cases=scan_cases)
def writes_replace_what_the_key_held(trial: Trial) -> None:
    """A memory addressed by one-hot keys, written over again and again with strengths 0, ½ and 1."""
    hold(trial, coded(trial.case, trial.claims, gone=0.0))


@check("KV-RNN-012", verbs=(*GATED, *KIMI), cases=scan_cases)
def outputs_are_read_after_the_write(trial: Trial) -> None:
    """Every token asks for the key it has just written."""
    problem = coded(trial.case, trial.claims)
    hold(trial, problem.with_inputs(q=problem.inputs["k"]), state=False)


@check("KV-RNN-013", verbs=GATED, cases=grouped)
def value_heads_share_the_key_head_before_them(trial: Trial) -> None:
    """Every key head writes and reads at places of its own, and no value head may find another's."""
    problem = coded(trial.case, trial.claims)
    tokens, heads, width = problem.inputs["k"].shape
    place = (np.arange(tokens)[:, None] + 5 * np.arange(heads)) % width
    key = cast(one_hot(place, width), problem.dtype)
    hold(trial, problem.with_inputs(q=key, k=key))


@check("KV-RNN-014", ring="numeric", verbs=GATE, cases=scan_cases)
def gates_follow_the_formula(trial: Trial) -> None:
    """Projections from far below to far above 0, rates over three orders of magnitude."""
    _hold_gate(trial, gate(trial.case, trial.claims))


@check("KV-RNN-014", ring="numeric", verbs=GATE, features=("channel_gate",), cases=scan_cases)
def gates_of_channels_follow_the_formula(trial: Trial) -> None:
    """The same for each channel of a head, which share its rate and have a bias each."""
    _hold_gate(trial, gate(trial.case.with_options(channels=True), trial.claims))


@check("KV-RNN-015", verbs=KIMI, cases=scan_cases)
def channels_decay_by_themselves(trial: Trial) -> None:
    """Some channels of a key forget and others keep, at every token others: each is read by its own key."""
    problem = coded(trial.case, trial.claims, gone=OFTEN / 4)
    hold(trial, problem)


@check("KV-RNN-016", ring="numeric", verbs=GATE, features=("lower_bound",), cases=scan_cases)
def bounded_gates_follow_the_formula(trial: Trial) -> None:
    """The same with a lower bound of −5, and one of −0.75."""
    for bound in (-5.0, -0.75):
        _hold_gate(trial, gate(trial.case, trial.claims, lower_bound=bound))
    if "channel_gate" in trial.claims.features:
        channels = trial.case.with_options(channels=True)
        _hold_gate(trial, gate(channels, trial.claims, lower_bound=-5.0))


@check("KV-RNN-029", ring="numeric", verbs=(*GATED, *KIMI), features=("qk_l2norm",), cases=every_second)
def queries_and_keys_are_divided_by_their_length(trial: Trial) -> None:
    """Vectors of ordinary length, and some so short that what stands beside the sum of squares decides."""
    hold_within(trial, random_scan(trial.case, trial.claims, ("qk_l2norm",)))


def _hold_gate(trial: Trial, asked: Gate) -> None:
    result = trial.call(asked.call)
    exact, bound = gate_bound(**asked.inputs, lower_bound=asked.lower_bound, arithmetic=asked.facts)
    found = np.asarray(result.answer.outputs["g"]).astype(np.float64)
    trial.expect_within("g", result, found, exact, bound)
