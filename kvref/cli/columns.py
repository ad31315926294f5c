"""Tables in lines: each column is as wide as its widest cell."""

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Return a line for each row of cells; `sides` has `<` or `>` for each column, left or right.

    >>> aligned([["a", "bytes"], ["state", "12"]], "<>")
    ['a      bytes', 'state     12']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(_padded, row, sides, widths)).rstrip() for row in rows]


def _padded(cell: str, side: str, width: int) -> str:
    return f"{cell:{side}{width}}"
