"""`kvref show`: figures of the KV cache, computed when asked from the reference's own parts."""

import json
from typing import Any

import click
import numpy as np

from kvref.cli.errors import friendly

#: The three scores of the toy example: one query against the keys of three earlier tokens.
TOY_SCORES = (0.8, -0.41, 0.55)
#: The values of the three tokens, two channels each.
TOY_VALUES = ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5))
TOY_TOKENS = 1000


@click.command()
@click.argument("figure", type=click.Choice(["toy-attention"]))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def show(figure: str, as_json: bool) -> None:
    """Show a figure: toy-attention (score, softmax, blend; and what a decoder without a cache computes)."""
    data = toy_attention()
    click.echo(json.dumps(data, indent=1) if as_json else _spelled(data))


def toy_attention() -> dict[str, Any]:
    """Compute the toy example with the reference: three scores, their weights, and the blended value.

    A query with one channel scores exactly its keys, so the keys are the scores.
    """
    from kvref.attention.dense import attention, blend, no_cache_tokens_computed, score, softmax

    q = np.ones((1, 1, 1))
    k = np.array(TOY_SCORES)[:, None, None]  # [3, 1, 1]
    v = np.array(TOY_VALUES)[:, None, :]  # [3, 1, 2]
    logits = score(q, k, 1.0)
    weights, lse = softmax(logits)
    blended = blend(weights, v)[0, 0]
    whole = attention(q, k, v, query_start_loc=[0, 1], seq_lens=[3], scale=1.0)
    assert np.array_equal(whole.out[0, 0], blended)  # the steps are the function
    without = no_cache_tokens_computed(TOY_TOKENS)
    return {
        "scores": logits[0, 0].tolist(),
        "weights": weights[0, 0].tolist(),
        "lse": float(lse[0, 0]),
        "values": [list(row) for row in TOY_VALUES],
        "blend": blended.tolist(),
        "tokens": TOY_TOKENS,
        "computed_without_cache": without,
        "computed_with_cache": TOY_TOKENS,
        "ratio": without / TOY_TOKENS,
    }


def _spelled(data: dict[str, Any]) -> str:
    lines = ["token    score   weight   value"]
    for at, (s, w, v) in enumerate(zip(data["scores"], data["weights"], data["values"], strict=True)):
        bar = "█" * round(40 * w)
        lines.append(f"{at:>5}  {s:>7.2f}  {w:>7.4f}   {v[0]:.1f} {v[1]:.1f}   {bar}")
    lines.append(f"blend   {data['blend'][0]:.4f} {data['blend'][1]:.4f}    lse {data['lse']:.4f} nats")
    lines.append("")
    lines.append(
        f"{data['tokens']} tokens without a cache: {data['computed_without_cache']} tokens computed, "
        f"{data['ratio']} times the {data['computed_with_cache']} of a decoder that keeps one"
    )
    return "\n".join(lines)
