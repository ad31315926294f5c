"""Faults of writing: the wrong slot, too many slots, the wrong cache, the wrong moment."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.exhibit import EVERY_OUTPUT, exhibit
from kvref_conformance.subjects.tiled import Tiled

_WRITE = ("write_kv",)
_APPEND = ("append_and_attend",)


@exhibit(
    as_if="offsets in a block were taken modulo half its size",
    fault="F02 unit",
    seen_in=("vllm-project/vllm#51031", "vllm-project/vllm#54359"),
    breaks=("KV-ATTN-050",),
    may_also_break=("KV-ATTN-052",),
    verbs=_WRITE,
)
class SlotInKernelBlocks(Tiled):
    """Slots are decoded with a block size that is not the cache's.

    Two parts of a system count in blocks of different size. Tokens alias: most of them are overwritten by
    later ones.
    """

    def place_of(self, slots: Array, block_size: int) -> tuple[Array, Array]:
        """Take the offset modulo half a block."""
        block, offset = super().place_of(slots, block_size)
        return block, offset % max(block_size // 2, 1)


@exhibit(
    as_if="new tokens were written one after another from the first one's slot",
    fault="F12 layout",
    seen_in=("huggingface/text-generation-inference#2711",),
    breaks=("KV-ATTN-050",),
    may_also_break=("KV-ATTN-052",),
    verbs=_WRITE,
)
class SlotsAssumedConsecutive(Tiled):
    """Only the first slot is looked at.

    Drafted tokens follow each other, and so did their slots until a prefix hit scattered the blocks. From
    then on foreign slots are overwritten.
    """

    def put_rows(self, cache: Array, slots: Array, rows: Array) -> None:
        """Count on from the first slot."""
        if len(slots):
            counted = (slots[0] + np.arange(len(slots))) % (cache.shape[0] * cache.shape[1])
            super().put_rows(cache, counted, rows)


@exhibit(
    as_if="slots of another view of the cache were used: each shifted by one block",
    fault="F02 unit",
    seen_in=("vllm-project/vllm-ascend#14536",),
    breaks=("KV-ATTN-050",),
    may_also_break=("KV-ATTN-052",),
    verbs=_WRITE,
)
class SlotsOfAnotherView(Tiled):
    """Two slot mappings exist, and one write path takes the wrong one.

    A cache that is shared out over devices has a mapping for the whole and one for each share. One fused path
    used the whole's.
    """

    def place_of(self, slots: Array, block_size: int) -> tuple[Array, Array]:
        """Use the block before, as a share that starts one block later would call it."""
        block, offset = super().place_of(slots, block_size)
        return np.maximum(block - 1, 0), offset


@exhibit(
    as_if="a negative slot was counted from the end of the cache",
    fault="F09 padding as data",
    breaks=("KV-ATTN-051",),
    verbs=_WRITE,
)
class NegativeSlotWraps(Tiled):
    """Slot -1 is the last slot of the last block.

    A plant of what many array libraries do with a negative index.
    """

    def written(self, slots: Array) -> Array:
        """Write every token."""
        return np.ones(len(slots), np.bool_)


@exhibit(
    as_if="padded tokens were written to slot 0",
    fault="F09 padding as data",
    seen_in=("vllm-project/vllm#39444",),
    breaks=("KV-ATTN-051",),
    verbs=_WRITE,
)
class PaddingWritesSlotZero(Tiled):
    """Rows that are no tokens have slot 0.

    The slot buffer of a padded batch was cleared with zeros. Block 0 is the one that unused table entries
    point to, and an idle worker wrote NaN into it.
    """

    def store(self, k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array) -> None:
        """Replace negative slots by 0."""
        super().store(k, v, k_cache, v_cache, np.maximum(np.asarray(slot_mapping), 0))


@exhibit(
    as_if="a write cleared the slots of its block that come after",
    fault="F04 stale or cleared",
    breaks=("KV-ATTN-052",),
    verbs=_WRITE,
)
class WriteClearsRestOfBlock(Tiled):
    """The rest of a block is zeroed when a token is written into it.

    A plant of a repair against NaN in unwritten slots: a block is cleared from the new token on, and what a
    rollback or a scattered write had left there is lost.
    """

    def put_rows(self, cache: Array, slots: Array, rows: Array) -> None:
        """Clear, then write."""
        for block, offset in zip(*self.place_of(slots, cache.shape[1]), strict=True):
            cache[block, offset + 1 :] = 0
        super().put_rows(cache, slots, rows)


@exhibit(
    as_if="keys were written to the value cache as well",
    fault="F18 row mapping",
    seen_in=("huggingface/transformers#34232",),
    breaks=("KV-ATTN-053",),
    may_also_break=("KV-ATTN-050",),
    verbs=_WRITE,
)
class KeysInBothCaches(Tiled):
    """The value cache is given the keys.

    A helper that reorders rows says key on both sides of the second line. A test that fills both caches with
    the same numbers cannot see it.
    """

    def store(self, k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array) -> None:
        """Write keys twice."""
        super().store(k, k if k.shape == v.shape else v, k_cache, v_cache, slot_mapping)


@exhibit(
    as_if="new tokens were written to a copy of the cache",
    fault="F20 failure as success",
    seen_in=("huggingface/transformers#42688",),
    breaks=("KV-ATTN-050",),
    verbs=_WRITE,
)
class WritesToACopy(Tiled):
    """The update lands in a temporary.

    An indexed copy did nothing on one platform and raised no error; the cache kept its unwritten rows and the
    logits were NaN.
    """

    def store(self, k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array) -> None:
        """Write copies."""
        super().store(k, v, k_cache.copy(), v_cache.copy(), slot_mapping)


@exhibit(
    as_if="attention ran before this step's tokens were written",
    fault="F06 order",
    breaks=("KV-ATTN-054",),
    may_also_break=(*EVERY_OUTPUT, "KV-ATTN-012"),
    verbs=_APPEND,
)
class AttendsBeforeWriting(Tiled):
    """The new tokens are written after the queries have read the cache.

    A plant of a missing dependency between two launches. The next step is right, so a long generation looks
    sane.
    """

    def append_and_attend(
        self,
        q: Array,
        k: Array,
        v: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        slot_mapping: Array,
        **options: Any,
    ) -> Any:
        """Attend, then write."""
        nothing = np.full_like(np.asarray(slot_mapping), -1)
        answer = super().append_and_attend(q, k, v, k_cache, v_cache, slot_mapping=nothing, **options)
        self.store(k, v, k_cache, v_cache, slot_mapping)
        return answer


@exhibit(
    as_if="tokens before the start of their context were written to the end of the cache",
    fault="F09 padding as data",
    breaks=("KV-ATTN-051",),
    verbs=_APPEND,
    features=("prefill",),
)
class AppendWritesNegativeSlots(Tiled):
    """The writing half of an append indexes with negative slots.

    A plant: the kernel that only writes skips them.
    """

    def written(self, slots: Array) -> Array:
        """Write every token."""
        return np.ones(len(slots), np.bool_)
