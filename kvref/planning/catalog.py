"""Models by name: the configs of 50 real models, shipped with kvref.

Each file holds the keys of a published config that bear on the cache, under their own names, and where they
were read (`_source`). Some hold what the class of the model says by default, because the published file was
not seen; their `_note` says so.

Realises: KV-SIZE-001 layer-kinds.
For porters: the files are JSON and need no code of kvref.
Source: `_source` in each file.
"""

from importlib import resources
from typing import Any

from kvref.errors import ConfigError, shown
from kvref.planning.config_files import parse_config
from kvref.planning.geometry import geometry_of
from kvref.planning.groups import CacheGeometry

_FOLDER = resources.files("kvref.planning") / "configs"


def catalog() -> tuple[str, ...]:
    """Return the names of all models, in alphabetical order, whatever their case."""
    names = [entry.name.removesuffix(".json") for entry in _FOLDER.iterdir() if entry.name.endswith(".json")]
    return tuple(sorted(names, key=str.lower))


def config_of(name: str) -> dict[str, Any]:
    """Return the config of a model.

    Raises: ConfigError if there is none of that name.
    """
    if name not in catalog():
        raise ConfigError(f"model = {shown(name)}, expected one of {', '.join(catalog())}")
    return parse_config((_FOLDER / f"{name}.json").read_bytes(), f"{name}.json")


def geometry_by_name(name: str) -> CacheGeometry:
    """Return the geometry of a model.

    Raises: ConfigError if there is none of that name.
    """
    return geometry_of(config_of(name), name)
