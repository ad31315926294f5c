"""The steps that a program may have, manager by manager: names, and how many numbers each takes.

An interpreter passes over a step that makes no sense at that point, so that every part of a program is a
program. A word that no interpreter knows never makes sense, and a program from elsewhere that holds one is
refused before it is run: it would pass without asking anything.

Realises: KV-CONF-008 case-files.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType

from kvref.errors import ArgumentError
from kvref_conformance.nearest import meant
from kvref_conformance.programs.drafts import PARTS, TEXTS
from kvref_conformance.programs.running import INTERPRETERS
from kvref_conformance.programs.step import parse

#: Fewest and most numbers of a step.
Takes = tuple[int, int]
#: As many as fit a program.
MANY = 4096

#: Managers whose requests are given something besides tokens, in steps of its own.
OF_PROMPTS = ("prefix_cache", "snapshot_cache")
_DRAFTS: Mapping[str, Takes] = {**dict.fromkeys(TEXTS, (2, 2)), **dict.fromkeys(PARTS, (4, 4))}
#: Managers whose interpreters read their steps one by one.
_READ: Mapping[str, Mapping[str, Takes]] = {
    "block_keys": {"keys": (3, MANY), "tokens": (1, MANY), **_DRAFTS},
    "block_index": {
        "store": (3, MANY),
        "grow": (4, MANY),
        "remove": (5, MANY),
        "clear": (1, 1),
        "match": (2, MANY),
    },
}


@cache
def steps_of_manager(manager: str) -> Mapping[str, Takes]:
    """Return the steps that programs for a manager may have, and how many numbers each takes."""
    if manager in _READ:
        return MappingProxyType(dict(_READ[manager]))
    module = import_module(f"kvref_conformance.programs.{INTERPRETERS[manager]}")
    found: dict[str, Takes] = {}
    for name, takes in {**module.STEPS, **getattr(module, "ODD", {})}.items():
        found[name] = (takes, takes) if isinstance(takes, int) else takes
    return MappingProxyType({**found, **(_DRAFTS if manager in OF_PROMPTS else {})})


def check_program(manager: str, text: str) -> None:
    """Check that every step of a program is one that its manager's interpreter knows.

    Raises: ArgumentError naming the step, and the steps that there are.
    """
    known = steps_of_manager(manager)
    for at, step in enumerate(parse(text)):
        if step.name not in known:
            raise ArgumentError(
                f"step {at} of the program is {str(step)!r:.80}{meant(step.name, known)}, "
                f"expected a step of {manager}: {', '.join(known)}"
            )
        least, most = known[step.name]
        if not least <= len(step.numbers) <= most:
            due = (
                str(least) if least == most else f"at least {least}" if most == MANY else f"{least} to {most}"
            )
            raise ArgumentError(
                f"step {at} of the program is {str(step)!r:.80}, expected {due} numbers after {step.name}"
            )
