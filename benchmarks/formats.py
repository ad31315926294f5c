"""Speed of the formats' casts and writers against the libraries people use, on one thread.

    python benchmarks/formats.py            # prints the table committed in benchmarks/README.md
    python benchmarks/formats.py --smoke    # small arrays, one repetition: does it run?

Each row is one piece of work that kvref and a peer both do, on the same numbers and in turns, so that a slow
moment hits both; the ratio of medians is what counts. A writer follows the path of its peer, so that both
end with the same bytes: the table says how many agree. Every peer is optional, and a row whose peer is not
installed says so.
"""

import argparse
import importlib
import importlib.metadata
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import ml_dtypes  # noqa: E402  # the thread count is read when NumPy loads
import numpy as np  # noqa: E402

from kvref.formats.casts import encode  # noqa: E402
from kvref.formats.elements import decode  # noqa: E402
from kvref.formats.paths import CANONICAL, Path  # noqa: E402
from kvref.formats.scaled import Quantized, decoded, quantize  # noqa: E402

NUM_KV_HEADS, HEAD_DIM = 8, 128
GLOBAL_SCALE = np.float32([2.0**-9])

#: How torchao writes and reads NVFP4.
TORCHAO = Path(
    nvfp4_division="two_reciprocals",
    nvfp4_scale_floor="smallest_normal",
    nvfp4_decode_order="scales_first",
)

