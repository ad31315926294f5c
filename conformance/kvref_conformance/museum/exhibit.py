"""An exhibit: a real public fault as the smallest faulty change to a correct implementation.

Decorating a subclass of a built-in subject (`Tiled`, `Bitwise` for formats, `Scanned` for recurrent layers)
with `exhibit` narrows it to the verbs and the domain that show the fault, and attaches a frozen record: what
the fault breaks, where it was seen, and how a report names it. The class is a subject like any other, so
`kvref check` can be pointed at it. Where a requirement has no public fault to show, the exhibit is a plant:
`seen_in` is empty.

A subclass of a manager (those of `lists`) may be decorated as it is: it becomes a subject that offers this
manager and nothing else. Its `program` is the shortest known one that shows the fault.
"""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import getdoc
from typing import Any, TypeVar

from kvref.attention.arithmetic import Arithmetic
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.managers import AREAS, MANAGERS

#: What hardly any attending subject satisfies whose ordinary outputs are wrong: checks that compare them with
#: the right ones. Checks of placement, of company and of edges are not among them, for they compare a subject
#: with itself, or ask whether a needle is found.
EVERY_OUTPUT = tuple(f"KV-ATTN-{number:03d}" for number in (1, 2, 3, 4, 5, 6, 8, 10, 11))

#: The same of recurrent layers: checks of scans and updates that hold outputs and states to the right ones.
EVERY_SCAN = tuple(
    f"KV-RNN-{number:03d}" for number in (6, 7, 8, 10, 11, 12, 13, 17, 19, 21, 22, 23, 26, 27, 28, 30, 32)
)

#: A class that has been made an exhibit.
T = TypeVar("T", bound=type[Any])


@dataclass(frozen=True, kw_only=True)
class Exhibit:
    """What the museum says about one fault."""

    name: str
    topic: str
    """The checks' topic that is meant to catch it."""
    summary: str
    """The fault in one sentence."""
    story: str
    """Symptom and cause."""
    as_if: str
    """The fault as a report says it, after "as if: "."""
    fault: str
    """Class of the fault: number and short name."""
    seen_in: tuple[str, ...]
    """Public reports, `owner/repo#number`; empty for a plant."""
    breaks: tuple[str, ...]
    """Requirements whose checks must fail."""
    may_also_break: tuple[str, ...]
    """Requirements whose checks may fail as well, for the fault cannot help it."""
    verbs: tuple[str, ...]
    subject: type[Any]
    program: str = ""
    """Of a manager's fault: the shortest known program that shows it."""

    @property
    def is_plant(self) -> bool:
        """Whether no public report shows this fault."""
        return not self.seen_in


def exhibit(
    *,
    as_if: str,
    fault: str,
    breaks: tuple[str, ...],
    seen_in: tuple[str, ...] = (),
    may_also_break: tuple[str, ...] = (),
    verbs: tuple[str, ...] = ("paged_attention",),
    features: tuple[str, ...] = (),
    program: str = "",
    **limits: Any,
) -> Callable[[T], T]:
    """Make a subclass of a built-in subject an exhibit: `limits` are fields of its claims beside features.

    A subclass of a manager becomes the only manager of a subject of the same name.
    """

    def decorate(found: T) -> T:
        subject = _subject_of(found, verbs, features)
        domain: dict[str, Any] = {"head_dims": (64,), "block_sizes": (16,), "dtypes": ("float32",), **limits}
        if hasattr(subject, "tile"):
            domain["arithmetic"] = Arithmetic(block=subject.tile, merges=1)
        if hasattr(subject, "stepwise"):
            domain["scan_arithmetic"] = ScanArithmetic(chunk_size=subject.chunk, running_sums=False)
        subject.claims = Claims(name=subject.__name__, features=features, **domain)
        for area in AREAS:
            if area not in verbs:
                setattr(subject, area, None)  # presence is a claim
        summary, _, story = (getdoc(subject) or "").partition("\n\n")
        subject.exhibit = Exhibit(
            name=subject.__name__,
            topic=subject.__module__.removeprefix(f"{__package__}.").partition(".")[0],
            summary=" ".join(summary.split()),
            story=" ".join(story.split()),
            as_if=as_if,
            fault=fault,
            seen_in=seen_in,
            breaks=breaks,
            may_also_break=may_also_break,
            verbs=verbs,
            subject=subject,
            program=program,
        )
        return subject

    return decorate


def _subject_of(found: T, verbs: tuple[str, ...], features: tuple[str, ...]) -> T:
    """Return a subject class: what is decorated, or a new one that offers a decorated manager.

    Of the manager's operations it offers those whose features are claimed.
    """
    if not set(verbs) <= set(MANAGERS) or hasattr(found, verbs[0]):
        return found
    for operation in MANAGERS[verbs[0]].operations.values():
        if operation.feature is not None and operation.feature not in features:
            setattr(found, operation.name, None)
    kept = {name: getattr(found, name) for name in ("__module__", "__doc__", "__qualname__")}
    made: T = type(found.__name__, (), {**kept, verbs[0]: found})  # type: ignore[assignment]
    return made
