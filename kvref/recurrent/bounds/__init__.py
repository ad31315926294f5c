"""Error bounds of recurrent layers: how far from the reference a kernel may be, given what it declares.

A bound is componentwise and holds for every input and every honest order of evaluation: token by token, or in
chunks of the declared size. It covers the kernel's roundings and the reference's own. A comparison is
`not (error <= bound)`, so NaN never passes; a bound is infinite where nothing can be said.

`linear` bounds both Mambas, `conv` the short convolution and the decay gate, `delta` both delta rules.
Source: derived step by step in `spec/recurrent.md`, on bounds.
"""

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.recurrent.bounds.conv import conv_bound, gate_bound
from kvref.recurrent.bounds.delta import delta_bound
from kvref.recurrent.bounds.linear import selective_bound, ssd_bound

__all__ = ["ScanArithmetic", "conv_bound", "delta_bound", "gate_bound", "selective_bound", "ssd_bound"]