Run = Callable[[], tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class Row:
    """One piece of work and who else does it."""

    work: str
    peer: str
    """The distribution it comes from."""
    build: Callable[[np.ndarray], tuple[Run, Run]]
    """From float32 numbers [num_tokens, num_kv_heads, head_dim]: how kvref runs it, and how the peer does."""
    tokens: int = 16384


def encode_torch(x: np.ndarray) -> tuple[Run, Run]:
    torch = _torch()
    numbers = torch.from_numpy(x)
    return lambda: (encode(x, "e4m3fn"),), lambda: (_bytes(numbers.to(torch.float8_e4m3fn)),)


def encode_ml_dtypes(x: np.ndarray) -> tuple[Run, Run]:
    return lambda: (encode(x, "e4m3fn"),), lambda: (x.astype(ml_dtypes.float8_e4m3fn),)


def encode_gfloat(x: np.ndarray) -> tuple[Run, Run]:
    gfloat, formats = (importlib.import_module(name) for name in ("gfloat", "gfloat.formats"))
    kind, even = formats.format_info_ocp_e4m3, gfloat.RoundMode.TiesToEven

    def peer() -> tuple[np.ndarray, ...]:
        rounded = gfloat.round_ndarray(kind, x, even, sat=True)
        return (gfloat.encode_ndarray(kind, rounded).astype(np.uint8),)

    return lambda: (encode(x, "e4m3fn"),), peer


def encode_bfloat16(x: np.ndarray) -> tuple[Run, Run]:
    torch = _torch()
    own, numbers = x.astype(ml_dtypes.bfloat16), torch.from_numpy(x).to(torch.bfloat16)
    return lambda: (encode(own, "e4m3fn"),), lambda: (_bytes(numbers.to(torch.float8_e4m3fn)),)


def encode_e2m1(x: np.ndarray) -> tuple[Run, Run]:
    return lambda: (encode(x, "e2m1"),), lambda: (x.astype(ml_dtypes.float4_e2m1fn),)


def decode_torch(x: np.ndarray) -> tuple[Run, Run]:
    torch = _torch()
    codes = encode(x, "e4m3fn")
    stored = torch.from_numpy(codes).view(torch.float8_e4m3fn)
    return lambda: (decode(codes, "e4m3fn"),), lambda: (stored.to(torch.float32).numpy(),)


def scaled_torch(x: np.ndarray) -> tuple[Run, Run]:
    torch = _torch()
    numbers, scale = torch.from_numpy(x), np.float32([0.37])
    divisor = torch.from_numpy(scale)
    return (
        lambda: _parts(quantize(x, "fp8_e4m3", scales=scale))[:1],
        lambda: (_bytes((numbers / divisor).to(torch.float8_e4m3fn)),),
    )


def mxfp8_torchao(x: np.ndarray) -> tuple[Run, Run]:
    return _to_mx(x, "mxfp8_e4m3", "float8_e4m3fn")


def mxfp4_torchao(x: np.ndarray) -> tuple[Run, Run]:
    return _to_mx(x, "mxfp4", "float4_e2m1fn_x2")


def nvfp4_torchao(x: np.ndarray) -> tuple[Run, Run]:
    torch, module = _torch(), importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    numbers, scale = torch.from_numpy(x), torch.from_numpy(GLOBAL_SCALE)

    def peer() -> tuple[np.ndarray, ...]:
        scales, codes = module.nvfp4_quantize(numbers, 16, scale)
        return codes.numpy(), _bytes(scales)

    return lambda: _parts(quantize(x, "nvfp4", global_scale=GLOBAL_SCALE, path=TORCHAO)), peer


def read_mxfp4_torchao(x: np.ndarray) -> tuple[Run, Run]:
    torch, module = _torch(), importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    kind, stored = torch.float4_e2m1fn_x2, quantize(x, "mxfp4")
    scales, codes = module.to_mx(torch.from_numpy(x), kind, 32)
    return (
        lambda: (decoded(stored, "mxfp4"),),
        lambda: (module.to_dtype(codes, scales, kind, 32, torch.float32).numpy(),),
    )


def read_nvfp4_torchao(x: np.ndarray) -> tuple[Run, Run]:
    torch, module = _torch(), importlib.import_module("torchao.prototype.mx_formats.nvfp4_tensor")
    stored = quantize(x, "nvfp4", global_scale=GLOBAL_SCALE, path=TORCHAO)
    scale = torch.from_numpy(GLOBAL_SCALE).reshape(())
    tensor = module.NVFP4Tensor.to_nvfp4(torch.from_numpy(x), per_tensor_scale=scale)
    return (
        lambda: (decoded(stored, "nvfp4", path=TORCHAO),),
        lambda: (tensor.dequantize(torch.float32).numpy(),),
    )


def mxfp4_compressed_tensors(x: np.ndarray) -> tuple[Run, Run]:
    peer = _compressed_tensors(x, "MXFP4", None)
    return lambda: _parts(quantize(x, "mxfp4", path=Path(mx_scale="even"))), peer


def nvfp4_compressed_tensors(x: np.ndarray) -> tuple[Run, Run]:
    encoding = 1 / GLOBAL_SCALE
    path = Path(nvfp4_operand="encode", nvfp4_division="encode", nvfp4_scale_floor="epsilon")
    peer = _compressed_tensors(x, "NVFP4", encoding)
    return lambda: _parts(quantize(x, "nvfp4", global_scale=encoding, path=path)), peer


ROWS = (
    Row("E4M3 encode, float32", "torch", encode_torch),
    Row("E4M3 encode, float32", "ml_dtypes", encode_ml_dtypes),
    Row("E4M3 encode, float32, 64K", "gfloat", encode_gfloat, 64),
    Row("E4M3 encode, bfloat16", "torch", encode_bfloat16),
    Row("E2M1 encode, float32", "ml_dtypes", encode_e2m1),
    Row("E4M3 decode", "torch", decode_torch),
    Row("FP8 with a scale, write", "torch", scaled_torch),
    Row("MXFP8, write", "torchao", mxfp8_torchao),
    Row("MXFP4, write", "torchao", mxfp4_torchao),
    Row("MXFP4, write", "compressed-tensors", mxfp4_compressed_tensors),
    Row("NVFP4, write", "torchao", nvfp4_torchao),
    Row("NVFP4, write", "compressed-tensors", nvfp4_compressed_tensors),
    Row("MXFP4, read", "torchao", read_mxfp4_torchao),
    Row("NVFP4, read", "torchao", read_nvfp4_torchao),
)


def measure(own: Run, peer: Run, repetitions: int) -> tuple[float, float, float]:
    """Return the median wall time of both in milliseconds, and the share of bytes both store alike."""
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repetitions + 1):
        for run, into in zip((own, peer), times, strict=True):
            start = time.perf_counter()
            run()
            into.append((time.perf_counter() - start) * 1e3)
    ours, theirs = (statistics.median(taken[1:]) for taken in times)  # the first one warms up
    return ours, theirs, _equal(own(), peer())


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="small arrays, one repetition")
    smoke = parser.parse_args().smoke
    x = np.random.default_rng(0).standard_normal((max(r.tokens for r in ROWS), NUM_KV_HEADS, HEAD_DIM), "f4")
    print(_versions())
    print("\n| work | kvref, ms | M/s | peer | peer, ms | kvref's speed / peer's | equal |")
    print("|---|---:|---:|---|---:|---:|---:|")
    for row in ROWS:
        numbers = x[: 8 if smoke else row.tokens]
        try:
            own, peer = row.build(numbers)
        except ImportError as error:
            print(f"| {row.work} | | | {row.peer} | | skipped: {error} | |")
            continue
        ours, theirs, equal = measure(own, peer, 1 if smoke else 7)
        print(
            f"| {row.work} | {ours:.1f} | {numbers.size / ours / 1e3:.0f} | {row.peer} | {theirs:.1f} "
            f"| {theirs / ours:.2f} | {equal:.4%} |",
            flush=True,
        )


