"""Which known fault a wrong answer looks like.

The exhibits of a verb run on the failing input. One matches if its answer equals the observed one everywhere,
within what rounding may do under the declared arithmetic, NaN included, and differs somewhere from the right
answer by more than that. Works for any call, of the suite or of someone's own test; of a large one only as
many exhibits are tried as its size allows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from kvref.arrays import Array
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING, VERBS, Answer, Call, Failed
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum import all_exhibits, diagnose_scans
from kvref_conformance.museum.cut import CUT, cut_to, worst_request
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.museum.over_codes import CODECS, COST, OVER_CODES, matching, of_its_kind
from kvref_conformance.museum.trying import Tried, comparable, honest_kind, in_nats, prepared
from kvref_conformance.verbs_of_scans import RECURRENT

#: Verbs that share the attending exhibits beside their own.
FAMILY = (*ATTENDING, "mla_attention", "sparse_attention", "replay", OVER_CODES)
#: Features whose faults show where their argument is left out as well.
ABSENT = {"lse", "delta_scale"}
#: Matches reported at most.
MOST = 3
#: Multiplications that all runs of one diagnosis may take together: a few seconds of one core.
BUDGET = 5e9
#: Multiplications of a single run above which nothing is tried.
LARGEST = BUDGET / 8


@dataclass(frozen=True)
class Match:
    """A fault that gives the same answer."""

    exhibit: Exhibit

    @property
    def sentence(self) -> str:
        """The fault as a report says it: in words, its class, where it was seen."""
        names = [place.rpartition("/")[2] for place in self.exhibit.seen_in[:2]]
        code = self.exhibit.fault.split()[0]
        seen = f"{code}; seen in {', '.join(names)}" if names else self.exhibit.fault
        return f"{self.exhibit.as_if} ({seen})"


@dataclass(frozen=True)
class Diagnosis:
    """What was found: matches, the most specific first."""

    matches: tuple[Match, ...]
    skipped: int = 0
    """Exhibits that were not tried because the call is too large."""

    def __iter__(self) -> Iterator[Match]:
        return iter(self.matches)

    def __len__(self) -> int:
        return len(self.matches)


def diagnose(call: Call, answer: Answer, requirement: str = "", claims: Claims | None = None) -> Diagnosis:
    """Return the faults of the museum that give this answer to this call, at most `MOST` of them.

    `requirement` is the one that failed: exhibits that break it come first. `claims` are the subject's.
    """
    declared = Claims() if claims is None else claims
    candidates = _candidates(call, requirement)
    if call.verb in RECURRENT and diagnose_scans.is_large(call):
        candidates = [e for e in candidates if requirement in e.breaks]
    if answer.mutated or answer.unwritten:
        return _by_manners(call, answer, candidates, declared)
    if any(name not in answer.outputs for name in (*call.outputs, *call.in_place)):
        return Diagnosis(())
    if call.verb in RECURRENT:
        return _found(diagnose_scans.matching(call, answer, candidates, declared), candidates, candidates)
    if _cost(call) > LARGEST:
        return Diagnosis((), len(candidates))
    tried = candidates[: max(int(BUDGET / _cost(call)), 1)]
    if call.verb in CODECS:
        return _found(matching(call, answer, tried, declared), candidates, tried)
    observed = _canonical(answer, call, declared)
    right = Tried.of(honest_kind(call), call, declared)
    if right.near.holds(observed):
        return Diagnosis(())
    if _cost(call) * len(candidates) > BUDGET and call.verb in CUT:
        request = worst_request(call, observed["out"], right.near.outputs["out"])
        call, observed = cut_to(call, observed, request)
        tried = candidates[: max(int(BUDGET / _cost(call)), 1)]
        right = Tried.of(honest_kind(call), call, declared)
    return _found([e for e in tried if _matches(e, call, declared, observed, right)], candidates, tried)


def _found(found: list[Exhibit], candidates: list[Exhibit], tried: list[Exhibit]) -> Diagnosis:
    return Diagnosis(tuple(Match(e) for e in found[:MOST]), len(candidates) - len(tried))


def _candidates(call: Call, requirement: str) -> list[Exhibit]:
    """Return the exhibits that can show in a call, the likeliest first."""
    own = [e for e in all_exhibits() if call.verb in e.verbs]
    family: tuple[str, ...] = ATTENDING if call.verb in FAMILY else ()
    if call.verb in diagnose_scans.KIN:
        family = diagnose_scans.KIN
    if call.verb == OVER_CODES:
        family = (*ATTENDING, "dequantize_kv")
    kin = [e for e in all_exhibits() if call.verb not in e.verbs and set(e.verbs) & set(family)]
    if call.verb in diagnose_scans.KIN:
        kin = diagnose_scans.candidates_of(call, kin)
    able = [e for e in (*own, *kin) if _asked_for(e, call)]
    return sorted(able, key=lambda e: (requirement not in e.breaks, call.verb not in e.verbs, e.is_plant))


def _asked_for(exhibit: Exhibit, call: Call) -> bool:
    """Say whether a call has the arguments, and the kind of format, that an exhibit's fault is about."""
    if not of_its_kind(exhibit, call):
        return False
    given = {*call.tensors, *call.params}
    arguments = [a for verb in exhibit.verbs for a in VERBS[verb].arguments]
    features = set(exhibit.subject.claims.features) - ABSENT
    needed = {a.name for a in arguments if a.feature in features}
    wanted = needed & {a.name for a in VERBS[call.verb].arguments}
    return not needed or bool(wanted & given)


