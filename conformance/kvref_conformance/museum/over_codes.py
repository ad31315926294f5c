"""Faults of formats in a failing call: bytes are compared as bytes, attention over codes as attention.

A codec's answer has no rounding to allow for under a declared path, so a fault matches if it gives the same
bits; of numbers that were read, the sign of zero and the payload of NaN are passed over where nothing matches
otherwise. Attention over codes is taken in two steps: what a subject reads is taken out at the kernel behind
it, and is then a call of paged attention like any other.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kvref.arrays import Array, is_real
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Answer, Call, Failed, positional_arguments
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.bitwise.kinds import KINDS, Kind

#: The verb whose calls are attention over codes.
OVER_CODES = "quantized_paged_attention"
#: Verbs whose answers are compared bit for bit.
CODECS = ("quantize_kv", "dequantize_kv")
#: How many multiplications a codec takes for a number, about.
COST = 200.0

#: Topics whose exhibits are about some formats only.
NARROW = ("formats_micro", "formats_integers")

Same = Callable[[Array, Array], bool]


def matching(call: Call, answer: Answer, exhibits: Iterable[Exhibit], claims: Claims) -> list[Exhibit]:
    """Return the exhibits that give this answer to a codec's call, where an honest codec does not."""
    right = _answer(Bitwise, call, claims)
    others = [(exhibit, _answer(exhibit.subject, call, claims)) for exhibit in exhibits]
    for same in (_same_bits, _same_numbers):
        if _equal(right, answer.outputs, same):
            return []
        found = [exhibit for exhibit, other in others if _equal(other, answer.outputs, same)]
        if found:
            return found
    return []


def of_its_kind(exhibit: Exhibit, call: Call) -> bool:
    """Say whether an exhibit speaks of what a call's format has.

    Those of small groups and of integers name what other formats have not; the rest is said of any.
    """
    name = call.params.get("format")
    if exhibit.topic not in NARROW or name not in KINDS:
        return True
    mine = KINDS[str(name)]
    made_for = [KINDS[one] for one in exhibit.subject.claims.formats]
    if _whole(mine):
        return any(_whole(kind) for kind in made_for)
    return any(mine.family == kind.family and not _whole(kind) for kind in made_for)


def _whole(kind: Kind) -> bool:
    """Say whether codes are integers."""
    return "int" in kind.element


def codec(kind: type[Any], claims: Claims) -> Any:
    """Return a codec that makes the declared choices and has a fault of its own."""
    made = kind()
    made.claims = replace(kind.claims, choices=claims.choices)
    return made


def lowered(subject: Any, call: Call) -> tuple[Callable[[], Any], Call]:
    """Return what makes the kernel behind a codec, and the call of paged attention that it is given.

    Raises: whatever the subject raises, or Failed if it attends without its kernel.
    """
    spy, make = _Spy(), subject.kernel
    subject.kernel = lambda: spy
    positional = positional_arguments(call.verb)
    keywords = {name: x for name, x in call.tensors.items() if name not in positional}
    tensors = (call.tensors[name] for name in positional)
    subject.quantized_paged_attention(*tensors, **keywords, **call.params)
    if spy.given is None:
        raise Failed("error", "no attention was asked for")
    given = {name: x for name, x in spy.given.items() if isinstance(x, np.ndarray)}
    params = {name: x for name, x in spy.given.items() if name not in given and x is not None}
    return make, Call("paged_attention", given, params, call.outputs)


class _Spy:
    """A kernel that keeps what it is asked."""

    given: dict[str, Any] | None = None

    def paged_attention(self, q: Array, k_cache: Array, v_cache: Array, **options: Any) -> None:
        """Keep the arguments."""
        self.given = {"q": q, "k_cache": k_cache, "v_cache": v_cache, **options}


def _answer(kind: type[Any], call: Call, claims: Claims) -> Mapping[str, Array] | None:
    """Return the outputs of a codec, None if it gives none."""
    try:
        with np.errstate(all="ignore"):
            return InProcessHost(offering(codec(kind, claims), call.verb)).call(call).outputs
    except Failed:
        return None


def offering(subject: Any, verb: str) -> Any:
    """Return a subject with a verb, also one that its exhibit does not claim."""
    for owner in type(subject).__mro__:
        if vars(owner).get(verb) is not None:
            setattr(subject, verb, vars(owner)[verb].__get__(subject))
            break
    return subject


def _equal(mine: Mapping[str, Array] | None, observed: Mapping[str, Array], same: Same) -> bool:
    return mine is not None and all(
        same(np.asarray(x), np.asarray(observed[name])) for name, x in mine.items()
    )


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    nan = (a != a) & (b != b)
    return bool(((_bits(a) == _bits(b)) | nan).all())


def _same_numbers(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape or not is_real(a):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _bits(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")
