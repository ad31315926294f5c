"""A word that was meant: what a message says beside a name that is unknown."""

import re
from collections.abc import Iterable
from difflib import get_close_matches


def meant(found: object, known: Iterable[str]) -> str:
    """Return `, did you mean NAME?` if one of the known names is near the one found, else nothing.

    A name with another number in it is another name, however near.
    """
    if not isinstance(found, str):
        return ""
    by_lower = {name.lower(): name for name in known if _numbers(name) == _numbers(found) and name != found}
    near = get_close_matches(found.lower(), by_lower, 1, 0.7)
    return f", did you mean {by_lower[near[0]]}?" if near else ""


def _numbers(name: str) -> list[int]:
    return [int(number) for number in re.findall("[0-9]{1,9}", name)]
