"""What a subject may offer: the verbs, their arguments, and one call of one verb.

A subject is any object (or program) with some of these methods. Presence of a method is a claim; `Claims`
says how far it reaches. An optional argument is passed only when a case needs it, and a case needs it only
where its feature is claimed, so a subject's signature holds just what it supports.

Realises: KV-CONF-001 presence-is-claim, KV-CONF-002 optional-arguments.
For porters: implement one verb; the others are reported as not claimed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kvref.arrays import Array
from kvref_conformance.foreign_text import printable
from kvref_conformance.verb import Argument, Verb, tensors
from kvref_conformance.verbs_of_scans import OF_SCANS, RECURRENT

__all__ = ["RECURRENT", "VERBS", "Argument", "Verb"]

Scalar = str | int | float | bool
FailureKind = Literal["error", "refused", "unsupported", "crash", "timeout", "protocol", "shape", "dtype"]


_QUERY = tensors("q[num_tokens num_q_heads head_dim]", positional=True)
_PACKED = tensors("k[kv_tokens num_kv_heads head_dim]; v[kv_tokens num_kv_heads v_head_dim]", positional=True)
_NEW = tensors("k[num_tokens num_kv_heads head_dim]; v[num_tokens num_kv_heads v_head_dim]", positional=True)
_CACHE = "num_blocks block_size num_kv_heads"
_CACHE_SHAPES = f"k_cache[{_CACHE} head_dim]; v_cache[{_CACHE} v_head_dim]"
_READ_CACHE = tensors(_CACHE_SHAPES, positional=True)
_WRITE_CACHE = tensors(_CACHE_SHAPES, positional=True, in_place=True)
_SLOTS = tensors("slot_mapping[num_tokens]")
_TABLES = tensors("block_tables[num_requests max_blocks]")
_LENGTHS = tensors("query_start_loc[num_requests+1]; seq_lens[num_requests]")
_VARIANT = (
    Argument("scale"),
    Argument("causal", feature="non_causal"),
    Argument("window", feature="window"),
    Argument("chunk_size", feature="chunk_size"),
    Argument("softcap", feature="softcap"),
    Argument("sinks", ("num_q_heads",), feature="sinks"),
    Argument("alibi_slopes", ("num_q_heads",), feature="alibi"),
    Argument("span_ids", ("kv_tokens",), feature="spans"),
    Argument("mask", ("mask_size",), feature="mask"),
)
_RETURN_LSE = (Argument("return_lse", feature="lse"),)
_FORMAT = (Argument("format"),)
_CODES = "num_tokens num_kv_heads code_bytes"
_CODE_CACHE = tensors(f"k_cache[{_CACHE} code_bytes]; v_cache[{_CACHE} code_bytes]", positional=True)

VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "attention",
            (*_QUERY, *_PACKED, *_LENGTHS, *_VARIANT, *_RETURN_LSE),
            ("out", "lse"),
            "attend over keys and values packed request after request",
        ),
        Verb(
            "paged_attention",
            (*_QUERY, *_READ_CACHE, *_TABLES, *_LENGTHS, *_VARIANT, *_RETURN_LSE),
            ("out", "lse"),
            "attend over a cache of blocks, found through block tables",
        ),
        Verb(
            "append_and_attend",
            (*_QUERY, *_NEW, *_WRITE_CACHE, *_SLOTS, *_TABLES, *_LENGTHS, *_VARIANT, *_RETURN_LSE),
            ("out", "lse"),
            "write this step's keys and values into the cache, then attend",
        ),
        Verb(
            "replay",
            (
                *tensors("q[num_runs num_tokens num_q_heads head_dim]", positional=True),
                *_READ_CACHE,
                *tensors(
                    "block_tables[num_runs num_requests max_blocks]; "
                    "query_start_loc[num_runs num_requests+1]; seq_lens[num_runs num_requests]"
                ),
                Argument("scale"),
            ),
            ("out",),
            "prepare paged attention once, for run 0; then do every run by changing the values it reads",
        ),
        Verb("write_kv", (*_NEW, *_WRITE_CACHE, *_SLOTS), (), "write keys and values into their slots"),
        Verb(
            "merge_attention_states",
            tensors(
                "out_a[num_tokens num_q_heads head_dim]; lse_a[num_tokens num_q_heads]; "
                "out_b[num_tokens num_q_heads head_dim]; lse_b[num_tokens num_q_heads]",
                positional=True,
            ),
            ("out", "lse"),
            "combine attention over two disjoint sets of slots",
        ),
        Verb(
            "mla_attention",
            (
                *_QUERY,
                *tensors("kv_cache[num_blocks block_size head_dim]", positional=True),
                *_TABLES,
                *_LENGTHS,
                Argument("latent_dim"),
                Argument("scale"),
                *_RETURN_LSE,
            ),
            ("out", "lse"),
            "attend with absorbed queries over latent | rope records",
        ),
        Verb(
            "sparse_attention",
            (*_QUERY, *_READ_CACHE, *tensors("slots[num_tokens top_k]"), Argument("scale"), *_RETURN_LSE),
            ("out", "lse"),
            "attend over a chosen set of slots for each query token",
        ),
        Verb(
            "select_topk",
            (
                *_QUERY,
                *tensors("k[kv_tokens head_dim]; weights[num_tokens num_q_heads]", positional=True),
                *_LENGTHS,
                Argument("top_k"),
            ),
            ("positions",),
            "choose the positions with the largest indexer scores",
        ),
        Verb(
            "apply_rope",
            (
                *tensors("x[num_tokens num_heads head_dim]", positional=True),
                *tensors("positions[num_tokens]"),
                Argument("base"),
                Argument("rotary_dim"),
                Argument("style"),
                *(
                    Argument(name, feature="yarn")
                    for name in ("factor", "original_context", "beta_fast", "beta_slow", "magnitude")
                ),
            ),
            ("out",),
            "rotate each token's vectors by its position",
        ),
        Verb(
            "convert_layout",
            (
                *tensors("cache[...]", positional=True),
                Argument("source"),
                Argument("target"),
                Argument("x", feature="x_split"),
            ),
            ("out",),
            "rearrange a cache from one named layout to another, bit for bit",
        ),
        Verb(
            "quantize_kv",
            (
                *tensors("x[num_tokens num_kv_heads head_dim]", positional=True),
                *_FORMAT,
                *tensors("scales[...]; global_scale[...]", some_formats=True),
            ),
            ("codes", "scales", "zeros", "global_scale"),
            "turn keys or values into the codes of a format, and the scales it computes itself",
            some_formats=("scales", "zeros", "global_scale"),
        ),
        Verb(
            "dequantize_kv",
            (
                *tensors(f"codes[{_CODES}]", positional=True),
                *_FORMAT,
                Argument("dtype"),
                *tensors("scales[...]; zeros[...]; global_scale[...]", some_formats=True),
            ),
            ("out",),
            "turn codes back into numbers of a dtype",
        ),
        Verb(
            "quantized_paged_attention",
            (
                *_QUERY,
                *_CODE_CACHE,
                *_FORMAT,
                *_TABLES,
                *_LENGTHS,
                *tensors(
                    "k_scales[...]; v_scales[...]; k_global_scale[...]; v_global_scale[...]",
                    some_formats=True,
                ),
                *_VARIANT,
                *_RETURN_LSE,
            ),
            ("out", "lse"),
            "attend over a cache of codes, found through block tables",
        ),
        *OF_SCANS,
    )
}

#: Verbs that attend over one context per request, and so share every requirement about the attended set.
ATTENDING = ("attention", "paged_attention", "append_and_attend")
#: Verbs whose calls name a format.
FORMATTED = ("quantize_kv", "dequantize_kv", "quantized_paged_attention")


@dataclass(frozen=True)
class OutputSpec:
    """The dtype and shape in which an output must come back."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One call of a verb: everything a subject is given, and what must come back."""

    verb: str
    tensors: Mapping[str, Array]
    """Inputs by argument name, in-place tensors included."""
    params: Mapping[str, Scalar] = field(default_factory=dict)
    outputs: Mapping[str, OutputSpec] = field(default_factory=dict)
    in_place: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What came back from one call."""

    outputs: Mapping[str, Array]
    """Returned tensors by name, and the in-place tensors as they are after the call."""
    mutated: tuple[str, ...] = ()
    """Inputs that were changed without leave."""
    overrun: tuple[str, ...] = ()
    """Outputs whose guard bytes were written."""
    unwritten: Mapping[str, int] = field(default_factory=dict)
    """Output elements that still hold the poison they were filled with."""


class Failed(Exception):
    """A call that gave no answer: the subject raised, refused, crashed, hung or broke the protocol."""

    def __init__(self, kind: FailureKind, detail: str) -> None:
        self.kind = kind
        self.detail = printable(detail)
        super().__init__(f"{kind}: {self.detail}")


def positional_arguments(verb: str) -> list[str]:
    """Return the names of a verb's positional arguments, in order."""
    return [argument.name for argument in VERBS[verb].arguments if argument.positional]
