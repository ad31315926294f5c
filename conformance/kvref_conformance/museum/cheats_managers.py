"""Cheats among managers: they answer every operation and remember nothing that they should. None may pass."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kvref.errors import KVError
from kvref_conformance.claims import Claims
from kvref_conformance.managers import MANAGERS, Operation
from kvref_conformance.subjects.lists import Lists

_NOTHING: dict[str, Any] = {"int": 0, "ints": [], "text": "", "texts": []}


def _named(operation: Operation, values: dict[str, Any]) -> dict[str, Any] | None:
    """Return what an operation gives, by name; None where it gives nothing."""
    return {p.name: values[p.name] for p in operation.returns} if operation.returns else None


class ManagerCheat:
    """Offers every operation of one manager, each of which is answered by `serve`."""

    def __init__(self, manager: str, opened: dict[str, Any]) -> None:
        self.manager, self.opened = manager, opened
        self.honest = getattr(Lists(), manager)(**opened)
        self.past: dict[str, Any] = {}
        for name in MANAGERS[manager].operations:
            setattr(self, name, self._serving(name))

    def serve(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Answer one operation."""
        raise NotImplementedError

    def right(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Do an operation as it should be done."""
        return getattr(self.honest, operation)(*arguments, **options)

    def contract(self, operation: str) -> Operation:
        """Return what an operation takes and gives."""
        return MANAGERS[self.manager].operations[operation]

    def _serving(self, operation: str) -> Callable[..., Any]:
        return lambda *arguments, **options: self.serve(operation, *arguments, **options)


class Empty(ManagerCheat):
    """Every number is 0, every list and text empty."""

    def serve(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Give nothing."""
        contract = self.contract(operation)
        return _named(contract, {p.name: _NOTHING[p.kind] for p in contract.returns})


class RefusesAll(ManagerCheat):
    """Nothing is ever possible, so nothing can go wrong."""

    def serve(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Refuse."""
        raise KVError("not now")


class FirstAnswer(ManagerCheat):
    """The first answer of each operation is given for ever."""

    def serve(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Do it once."""
        if operation not in self.past:
            self.past[operation] = self.right(operation, *arguments, **options)
        return self.past[operation]


class Amnesiac(ManagerCheat):
    """Every operation is done well, on a manager that was opened for it."""

    def serve(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Do it, and forget."""
        self.honest = getattr(Lists(), self.manager)(**self.opened)
        return self.right(operation, *arguments, **options)


class SwallowsErrors(ManagerCheat):
    """What must be refused is accepted without being done."""

    def serve(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Do it, and say that it was done."""
        try:
            return self.right(operation, *arguments, **options)
        except KVError:
            contract = self.contract(operation)
            return _named(contract, {p.name: _NOTHING[p.kind] for p in contract.returns})


MANAGER_CHEATS: tuple[type[ManagerCheat], ...] = (Empty, RefusesAll, FirstAnswer, Amnesiac, SwallowsErrors)

#: No cheat there: keys and sizes need no memory, and neither keys nor an index has anything to refuse.
HONEST = {
    ("Amnesiac", "block_keys"),
    ("Amnesiac", "cache_geometry"),
    ("SwallowsErrors", "block_keys"),
    ("SwallowsErrors", "block_index"),
}


def subject_of(cheat: type[ManagerCheat]) -> Any:
    """Return a subject whose managers all cheat in one way, and claim what the built-in ones do."""

    def opening(manager: str) -> Any:
        return staticmethod(lambda **opened: cheat(manager, opened))

    claims: Claims = replace(Lists.claims, name=cheat.__name__)
    return type(cheat.__name__, (), {"claims": claims, **{name: opening(name) for name in MANAGERS}})
