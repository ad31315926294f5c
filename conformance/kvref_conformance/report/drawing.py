"""The block table of a failing input as inline SVG: which slots were read, and which should have been."""

from collections.abc import Iterator
from html import escape

from kvref_conformance.report.model import Picture

CELL = 15
GAP = 3
LEFT = 150
TOP = 22
#: A block longer than this wraps, so the picture stays on the page.
MAX_COLUMNS = 32

#: Class of a slot -> what the legend says.
LEGEND = {
    "hit": "read, as it should be",
    "missed": "not read, though it should be",
    "stray": "read, though it should not be",
    "live": "of this request, outside the attended set",
    "other": "of another request",
    "dead": "dead: holds poison",
}


def draw(picture: Picture) -> str:
    """Return a picture as one `<svg>` element, readable without colour: strays and misses carry a mark."""
    columns = min(picture.block_size, MAX_COLUMNS)
    rows = list(_rows(picture, columns))
    width = LEFT + columns * (CELL + GAP) + 20
    height = TOP + len(rows) * (CELL + GAP) + 10
    title = f"slots read by token {picture.token}, head {picture.head}, of request {picture.request}"
    parts = [
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">',
        f'<text class="t" x="0" y="12">{escape(title)}</text>',
    ]
    for at, (label, first, count) in enumerate(rows):
        y = TOP + at * (CELL + GAP)
        parts.append(f'<text class="l" x="0" y="{y + 12}">{escape(label)}</text>')
        for column in range(count):
            parts.append(_slot(picture, first + column, LEFT + column * (CELL + GAP), y))
    parts.append("</svg>")
    return "\n".join(parts)


def classify(picture: Picture, slot: int) -> str:
    """Return the class of a slot: a key of `LEGEND`."""
    should, read = slot in picture.should, slot in picture.read
    if picture.read and should != read:
        return "missed" if should else "stray"
    if should:
        return "hit"
    if not picture.owners:
        return "live"
    block, offset = divmod(slot, picture.block_size)
    holders = [request for at, request, _, tokens in picture.owners if at == block and offset < tokens]
    if picture.request in holders:
        return "live"
    return "other" if holders else "dead"


def _rows(picture: Picture, columns: int) -> Iterator[tuple[str, int, int]]:
    """Yield (label, first slot, slots) of every row: the request's own blocks first, in table order."""
    own = sorted((entry, block) for block, request, entry, _ in picture.owners if request == picture.request)
    order = [block for _, block in own]
    labels = {block: f"block {block} (entry {entry})" for entry, block in own}
    for block, request, *_ in picture.owners:
        labels.setdefault(block, f"block {block} (request {request})")
    rest = [block for block in range(picture.num_blocks) if block not in order]
    for block in [*order, *rest]:
        start = block * picture.block_size
        for offset in range(0, picture.block_size, columns):
            label = labels.get(block, f"block {block}" if picture.owners else f"rows {start} …")
            yield (label if offset == 0 else ""), start + offset, min(columns, picture.block_size - offset)


def _slot(picture: Picture, slot: int, x: int, y: int) -> str:
    kind = classify(picture, slot)
    mark = {"stray": "×", "missed": "○"}.get(kind, "")
    tip = f"slot {slot} (block {slot // picture.block_size}, {slot % picture.block_size}): {LEGEND[kind]}"
    box = f'<rect class="{kind}" x="{x}" y="{y}" width="{CELL}" height="{CELL}"/>'
    sign = f'<text class="m" x="{x + CELL / 2}" y="{y + 12}">{mark}</text>' if mark else ""
    return f"<g><title>{escape(tip)}</title>{box}{sign}</g>"
