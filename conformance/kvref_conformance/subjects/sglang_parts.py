"""Modules of SGLang's memory cache, imported without the server and the GPU libraries around them.

The packages above them import all of a server, so their `__init__` files are passed over, and what the cache
names and never calls here is stood in for: kernels, layers, model configurations, metrics.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: Modules that are stood in for, with all below them.
UNUSED = (
    *(f"sglang.srt.{name}" for name in ("configs", "layers", "distributed", "observability")),
    *("sglang.kernels", "sgl_kernel", "torchvision", "flashinfer"),
)


class Nothing(type):
    """A class whose every attribute is another such class, and whose objects do nothing when called."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name, (), {"__getattr__": lambda self, attribute: lambda *_, **__: None})

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        """Return an object, whatever it is asked for with."""
        return cls.__new__(cls)  # type: ignore[call-overload]


class StandIn(ModuleType):
    """A module that has whatever is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(Nothing("StandIn", (), {}), name)


class StandIns(MetaPathFinder, Loader):
    """Finds the modules that are stood in for."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """Return how to import a module; None if it is not one of these."""
        found = any(name == own or name.startswith(f"{own}.") for own in UNUSED)
        return ModuleSpec(name, self, is_package=True) if found else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has everything."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing."""


def part(name: str) -> Any:
    """Return a module of `sglang.srt.mem_cache`.

    Raises: ImportError if SGLang, or what it needs, is not installed.
    """
    return importlib.import_module(f"sglang.srt.mem_cache.{name}")


def _prepare() -> None:
    """Let the packages above the cache be empty, and what it never calls be stood in for."""
    try:
        found = find_spec("sglang")
    except ValueError:
        found = None
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'sglang'")
    root = found.submodule_search_locations[0]
    for name, path in (("sglang", root), ("sglang.srt", f"{root}/srt")):
        package = ModuleType(name)
        package.__path__ = [path]
        sys.modules[name] = package
    sys.meta_path.insert(0, StandIns())


_prepare()
