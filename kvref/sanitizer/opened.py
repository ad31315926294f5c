"""The first line of a history: what fields of it mean together, and the most that they may ask for.

Realises: KV-BLOCK-042 history-wellformed.
For porters: what one field may hold is tested before; this is what its neighbours make of it.
Source: the chapter on memory, histories.
"""

from kvref.errors import HistoryError, shown
from kvref.memory.history import Event

#: The most groups, the most slots of a block, and the most tokens a step may be ahead.
_GROUPS, _SLOTS, _AHEAD = 64, 1 << 16, 1 << 16


def sizes(opened: Event) -> list[int]:
    """Return the block size of each group.

    Raises: HistoryError.
    """
    if ("block_size" in opened) == ("block_sizes" in opened):
        raise HistoryError("open has both or none of block_size and block_sizes, expected one of them")
    found: list[int] = opened.get("block_sizes", [opened.get("block_size")])
    if not found or len(found) > _GROUPS or max(found) > _SLOTS:
        raise HistoryError(
            f"open has block sizes {shown(found)}, expected 1 to {_GROUPS}, each at most {_SLOTS}"
        )
    return found


def windows(opened: Event, groups: int) -> list[int | None]:
    """Return the window of each group, None where a token attends to all.

    Raises: HistoryError.
    """
    found: list[int | None] = opened.get("windows", [None] * groups)
    if len(found) != groups:
        raise HistoryError(f"open.windows has {len(found)} items, expected {groups}, one a group")
    return found


def ahead(opened: Event) -> int:
    """Return how many tokens a step may compute before the history names them.

    Raises: HistoryError.
    """
    found: int = opened.get("ahead", 0)
    if found > _AHEAD:
        raise HistoryError(f"open.ahead = {found}, expected at most {_AHEAD}")
    return found
