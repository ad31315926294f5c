"""The documents of the repository and their fenced blocks; commands, run as a reader would run them."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
#: Documents that are read in the repository itself.
READ_HERE = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "conformance/README.md")


class Block(NamedTuple):
    """One fenced block of a document."""

    document: str
    line: int
    language: str
    text: str


def blocks(document: str) -> Iterator[Block]:
    """Every fenced block of a Markdown file, directives left out."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield Block(document, text.count("\n", 0, match.start()) + 1, match[1], match[2])


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command with one BLAS thread and a terminal of fixed width, and return what it said."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "110", "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def kvref(*words: str) -> list[str]:
    """The command line of `kvref` in this environment."""
    return [sys.executable, "-m", "kvref.cli", *words]
