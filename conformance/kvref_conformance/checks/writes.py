"""Checks of writing: the slot, the tokens that have none, everything else, and reading one's own writes.

All are exact: a write moves bits, so bits are compared, and a wrong slot is described by what it holds.
"""

from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.cases import Case, Level, lattice
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call
from kvref_conformance.probes.imprints import CACHES, Imprint, imprint, written
from kvref_conformance.probes.needles import hunt_near, needles
from kvref_conformance.problems import Placement, present
from kvref_conformance.trial import Result, Trial, bits

WRITING = ("write_kv", "append_and_attend")


def _some(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Half of the lattice: writing knows kv heads only, so the groups do not matter."""
    return lattice(claims, verb, level)[::2]


def _before_context(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Two requests with more query tokens than context, one without."""
    return [
        replace(case, seq_lens=(4, 3, case.block_size + 2), query_lens=(6, 5, 1))
        for case in _some(claims, verb, level)
    ]


@check("KV-ATTN-050", verbs=WRITING)
def token_is_stored_in_its_slot(trial: Trial) -> None:
    """Scattered slots, every token a code of its own: each named slot holds its token, bit for bit."""
    write = _write(trial)
    _hold(trial, trial.call(write.call), write, write.named)


@check("KV-ATTN-051", verbs=("write_kv",))
def negative_slots_are_skipped(trial: Trial) -> None:
    """Every third token has slot −1, −2 or −3: the caches end up as if those tokens had not been there."""
    write = imprint(trial.case, skipped=3)
    live = write.slots >= 0
    some = {name: x[live] for name, x in write.call.tensors.items() if name not in CACHES}
    alone = trial.call(replace(write.call, tensors={**write.call.tensors, **some}))
    _hold(
        trial, trial.call(write.call), replace(write, after=alone.answer.outputs), np.ones_like(write.named)
    )


@check("KV-ATTN-051", verbs=("append_and_attend",), features=("prefill",), cases=_before_context)
def negative_slots_are_skipped_in_appending(trial: Trial) -> None:
    """Tokens before the start of their context have slot −1: the caches end up as without them."""
    case = trial.case
    where = Placement(seed=case.seed + 1)
    problem = needles(case, hunt_near(case, 0))
    fewer = replace(case, query_lens=tuple(map(min, case.query_lens, case.seq_lens)))
    alone = trial.call(present(needles(fewer, hunt_near(fewer, 0)), fewer, where))
    result = trial.call(present(problem, case, where))
    write = Imprint(result.call, result.call.tensors["slot_mapping"], alone.answer.outputs)
    write = replace(write, after={name: write.after[name] for name in CACHES})
    _hold(trial, result, write, np.ones_like(write.named))


@check("KV-ATTN-052", verbs=WRITING, cases=_some)
def every_other_slot_keeps_its_bits(trial: Trial) -> None:
    """Full caches of arbitrary bits, as the subject allows: slots that are not named keep theirs."""
    write = _write(trial, raw_bits=trial.claims.choice("dead-slots") == "any_bits")
    _hold(trial, trial.call(write.call), write, ~write.named)


@check("KV-ATTN-053", verbs=WRITING, cases=_some)
def keys_and_values_go_to_their_own_caches(trial: Trial) -> None:
    """Every key differs from every value: none of them is found in the cache of the other kind."""
    write = _write(trial)
    result = trial.call(write.call)
    live = write.slots >= 0
    for name, other, kind in (("k_cache", "v", "value"), ("v_cache", "k", "key")):
        cache, rows = result.answer.outputs[name], write.call.tensors[other][live]
        block, offset = np.divmod(write.slots[live], cache.shape[1])
        if rows.shape[2] != cache.shape[3]:
            continue  # values have a width of their own: nothing can be mixed up
        swapped = (bits(cache[block, offset]) == bits(rows)).all(axis=(1, 2))
        if swapped.any():
            token = int(np.argmax(swapped))
            message = f"{name}[{block[token]}, {offset[token]}] holds the {kind} of its token"
            trial.expect(False, message, result, slot=int(write.slots[live][token]))


@check("KV-ATTN-054", verbs=("append_and_attend",))
def new_tokens_are_part_of_their_own_context(trial: Trial) -> None:
    """Each query hunts its own position, written in this call, and the one before it."""
    problem = needles(trial.case, hunt_near(trial.case, 0, -1))
    trial.expect_attention(problem, trial.attend(problem))


def _write(trial: Trial, *, raw_bits: bool = False) -> Imprint:
    """Return the write that the case's verb makes."""
    case = trial.case
    if case.verb == "write_kv":
        return imprint(case, raw_bits=raw_bits)
    problem = needles(case, hunt_near(case, 0, -1))
    keys = problem.k + np.asarray(1, problem.k.dtype)  # no key is all zero, so each differs from its value
    call = present(problem.but(k=keys), case, Placement(seed=case.seed + 1))
    return Imprint(call, call.tensors["slot_mapping"], written(call))


def _hold(trial: Trial, result: Result, write: Imprint, judged: Array) -> None:
    """Hold the judged slots of both caches to what they must hold."""
    for name, after in write.after.items():
        found, wanted = (bits(x).reshape(len(judged), -1) for x in (result.answer.outputs[name], after))
        wrong = (found != wanted).any(axis=1) & judged
        if not wrong.any():
            continue
        slot = int(np.argmax(wrong))
        block, offset = divmod(slot, after.shape[1])
        seen, due = (_content_of(rows[slot], name, write.call) for rows in (found, wanted))
        count = f"{int(wrong.sum())} of {int(judged.sum())} slots differ"
        message = f"{name}[{block}, {offset}] (slot {slot}) holds {seen}, expected {due} ({count})"
        trial.expect(False, message, result, slot=slot)


def _content_of(row: Array, name: str, call: Call) -> str:
    """Say what a slot holds: some token's key or value, or what some slot held before."""
    for kind, word in (("k", "key"), ("v", "value")):
        rows = bits(call.tensors[kind]).reshape(len(call.tensors[kind]), -1)
        if rows.shape[1] == len(row) and (same := (rows == row).all(axis=1)).any():
            token = int(np.argmax(same))
            return f"the {word} of token {token} (slot_mapping {int(call.tensors['slot_mapping'][token])})"
    before = bits(call.tensors[name]).reshape(-1, len(row))
    earlier = (before == row).all(axis=1)
    return f"what slot {int(np.argmax(earlier))} held before" if earlier.any() else "something else"
