"""What a block holds, in full: its tokens and rows, and what was before it.

A digest of this is a key. Where the digest can be made to collide, equal keys do not mean equal contents, and
a hit is one only if the contents agree, from the namespace on.

Realises: KV-PREFIX-034 weak-hash-verified.
For porters: comparing one block is enough while the blocks before it are known to agree. Here that means
that they are the same object: contents found equal are linked to the same content before them.
Source: nano-vllm and LMDeploy compare a block's tokens after its hash; that what comes before must agree too
follows from the definition.
"""

from collections.abc import Iterable

from kvref.memory.namespace import Namespace, written


class Content:
    """What was written for one block, and what was before it: a block's content, or a namespace's `root`."""

    __slots__ = ("before", "written")

    def __init__(self, before: "Content | None", written: bytes) -> None:
        self.before = before
        self.written = written


def root(namespace: Namespace) -> Content:
    """Return what the first block follows."""
    return Content(None, written(namespace))


def contents(messages: Iterable[bytes], before: Content) -> list[Content]:
    """Return the contents of blocks that follow `before`, given what is written for each."""
    found = []
    for message in messages:
        before = Content(before, message)
        found.append(before)
    return found


def equal(a: Content, b: Content) -> bool:
    """Say whether two blocks hold the same, everything before them included, and link them if so."""
    x: Content | None = a
    y: Content | None = b
    while x is not y:
        if x is None or y is None or x.written != y.written:
            return False
        x, y = x.before, y.before
    a.before = b.before
    return True
