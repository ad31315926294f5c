"""The built-in managers: caches written a second time in the plainest way, to be broken one method at a time.

They keep lists, search them from the front, and share no line with the reference. Every decision that a
manager can get wrong is a method of its own; an exhibit of the museum overrides one of them. They are also a
second opinion: on any program they leave the same trace as the reference.
"""

from kvref_conformance.claims import Claims
from kvref_conformance.subjects.lists.allocator import ListAllocator
from kvref_conformance.subjects.lists.tables import ListTables


class Lists:
    """Offers every manager with every operation and feature."""

    claims = Claims(
        name="lists",
        block_sizes=(4, 1, 3, 16),
        features=("pin", "steps", "groups", "pruning"),
        choices={"free-order": "fifo"},
    )
    block_allocator = ListAllocator
    block_tables = ListTables
