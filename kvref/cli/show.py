"""`kvref show`: figures of the KV cache, computed when asked from the reference's own parts."""

import json
from typing import Any

import click
import numpy as np

from kvref.cli.columns import aligned
from kvref.cli.errors import friendly
from kvref.cli.figure import Figure
from kvref.cli.show_hybrid import INTERVAL, hybrid, spelled_hybrid
from kvref.cli.show_memory import MEMORY_FIGURES
from kvref.cli.show_radix import RADIX_FIGURES

#: The three scores of the toy example: one query against the keys of three earlier tokens.
TOY_SCORES = (0.8, -0.41, 0.55)
#: The values of the three tokens, two channels each.
TOY_VALUES = ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5))
TOY_TOKENS = 1000

#: What the footprints are of: one layer, its heads, a request's context, and a block of a paged cache.
FOOTPRINT_HEADS, FOOTPRINT_HEAD_DIM, FOOTPRINT_CONTEXT, FOOTPRINT_BLOCK = 8, 128, 32768, 64


@click.command()
@click.argument(
    "figure", type=click.Choice(["toy-attention", "footprint", *MEMORY_FIGURES, *RADIX_FIGURES, "hybrid"])
)
@click.option(
    "--interval", type=click.IntRange(1), help=f"hybrid: tokens between snapshots; {INTERVAL} if left out."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def show(figure: str, interval: int | None, as_json: bool) -> None:
    """Show a figure.

    toy-attention: score, softmax, blend; and what a decoder without a cache computes. footprint: the bytes of
    every format of the cache, and of every record of latent attention. work-triangle: what each step computes
    without a cache and with one. paging: one reserved piece a request against blocks as they are needed.
    radix: four prompts that share a system prompt and documents, in a tree. hybrid: two prompts that part,
    and what blocks alone and blocks with snapshots of states reuse.
    """
    if interval is not None and figure != "hybrid":
        raise click.UsageError(f"--interval {interval} says nothing of {figure}; it goes with hybrid")
    compute, spell = FIGURES[figure]
    data = compute() if interval is None else hybrid(interval)
    click.echo(json.dumps(data, indent=1) if as_json else spell(data))


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


def footprint() -> dict[str, Any]:
    """Compute what every format and record takes, with the reference: per value, per token, per step."""
    from kvref.formats.footprints import bits_per_value, bytes_per_token, bytes_read_per_decode_step
    from kvref.formats.footprints import footprint as ratio
    from kvref.formats.format import FORMATS
    from kvref.formats.records import NUMBERS, PADS, RECORDS, block_bytes

    heads = {"num_kv_heads": FOOTPRINT_HEADS, "head_dim": FOOTPRINT_HEAD_DIM}
    formats = [
        {
            "name": name,
            "bits_per_value": float(bits_per_value(name, FOOTPRINT_HEAD_DIM)),
            "over_bf16": float(ratio(name, head_dim=FOOTPRINT_HEAD_DIM)),
            "over_fp8": float(ratio(name, over="fp8_e4m3", head_dim=FOOTPRINT_HEAD_DIM)),
            "bytes_per_token": bytes_per_token(name, **heads),
            "bytes_read_per_step": bytes_read_per_decode_step(name, [FOOTPRINT_CONTEXT], **heads),
        }
        for name in (*NUMBERS, *FORMATS)
    ]
    records = [
        {
            "name": record.name,
            "fields": [f"{f.count} {'pad' if f.element in PADS else f.element}" for f in record.fields],
            "bytes_per_token": record.bytes,
            "bytes_per_block": block_bytes(record, FOOTPRINT_BLOCK),
            "proposed": record.proposed,
        }
        for record in RECORDS.values()
    ]
    return {
        **heads,
        "context": FOOTPRINT_CONTEXT,
        "block_size": FOOTPRINT_BLOCK,
        "formats": formats,
        "records": records,
    }


def _spelled_footprint(data: dict[str, Any]) -> str:
    lines = [
        f"one layer, {data['num_kv_heads']} kv heads of {data['head_dim']}, keys and values; "
        f"one step decodes one token over {data['context']} tokens",
        "",
    ]
    cells = [["format", "bits a value", "of bf16", "of fp8", "bytes a token", "MiB read a step"]]
    for row in data["formats"]:
        shares = (row["bits_per_value"], row["over_bf16"], row["over_fp8"])
        read = row["bytes_read_per_step"] / 2**20
        cells.append([row["name"], *(f"{x:g}" for x in shares), f"{row['bytes_per_token']}", f"{read:g}"])
    lines += [*aligned(cells, "<><<>>"), ""]
    cells = [["record of one token", "bytes", f"a block of {data['block_size']}", "fields"]]
    for row in data["records"]:
        fields = " · ".join(row["fields"]) + ("  (proposed)" if row["proposed"] else "")
        cells.append([row["name"], f"{row['bytes_per_token']}", f"{row['bytes_per_block']}", fields])
    return "\n".join([*lines, *aligned(cells, "<>><")])


def _spelled_toy(data: dict[str, Any]) -> str:
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


#: Figure -> what computes it, and what spells it out.
FIGURES: dict[str, Figure] = {
    "toy-attention": Figure(toy_attention, _spelled_toy),
    "footprint": Figure(footprint, _spelled_footprint),
    **MEMORY_FIGURES,
    **RADIX_FIGURES,
    "hybrid": Figure(hybrid, spelled_hybrid),
}
