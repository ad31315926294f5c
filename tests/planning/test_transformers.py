"""Sizes against the caches that transformers builds for the same configs, and defaults against its classes.

What a class holds is recorded, for configs of the catalogue and of families beside it, cut to a few layers
and small windows. Two things are counted there in another way: the last tokens of a window are one fewer, as
the query's own is added when it comes, and a convolution keeps a column that is never read.
"""

import json
import os
import subprocess
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from planning.families_of_models import KNOWN

from kvref.planning.catalog import catalog
from kvref.planning.class_defaults import table
from kvref.planning.geometry import CacheGeometry, geometry_of

RECORDED = Path(__file__).parents[1] / "data" / "transformers_caches.json"
SCRIPT = Path(__file__).parent / "ask_transformers.py"
#: Where a class keeps something else than engines do, and what.
OTHERWISE = {
    "DeepSeek-V4-Pro": "its windows are kept by rows of a compressor beside them",
    "Falcon-40B": "its KV heads are copied for every query head before they are kept",
    "Falcon-180B": "its KV heads are copied for every query head before they are kept",
    "MiMo-V2-Flash": "its windows hold as many tokens before the query's own",
    "Mistral-Large-4-1T-A52B": "every fourth layer has no rotated part where no key says which",
}


@cache
def recorded() -> dict[str, Any]:
    """What transformers 5.24.0 holds."""
    found: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return found


def entries_held(found: CacheGeometry, num_tokens: int) -> int:
    """Elements of all entries, one fewer in windows that are full."""
    total = 0
    for group in found.groups:
        held = num_tokens if group.window is None else min(num_tokens, group.window - 1)
        total += len(group.layers) * group.elements * -(-held // group.tokens_per_entry)
    return total


def asked() -> list[str]:
    """The models that a class of transformers ran."""
    return [name for name, (_, held) in recorded()["models"].items() if not isinstance(held, str)]


@pytest.mark.parametrize("name", asked())
def test_a_cache_holds_what_the_config_says(name: str) -> None:
    """Entries, recurrent parts, and convolution parts without the column that is never read."""
    config, held = recorded()["models"][name]
    found = geometry_of(config, name)
    recurrent = sum(len(s.layers) * prod(s.recurrent) for s in found.states if s.recurrent)
    conv = sum(len(s.layers) * prod(s.conv) for s in found.states if s.conv)
    kept = [(entries_held(found, n), recurrent, conv) for n in recorded()["lengths"]]
    there = [(entries, states, columns - channels) for entries, states, columns, channels in held]
    assert (kept == there) is (name not in OTHERWISE), (kept, there)


def test_most_models_were_asked_about() -> None:
    """Of the catalogue, and of the families beside it."""
    models = recorded()["models"]
    assert set(models) == {*catalog(), *KNOWN}
    assert len(asked()) > 0.75 * len(models)


@pytest.mark.parametrize("model_type", table())
def test_a_default_is_that_of_the_class(model_type: str) -> None:
    """Every one that stands in the table."""
    assert table()[model_type] == recorded()["defaults"][model_type]


def test_what_was_recorded_is_what_transformers_says() -> None:
    """Of the version that is installed where KVREF_TRANSFORMERS_PYTHON says."""
    if "KVREF_TRANSFORMERS_PYTHON" not in os.environ:
        pytest.skip("KVREF_TRANSFORMERS_PYTHON does not name an interpreter with transformers")
    command = [os.environ["KVREF_TRANSFORMERS_PYTHON"], str(SCRIPT)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=1800)
    assert json.loads(done.stdout) == recorded()
