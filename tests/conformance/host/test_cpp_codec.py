"""C++ codecs: the header reads codes, text and halves, and the example of the docs keeps what it claims."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, Failed, OutputSpec
from kvref_conformance.host.process import ProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate, plan

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "quantize_kv.cpp"
#: Answers each float32 on stdin with the half it becomes, and the float32 that the half is.
HALVES = """
#include "kvref_wire.hpp"
int main() {
  char half[4], number[4];
  kvref::Tensor tensor{kvref::Tensor::Kind::float16, {1}, {1}, half};
  while (std::cin.read(number, 4)) {
    float value;
    std::memcpy(&value, number, 4);
    tensor.set(0, value);
    value = tensor.get(0);
    std::memcpy(number, &value, 4);
    std::cout.write(half, 2).write(number, 4);
  }
  try { tensor.byte(0); } catch (const std::runtime_error&) { return 0; }
  return 1;
}
"""


def compiled(source: Path, target: Path) -> str:
    """Compile a program against the header, warnings being errors, and return where it lies."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on this machine")
    options = [
        "-std=c++17",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        str(ROOT / "conformance" / "harness"),
    ]
    subprocess.run([compiler, *options, "-o", str(target), str(source)], check=True)
    return str(target)


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessHost]:
    """Run the codec of the docs."""
    with ProcessHost([compiled(EXAMPLE, tmp_path_factory.mktemp("codec") / "codec")]) as opened:
        yield opened


def quantize(host: ProcessHost, x: Array, format: str = "fp8_e4m3", **tensors: Array) -> Array:
    """Return the codes of x."""
    call = Call(
        "quantize_kv", {"x": x, **tensors}, {"format": format}, {"codes": OutputSpec("uint8", x.shape)}
    )
    return host.call(call).outputs["codes"]


def test_it_conforms_under_every_check_of_its_claims(host: ProcessHost) -> None:
    """Both verbs, all cases of the quick level."""
    hello = host.hello()
    assert hello.verbs == ("dequantize_kv", "quantize_kv")
    claims = Claims.from_dict(hello.claims)
    assert (claims.formats, claims.dtypes) == (("fp8_e4m3",), ("float32",))
    oracle = Oracle(claims)
    found = [evaluate(check, case, host, oracle) for check, case in plan(hello.verbs, claims, "quick")]
    assert {"KV-FMT-002", "KV-FMT-020", "KV-FMT-022"} <= {evidence.requirement for evidence in found}
    assert [evidence for evidence in found if evidence.status != "pass"] == []


def test_codes_cross_as_bytes(host: ProcessHost) -> None:
    """The largest code and the sign bit need all eight bits."""
    x = np.array([[[1.0, -1.0, 448.0, -1e9]]], np.float32)
    codes = quantize(host, x, scales=np.ones(1, np.float32))
    np.testing.assert_array_equal(codes, [[[0x38, 0xB8, 0x7E, 0xFE]]])


def test_text_crosses_and_what_is_not_known_is_unsupported(host: ProcessHost) -> None:
    """A codec that cannot read the format would answer in the wrong one."""
    x, scales = np.ones((1, 1, 4), np.float32), np.ones(1, np.float32)
    with pytest.raises(Failed) as caught:
        quantize(host, x, "fp8_e5m2", scales=scales)
    assert (caught.value.kind, caught.value.detail) == ("unsupported", "format fp8_e5m2")


def test_every_half_and_every_rounding_to_one_is_numpys(tmp_path: Path) -> None:
    """All halves, the midpoints between them, and the next float32 on both sides; infinities and NaN."""
    source = tmp_path / "halves.cpp"
    source.write_text(HALVES, encoding="utf-8")
    program = compiled(source, tmp_path / "halves")
    exact = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (exact + np.append(exact[1:], np.float32(65536))) / 2
    low, high = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))
    sizes = np.concatenate([exact, middles, low, high, np.array([1e9, 1e-30, np.inf, np.nan], np.float32)])
    numbers = np.concatenate([sizes, -sizes])
    done = subprocess.run([program], input=numbers.tobytes(), capture_output=True, check=True)
    answers = np.frombuffer(done.stdout, [("half", np.float16), ("value", np.float32)])
    with np.errstate(over="ignore"):
        halves = numbers.astype(np.float16)
    np.testing.assert_array_equal(answers["half"], halves)
    np.testing.assert_array_equal(np.signbit(answers["half"]), np.signbit(halves))
    np.testing.assert_array_equal(answers["value"], halves.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(answers["value"]), np.signbit(halves))
