"""Which positions a query may attend to, and how its logits are shaped: the variants of attention as data.

Positions count from the start of the request's context. A query token i of q_len, over a context of kv_len
tokens that already includes it, stands at t = kv_len − q_len + i (bottom-right). The attended set is

    S(t) = { j : causal, window and chunk all allow (t, j) }  ∪  { j : j is in t's own span }
           ∩ { j : the boolean mask allows (i, j) }

Realises: KV-ATTN-020 causal-corner, KV-ATTN-021 window-own-token, KV-ATTN-022 window-stays-causal,
KV-ATTN-023 chunked-local, KV-ATTN-024 bidirectional-spans, KV-ATTN-025 boolean-mask, KV-ATTN-026 non-causal.
For porters: `causal` and `window` carry most models; add the others when a model asks for them.
Source: Mistral (window), Llama 4 (chunks), Gemma 3 (spans of image tokens), Medusa and EAGLE (tree masks).
"""

from dataclasses import dataclass, fields, replace
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike

from kvref.arrays import (
    Array,
    as_array,
    as_indices,
    check_count,
    check_flag,
    check_scalar,
    check_shape,
    widen,
)
from kvref.errors import ArgumentError, DTypeError, ShapeError, shown


class VariantArgs(TypedDict, total=False):
    """The keyword arguments of `Variant`, for functions that pass them on."""

    scale: float
    causal: bool
    window: int | None
    chunk_size: int | None
    softcap: float | None
    sinks: ArrayLike | None
    alibi_slopes: ArrayLike | None
    span_ids: ArrayLike | None
    mask: ArrayLike | None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One variant of attention; the order of the steps is scale → softcap → ALiBi bias → mask → softmax."""

    scale: float
    """Multiplies q·k, once."""
    causal: bool = True
    """Only positions j <= t."""
    window: int | None = None
    """Only the last `window` positions, the query's own included: t − window < j."""
    chunk_size: int | None = None
    """Only positions of the query's own chunk: j // chunk_size == t // chunk_size."""
    softcap: float | None = None
    """Logits become softcap · tanh(logit / softcap)."""
    sinks: ArrayLike | None = None
    """[num_q_heads] logits that stand in the denominator only, not scaled."""
    alibi_slopes: ArrayLike | None = None
    """[num_q_heads] slopes m; the bias m · (j − t) is added to the logit."""
    span_ids: ArrayLike | None = None
    """[sum(seq_lens)] integers; positions with the same id >= 0 see each other in both directions."""
    mask: ArrayLike | None = None
    """[sum(q_len · kv_len)] booleans, request after request, query-major; False forbids."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_scalar("scale", self.scale))
        check_flag("causal", self.causal)
        for name in ("window", "chunk_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.softcap is not None:
            object.__setattr__(self, "softcap", check_scalar("softcap", self.softcap, positive=True))

    @staticmethod
    def of(variant: VariantArgs) -> "Variant":
        """Build a variant from keyword arguments.

        Raises: ArgumentError if `scale` is missing or a name is unknown.
        """
        known = [field.name for field in fields(Variant)]
        unknown = sorted(set(variant) - set(known))
        if unknown:
            raise ArgumentError(f"unknown argument {shown(unknown[0])}, expected one of {', '.join(known)}")
        if "scale" not in variant:
            raise ArgumentError(
                "scale is missing, expected the number that multiplies q·k (KV-ATTN-002 scale-once)"
            )
        return Variant(**variant)

    def for_batch(self, num_q_heads: int, query_lens: Array, seq_lens: Array) -> "Variant":
        """Check the array-valued parts against a batch and return them as arrays.

        Raises: ShapeError, DTypeError.
        """
        return replace(
            self,
            sinks=_per_head("sinks", self.sinks, num_q_heads),
            alibi_slopes=_per_head("alibi_slopes", self.alibi_slopes, num_q_heads),
            span_ids=None
            if self.span_ids is None
            else as_indices("span_ids", self.span_ids, [int(seq_lens.sum())]),
            mask=None if self.mask is None else _flat_mask(self.mask, query_lens, seq_lens),
        )


def attended(variant: Variant, positions: Array, kv_len: int, span_ids: Array | None = None) -> Array:
    """Return S as booleans `[num_rows, kv_len]` for query tokens at the given positions.

    `span_ids [kv_len]` are those of this request. The boolean mask is not applied here: it is given per query
    index, not per position.
    """
    t = positions[:, None]  # [Q, 1]
    j = np.arange(kv_len)[None, :]  # [1, N]
    allowed = np.ones((len(positions), kv_len), dtype=np.bool_)
    if variant.causal:
        allowed &= j <= t
    if variant.window is not None:
        allowed &= t - j < variant.window  # t − window may lie below every int64
    if variant.chunk_size is not None:
        allowed &= j // variant.chunk_size == t // variant.chunk_size
    if span_ids is not None and kv_len:
        own = np.where(positions >= 0, span_ids[np.maximum(positions, 0)], -1)[:, None]
        allowed |= (own >= 0) & (span_ids[None, :] == own)
    return allowed


def alibi_bias(slopes: Array, positions: Array, piece: slice) -> Array:
    """Return the ALiBi bias slope · (j − t) as `[num_q_heads, num_rows, piece]`.

    Realises: KV-ATTN-044 alibi-formula. Source: Press et al. 2022.
    """
    distance = np.arange(piece.start, piece.stop)[None, :] - positions[:, None]  # [Q, N]
    with np.errstate(over="ignore"):
        bias: Array = slopes[:, None, None] * distance
    return bias


def _per_head(name: str, x: ArrayLike | None, num_q_heads: int) -> Array | None:
    if x is None:
        return None
    values = widen(name, x)
    check_shape(name, values, [num_q_heads])
    if not np.isfinite(values).all():
        raise ArgumentError(f"{name} holds {values[~np.isfinite(values)][0]}, expected finite numbers")
    return values


def _flat_mask(mask: ArrayLike, query_lens: Array, seq_lens: Array) -> Array:
    flat = as_array("mask", mask)
    if flat.size == 0 and flat.dtype == np.float64:
        flat = flat.astype(np.bool_)  # an empty Python list has no dtype of its own
    if flat.dtype != np.bool_:
        raise DTypeError(f"mask has dtype {flat.dtype}, expected bool (KV-ATTN-025 boolean-mask)")
    size = int((query_lens * seq_lens).sum())
    if flat.shape != (size,):
        raise ShapeError(f"mask has shape {list(flat.shape)}, expected [{size}] = [sum(q_len * kv_len)]")
    return flat
