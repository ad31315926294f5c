"""What a format costs the output of attention: the most it can, and what it did here."""

import numpy as np

from kvref.attention.bounds import format_bound
from kvref.attention.dense import attention
from kvref.formats.loss import loss_bound
from kvref.formats.scaled import dequantize, quantize

rng = np.random.default_rng(0)
q = rng.normal(size=(1, 8, 128)).astype(np.float32)
k, v = (rng.normal(size=(1024, 2, 128)).astype(np.float32) for _ in range(2))
batch = {"query_start_loc": [0, 1], "seq_lens": [1024], "scale": 128**-0.5}
exact = attention(q, k, v, **batch).out

print("format            bytes  worst case  measured")
for name in ("fp8_e4m3_tensor", "mxfp8_e4m3", "nvfp4_tensor", "mxfp4"):
    stored_k, stored_v = quantize(k, name), quantize(v, name)
    dk, dv = loss_bound(k, stored_k, name), loss_bound(v, stored_v, name)
    bound = format_bound(q, k, v, dk, dv, **batch).out
    error = np.abs(attention(q, dequantize(stored_k, name), dequantize(stored_v, name), **batch).out - exact)
    assert (error <= bound).all()
    parts = (stored_k.codes, stored_k.scales, stored_k.global_scale)
    size = sum(part.nbytes for part in parts if part is not None)
    print(f"{name:<16} {size / k.size:>6.4f}  {bound.max():>10.4f}  {error.max():>8.4f}")
