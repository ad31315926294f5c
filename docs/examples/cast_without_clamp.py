"""What `kvref.testing` says about a cast to E4M3 that does not clamp first."""

import sys

import ml_dtypes
import numpy as np

import kvref.testing

x = np.random.default_rng(0).standard_normal((4, 2, 64), np.float32)
x[2, 1, 7] = 12.0
scales = np.array([0.01, 0.02], np.float32)  # one a kv head
codes = (x / scales[:, None]).astype(ml_dtypes.float8_e4m3fn)
try:
    kvref.testing.assert_quantize_kv(codes, x, format="fp8_e4m3", scales=scales)
except AssertionError as error:
    print(f"AssertionError: {error}")
    sys.exit(1)
