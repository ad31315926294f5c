"""Which known fault a wrong answer looks like.

The exhibits of a verb run on the failing input. One matches if its answer equals the observed one everywhere,
within what rounding may do under the declared arithmetic, NaN included, and differs somewhere from the right
answer by more than that. Works for any call, of the suite or of someone's own test; of a large one only as
many exhibits are tried as its size allows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_name, is_real
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING, VERBS, Answer, Call, Failed, positional_arguments
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum import all_exhibits
from kvref_conformance.museum.cut import CUT, cut_to, worst_request
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.museum.nearness import Change, Near, Yardstick
from kvref_conformance.subjects.tiled import Tiled

#: Verbs that share the attending exhibits beside their own.
FAMILY = (*ATTENDING, "mla_attention", "sparse_attention", "replay")
#: Matches reported at most.
MOST = 3
#: Multiplications that all runs of one diagnosis may take together: a few seconds of one core.
BUDGET = 5e9
#: Multiplications of a single run above which nothing is tried.
LARGEST = BUDGET / 8
#: Above this length a context is read in larger tiles: the answers of exhibits do not depend on it there.
LONG, LARGE_TILE = 512, 128


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
    if answer.mutated or answer.unwritten:
        return _by_manners(call, answer, candidates)
    if any(name not in answer.outputs for name in (*call.outputs, *call.in_place)):
        return Diagnosis(())
    if _cost(call) > LARGEST:
        return Diagnosis((), len(candidates))
    facts = declared.arithmetic.resolve(_dtype(call))
    widened = _widened(call, declared)
    observed = _canonical(answer, call, declared)
    measure = Yardstick.of(widened, facts)
    right = measure.near(partial(_run, Tiled, widened))
    if right.holds(observed):
        return Diagnosis(())
    if _cost(call) * len(candidates) > BUDGET and call.verb in CUT:
        request = worst_request(call, observed["out"], right.outputs["out"])
        call, (widened, observed) = cut_to(call, {}, request)[0], cut_to(widened, observed, request)
        measure = Yardstick.of(widened, facts)
        right = measure.near(partial(_run, Tiled, widened))
    tried = candidates[: max(int(BUDGET / _cost(call)), 1)]
    found = [e for e in tried if _matches(e, call, measure, observed, right)]
    return Diagnosis(tuple(Match(e) for e in found[:MOST]), len(candidates) - len(tried))


def _candidates(call: Call, requirement: str) -> list[Exhibit]:
    """Return the exhibits that can show in a call, the likeliest first."""
    own = [e for e in all_exhibits() if call.verb in e.verbs]
    kin = [
        e
        for e in all_exhibits()
        if call.verb in FAMILY and call.verb not in e.verbs and set(e.verbs) & set(ATTENDING)
    ]
    able = [e for e in (*own, *kin) if _asked_for(e, call)]
    return sorted(able, key=lambda e: (requirement not in e.breaks, call.verb not in e.verbs, e.is_plant))


def _asked_for(exhibit: Exhibit, call: Call) -> bool:
    """Say whether a call has the arguments that an exhibit's fault is about."""
    given = {*call.tensors, *call.params}
    arguments = [a for verb in exhibit.verbs for a in VERBS[verb].arguments]
    needed = {
        a.name for a in arguments if a.feature in exhibit.subject.claims.features and a.feature != "lse"
    }
    wanted = needed & {a.name for a in VERBS[call.verb].arguments}
    return not needed or bool(wanted & given)


def _matches(
    exhibit: Exhibit,
    call: Call,
    measure: Yardstick,
    observed: Mapping[str, Array],
    right: Near,
) -> bool:
    """Run a fault in float64, then as it is: some faults are those of a narrow format, or of memory."""
    try:
        wrong = measure.near(partial(_run, exhibit.subject, measure.call), observed)
        if wrong.holds(observed):
            return wrong.differs(right)
        if right.holds(wrong.outputs) or _has_gaps(call):
            native = right.twice(_comparable(_ask(exhibit, call).outputs, call))
            return native.holds(observed) and native.differs(right)
    except Exception:  # a fault may raise on an input it was not made for
        return False
    return False


def _has_gaps(call: Call) -> bool:
    """Say whether some tensor is a view into something larger, whose other bytes a fault may read."""
    return not all(x.flags.c_contiguous for x in call.tensors.values())


