"""What a subject claims about a manager and no case asks: block sizes, operations, features, choices.

Realises: KV-CONF-003 claims-are-checked.
"""

from collections.abc import Iterable, Sequence

from kvref_conformance.cases import Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.choices import CHOICES
from kvref_conformance.claims import Claims
from kvref_conformance.managers import MANAGERS, operations_of
from kvref_conformance.requirements import load_requirements

Planned = Sequence[tuple[Check, Case]]


def unasked_of_manager(
    manager: str, offered: Iterable[str], claims: Claims, asked: Planned
) -> tuple[str, ...]:
    """Return what a manager claims and is not asked, in words; `asked` is what was asked of it."""
    if not asked:
        return ("none of its checks has a case under these claims and operations",)
    checks = [check for check in all_checks() if check.applies(manager, claims)]
    return (
        *_block_sizes(manager, claims, asked),
        *_operations(manager, operations_of(manager, offered), claims, asked),
        *_features(claims, checks, asked),
        *_choices(manager, claims, [check for check in all_checks() if manager in check.verbs], asked),
    )


def _block_sizes(manager: str, claims: Claims, asked: Planned) -> tuple[str, ...]:
    """Return the claimed block sizes that no case has; an allocator has no block size."""
    if not any(parameter.name.startswith("block_size") for parameter in MANAGERS[manager].opens):
        return ()
    visited = {case.block_size for _, case in asked}
    missed = [size for size in claims.block_sizes if size not in visited]
    return (f"claims.block_sizes holds {_listed(missed)}: no case of {manager} has it",) if missed else ()


def _operations(manager: str, offered: Iterable[str], claims: Claims, asked: Planned) -> tuple[str, ...]:
    """Return the offered operations that no check has asked for, and what would let one."""
    driven = {name for check, _ in asked for name in check.operations}
    found = []
    for name in offered:
        if name in driven:
            continue
        feature = MANAGERS[manager].operations[name].feature
        needed = feature is not None and feature not in claims.features
        why = (
            f"it is asked of those that claim {feature}"
            if needed
            else "no case needs it beside what is offered"
        )
        found.append(f"{manager}.{name} is offered: {why}")
    return tuple(found)


def _features(claims: Claims, checks: Sequence[Check], asked: Planned) -> tuple[str, ...]:
    """Return the claimed features that checks of a manager are about and none of its cases was."""
    seen = {feature for check, _ in asked for feature in check.features}
    unseen = {feature for check in checks for feature in check.features} - seen
    return tuple(
        f"claims.features holds {feature}: the operations that it is asked by are not offered"
        for feature in claims.features
        if feature in unseen
    )


def _choices(manager: str, claims: Claims, checks: Sequence[Check], asked: Planned) -> tuple[str, ...]:
    """Return the declared answers to choices of a manager that none of its cases was about."""
    spec = load_requirements()

    def opened(by: Iterable[Check]) -> set[str]:
        rules = {check.requirement for check in by} & spec.keys()
        return {name for rule in rules for name in spec[rule].choices}

    missed = opened(checks) - opened(check for check, _ in asked)
    return tuple(
        f"claims.choices holds {name}: no case of {manager} is about it"
        for name, answer in claims.choices.items()
        if name in missed and answer != CHOICES[name].canonical
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
