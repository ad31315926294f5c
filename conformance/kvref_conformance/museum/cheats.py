"""Cheats: subjects that answer without doing the work, or do it and leave a mess. No verb of theirs may pass.

Each offers every verb. They get right answers from the built-in subjects where they need some, and then
return something else, or less, or touch what is not theirs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from kvref.arrays import Array, is_real
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import FORMATTED, VERBS
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.scanned import Scanned
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.verbs_of_scans import RECURRENT

#: What a verb returns, as a tuple, and the tensors it wrote in place.
Parts = tuple[Array, ...]


class Cheat:
    """Answers every verb through `serve`."""

    claims = Claims(
        arithmetic=Tiled.claims.arithmetic,
        head_dims=(64,),
        block_sizes=(16,),
        features=("prefill", "lse", "prepare"),
    )

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in VERBS:
            raise AttributeError(name)
        return partial(self.serve, name)

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer one call."""
        raise NotImplementedError

    def right(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Return the right answer, its effects on caches included."""
        honest: Any = Bitwise() if verb in FORMATTED else Scanned() if verb in RECURRENT else Tiled()
        return getattr(honest, verb)(*tensors, **options)

    def changed(self, change: Callable[[Array], Array], verb: str, *tensors: Array, **options: Any) -> Any:
        """Return the right answer with every output changed; caches are changed where they are written."""
        before = [x.copy() for x in tensors]
        parts = _parts(self.right(verb, *tensors, **options))
        for old, now in zip(before, tensors, strict=True):
            touched = old.tobytes() != now.tobytes()
            if touched:
                now[...] = change(now)
        return _whole(tuple(change(part) for part in parts))


def _parts(answer: Any) -> Parts:
    return () if answer is None else answer if isinstance(answer, tuple) else (answer,)


def _whole(parts: Parts) -> Any:
    return None if not parts else parts[0] if len(parts) == 1 else parts


class Zeros(Cheat):
    """Every output is zero, and caches stay as they are."""

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer zeros."""
        answer = self.right(verb, *(x.copy() for x in tensors), **options)
        return _whole(tuple(np.zeros_like(part) for part in _parts(answer)))


class Constant(Cheat):
    """Every output is its own mean: right on average."""

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer the mean."""
        return self.changed(_mean, verb, *tensors, **options)


class AllNaN(Cheat):
    """Every output is NaN: a comparison that asks for `error > bound` lets it pass."""

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer NaN."""
        return self.changed(
            lambda x: np.full_like(x, np.nan if is_real(x) else -2), verb, *tensors, **options
        )


class Mutator(Cheat):
    """The answer is right, and an input is zeroed: a reference computed afterwards sees zeros."""

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer, then clear the first input."""
        answer = self.right(verb, *tensors, **options)
        tensors[0][...] = np.asarray(0, tensors[0].dtype)
        return answer


class Echo(Cheat):
    """The last answer is given again to any call of the same shapes."""

    def __init__(self) -> None:
        self.last: dict[Any, Any] = {}

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer what was answered before, if anything was."""
        shapes = (verb, *(x.shape for x in tensors))
        if shapes not in self.last:
            self.last[shapes] = self.right(verb, *tensors, **options)
        return self.last[shapes]


class PartialWriter(Cheat):
    """Only the first half of every output is written; the rest is what memory held."""

    claims = Claims.from_dict({**Cheat.claims.to_dict(), "features": (*Cheat.claims.features, "out")})

    def serve(self, verb: str, *tensors: Array, out: Array | None = None, **options: Any) -> Any:
        """Write half."""
        before = [x.copy() for x in tensors]
        parts = _parts(self.right(verb, *tensors, **options))
        for old, now in zip(before, tensors, strict=True):
            flat, kept = now.reshape(len(now), -1), old.reshape(len(old), -1)
            flat[:, flat.shape[1] // 2 :] = kept[:, flat.shape[1] // 2 :]
        if out is None:
            return _whole(tuple(_first_half(part, np.zeros_like(part)) for part in parts))
        out[...] = _first_half(parts[0], out)
        return _whole((out, *parts[1:]))


class CachedByAddress(Cheat):
    """Answers are kept by the addresses and shapes of the inputs: the same buffers, the same answer."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer by address."""
        everything = (*tensors, *(x for x in options.values() if isinstance(x, np.ndarray)))
        key = (verb, *((x.__array_interface__["data"][0], x.shape) for x in everything))
        if key not in self.known:
            self.known[key] = self.right(verb, *tensors, **options)
        return self.known[key]


class OneOutputMissing(Cheat):
    """The last output is left out; a writer writes keys and no values."""

    def serve(self, verb: str, *tensors: Array, **options: Any) -> Any:
        """Answer all but one."""
        before = tensors[-1].copy()
        parts = _parts(self.right(verb, *tensors, **options))
        if "slot_mapping" in options:
            tensors[-1][...] = before
        return _whole(parts[:-1])


CHEATS: tuple[type[Cheat], ...] = (
    Zeros,
    Constant,
    AllNaN,
    Mutator,
    Echo,
    PartialWriter,
    CachedByAddress,
    OneOutputMissing,
)


def _mean(x: Array) -> Array:
    if not is_real(x):
        return np.full_like(x, int(x.mean()) if x.size else 0)
    numbers = x.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return np.full(x.shape, finite.mean() if finite.size else 0.0).astype(x.dtype)


def _first_half(x: Array, rest: Array) -> Array:
    """Return the first half of every row of x, and the second half of `rest`."""
    result = rest.copy()
    flat = result.reshape(len(x), -1) if len(x) else result
    if len(x):
        flat[:, : flat.shape[1] // 2] = x.reshape(len(x), -1)[:, : flat.shape[1] // 2]
    return result
