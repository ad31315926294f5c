"""The adapters to real implementations: layout only, one library each, right where the library is right."""

import ast
import importlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from subject_hosts import ALL, LIBRARIES, open_subject

import kvref_conformance.subjects as subjects
from kvref.attention.bounds import exceeds
from kvref_conformance.cases import Case, lattice
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import ATTENDING
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.probes.random import random_problem
from kvref_conformance.problems import Placement, present
from kvref_conformance.subjects import BUILT_IN

FOLDER = Path(subjects.__file__).parent
#: What an adapter may import beside its library: the record of claims, and the other adapters' packing.
SHARED = (
    *("array", "collections", "ctypes", "dataclasses", "functools", "hashlib", "importlib", "itertools"),
    *("json", "os", "pathlib", "sys", "types", "typing", "zlib"),
    *("numpy", "ml_dtypes", "kvref.attention.arithmetic", "kvref.recurrent.arithmetic", "kvref.errors"),
    "kvref_conformance.claims",
    *(
        f"kvref_conformance.subjects.{shared}"
        for shared in (
            *("onnx_models", "onnx_attention", "vllm_triton", "sglang_parts", "sglang_radix_cache"),
            *("onnx_scans", "ragged", "vllm_kv_cache_manager"),
        )
    ),
)


@pytest.fixture(scope="module", params=sorted(LIBRARIES))
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Each subject in a process of its own, started once."""
    found = open_subject(request.param)
    yield found
    found.close()


def variants(features: tuple[str, ...], case: Case) -> Iterator[dict[str, Any]]:
    """Yield plain attention, then each claimed feature, then two together."""
    rng = np.random.default_rng(case.seed)
    heads, pairs = case.num_q_heads, sum(n * m for n, m in zip(case.seq_lens, case.query_lens, strict=True))
    asked: dict[str, dict[str, Any]] = {
        "non_causal": {"causal": False},
        "window": {"window": 5},
        "softcap": {"softcap": 3.0},
        "sinks": {"sinks": (rng.integers(-16, 17, heads) / 8).astype(np.float32)},
        "alibi": {"alibi_slopes": 2.0 ** -(1.0 + np.arange(heads) % 8).astype(np.float32)},
        "mask": {"mask": rng.random(pairs) < 0.6},
    }
    yield {}
    yield from (extra for feature, extra in asked.items() if feature in features)
    if {"window", "softcap"} <= set(features):
        yield {"window": 17, "softcap": 2.0}


def points(claims: Claims, verb: str) -> list[Case]:
    """Return the quick lattice twice, so that there are more points than variants."""
    cases = lattice(claims, verb, "quick")
    return [*cases, *(replace(case, seed=case.seed + 100) for case in cases)][:10]


def test_answers_lie_within_the_declared_bound(host: Host) -> None:
    """Random ragged batches, variants in turn: the adapter hands over what it was given."""
    hello = host.hello()
    claims = Claims.from_dict(hello.claims)
    oracle, lse = Oracle(claims), "lse" in claims.features
    for verb in (verb for verb in hello.verbs if verb in ATTENDING):
        for i, case in enumerate(points(claims, verb)):
            extras = list(variants(claims.features, case))
            problem = random_problem(case, **extras[i % len(extras)])
            answer = host.call(present(problem, case, Placement(seed=case.seed), lse=lse))
            expected = oracle.attention(problem)
            seen = answer.outputs["out"].astype(np.float64)
            assert not exceeds(seen, expected.out, expected.out_bound).any(), (case, problem.variant)
            assert (answer.mutated, answer.overrun, dict(answer.unwritten)) == ((), (), {}), (
                case,
                problem.variant,
            )
            if lse:
                seen = answer.outputs["lse"].astype(np.float64)
                assert not exceeds(seen, expected.lse, expected.lse_bound).any(), (case, problem.variant)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"ml_dtypes_casts"}))  # kvref itself needs it
def test_missing_library_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library is missing, the import says which, and what to install."""
    module = BUILT_IN[name].partition(":")[0]
    monkeypatch.setitem(sys.modules, ALL[name][0], None)
    monkeypatch.delitem(sys.modules, module, raising=False)
    for shared in ("onnx_models", "onnx_scans", "vllm_triton", "sglang_parts", "sglang_radix_cache"):
        monkeypatch.delitem(sys.modules, f"kvref_conformance.subjects.{shared}", raising=False)
    with pytest.raises(ImportError, match=r"needs .*: pip install"):
        importlib.import_module(module)


@pytest.mark.parametrize("name", sorted(ALL))
def test_imports_its_own_library_and_no_more(name: str) -> None:
    """An adapter runs where NumPy, ml_dtypes and its library are installed, and leans on nothing of ours."""
    module = BUILT_IN[name].partition(":")[0]
    tree = ast.parse((FOLDER / f"{module.rpartition('.')[2]}.py").read_text())
    imported = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    imported += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    allowed = (*SHARED, *ALL[name])
    assert [x for x in imported if not x.startswith(allowed)] == []


def test_every_name_leads_to_a_class() -> None:
    """The table is text, so that reading it imports no implementation; this looks the names up."""
    for where in BUILT_IN.values():
        module, _, attr = where.partition(":")
        path = FOLDER / module.removeprefix("kvref_conformance.subjects.")
        source = (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
        classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
        assert attr in classes