def _run(kind: type[Any], call: Call, change: Change) -> dict[str, Array]:
    """Call a verb of an exhibit or of `Tiled`, also one that the exhibit does not claim."""
    subject = _prepared(kind, call)
    blended = subject.blended
    subject.blended = lambda weights, v: blended(weights, change(v))
    tensors = {name: change(x) if name in ("out_a", "out_b") else x for name, x in call.tensors.items()}
    tensors = {name: x.copy() if name in call.in_place else _read_only(x) for name, x in tensors.items()}
    positional = positional_arguments(call.verb)
    keywords = {name: x for name, x in tensors.items() if name not in positional}
    with np.errstate(all="ignore"):
        returned = getattr(subject, call.verb)(*(tensors[n] for n in positional), **keywords, **call.params)
    parts = () if returned is None else returned if isinstance(returned, tuple) else (returned,)
    found = {name: np.asarray(part) for name, part in zip(call.outputs, parts, strict=True)}
    return _comparable(found | {name: tensors[name] for name in call.in_place}, call)


def _read_only(x: Array) -> Array:
    """Return a view that a fault cannot write: the next one needs the same inputs."""
    view = x.view()
    view.flags.writeable = False
    return view


def _ask(exhibit: Exhibit, call: Call) -> Answer:
    """Return an exhibit's answer as it is, from memory laid out as every host lays it.

    Raises: Failed.
    """
    return InProcessHost(_prepared(exhibit.subject, call)).call(call)


def _prepared(kind: type[Any], call: Call) -> Any:
    """Return a subject that offers the verb of a call, also one that the exhibit does not claim."""
    subject = kind()
    if int(np.max(call.tensors.get("seq_lens", 0), initial=0)) > LONG:
        subject.tile = LARGE_TILE
    for owner in kind.__mro__:
        if vars(owner).get(call.verb) is not None:
            setattr(subject, call.verb, vars(owner)[call.verb].__get__(subject))
            break
    return subject


def _comparable(outputs: Mapping[str, Array], call: Call) -> dict[str, Array]:
    """Return outputs as float64: numbers; codes where bits count; selections sorted, having no order."""
    found = {}
    for name, x in outputs.items():
        if name in call.in_place or call.verb == "convert_layout":
            found[name] = np.ascontiguousarray(x).view(f"u{x.itemsize}").astype(np.float64)
        elif is_real(x):
            with np.errstate(all="ignore"):
                found[name] = x.astype(np.float64)
        else:
            found[name] = np.sort(x, axis=-1).astype(np.float64)
    return found


def _widened(call: Call, claims: Claims) -> Call:
    """Return the call so that it is computed in float64, and in the canonical spelling of the choices."""
    wide = ("q", "x", "out_a", "lse_a", "out_b", "lse_b")  # the rest is widened as it is read
    tensors = {name: x.astype(np.float64) if name in wide else x for name, x in call.tensors.items()}
    params = dict(call.params)
    if claims.choice("window-spelling") == "left" and "window" in params:
        params["window"] = int(params["window"]) + 1
    if call.verb == "merge_attention_states":
        for name in ("lse_a", "lse_b"):
            tensors[name] = _in_nats(tensors[name], claims)
    return replace(call, tensors=tensors, params=params)


def _canonical(answer: Answer, call: Call, claims: Claims) -> dict[str, Array]:
    """Return the outputs as they are compared, an lse in nats."""
    found = _comparable({name: np.asarray(x) for name, x in answer.outputs.items()}, call)
    if "lse" in found:
        found["lse"] = _in_nats(found["lse"], claims)
    return found


def _in_nats(lse: Array, claims: Claims) -> Array:
    if claims.choice("empty-row-lse") == "+inf":
        lse = np.where(np.isposinf(lse), -np.inf, lse)
    return lse * np.log(2.0) if claims.choice("lse-base") == "2" else lse


def _by_manners(call: Call, answer: Answer, candidates: list[Exhibit]) -> Diagnosis:
    """Match what was done to memory: inputs changed, outputs left out."""
    found = []
    for exhibit in candidates:
        try:
            other = _ask(exhibit, call)
        except Failed:
            continue
        if (set(other.mutated), set(other.unwritten)) == (set(answer.mutated), set(answer.unwritten)):
            found.append(exhibit)
    return Diagnosis(tuple(Match(exhibit) for exhibit in found[:MOST]))


def _dtype(call: Call) -> str:
    for name in ("q", "x", "out_a", "k", "cache"):
        if name in call.tensors:
            return dtype_name(call.tensors[name])
    return "float32"


def _cost(call: Call) -> float:
    """Return about how many multiplications one run takes."""
    if "q" not in call.tensors:
        return float(sum(x.size for x in call.tensors.values())) + 1.0
    q = call.tensors["q"]
    longest = int(np.max(call.tensors.get("seq_lens", np.ones(1)), initial=1))
    return 2.0 * q.size * longest + 1e6
