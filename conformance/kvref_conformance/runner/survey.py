"""What a declaration buys: what a subject shows beside what it declares, and what slips through.

A lax declaration widens the bound. Probes read the arithmetic off a few answers, and the museum's faults are
run under the declared arithmetic: one that would pass there is listed. Other probes read the choices inside
formats off the bytes.

Realises: KV-CONF-018 arithmetic-inferred.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.arithmetic import Arithmetic
from kvref.errors import KVError
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.cases import Case
from kvref_conformance.choices_found import find_choices
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING, FORMATTED, RECURRENT, VERBS, Failed
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.inference import compare, infer
from kvref_conformance.oracle import Oracle
from kvref_conformance.problems import Placement, Problem, present
from kvref_conformance.report.model import ChoiceFound
from kvref_conformance.runner.evaluate import evaluate, plan


@dataclass(frozen=True)
class Survey:
    """What the probes found."""

    inferred: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """dtype of q -> stage -> format; "unknown" where no single format explains the answers."""
    disagreements: tuple[str, ...] = ()
    """Where declared and inferred differ, in words."""
    survivors: tuple[str, ...] = ()
    """Exhibits that would pass under the declared arithmetic."""
    choices: tuple[ChoiceFound, ...] = ()
    """The choices inside formats that the subject was seen to make."""


def survey(host: Host, claims: Claims, verbs: tuple[str, ...]) -> Survey:
    """Probe a subject's choices inside formats, and its arithmetic.

    That is probed for each claimed dtype, through the first attending verb.
    """
    choices = find_choices(host, claims, verbs) if set(verbs) & set(FORMATTED) else ()
    verb = next((verb for verb in ATTENDING if verb in verbs), None)
    if verb is None:
        return Survey(survivors=survivors(claims), choices=choices)
    inferred: dict[str, Mapping[str, str]] = {}
    words: list[str] = []
    for dtype in claims.dtypes:
        case = Case(
            verb=verb,
            seq_lens=(1,),
            query_lens=(1,),
            num_kv_heads=1,
            group=1,
            head_dim=claims.head_dims[0],
            block_size=max(claims.block_sizes),  # one block keeps the order in which a probe lays its tokens
            dtype=dtype,
        )
        try:
            found = infer(
                lambda *request, case=case: _ask(host, case, claims, *request), dtype, head_dim=case.head_dim
            )
        except Failed:
            continue  # the same failure stands in the results
        inferred[dtype] = asdict(found)
        for part in compare(claims.arithmetic, found, dtype):
            words.append(
                f"{dtype}: {part.name} is declared {part.declared}, the answers show {part.inferred} "
                f"({part.observed} than declared)"
            )
    return Survey(inferred, tuple(words), survivors(claims), choices)


def survivors(claims: Claims) -> tuple[str, ...]:
    """Return the exhibits that no check of what they break would catch under the declared arithmetic.

    Under the default arithmetic all are caught: the suite's own tests see to that.
    """
    from kvref_conformance.museum import all_exhibits

    lax: set[str] = set()  # verbs whose arithmetic is declared to be another; a manager has none
    if claims.arithmetic != Arithmetic():
        lax |= set(VERBS) - set(RECURRENT)
    if claims.scan_arithmetic != ScanArithmetic():
        lax |= set(RECURRENT)
    return tuple(e.name for e in all_exhibits() if set(e.verbs) & lax and not _caught(e, claims))


def _caught(exhibit: Any, declared: Claims) -> bool:
    """Say whether a check of what an exhibit breaks fails under the arithmetic that is declared."""
    host = InProcessHost(exhibit.subject)
    claims = replace(
        Claims.from_dict(host.hello().claims),
        arithmetic=declared.arithmetic,
        scan_arithmetic=declared.scan_arithmetic,
    )
    oracle = Oracle(claims)
    for check, case in plan(exhibit.verbs, claims, "quick"):
        if check.requirement not in exhibit.breaks:
            continue
        with contextlib.suppress(KVError):  # under this arithmetic the check has nothing to hold an answer to
            if evaluate(check, case, host, oracle).status == "fail":
                return True
    return False


def _ask(host: Host, case: Case, claims: Claims, q: Array, k: Array, v: Array, scale: float) -> Array:
    """Ask one probe through the case's verb: one request, whose query sees every token.

    A last token does, unless causal is anchored top-left; there the probe is asked without causal.
    """
    lens = np.array([len(k)], np.int64)
    anchored = claims.choice("causal-corner") == "top_left" and "non_causal" in claims.features
    variant = {"scale": scale, "causal": False} if anchored else {"scale": scale}
    problem = Problem(q, k, v, lens, np.array([len(q)], np.int64), variant, case.dtype)
    answer = host.call(present(problem, case, Placement(seed=1)))
    return np.asarray(answer.outputs["out"])
