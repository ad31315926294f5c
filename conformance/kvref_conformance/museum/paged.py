"""Faults of addressing: which slots are read, through which table, and which never."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_OUTPUT, exhibit
from kvref_conformance.subjects.tiled import Tiled
from kvref_conformance.subjects.tiled.rules import Batch, Work


@exhibit(
    as_if="slots were counted in kernel blocks half as large as the blocks of the table",
    fault="F02 unit",
    seen_in=("vllm-project/vllm#54359", "vllm-project/vllm#51031", "ROCm/aiter#1840"),
    breaks=("KV-ATTN-010",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012", "KV-ATTN-013", "KV-ATTN-016", "KV-ATTN-017"),
)
class KernelBlockHalfAsLarge(Tiled):
    """Entries of the table are multiplied by a block size that is not the table's.

    The manager counts blocks of one size, the kernel of another, and the table is passed on unconverted:
    blocks overlap, and what is read depends on their ids.
    """

    def slots_of(self, table: Array, at: Array, block_size: int) -> Array:
        """Multiply the block id by half a block."""
        return np.asarray(table[at // block_size].astype(np.int64) * (block_size // 2) + at % block_size)


@exhibit(
    as_if="only the first tokens and the last block were read, and nothing between",
    fault="F02 unit",
    seen_in=("flashinfer-ai/flashinfer#4347",),
    breaks=("KV-ATTN-010",),
    may_also_break=EVERY_OUTPUT,
)
class MiddleOfContextSkipped(Tiled):
    """The number of steps over a context is bounded, and only the last step is added on top.

    In the report 4096 tokens and the last block were read of a long context in large blocks. Here the bound
    is 16 tokens, so that short contexts show it.
    """

    def tiles(self, kv_len: int) -> list[Array]:
        """Return the first two tiles and the last."""
        tiles = super().tiles(kv_len)
        return tiles if len(tiles) < 4 else [*tiles[:2], tiles[-1]]


@exhibit(
    as_if="keys were paired with the value of the slot after",
    fault="F12 layout",
    breaks=("KV-ATTN-010",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012", "KV-ATTN-013", "KV-ATTN-016", "KV-ATTN-017"),
)
class ValueOfNextSlot(Tiled):
    """Values are read one slot late.

    A plant: key and value offsets are computed apart, and one of them counts from the end of its row.
    """

    def read_and_attend(self, batch: Batch, k_cache: Array, v_cache: Array, /, *rest: Any) -> Any:
        """Shift the value cache by one slot."""
        flat = v_cache.reshape(-1, *v_cache.shape[2:])
        late = np.roll(flat, -1, axis=0).reshape(v_cache.shape)
        return super().read_and_attend(batch, k_cache, late, *rest)


@exhibit(
    as_if="the context held one more token",
    fault="F01 boundary",
    breaks=("KV-ATTN-011",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-007", "KV-ATTN-012", "KV-ATTN-013", "KV-ATTN-015"),
)
class LengthIsLastIndex(Tiled):
    """The length is taken for the index of the last token.

    One engine passes lengths, another the last valid index, under names that do not say which. Every query
    sees one token more than it should.
    """

    def context_len(self, batch: Batch, request: int) -> int:
        """Count one more."""
        return super().context_len(batch, request) + 1

    def query_positions(self, kv_len: int, num_rows: int) -> Array:
        """Stand one further."""
        return super().query_positions(kv_len, num_rows) + 1


@exhibit(
    as_if="the last token of the context was missing",
    fault="F01 boundary",
    breaks=("KV-ATTN-011",),
    may_also_break=EVERY_OUTPUT,
)
class LastTokenMissing(Tiled):
    """The context ends one token early.

    The length does not include this step's token, although the caller counts it in.
    """

    def context_len(self, batch: Batch, request: int) -> int:
        """Count one less."""
        return max(super().context_len(batch, request) - 1, 0)


class _Unmasked(Tiled):
    """A decode path whose single query row is bounded by a length and by no mask."""

    def visible(self, work: Work, at: Array) -> Array:
        """Let a single row see all that is read."""
        if len(work.t) == 1:
            return np.ones((1, len(at)), np.bool_)
        return super().visible(work, at)


@exhibit(
    as_if="a request was read to the length of the longest one of the batch",
    fault="F09 padding as data",
    seen_in=("Dao-AILab/flash-attention#1455",),
    breaks=("KV-ATTN-011",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-007", "KV-ATTN-012", "KV-ATTN-013", "KV-ATTN-015", "KV-ATTN-016"),
)
class LongestLengthForAll(_Unmasked):
    """A bound refers to the longest context of the batch.

    The maximum is a launch parameter and lies at hand; the request's own length has to be loaded. Short
    requests attend beyond their end, into whatever their table's padding names.
    """

    def context_len(self, batch: Batch, request: int) -> int:
        """Return the longest context of the batch."""
        return int(batch.seq_lens.max())


@exhibit(
    as_if="the last block was read to its end, not to the length",
    fault="F09 padding as data",
    seen_in=("ROCm/hip-ep#989", "microsoft/onnxruntime#29447", "Blaizzy/mlx-vlm#2036"),
    breaks=("KV-ATTN-011",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012"),
)
class CapacityForLength(_Unmasked):
    """What is allocated is taken for what is valid.

    A buffer has room for whole blocks, or for a capacity, and its extent is mistaken for the number of tokens
    in it. The rest holds whatever its last owner left.
    """

    def read_and_attend(self, batch: Batch, k_cache: Array, v_cache: Array, /, *rest: Any) -> Any:
        """Remember the block size."""
        self._block_size = int(k_cache.shape[1])
        return super().read_and_attend(batch, k_cache, v_cache, *rest)

    def context_len(self, batch: Batch, request: int) -> int:
        """Round up to whole blocks."""
        return -(-super().context_len(batch, request) // self._block_size) * self._block_size


@exhibit(
    as_if="the blocks of a context were taken to follow its first one in memory",
    fault="F12 layout",
    breaks=("KV-ATTN-013",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012", "KV-ATTN-016", "KV-ATTN-017"),
)
class BlocksAssumedConsecutive(Tiled):
    """Only the first entry of a table is looked at.

    On a fresh pool every context is contiguous, and so it is in a test that fills its tables with a range.
    """

    def slots_of(self, table: Array, at: Array, block_size: int) -> Array:
        """Count on from the first block."""
        return int(table[0]) * block_size + at

    def read(self, cache: Array, slots: Array) -> Array:
        """Read round the end of the cache."""
        return super().read(cache, slots % (cache.shape[0] * cache.shape[1]))


@exhibit(
    as_if="blocks were walked in the order of their ids, not of the table",
    fault="F12 layout",
    seen_in=("pytorch/pytorch#182593",),
    breaks=("KV-ATTN-013",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012", "KV-ATTN-016", "KV-ATTN-017"),
)
class BlocksInMemoryOrder(Tiled):
    """The blocks of a context are visited in physical order and numbered as they come.

    Without a mask the order does not matter. The last block is only partly filled, though, and it is not the
    one with the highest id.
    """

    def table_of(self, batch: Batch, block_tables: Array, request: int, block_size: int) -> Array:
        """Sort the entries that are needed."""
        table = super().table_of(batch, block_tables, request, block_size).copy()
        needed = -(-int(batch.seq_lens[request]) // block_size)
        table[:needed].sort()
        return table


@exhibit(
    as_if="the first block of one request was read by all as a shared prefix",
    fault="F21 one path only",
    seen_in=("vllm-project/vllm#26130", "vllm-project/vllm#17283"),
    breaks=("KV-ATTN-010", "KV-ATTN-016"),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012"),
)
class SharedPrefixTooLong(Tiled):
    """The pass over a shared prefix covers more blocks than the requests share.

    A cascade reads the common blocks once for the whole batch. Given the wrong number of requests or of
    common blocks, it hands the block of one request to all.
    """

    def table_of(self, batch: Batch, block_tables: Array, request: int, block_size: int) -> Array:
        """Take the first block from the last request."""
        table = super().table_of(batch, block_tables, request, block_size).copy()
        if batch.seq_lens[-1] > 0:
            table[0] = block_tables[-1][0]
        return table


@exhibit(
    as_if="a block that several requests share was readable by one of them only",
    fault="F18 row mapping",
    seen_in=("pytorch/pytorch#182593",),
    breaks=("KV-ATTN-017",),
)
class OneOwnerPerBlock(Tiled):
    """The inverse map from blocks to requests holds one request a block; the last one wins.

    Going from memory to positions needs an inverse of the table, and a table that is shared has none. The
    other requests find zeros.
    """

    def table_of(self, batch: Batch, block_tables: Array, request: int, block_size: int) -> Array:
        """Drop the blocks that a later request owns as well."""
        needed = -(-np.asarray(batch.seq_lens) // block_size)
        lost = {
            int(block)
            for later in range(request + 1, len(needed))
            for block in block_tables[later][: needed[later]]
        }
        table = super().table_of(batch, block_tables, request, block_size)
        return np.array([-1 if int(block) in lost else block for block in table])

    def read(self, cache: Array, slots: Array) -> Array:
        """Return zeros for what is not owned."""
        found = super().read(cache, np.maximum(slots, 0))
        return np.where((slots >= 0)[:, None, None], found, found.dtype.type(0))


@exhibit(
    as_if="outputs were rounded to a grid that follows the largest output of the batch",
    fault="F13 scale or encoding",
    breaks=("KV-ATTN-016",),
    may_also_break=EVERY_OUTPUT,
)
class ScaleOfWholeBatch(Tiled):
    """Outputs are quantised with one scale for the whole batch.

    A plant: an amax is taken over all rows, so a loud neighbour coarsens everyone's answer.
    """

    def answer(self, *args: Any, **options: Any) -> Any:
        """Round to 1/127 of the largest output."""
        answer = super().answer(*args, **options)
        out = answer[0] if isinstance(answer, tuple) else answer
        step = np.abs(out).max(initial=0) / 127
        if step > 0:
            out[...] = np.rint(out / step) * step
        return answer


@exhibit(
    as_if="contexts were cut off after 2048 tokens",
    fault="F11 overflow",
    breaks=("KV-ATTN-010",),
)
class LongContextCutOff(Tiled):
    """A workspace has room for the splits of 2048 tokens, and what lies beyond is not read.

    A plant: no context of a common test is that long.
    """

    def tiles(self, kv_len: int) -> list[Array]:
        """Stop early."""
        return super().tiles(min(kv_len, 2048))
