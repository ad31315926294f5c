"""Faults of manners: inputs that change, outputs left unwritten, answers from elsewhere."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.calls import Buffers
from kvref_conformance.subjects.tiled.rules import Batch


@exhibit(
    as_if="q was scaled in place",
    fault="F04 stale or cleared",
    breaks=("KV-ATTN-100",),
)
class QueryScaledInPlace(Tiled):
    """The scale is folded into q, in the caller's memory.

    A plant: the answer is right, and the next reader of q finds other numbers.
    """

    def paged_attention(self, q: Array, k_cache: Array, v_cache: Array, **options: Any) -> Any:
        """Scale q, attend, and leave it scaled."""
        answer = super().paged_attention(q.copy(), k_cache, v_cache, **options)
        q *= np.asarray(options["scale"], q.dtype)
        return answer


@exhibit(
    as_if="rows of requests without context were skipped and kept what the memory held",
    fault="F10 NaN spread",
    seen_in=("vllm-project/vllm#37442",),
    breaks=("KV-ATTN-101",),
    may_also_break=("KV-ATTN-007",),
    features=("out",),
)
class EmptyRowsSkipped(Tiled):
    """Requests of length 0 are skipped.

    Their rows keep what was in the buffer. Stale NaN there reached a batch-wide maximum, and through it every
    real row.
    """

    def put(self, result: Array, lse: Array, rows: slice, part: Array, part_lse: Array) -> None:
        """Store only rows that attend to something."""
        if not np.isneginf(part_lse).all():
            super().put(result, lse, rows, part, part_lse)


@exhibit(
    as_if="the answer to an earlier call with the same shapes and the same first numbers came back",
    fault="F03 incomplete key",
    seen_in=("flashinfer-ai/flashinfer-bench-starter-kit#21",),
    breaks=("KV-ATTN-102",),
    may_also_break=("KV-ATTN-003", "KV-ATTN-004", "KV-ATTN-011"),
)
class CachedByFingerprint(Tiled):
    """Answers are cached under a fingerprint that does not cover the inputs.

    Shapes, addresses and a few numbers are hashed; the rest may change. A benchmark that repeats its inputs
    never notices, and is fast.
    """

    def paged_attention(self, q: Array, k_cache: Array, v_cache: Array, **options: Any) -> Any:
        """Return what an earlier call of the same look was answered."""
        known: dict[Any, Any] = self.__dict__.setdefault("known", {})
        key = (q.shape, k_cache.shape, q.ravel()[:4].tobytes(), np.asarray(options["seq_lens"]).tobytes())
        if key not in known:
            known[key] = super().paged_attention(q, k_cache, v_cache, **options).copy()
        return known[key]


@exhibit(
    as_if="a replayed run used the lengths of the run it was prepared for",
    fault="F18 row mapping",
    seen_in=("flashinfer-ai/flashinfer#4016",),
    breaks=("KV-ATTN-103",),
    verbs=("replay",),
    features=("prepare",),
)
class ReplaysFirstLengths(Tiled):
    """Lengths are baked into the captured launch.

    What was computed on the host at capture time, a work list or a number of splits, is not refreshed; padded
    launches read entries that nobody filled.
    """

    def refill(self, buffers: Buffers, values: Buffers) -> None:
        """Leave the lengths as they were."""
        kept = buffers["seq_lens"].copy()
        super().refill(buffers, values)
        buffers["seq_lens"][...] = kept


@exhibit(
    as_if="a replayed run used the block tables of the run before it",
    fault="F18 row mapping",
    seen_in=("wtdcode/vllm-backport#63",),
    breaks=("KV-ATTN-103",),
    may_also_break=("KV-ATTN-012", "KV-ATTN-015"),
    verbs=("replay",),
    features=("prepare",),
)
class ReplaysTablesOneRunLate(Tiled):
    """Tables are copied after the launch instead of before.

    The batch has been reordered since, so rows are read through another request's table.
    """

    def refill(self, buffers: Buffers, values: Buffers) -> None:
        """Use the tables of the previous run."""
        late = self.__dict__.get("late", values["block_tables"]).copy()
        super().refill(buffers, values)
        buffers["block_tables"][...] = late
        self.late = values["block_tables"].copy()

    def replay(self, q: Array, k_cache: Array, v_cache: Array, **options: Any) -> Array:
        """Begin each call afresh."""
        self.__dict__.pop("late", None)
        return super().replay(q, k_cache, v_cache, **options)


@exhibit(
    as_if="the number of splits depended on how many requests there were",
    fault="F18 row mapping",
    breaks=("KV-ATTN-104",),
    batch_invariant=True,
)
class SplitsFollowTheBatch(Tiled):
    """A context is split further when the batch is small.

    A plant of what most kernels do to fill a device, under a claim that forbids it: sums are taken in another
    order, and the last bits differ.
    """

    def answer(self, batch: Batch, *args: Any, **options: Any) -> Any:
        """Choose the splits by the size of the batch."""
        self.splits = 1 if len(batch.seq_lens) > 1 else 3
        return super().answer(batch, *args, **options)
