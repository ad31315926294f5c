"""The plan of the house: imports go down, modules stay small, and each says what it is."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
CONFORMANCE = ROOT / "conformance" / "kvref_conformance"

#: Part of kvref -> its floor. A part imports from lower floors only, never from a neighbour on its own.
FLOORS = {
    "errors": 0,
    "arrays": 1,
    "roundings": 2,
    "formats": 2,
    "attention": 3,
    "recurrent": 3,
    "memory": 3,
    "storage": 4,
    "models": 4,
    "serving": 5,
    "planning": 5,
    "sanitizer": 5,
    "testing": 6,
    "cli": 6,
}
#: The reference imports these and the standard library.
REFERENCE_NEEDS = {"kvref", "numpy", "ml_dtypes"}
#: Edges of the package: they may import the suite and what a command line needs, the suite lazily.
EDGES = {"cli": {"click", "rich", "kvref_conformance"}, "testing": {"kvref_conformance"}}
#: Packages that an edge module imports where it needs them, with an error or a fallback that names the extra.
EXTRAS = {"kvref/sanitizer/lines.py": "orjson", "kvref/sanitizer/kv_event_files.py": "msgpack"}
#: What the built-in subjects share with the reference: array checks and the record of their arithmetic.
SHARED_WITH_BUILT_IN = {
    "kvref.arrays",
    "kvref.errors",
    "kvref.attention.arithmetic",
    "kvref.recurrent.arithmetic",
    "kvref.roundings",
}

SOFT_LINES, HARD_LINES = 300, 400
#: Modules between the soft and the hard limit, with the reason they are not two modules.
LONG = {
    f"conformance/kvref_conformance/museum/{topic}.py": "one small class a bug, and a topic's bugs together"
    for topic in ("dense", "masks", "paged", "formats_integers")
} | {
    "conformance/kvref_conformance/subjects/lists/layers.py": "one config read, a decision a method",
}


class Import(NamedTuple):
    """One import statement's target."""

    module: str
    lazy: bool
    """Whether it is inside a function."""
    line: int


def modules(folder: Path) -> list[Path]:
    """Every Python file under a folder."""
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def imports(path: Path) -> Iterator[Import]:
    """Every import of a file; `from a import b` counts as `a` and, for packages of ours, as `a.b`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(n) for function in functions for n in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import, expected an absolute one"
            base = str(node.module)
            deeper = base in ("kvref", "kvref.attention", "kvref_conformance")
            names = [f"{base}.{alias.name}" for alias in node.names] if deeper else [base]
        else:
            continue
        for name in names:
            yield Import(name, id(node) in inside, node.lineno)


def part_of(module: str) -> str:
    """The part of kvref a module belongs to: `kvref.attention.merge` -> `attention`."""
    return module.split(".")[1] if "." in module else ""


def name_of(path: Path) -> str:
    """A path for messages and parametrization."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", modules(ROOT / "kvref"), ids=name_of)
def test_imports_go_down(path: Path) -> None:
    """Attention never sees an allocator and memory never a tensor: what must act upward is returned."""
    own = path.relative_to(ROOT / "kvref").parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in FLOORS, f"kvref.{own} is on no floor of the plan"
    for found in imports(path):
        part = part_of(found.module) if found.module.startswith("kvref.") else own
        below = part == own or FLOORS.get(part, -1) < FLOORS[own]
        assert below or part == "__version__", f"{name_of(path)}:{found.line} imports {found.module}"


@pytest.mark.parametrize("path", modules(ROOT / "kvref"), ids=name_of)
def test_reference_needs_numpy_alone(path: Path) -> None:
    """A porter reads the reference without learning a framework; the edges import the suite, lazily."""
    own = path.relative_to(ROOT / "kvref").parts[0].removesuffix(".py")
    allowed = REFERENCE_NEEDS | EDGES.get(own, set())
    for found in imports(path):
        top = found.module.split(".")[0]
        if found.lazy and EXTRAS.get(name_of(path)) == top:
            continue
        assert top in allowed or top in sys.stdlib_module_names, f"{name_of(path)}:{found.line} imports {top}"
        assert found.lazy or top != "kvref_conformance", f"{name_of(path)}:{found.line} imports {top} eagerly"


#: The built-in subjects, which exhibits change.
OWN = [path for name in ("tiled", "bitwise", "lists") for path in modules(CONFORMANCE / "subjects" / name)]


@pytest.mark.parametrize("path", OWN, ids=name_of)
def test_built_in_subject_is_independent(path: Path) -> None:
    """Exhibits change the built-in subject; if it called the reference, a fault there would be in both."""
    for found in imports(path):
        if found.module.startswith("kvref."):
            shared = any(found.module == m or found.module.startswith(m + ".") for m in SHARED_WITH_BUILT_IN)
            assert shared, f"{name_of(path)}:{found.line} imports {found.module}"


def test_modules_are_small() -> None:
    """A module holds one concept; what no longer fits on a few screens holds two."""
    lines = {
        name_of(path): len(path.read_text(encoding="utf-8").splitlines())
        for folder in (ROOT / "kvref", CONFORMANCE)
        for path in modules(folder)
    }
    assert {name: count for name, count in lines.items() if count > HARD_LINES} == {}
    assert {name for name, count in lines.items() if count > SOFT_LINES} <= set(LONG)


@pytest.mark.parametrize("path", [*modules(ROOT / "kvref"), *modules(CONFORMANCE)], ids=name_of)
def test_module_says_what_it_is(path: Path) -> None:
    """The first line is a sentence; a module of the reference also speaks to porters and names its source."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    first = doc.split("\n\n")[0].strip()
    assert first.endswith((".", ":")), f"{name_of(path)} begins with {first[:60]!r}, expected a sentence"
    parts = path.relative_to(ROOT).parts
    if parts[0] == "kvref" and len(parts) > 2 and parts[1] not in EDGES and path.name != "__init__.py":
        assert "For porters:" in doc, f"{name_of(path)} has no word for porters"
        assert "Realises:" in doc or "Source:" in doc, f"{name_of(path)} names no requirement and no source"
