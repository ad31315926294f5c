"""Faults of attention over codes at its extents: many heads, long contexts, rows without any."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise
from kvref_conformance.subjects.tiled import Tiled

_ATTEND, _GIVEN = ("quantized_paged_attention",), ("fp8_e4m3", "int8")
#: Tokens that a loop over tiles reaches.
_REACHED = 128


@exhibit(
    as_if="kv heads from the fifth on were read with the scales of the first four",
    fault="F18 row mapping",
    breaks=("KV-FMT-022",),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_GIVEN,
)
class FourScalesForAllHeads(Bitwise):
    """A vector of four holds the scales, and the index into it wraps around.

    A plant. A test with two or three heads never gets there, and one with equal scales does not see it.
    """

    def given_scales(self, scales: Array, x: Array) -> Array:
        """Wrap around."""
        return super().given_scales(np.asarray(scales)[np.arange(len(scales)) % 4], x)


@exhibit(
    as_if="the one scale of a cache was that of its first kv head alone",
    fault="F18 row mapping",
    breaks=("KV-FMT-020",),
    may_also_break=("KV-FMT-090",),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_GIVEN,
)
class OneScaleForOneHead(Bitwise):
    """A scale for the whole cache is handed to a kernel that has one for each head.

    A plant. The others were read from memory that happened to hold 1.
    """

    def given_scales(self, scales: Array, x: Array) -> Array:
        """Fill up with ones."""
        right = super().given_scales(scales, x)
        return np.concatenate([right, np.ones((x.shape[1] - 1, 1), np.float32)]) if len(right) == 1 else right


class _OneStep(Tiled):
    """Stops after its first step over long contexts."""

    def tiles(self, kv_len: int) -> list[Array]:
        """Return the tiles of what is reached."""
        return super().tiles(min(kv_len, _REACHED))


@exhibit(
    as_if="only the first 128 tokens of a context of codes were read",
    fault="F01 boundary",
    breaks=("KV-FMT-090",),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("fp8_e4m3", "int8_token_head"),
)
class FirstSplitOfCodes(Bitwise):
    """The kernel for quantised caches has one split, as long as the contexts of its test.

    A plant: what follows the first split is never read.
    """

    def kernel(self) -> Tiled:
        """Return a kernel of one split."""
        return _OneStep()


class _LeavesRows(Tiled):
    """Writes nothing for requests without context, over memory that holds sevens."""

    def paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Put back what was there before."""
        answer = super().paged_attention(*tensors, **options)
        parts = answer if isinstance(answer, tuple) else (answer,)
        starts = options["query_start_loc"]
        for request in np.flatnonzero(options["seq_lens"] == 0):
            for part in parts:
                part[starts[request] : starts[request + 1]] = 7
        return answer


@exhibit(
    as_if="rows without context kept what was in memory where the cache is quantised",
    fault="F02 empty input",
    breaks=("KV-ATTN-007",),
    verbs=_ATTEND,
    features=("prefill", "lse"),
    formats=_GIVEN,
)
class EmptyRowsLeftOver(Bitwise):
    """A request without tokens has no tile, and so nothing is written for it.

    A plant of an output that is allocated and not filled.
    """

    def kernel(self) -> Tiled:
        """Return a kernel that leaves them as they were."""
        return _LeavesRows()
