"""Figures of who owns which slot: pieces against blocks, and what a cache spares."""

from typing import Any

from kvref.cli.figure import Figure
from kvref.errors import OutOfBlocksError

#: The figure of paging: a memory, what each request reserves, what three of four requests store.
PAGING_SLOTS, PAGING_RESERVED, PAGING_BLOCK = 48, 16, 4
PAGING_TOKENS = (3, 2, 4)
PAGING_FOURTH = 4

#: The work triangle: how many tokens are decoded, in blocks of how many, and how many rows are drawn.
TRIANGLE_TOKENS, TRIANGLE_BLOCK, TRIANGLE_DRAWN = 1000, 16, 8


def paging() -> dict[str, Any]:
    """Put the same requests into one memory both ways: a reserved piece each, and blocks as needed."""
    from kvref.memory.blocks import BlockPool
    from kvref.memory.contiguous import ContiguousPool
    from kvref.memory.tables import BlockTables

    pieces = ContiguousPool(PAGING_SLOTS)
    pool = BlockPool(PAGING_SLOTS // PAGING_BLOCK)
    tables = BlockTables(pool, [PAGING_BLOCK])
    requests = []
    for request, tokens in enumerate(PAGING_TOKENS, start=1):
        pieces.add(request, PAGING_RESERVED)
        tables.add(request)
        slots = {"piece": pieces.append(request, tokens), "table": tables.append(request, tokens).slots[0]}
        requests.append({"request": request, "tokens": tokens, **slots})
    data = {
        "slots": PAGING_SLOTS,
        "reserved_per_request": PAGING_RESERVED,
        "block_size": PAGING_BLOCK,
        "requests": len(requests) + 1,
        "requests_fit": len(requests),
        "tokens_stored": pieces.num_stored,
        "contiguous_reserved_but_empty": pieces.num_reserved - pieces.num_stored,
        "paged_allocated_but_empty": pool.num_held * PAGING_BLOCK - sum(PAGING_TOKENS),
        "paged_free_slots": pool.num_free * PAGING_BLOCK,
        "stored": requests,
    }
    fourth = len(requests) + 1
    try:
        pieces.add(fourth, PAGING_RESERVED)
    except OutOfBlocksError as error:
        data["contiguous_refuses_the_next"] = str(error)
    tables.add(fourth)
    data["paged_gives_the_next"] = tables.append(fourth, PAGING_FOURTH).slots[0]
    return data


def _spelled_paging(data: dict[str, Any]) -> str:
    tokens = ", ".join(str(row["tokens"]) for row in data["stored"])
    next_slots = data["paged_gives_the_next"]
    return "\n".join(
        [
            f"{data['slots']} slots; {data['requests_fit']} requests with {tokens} tokens; each may grow to "
            f"{data['reserved_per_request']}",
            "",
            "one piece a request      " + _drawn(data, "piece", data["reserved_per_request"], "·"),
            f"    {data['contiguous_reserved_but_empty']} slots reserved and empty",
            f"    request {data['requests']} is refused: {data['contiguous_refuses_the_next']}",
            "",
            f"blocks of {data['block_size']:<15}" + _drawn(data, "table", data["block_size"], "·"),
            f"    {data['paged_allocated_but_empty']} slots allocated and empty, "
            f"{data['paged_free_slots']} free",
            f"    request {data['requests']} gets slots {next_slots[0]} to {next_slots[-1]}",
        ]
    )


def _drawn(data: dict[str, Any], kind: str, unit: int, empty: str) -> str:
    """Draw every slot: its request's number, `empty` in a unit that some request has, `_` where free."""
    owner = {slot: str(row["request"]) for row in data["stored"] for slot in row[kind]}
    units = {slot // unit for slot in owner}
    cells = [owner.get(at, empty if at // unit in units else "_") for at in range(data["slots"])]
    return " ".join("".join(cells[at : at + unit]) for at in range(0, len(cells), unit))


def work_triangle() -> dict[str, Any]:
    """Decode the same tokens without a cache and with one, and count what each step computes."""
    without, cached = _computed(TRIANGLE_TOKENS, keeps=False), _computed(TRIANGLE_TOKENS, keeps=True)
    totals = [sum(stop - start for start, stop in spans) for spans in (without, cached)]
    return {
        "tokens": TRIANGLE_TOKENS,
        "no_cache_tokens_computed": totals[0],
        "cached_tokens_computed": totals[1],
        "ratio": totals[0] / totals[1],
        "steps": [
            {"step": step, "no_cache": list(a), "cached": list(b)}
            for step, (a, b) in enumerate(zip(without, cached, strict=True), start=1)
        ],
    }


def _computed(num_tokens: int, *, keeps: bool) -> list[tuple[int, int]]:
    """List, for each step, the tokens that get a slot to be computed into, from first to below stop."""
    from kvref.memory.blocks import BlockPool
    from kvref.memory.tables import BlockTables

    tables = BlockTables(BlockPool(-(-num_tokens // TRIANGLE_BLOCK)), [TRIANGLE_BLOCK])
    tables.add(0)
    spans = []
    for length in range(1, num_tokens + 1):
        if not keeps:
            tables.truncate(0, 0)
        start = tables.num_tokens(0)
        slots = tables.append(0, length - start).slots[0]
        spans.append((start, start + len(slots)))
    return spans


def _spelled_triangle(data: dict[str, Any]) -> str:
    width = TRIANGLE_DRAWN
    lines = [f"step   {'no cache':<{width}}   cached   (a square is a token computed, a dot one kept)"]
    for row in data["steps"][:width]:
        a, b = row["no_cache"], row["cached"]
        lines.append(f"{row['step']:>4}   {_squares(*a):<{width}}   {_squares(*b)}")
    lines += [
        "",
        f"{data['tokens']} tokens: {data['no_cache_tokens_computed']} computed without a cache, "
        f"{data['cached_tokens_computed']} with one: {data['ratio']} times as many",
    ]
    return "\n".join(lines)


def _squares(start: int, stop: int) -> str:
    return "·" * start + "■" * (stop - start)


#: Figure -> what computes it, and what spells it out.
MEMORY_FIGURES = {
    "work-triangle": Figure(work_triangle, _spelled_triangle),
    "paging": Figure(paging, _spelled_paging),
}
