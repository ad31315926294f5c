"""How the spec writes a list of entries, read without Sphinx, so that tests read it too.

An entry begins at the left margin. What follows it is indented: `# what it says`, then `= what it does`.
"""

from collections.abc import Iterable


def entries(lines: Iterable[str]) -> list[tuple[str, str, str]]:
    """Split a body into entries: head, summary, effect; the effect is empty where there is none."""
    joined: list[str] = []
    for line in lines:
        if line.startswith(" "):
            joined[-1] += " " + line.strip()
        elif line.strip():
            joined.append(line.strip())
    found = []
    for entry in joined:
        head, _, rest = entry.partition(" # ")
        summary, _, effect = rest.partition(" = ")
        found.append((head, summary, effect))
    return found
