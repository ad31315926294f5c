"""JAX's casts to 8-bit floats on CPU, as code that divides by a scale and casts has them.

The raw entry point is `(x / scales).astype(jnp.float8_…)`, and back `codes.astype(float32) * scales`. It
claims float32 alone: the NaN that a cast to E5M2 writes is another one for 16-bit inputs.

Choices: XLA makes a multiplication by 1 / scale of a division by a scale that is broadcast. A cast has no
saturation: past the largest number it gives NaN, in E5M2 infinity, and the NaN it writes in E5M2 is 0x7E.
Source: JAX 0.10, whose casts on CPU are LLVM's and XLA's.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import jax
    import jax.numpy as jnp
except ImportError as error:
    raise ImportError("the subject jax_casts needs JAX: pip install 'kvref[jax]'") from error

_DTYPES = {
    "fp8_e4m3": jnp.float8_e4m3fn,
    "fp8_e5m2": jnp.float8_e5m2,
    "fp8_e4m3fnuz": jnp.float8_e4m3fnuz,
    "fp8_e5m2fnuz": jnp.float8_e5m2fnuz,
}


class JaxCasts:
    """`quantize_kv` and `dequantize_kv` by `Array.astype`."""

    framework = "jax"
    claims = Claims(
        name="jax casts",
        version=str(jax.__version__),
        formats=tuple(_DTYPES),
        choices={
            "scale-division": "reciprocal",
            "e4m3-overflow": "nan",
            "e5m2-overflow": "inf",
            "fnuz-overflow": "nan",
            "fp8-nan": "quiet",
        },
    )

    def quantize_kv(self, x: Any, *, format: str, scales: Any) -> Any:
        """Divide, cast."""
        return (x / scales[:, None]).astype(_DTYPES[format]).view(jnp.uint8)

    def dequantize_kv(self, codes: Any, *, format: str, dtype: str, scales: Any) -> Any:
        """Cast, multiply."""
        return (codes.view(_DTYPES[format]).astype(jnp.float32) * scales[:, None]).astype(dtype)
