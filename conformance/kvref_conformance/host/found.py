"""What was found in place of a subject, in words: names left out, misspelt, or not to be called.

Nothing here decides anything; it says what a newcomer most probably meant.
"""

from types import ModuleType
from typing import Any

from kvref_conformance.contracts import VERBS
from kvref_conformance.host import Hello
from kvref_conformance.managers import MANAGERS
from kvref_conformance.nearest import meant

#: Key of `Hello.environment`: methods of managers that are nearly those of the contract.
MISNAMED = "misnamed"


def nothing_in(where: str, found: Any) -> str:
    """Say that what was named has no method of the contract, and what in it may have been meant."""
    said = f"subject {where!r} has no method of the contract"
    uncallable = [
        f"{name} is an object ({type(made).__name__}), expected a class or a function that is called"
        for name in MANAGERS
        if (made := getattr(found, name, None)) is not None
    ]
    if isinstance(found, ModuleType):
        holders = [name for name, value in vars(found).items() if isinstance(value, type) and _has(value)]
        if holders and ":" not in where:
            return f"{said} itself, expected {' or '.join(f'{where}:{name}' for name in holders)}"
    if uncallable:
        return f"{said} that can be called: {'; '.join(uncallable)}"
    names = [name for name in dir(found) if not name.startswith("_")]
    near = [f"{name}{hint}" for name in names if (hint := meant(name, (*VERBS, *MANAGERS)))]
    hint = f" (it has {'; '.join(near)})" if near else ""
    return f"{said}{hint}, expected some of {', '.join(VERBS)}, or of the managers {', '.join(MANAGERS)}"


def no_operation(subject: Any, managers: tuple[str, ...]) -> str:
    """Say that a subject's managers have none of their operations, and which these are."""
    lines = []
    for manager in managers:
        near = "; ".join(misnamed(getattr(subject, manager), manager))
        hint = f" ({near})" if near else ""
        operations = ", ".join(MANAGERS[manager].operations)
        lines.append(f"{manager} has none of its operations{hint}, expected some of {operations}")
    return "; ".join(lines)


def misnamed(made: Any, manager: str) -> list[str]:
    """Return the methods of a manager that are nearly operations which it does not have."""
    operations = [name for name in MANAGERS[manager].operations if not hasattr(made, name)]
    names = [name for name in dir(made) if not name.startswith("_") and callable(getattr(made, name, None))]
    others = [name for name in names if name not in MANAGERS[manager].operations]
    return [f"{manager}.{name}{hint}" for name in others if (hint := meant(name, operations))]


def misnamed_in(hello: Hello) -> list[str]:
    """Return what a subject says of such methods."""
    said = str(hello.environment.get(MISNAMED, ""))
    return said.split("; ") if said else []


def _has(value: type) -> bool:
    return any(callable(getattr(value, name, None)) for name in (*VERBS, *MANAGERS))