def _matches(
    exhibit: Exhibit,
    call: Call,
    claims: Claims,
    observed: Mapping[str, Array],
    right: Tried,
) -> bool:
    """Run a fault in float64, then as it is: some faults are those of a narrow format, or of memory."""
    try:
        wrong = Tried.of(exhibit.subject, call, claims, observed, right.measure).near
        if wrong.holds(observed):
            return wrong.differs(right.near)
        if right.near.holds(wrong.outputs) or _has_gaps(call):
            native = right.near.twice(comparable(_ask(exhibit, call, claims).outputs, call))
            return native.holds(observed) and native.differs(right.near)
    except Exception:  # a fault may raise on an input it was not made for
        return False
    return False


def _has_gaps(call: Call) -> bool:
    """Say whether some tensor is a view into something larger, whose other bytes a fault may read."""
    return not all(x.flags.c_contiguous for x in call.tensors.values())


def _ask(exhibit: Exhibit, call: Call, claims: Claims) -> Answer:
    """Return an exhibit's answer as it is, from memory laid out as every host lays it.

    Raises: Failed.
    """
    return InProcessHost(prepared(exhibit.subject, call, claims)).call(call)


def _canonical(answer: Answer, call: Call, claims: Claims) -> dict[str, Array]:
    """Return the outputs as they are compared, an lse in nats."""
    found = comparable({name: np.asarray(x) for name, x in answer.outputs.items()}, call)
    if "lse" in found:
        found["lse"] = in_nats(found["lse"], claims)
    return found


def _by_manners(call: Call, answer: Answer, candidates: list[Exhibit], claims: Claims) -> Diagnosis:
    """Match what was done to memory: inputs changed, outputs left out."""
    found = []
    for exhibit in candidates:
        try:
            other = _ask(exhibit, call, claims)
        except Failed:
            continue
        if (set(other.mutated), set(other.unwritten)) == (set(answer.mutated), set(answer.unwritten)):
            found.append(exhibit)
    return Diagnosis(tuple(Match(exhibit) for exhibit in found[:MOST]))


def _cost(call: Call) -> float:
    """Return about how many multiplications one run takes."""
    size = float(sum(x.size for x in call.tensors.values()))
    if "q" not in call.tensors:
        return (COST * size if call.verb in CODECS else size) + 1.0
    q = call.tensors["q"]
    longest = int(np.max(call.tensors.get("seq_lens", np.ones(1)), initial=1))
    return 2.0 * q.size * longest + 1e6 + (COST * size if call.verb == OVER_CODES else 0.0)
