"""What commands print and what functions draw, put into the pages when they are built.

```{program-output} kvref spec KV-ATTN-021``` runs the command and shows it with its output, so no output in
the pages was typed by hand. ```{drawn} block_tables``` calls `draw` of `docs/_figures/block_tables.py`, once
for light pages and once for dark ones; further words are passed on.

Both are kept in `docs/_generated` under a digest of the code and data they rest on, so that a build after an
edit of the text runs nothing again.
"""

import atexit
import hashlib
import importlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

DOCS = Path(__file__).resolve().parents[1]
EXAMPLES = DOCS / "examples"
TRACES = DOCS.parent / "tests" / "data" / "traces"
#: What outputs and figures rest on.
SOURCES = (
    "kvref",
    "conformance/kvref_conformance",
    "spec",
    "docs/examples",
    "docs/_figures",
    "tests/data/traces",
)
SECONDS = 120


def output_of(command: str, returncode: int = 0) -> str:
    """Run one command of this project, or `python`, beside examples and traces, and return what it prints.

    Raises: RuntimeError if it ends with another exit code than the one expected.
    """
    kept = made(
        f"{returncode} {command}", ".txt", lambda part: part.write_text(_run(command, returncode), "utf-8")
    )
    return kept.read_text(encoding="utf-8")


def made(name: str, suffix: str, make: Callable[[Path], object]) -> Path:
    """Return a file of the build, made now unless it is there and what it rests on is the same."""
    key = hashlib.sha256(f"{name} {_digest()}".encode()).hexdigest()[:20]
    path = DOCS / "_generated" / f"{key}{suffix}"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}{suffix}")
        make(part)
        os.replace(part, path)
    return path


@cache
def _digest() -> str:
    """Return a name for all code and data of the project, and for Python and NumPy."""
    seen = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    found = (path for folder in SOURCES for path in (DOCS.parent / folder).rglob("*") if path.is_file())
    for path in sorted(path for path in found if "__pycache__" not in path.parts):
        seen.update(str(path.relative_to(DOCS.parent)).encode() + b"\0" + path.read_bytes())
    return seen.hexdigest()


def _run(command: str, returncode: int) -> str:
    words = shlex.split(command)
    programs = {"kvref": ["-m", "kvref.cli"], "python": []}
    environment = {**os.environ, "COLUMNS": "110", "NO_COLOR": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *programs[words[0]], *words[1:]],
        cwd=_copy_of_examples(),
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != returncode:
        raise RuntimeError(
            f"{command!r} exited with {done.returncode}, expected {returncode}:\n{done.stderr[-2000:]}"
        )
    return done.stdout


@cache
def _copy_of_examples() -> str:
    """Commands may leave files behind, such as the cases that replay a failure."""
    folder = Path(tempfile.mkdtemp(prefix="kvref-docs-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    shutil.copytree(EXAMPLES, folder / "examples", ignore=shutil.ignore_patterns("__pycache__", "finds"))
    shutil.copytree(TRACES, folder / "examples", dirs_exist_ok=True)
    return str(folder / "examples")


class ProgramOutput(SphinxDirective):
    """A command and what it prints."""

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {
        "returncode": directives.nonnegative_int,
        "first": directives.positive_int,
        "from": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Show the command as it would be typed, then its output, or a part of it."""
        command = self.arguments[0]
        lines = output_of(command, self.options.get("returncode", 0)).rstrip().splitlines()
        start = self.options.get("from")
        if start is not None:
            lines = lines[next(at for at, line in enumerate(lines) if line.startswith(start)) :]
        first = self.options.get("first", len(lines))
        shown = [f"$ {command}", *lines[:first], *(["…"] if first < len(lines) else [])]
        block = nodes.literal_block(text="\n".join(shown), language="text", classes=["output"])
        return [block]


def _draw(module: ModuleType, mode: str, arguments: list[str], path: Path) -> None:
    module.draw(mode, path, *arguments)


class Drawn(SphinxDirective):
    """A figure that a function draws, in the colours of the page."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec: ClassVar = {"alt": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Draw both versions and show the one that fits."""
        name, *arguments = self.arguments[0].split()
        module = importlib.import_module(name)
        shown: list[nodes.Node] = []
        for mode in ("light", "dark"):
            path = made(f"{self.arguments[0]} {mode}", ".svg", partial(_draw, module, mode, arguments))
            image = nodes.image(
                uri=f"/_generated/{path.name}", alt=self.options["alt"], classes=[f"only-{mode}", "drawn"]
            )
            shown.append(image)
        figure = nodes.figure("", *shown)
        caption = nodes.caption("", "", *self.parse_inline(" ".join(self.content))[0])
        figure += caption
        self.env.note_dependency(str(DOCS / "_figures" / f"{name}.py"))
        return [figure]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register both directives."""
    app.add_directive("program-output", ProgramOutput)
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}
