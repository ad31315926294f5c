"""One subject tried on one call: run in float64, and measured by how far honest rounding may take it.

Used for the exhibits of a diagnosis, and for the honest subject that they are compared with. A subject may
be asked for a verb that its exhibit does not claim. Attention over codes is run on the numbers that a codec
reads, by the kernel behind it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_name, is_real
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, positional_arguments
from kvref_conformance.museum.nearness import Change, Near, Yardstick
from kvref_conformance.museum.over_codes import OVER_CODES, codec, lowered, offering
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.tiled import Tiled

#: Above this length a context is read in larger tiles: the answers of exhibits do not depend on it there.
LONG, LARGE_TILE = 512, 128


def honest_kind(call: Call) -> type[Any]:
    """Return the built-in subject that answers a call without a fault."""
    return Bitwise if call.verb == OVER_CODES else Tiled


@dataclass(frozen=True)
class Tried:
    """A subject's answer in float64 with the bounds around it, and how they were measured."""

    measure: Yardstick
    near: Near

    @staticmethod
    def of(
        kind: type[Any],
        call: Call,
        claims: Claims,
        observed: Mapping[str, Array] | None = None,
        known: Yardstick | None = None,
    ) -> "Tried":
        """Run a subject on a call; `known` is the yardstick of an honest one that attends to the same."""
        make: Callable[[], Any] = partial(prepared, kind, call, claims)
        if call.verb == OVER_CODES:
            make, call = lowered(make(), call)
            known = known if issubclass(kind, Tiled) else None
        if known is None:
            facts = claims.arithmetic.resolve(_dtype(call))
            known = Yardstick.of(_widened(call, claims), facts)
        return Tried(known, known.near(partial(_run, make, known.call), observed))


def prepared(kind: type[Any], call: Call, claims: Claims) -> Any:
    """Return a subject that offers the verb of a call, also one that the exhibit does not claim.

    A kernel that knows no codes is put behind an honest codec where the call is over codes.
    """
    verb = call.verb
    behind = verb == OVER_CODES and issubclass(kind, Tiled)
    subject = codec(kind, claims) if issubclass(kind, Bitwise) else kind()
    if int(np.max(call.tensors.get("seq_lens", 0), initial=0)) > LONG:
        subject.tile = LARGE_TILE
    subject = offering(subject, "paged_attention" if behind else verb)
    if not behind:
        return subject
    made = codec(Bitwise, claims)
    made.kernel = lambda: prepared(kind, replace(call, verb="paged_attention"), claims)
    return made


def _run(make: Callable[[], Any], call: Call, change: Change) -> dict[str, Array]:
    """Call a verb of a new subject, its values changed before they are averaged."""
    subject = make()
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
    return comparable(found | {name: tensors[name] for name in call.in_place}, call)


def _read_only(x: Array) -> Array:
    """Return a view that a fault cannot write: the next one needs the same inputs."""
    view = x.view()
    view.flags.writeable = False
    return view


def comparable(outputs: Mapping[str, Array], call: Call) -> dict[str, Array]:
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
            tensors[name] = in_nats(tensors[name], claims)
    return replace(call, tensors=tensors, params=params)


def in_nats(lse: Array, claims: Claims) -> Array:
    """Return an lse of the declared spelling in nats, −∞ where a row is empty."""
    if claims.choice("empty-row-lse") == "+inf":
        lse = np.where(np.isposinf(lse), -np.inf, lse)
    return lse * np.log(2.0) if claims.choice("lse-base") == "2" else lse


def _dtype(call: Call) -> str:
    for name in ("q", "x", "out_a", "k", "cache"):
        if name in call.tensors:
            return dtype_name(call.tensors[name])
    return "float32"
