"""What `kvref size` prints: groups of layers in lines, and models on a logarithmic scale."""

import math
from typing import Any

from kvref.cli.columns import aligned

#: Letters of the longest bar, and of a list of layers.
BAR, LISTED = 30, 20
#: What the columns of one model are called.
HEADS = ("keeps", "layers", "an entry", "a token", "in all", "decided by")
UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def amount(n: float) -> str:
    """Return a number of bytes in a unit in which it is short.

    >>> amount(864), amount(27648), amount(905969664), amount(10240)
    ('864 B', '27 KiB', '864 MiB', '10 KiB')
    """
    unit = 0
    while abs(n) >= 1024 and unit < len(UNITS) - 1:
        n, unit = n / 1024, unit + 1
    digits = 0 if n == int(n) else 1 if n >= 100 else 2
    return f"{n:.{digits}f} {UNITS[unit]}"


def counted(n: float) -> str:
    """Return a number with its thousands apart, a fraction with two digits."""
    return f"{n:,}" if n == int(n) else f"{n:,.2f}"


def spelled(data: dict[str, Any]) -> list[str]:
    """Return the lines of one model."""
    longest = f", at most {counted(data['max_context'])} tokens" if data["max_context"] else ""
    lines = [
        f"{data['model']}: {data['num_layers']} layers{longest}; "
        f"{counted(data['context'])} tokens in {data['format']}" + _of_ranks(data),
        "",
        *_table(data),
        "",
        *_sum_lines(data),
    ]
    return lines + [f"note: {warning}" for warning in data["warnings"]]


def spelled_comparison(data: dict[str, Any]) -> list[str]:
    """Return a line for each model: a bar is as long as the logarithm of its bytes."""
    rows = data["models"]
    lines = [
        f"one request of {counted(data['context'])} tokens in {data['format']}, states included; "
        "bars on a scale of logarithms",
        "",
    ]
    cells = [["", "a token", "states", "in all", ""]]
    if rows:
        low = math.floor(math.log2(max(rows[-1]["bytes"], 1))) - 1
        high = math.log2(max(rows[0]["bytes"], 2))
        for row in rows:
            share = (math.log2(max(row["bytes"], 1)) - low) / (high - low)
            beyond = " *" if row["beyond_context"] else ""
            state = amount(row["state_bytes"]) if row["state_bytes"] else ""
            bar = "█" * max(1, round(BAR * share)) + beyond
            rate = counted(row["bytes_per_token"])
            cells.append([row["model"], rate, state, amount(row["bytes"]), bar])
    lines += aligned(cells, "<>>><")
    if rows:
        ratio = rows[0]["bytes"] / max(rows[-1]["bytes"], 1)
        lines += ["", f"the largest takes {ratio:.4g} times the smallest"]
    if any(row["beyond_context"] for row in rows):
        lines.append("* more tokens than the model's config names")
    if data["left_out"]:
        first, more = data["left_out"][0], len(data["left_out"]) - 1
        others = f" and {more} more" if more else ""
        lines.append(f"left out, as {data['format']} does not hold their entries: {first}{others}")
    return lines


def layers_spelled(layers: list[int]) -> str:
    """Return a list of layers: how many, and which, runs joined.

    >>> layers_spelled([0, 1, 2, 4, 5, 6, 8]), layers_spelled([3])
    ('7: 0-2, 4-6, 8', '1: 3')
    """
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    text = ", ".join(words)
    if len(text) > LISTED:
        text = f"{words[0]}, {words[1]}, …, {words[-1]}"
    return f"{len(layers)}: {text}"


def _table(data: dict[str, Any]) -> list[str]:
    """A line for each group of layers and of states; those that draft are below, in the same columns."""
    own = [*map(_group_cells, data["groups"]), *map(_state_cells, data["states"])]
    lines = aligned([HEADS, *own, *map(_group_cells, data["drafts"])], "<<>>><")
    if data["drafts"]:
        said = "layers that draft, counted below:" if data["drafts_counted"] else "layers that draft, apart:"
        lines.insert(1 + len(own), said)
    return lines


def _group_cells(row: dict[str, Any]) -> list[str]:
    entry = f"{row['elements']} el"
    if row["tokens_per_entry"] > 1:
        entry += f" / {row['tokens_per_entry']}"
    kind = row["kind"] if row["window"] is None else f"{row['kind']} {row['window']}"
    rate = counted(row["bytes_per_token"]) if row["window"] is None else ""
    return _cells(kind, row, entry, rate, row["bytes"])


def _state_cells(row: dict[str, Any]) -> list[str]:
    shape = "x".join(map(str, row["recurrent"])) or "-"
    return _cells(f"state {row['family']}", row, shape, "", row["recurrent_bytes"] + row["conv_bytes"])


def _cells(kind: str, row: dict[str, Any], entry: str, rate: str, taken: float) -> list[str]:
    return [kind, layers_spelled(row["layers"]), entry, rate, amount(taken), row["decided_by"]]


def _sum_lines(data: dict[str, Any]) -> list[str]:
    lines = [
        f"{counted(data['bytes_per_token'])} bytes a token, {amount(data['growing_bytes'])} at this context"
    ]
    if data["window_bytes"]:
        lines.append(f"{amount(data['window_bytes'])} in windows, which do not grow past them")
    if data["state_bytes"]:
        lines.append(
            f"{amount(data['state_bytes'])} in states: {amount(data['recurrent_bytes'])} recurrent, "
            f"{amount(data['conv_bytes'])} convolution; as large is a snapshot"
        )
    if data["snapshot_in_tokens"] is not None:
        lines.append(f"a snapshot takes the bytes of {data['snapshot_in_tokens']:,.1f} tokens")
    if data["hybrid_block_size"] is not None:
        block = data["hybrid_block_size"]
        lines.append(
            f"an engine with one block for all layers takes blocks of {counted(block['block_size'])} tokens, "
            f"a multiple of {block['multiple']}"
        )
    lines.append(f"{amount(data['bytes'])} in all ({counted(data['bytes'])} bytes)")
    if data["allocator"] is not None:
        lines.append(_allocator_line(data["allocator"]))
    if data["ranks_of_a_request"] > 1:
        ratio = data["bytes_of_all_ranks"] / max(data["bytes_of_model"], 1)
        lines.append(
            f"the {data['ranks_of_a_request']} ranks that keep it: {amount(data['bytes_of_all_ranks'])}, "
            f"{ratio:.4g} times what the model keeps"
        )
    return lines


def _of_ranks(data: dict[str, Any]) -> str:
    """Which rank it is: of how many, in how many groups, and of which stage."""
    said = f", one of {data['tensor_parallel']} ranks" if data["tensor_parallel"] > 1 else ""
    if data["dp_attention"] > 1:
        said += f" in {data['dp_attention']} groups with requests of their own"
    if data["pipeline"] is not None:
        own, stages = data["pipeline"]["stage"], data["pipeline"]["stages"]
        first, count = stages[own]["first_layer"], stages[own]["num_layers"]
        said += f", stage {own} of {len(stages)}: layers {first} to {first + count - 1}"
    return said


def _allocator_line(taken: dict[str, Any]) -> str:
    """What a manager of equal blocks takes, and what of it running states take."""
    tables = sum(table["num_groups"] for table in taken["tables"])
    states = f", {amount(taken['state_bytes'])} of it for running states" if taken["state_bytes"] else ""
    return (
        f"a manager of equal blocks takes {amount(taken['bytes'])}{states}: {tables} "
        f"table{'s' if tables > 1 else ''}, blocks of {amount(taken['block_bytes'])}"
    )