def _torch() -> Any:
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    return torch


def _to_mx(x: np.ndarray, format: str, element: str) -> tuple[Run, Run]:
    torch, module = _torch(), importlib.import_module("torchao.prototype.mx_formats.mx_tensor")
    numbers, kind = torch.from_numpy(x), getattr(torch, element)

    def peer() -> tuple[np.ndarray, ...]:
        scales, codes = module.to_mx(numbers, kind, 32)
        return _bytes(codes), _bytes(scales)

    return lambda: _parts(quantize(x, format, path=CANONICAL)), peer


def _compressed_tensors(x: np.ndarray, scheme: str, encoding: np.ndarray | None) -> Run:
    """Return scales from the numbers and the compressor of a scheme, which is how a checkpoint is written."""
    torch = _torch()
    quantization = importlib.import_module("compressed_tensors.quantization")
    helpers = importlib.import_module("compressed_tensors.quantization.utils.helpers")
    name = f"compressed_tensors.compressors.{scheme.lower()}"
    compressor = getattr(importlib.import_module(name), f"{scheme}PackedCompressor")
    preset = quantization.preset_name_to_scheme(scheme, ["Linear"])
    weight = torch.from_numpy(x.reshape(-1, HEAD_DIM))
    scale = None if encoding is None else torch.from_numpy(encoding)

    def run() -> tuple[np.ndarray, ...]:
        scales, zeros = helpers.compute_dynamic_scales_and_zp(weight, preset.weights, None, scale)
        state = {"weight": weight, "weight_scale": scales, "weight_zero_point": zeros}
        if scale is not None:
            state["weight_global_scale"] = scale
        stored = compressor.compress(state, preset)
        return _bytes(stored["weight_packed"]), _bytes(stored["weight_scale"])

    return run


def _parts(q: Quantized) -> tuple[np.ndarray, ...]:
    assert q.scales is not None
    return q.codes, q.scales


def _bytes(x: Any) -> np.ndarray:
    return x.view(_torch().uint8).numpy()


def _equal(own: tuple[np.ndarray, ...], peer: tuple[np.ndarray, ...]) -> float:
    """Return the share of bytes that are the same."""
    ours, theirs = (
        np.concatenate([part.reshape(-1).view(np.uint8) for part in parts]) for parts in (own, peer)
    )
    return float(np.mean(ours == theirs))


def _versions() -> str:
    names = ("numpy", *dict.fromkeys(row.peer for row in ROWS))
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} missing")
    return f"Python {platform.python_version()}, {', '.join(found)}"


if __name__ == "__main__":
    main()
