"""What each full block of a request holds, as bytes that are equal when contents are.

A block holds its tokens, 8 bytes each, and behind them the rows of the spans that lie in it. All blocks of a
tree have one size, so tokens and rows cannot be confused. What comes before a block is not part of it: a tree
compares that on the way to it.

Realises: KV-PREFIX-010 media-apart, KV-PREFIX-011 media-offset-apart, KV-PREFIX-012 embeddings-apart.
For porters: write a request's tokens once and slice; a content is compared and hashed, never read.
Source: the definition; SGLang puts values derived from an image in the place of its tokens to the same end.
"""

from collections.abc import Sequence

from kvref.arrays import check_count
from kvref.memory.keys import TOKEN, check_spans, written_tokens
from kvref.memory.namespace import COMMON, Namespace, check_namespace, rows_between, written_rows
from kvref.memory.radix_node import Content


def block_contents(tokens: Sequence[int], block_size: int, namespace: Namespace = COMMON) -> list[Content]:
    """Return one content a full block.

    Raises: ArgumentError if a token is no integer from 0 to 2^64 − 1, or a span ends behind the tokens.
    """
    size = check_count("block_size", block_size)
    raw = written_tokens(tokens)
    check_spans(check_namespace(namespace), len(raw) // TOKEN)
    return sliced(raw, size, namespace, 0)


def sliced(raw: bytes, block_size: int, namespace: Namespace, first: int) -> list[Content]:
    """Return the contents of the full blocks of written tokens, the first of which begin block `first`."""
    step = block_size * TOKEN
    blocks = [raw[at : at + step] for at in range(0, len(raw) - step + 1, step)]
    if not namespace.spans:
        return blocks
    starts = range(first * block_size, (first + len(blocks)) * block_size, block_size)
    rows = [written_rows(rows_between(namespace, start, start + block_size)) for start in starts]
    return [block + held for block, held in zip(blocks, rows, strict=True)]
