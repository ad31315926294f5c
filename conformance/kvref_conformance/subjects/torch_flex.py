"""PyTorch's flex_attention over its own PagedAttention helper: blocks in place, positions by inverse map.

The raw entry points are `torch.nn.attention.flex_attention.flex_attention`, run eagerly, and
`torch.nn.attention.experimental._paged_attention.PagedAttention`, whose `convert_logical_block_mask` and
`get_score_mod` carry a rule about logical positions over to physical ones. The adapter fills a helper's two
maps from the block table, moves the head axis, and states window, softcap and ALiBi as the `mask_mod` and
`score_mod` the entry point takes them as. One call a request; the whole pool of blocks is its key axis.

Choices: scores are masked, values are not, so NaN anywhere in the pool's values reaches the output.
Source: PyTorch 2.13, torch/_higher_order_ops/flex_attention.py (math_attention: logits in float32, softmax
normalised, then P in the input dtype).
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import Claims

try:
    import torch
    from torch.nn.attention import flex_attention as flex
    from torch.nn.attention.experimental._paged_attention import PagedAttention
except ImportError as error:
    raise ImportError("the subject torch_flex needs PyTorch: pip install 'kvref[torch]'") from error

#: Eager means eager: otherwise flex_attention compiles its wrapper anew for every shape.
flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True

QUERY_BLOCK = 128


class TorchFlex:
    """`paged_attention` by flex_attention with a converted block mask."""

    framework = "torch"
    claims = Claims(
        name="torch flex_attention + PagedAttention",
        version=str(torch.__version__),
        arithmetic=Arithmetic(normalized=True, merges=0, block=None),
        dtypes=("float32", "float16", "bfloat16"),
        head_dims=(64, 80, 96, 128, 192, 256),
        block_sizes=(1, 8, 16, 32, 64, 128, 256),
        features=("prefill", "lse", "non_causal", "window", "softcap", "alibi", "value_width"),
        choices={"dead-slots": "any_finite"},
    )

    def paged_attention(
        self,
        q: Any,
        k_cache: Any,
        v_cache: Any,
        *,
        block_tables: Any,
        seq_lens: Any,
        query_start_loc: Any,
        scale: float,
        causal: bool = True,
        window: int | None = None,
        softcap: float | None = None,
        alibi_slopes: Any = None,
        return_lse: bool = False,
    ) -> Any:
        """Attend to each request's blocks where they lie, one call a request."""
        num_blocks, block_size = k_cache.shape[:2]
        keys, values = (cache.flatten(0, 1).transpose(0, 1)[None] for cache in (k_cache, v_cache))
        outs, lses = [], []
        requests = zip(block_tables, seq_lens.tolist(), pairwise(query_start_loc.tolist()), strict=True)
        for table, n, (first, last) in requests:
            if first == last:
                continue  # nothing is asked for this request
            pages = _pages(table[: -(-n // block_size)].long(), num_blocks, block_size)
            length, offset = torch.tensor([n]), n - (last - first)
            logical = flex.create_block_mask(
                _mask_mod(offset, causal, window),
                1,
                None,
                last - first,
                max(n, 1),
                device="cpu",
                BLOCK_SIZE=(QUERY_BLOCK, block_size),
            )
            out, aux = flex.flex_attention(
                q[first:last].transpose(0, 1)[None],
                keys,
                values,
                score_mod=pages.get_score_mod(_score_mod(offset, softcap, alibi_slopes), length),
                block_mask=pages.convert_logical_block_mask(logical, kv_len=length),
                scale=scale,
                enable_gqa=True,
                return_aux=flex.AuxRequest(lse=return_lse),
            )
            outs.append(out[0].transpose(0, 1))
            lses.append(aux.lse[0].T if return_lse else None)
        return (torch.cat(outs), torch.cat(lses)) if return_lse else torch.cat(outs)


def _pages(blocks: Any, num_blocks: int, block_size: int) -> Any:
    """Return a helper of one request that holds these blocks, in this order."""
    pages = PagedAttention(num_blocks, block_size, 1, device="cpu")
    pages.page_table[0, : len(blocks)] = blocks
    pages.physical_to_logical[0, blocks] = torch.arange(len(blocks))
    pages.capacity[0] = len(blocks) * block_size
    return pages


def _mask_mod(offset: int, causal: bool, window: int | None) -> Callable[..., Any]:
    """Return the rule about logical positions; the first query stands at `offset`."""

    def allowed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        seen = kv_idx >= 0
        if causal:
            seen = seen & (kv_idx <= q_idx + offset)
        return seen if window is None else seen & (kv_idx > q_idx + offset - window)

    return allowed


def _score_mod(offset: int, softcap: float | None, alibi_slopes: Any) -> Callable[..., Any]:
    """Return what shapes a scaled logit: the cap, then the bias."""

    def shaped(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        if softcap is not None:
            score = softcap * torch.tanh(score / softcap)
        return score if alibi_slopes is None else score + alibi_slopes[h] * (kv_idx - q_idx - offset)

    return shaped
