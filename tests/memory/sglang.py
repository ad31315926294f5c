"""What SGLang's radix cache answered on random runs (`tests/data/sglang_radix.json`, by `ask_sglang.py`)."""

import json
from pathlib import Path
from typing import Any


def sglang_runs(kind: str) -> list[dict[str, Any]]:
    """The runs of a kind: `trees` or `caches`."""
    path = Path(__file__).parents[1] / "data" / "sglang_radix.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[kind]
    return runs
