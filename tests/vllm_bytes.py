"""What vLLM does with the bytes of a cache; runs where KVREF_VLLM_PYTHON names its interpreter."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parent / "formats" / "ask_vllm.py"


@cache
def ask_vllm(numbers: str = "{}") -> dict[str, Any]:
    """Return vLLM's sizes and views, and the blocks it writes when given `numbers`, a JSON object."""
    if "KVREF_VLLM_PYTHON" not in os.environ:
        pytest.skip("KVREF_VLLM_PYTHON does not name an interpreter with vLLM")
    command = [os.environ["KVREF_VLLM_PYTHON"], str(SCRIPT)]
    answer = subprocess.run(command, input=numbers, capture_output=True, check=False, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-2000:]
    found: dict[str, Any] = json.loads(answer.stdout)
    return found
