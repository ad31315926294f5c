"""NumPy arrays to the tensors of other libraries and back, without changing a value.

bfloat16 and the 8-bit formats cross as the integers of their codes, so no conversion rounds on the way. A
CPU tensor shares the array's memory where the library allows that; on a device a copy goes there and back.
A library is imported only where a subject asks for it.

For porters: `framework` and `device` are attributes of a subject; without them it is given NumPy arrays.
"""

import importlib
import sys
from typing import Any

import numpy as np

from kvref.arrays import DTYPES, Array, dtype_name
from kvref.errors import ArgumentError, DTypeError

FRAMEWORKS = ("numpy", "torch", "jax")
#: dtypes that torch.from_numpy does not know, by the unsigned integers that carry their codes.
_CODES = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}


def lend(x: Array, framework: str = "numpy", device: str = "cpu") -> Any:
    """Return an array as a tensor of `framework` on `device`, strides kept.

    Raises: ArgumentError for an unknown framework; DTypeError if the library would change the values.
    """
    check_framework(framework)
    if framework == "torch":
        return _to_torch(x, device)
    return _to_jax(x, device) if framework == "jax" else x


def check_framework(framework: str) -> None:
    """Check that a framework is known and installed, and load it.

    Raises: ArgumentError, ImportError.
    """
    if framework not in FRAMEWORKS:
        raise ArgumentError(f"framework = {framework!r}, expected one of {', '.join(FRAMEWORKS)}")
    importlib.import_module(framework)


def take_back(tensor: Any, x: Array) -> None:
    """Bring what a subject did to a lent tensor back into the array, where the two do not share memory."""
    if tensor is x or library_of(tensor) == "jax":  # jax arrays cannot be written
        return
    found = to_numpy(tensor)
    if not np.shares_memory(found, x):
        x[...] = found


def to_numpy(tensor: Any) -> Array:
    """Return a tensor of NumPy, torch (any device) or jax as a NumPy array of the same values.

    A CPU tensor's memory is shared, not copied, where possible.
    Raises: DTypeError if it is no such tensor, or has a dtype kvref has no name for.
    """
    library = library_of(tensor)
    if library == "torch":
        return _from_torch(tensor)
    if library == "jax" or (library == "numpy" and isinstance(tensor, np.ndarray | np.generic)):
        array = np.asarray(tensor)
    elif hasattr(tensor, "__dlpack__"):
        array = np.from_dlpack(tensor)
    else:
        raise DTypeError(
            f"found {type(tensor).__name__}, expected a NumPy array, a torch tensor or a jax array"
        )
    dtype_name(array)
    return array


def form_of(tensor: Any) -> tuple[str, tuple[int, ...]] | None:
    """Return dtype and shape of a tensor in its library's words, None if it is no tensor of a framework.

    Of use where kvref has no name for the dtype, and so no array.
    """
    if library_of(tensor) not in FRAMEWORKS or not hasattr(tensor, "dtype"):
        return None
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def library_of(tensor: Any) -> str:
    """Return the name of the library a tensor belongs to, or its module's name."""
    for library, kind in (("torch", "Tensor"), ("jax", "Array"), ("numpy", "ndarray")):
        module = sys.modules.get(library)
        if module is not None and isinstance(tensor, getattr(module, kind)):
            return library
    return type(tensor).__module__.split(".")[0]


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries this interpreter has loaded."""
    wanted = ("numpy", "ml_dtypes", "torch", "jax", "onnxruntime", "vllm", "triton", "flashinfer", "cupy")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in wanted}
    return {name: str(version) for name, version in found.items() if version is not None}


def _to_torch(x: Array, device: str) -> Any:
    import torch

    name = dtype_name(x)
    source = x if x.flags.writeable and min(x.strides, default=0) >= 0 else x.copy()
    tensor = torch.from_numpy(source.view(_CODES[name])) if name in _CODES else torch.from_numpy(source)
    tensor = tensor.view(getattr(torch, name))
    if torch.device(device).type == "cpu":
        return tensor
    there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return there.copy_(tensor)


def _from_torch(tensor: Any) -> Array:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise DTypeError(f"found a torch tensor of {name}, expected one of {', '.join(DTYPES)}")
    import torch

    here = tensor.detach().resolve_neg().cpu()
    if name in _CODES:
        return np.asarray(here.view(getattr(torch, _CODES[name])).numpy().view(DTYPES[name]))
    return np.asarray(here.numpy())


def _to_jax(x: Array, device: str) -> Any:
    import jax

    kind = np.dtype(jax.dtypes.canonicalize_dtype(x.dtype))
    if kind != x.dtype and (kind.kind == "f" or not np.array_equal(x.astype(kind), x)):
        raise DTypeError(f"jax would make {kind} of {x.dtype}, expected the same values; set jax_enable_x64")
    # a private copy: jax may keep the memory it is given, and the next call writes there
    return jax.device_put(x.astype(kind, copy=True), jax.devices(device)[0])
