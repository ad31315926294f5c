"""Faults of scales in attention over codes: the wrong side's, the wrong head's or slot's, or none."""

from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.museum.beside_formats import ANY_ATTENTION, less
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.bitwise import Bitwise

_ATTEND = ("quantized_paged_attention",)
_GIVEN, _SLOTS = ("fp8_e4m3", "int8"), ("fp8_e4m3_token_head", "int8_token_head", "mxfp8_e4m3")


class _OneForBoth(Bitwise):
    """The scales of one side are taken for both."""

    taken, other = "k", "v"

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Replace the scale of the other side's cache, or its scales of slots if it has none."""
        whole = options.get(f"{self.taken}_global_scale") is not None
        name = "global_scale" if whole else "scales"
        options[f"{self.other}_{name}"] = options.get(f"{self.taken}_{name}")
        return super().quantized_paged_attention(*tensors, **options)


@exhibit(
    as_if="values were read with the scales of keys",
    fault="F18 row mapping",
    breaks=("KV-FMT-091",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-091"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("fp8_e4m3", "fp8_e4m3_token_head", "nvfp4"),
)
class KeyScalesForValues(_OneForBoth):
    """One scale serves keys and values.

    A plant. Checkpoints once had one scale for both, and a kernel of that time goes on asking for one. The
    weights are right and the output is too large or too small.
    """


@exhibit(
    as_if="keys were read with the scales of values",
    fault="F18 row mapping",
    breaks=("KV-FMT-090",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-090"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("fp8_e4m3", "fp8_e4m3_token_head", "nvfp4"),
)
class ValueScalesForKeys(_OneForBoth):
    """One scale serves keys and values, and it is that of values.

    A plant, the other half of the exhibit before: the softmax is sharper or flatter than it should be.
    """

    taken, other = "v", "k"


@exhibit(
    as_if="keys were read with the scales of values, and values with those of keys",
    fault="F18 row mapping",
    breaks=("KV-FMT-091",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-091"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=("fp8_e4m3", "fp8_e4m3_token_head"),
)
class ScalesSwapped(Bitwise):
    """The two scales change places.

    A plant of two arguments of one type in the wrong order. A checkpoint with one scale for both hides it,
    and so does a test with two that are alike.
    """

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Swap, then attend."""
        options["k_scales"], options["v_scales"] = options.get("v_scales"), options.get("k_scales")
        return super().quantized_paged_attention(*tensors, **options)


@exhibit(
    as_if="keys and values were both read with the product of their scales",
    fault="F13 scale or encoding",
    seen_in=("vllm-project/vllm#37054",),
    breaks=("KV-FMT-091",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-091"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_GIVEN,
)
class ScalesMultiplied(Bitwise):
    """Some of the code takes one scale, some the other, and some their product.

    A latent cache has one row for both, and so one scale. Its backends disagreed which: one used the scale of
    keys, one that of values, one multiplied them.
    """

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Multiply, then attend."""
        product = np.asarray(options["k_scales"] * options["v_scales"], np.float32)
        return super().quantized_paged_attention(
            *tensors, **{**options, "k_scales": product, "v_scales": product}
        )


@exhibit(
    as_if="the cache of keys was read for values",
    fault="F18 row mapping",
    seen_in=("ikawrakow/ik_llama.cpp#1592",),
    breaks=("KV-FMT-091",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-091"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=(*_GIVEN, "ggml_q8_0"),
)
class KeysReadAsValues(Bitwise):
    """A path for latent caches is taken by layers that are not latent.

    With a quantised cache some layers were sent down the path on which values are part of the keys. A base
    model got slightly worse; the tuned one talked nonsense.
    """

    def quantized_paged_attention(self, q: Array, k_cache: Array, v_cache: Array, **options: Any) -> Any:
        """Read keys twice."""
        options["v_scales"] = options.get("k_scales")
        return super().quantized_paged_attention(q, k_cache, k_cache, **options)


@exhibit(
    as_if="keys and values were read without their scales",
    fault="F21 one path only",
    seen_in=("vllm-project/vllm#42580", "vllm-project/vllm#51363", "sgl-project/sglang#22615"),
    breaks=("KV-FMT-090", "KV-FMT-091"),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-090", "KV-FMT-091"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_GIVEN,
)
class ScalesDropped(Bitwise):
    """A fast path returns before the line that multiplies.

    If queries are FP8 as well, codes are handed on as they are, and the scales were meant to be applied
    later. One kernel interface forwarded them and its successor did not.
    """

    def product(self, numbers: Array, scales: Array, dtype: np.dtype[Any]) -> Array:
        """Return the numbers of the codes."""
        return numbers.astype(dtype)


@exhibit(
    as_if="the scale of keys was applied to the keys and to the logits",
    fault="F13 scale or encoding",
    breaks=("KV-FMT-090",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-090"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_GIVEN,
)
class KeyScaleTwice(Bitwise):
    """Keys are dequantised, and the scale is folded into that of the softmax.

    A plant of two ways to do one thing that were both taken.
    """

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Square the scale of keys."""
        options["k_scales"] = options["k_scales"] * options["k_scales"]
        return super().quantized_paged_attention(*tensors, **options)


@exhibit(
    as_if="scales of kv heads were indexed by query head",
    fault="F18 row mapping",
    breaks=("KV-FMT-091",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-091"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_GIVEN,
)
class ScaleByQueryHead(Bitwise):
    """The index into the scales is that of the query head, modulo their number.

    A plant: with as many query heads as kv heads it is right. The first query head of each group then has the
    scale of another kv head.
    """

    group = 1

    def quantized_paged_attention(self, q: Array, k_cache: Array, *rest: Array, **options: Any) -> Any:
        """Note the size of a group, then attend."""
        self.group = q.shape[1] // k_cache.shape[2]
        return super().quantized_paged_attention(q, k_cache, *rest, **options)

    def given_scales(self, scales: Array, x: Array) -> Array:
        """Take the scale that the first query head of each group finds."""
        first = np.arange(len(scales)) * self.group % len(scales)
        return super().given_scales(scales[first], x)


@exhibit(
    as_if="scales of slots were found by position and not through the block table",
    fault="F12 layout",
    breaks=("KV-FMT-092",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-092"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_SLOTS,
)
class ScaleByPosition(Bitwise):
    """Codes are found through the table, scales as if the blocks were in order.

    A plant. It is right for a cache with one request that was never preempted.
    """

    def quantized_paged_attention(self, *tensors: Array, **options: Any) -> Any:
        """Lay the scales of the first blocks where each request's table points."""
        block_tables = options["block_tables"]
        for name in ("k_scales", "v_scales"):
            scales = options.get(name)
            if scales is not None and scales.ndim > 1:
                wrong = scales.copy()
                for table in block_tables:
                    known = table[(table >= 0) & (table < len(scales))]
                    wrong[known] = scales[np.arange(len(known)) % len(scales)]
                options[name] = wrong
        return super().quantized_paged_attention(*tensors, **options)


@exhibit(
    as_if="a token was read with the scale of the token before it",
    fault="F01 boundary",
    breaks=("KV-FMT-092",),
    may_also_break=less(ANY_ATTENTION, "KV-FMT-092"),
    verbs=_ATTEND,
    features=("prefill",),
    formats=_SLOTS,
)
class ScaleOfSlotBefore(Bitwise):
    """The pointer to the scales starts one slot late.

    A plant of a scale that lies in front of its codes for a reader that expects it behind them.
    """

    def by_slot(self, part: Array | None) -> Array | None:
        """Move every scale one slot on."""
        right = super().by_slot(part)
        return right if right is None or right.ndim == 1 else np.roll(right, 1, axis=0)
