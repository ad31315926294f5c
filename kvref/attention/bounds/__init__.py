"""Error bounds: how far from the reference a kernel may be, given the arithmetic it declares.

A bound is componentwise and holds for every input: no kernel that does what it declares can exceed it. It
covers the kernel's roundings and the reference's own (`REFERENCE`, float64). A comparison is
`not (error <= bound)`, so NaN never passes; an empty row has bound 0 and must be met exactly.

`attention` bounds the attending verbs, `code_cache` the one over quantised caches, `merge` the combination of
states, `rope` the rotation. The terms of the worst case are in `forward_error`; `likely_error` is their
companion for independent roundings. `quantized` bounds a format instead of a kernel: how far the answer may
be from that over the numbers before they were quantised.
Source: derived step by step in `spec/bounds.md`.
"""

from kvref.attention.arithmetic import REFERENCE, Arithmetic
from kvref.attention.bounds.attention import Bound, attention_bound, dense_bound, paged_bound
from kvref.attention.bounds.code_cache import quantized_paged_bound
from kvref.attention.bounds.compare import exceeds, margin
from kvref.attention.bounds.merge import merge_bound
from kvref.attention.bounds.quantized import format_bound
from kvref.attention.bounds.rope import rope_bound

__all__ = [
    "REFERENCE",
    "Arithmetic",
    "Bound",
    "attention_bound",
    "dense_bound",
    "exceeds",
    "format_bound",
    "margin",
    "merge_bound",
    "paged_bound",
    "quantized_paged_bound",
    "rope_bound",
]
