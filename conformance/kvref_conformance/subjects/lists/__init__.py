"""The built-in managers: caches written a second time in the plainest way, to be broken one method at a time.

They keep lists, search them from the front, and share no line with the reference. Every decision that a
manager can get wrong is a method of its own; an exhibit of the museum overrides one of them. They are also a
second opinion: on any program they leave the same trace as the reference.
"""

from kvref_conformance.claims import Claims
from kvref_conformance.subjects.lists.allocator import ListAllocator
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.lists.index import IndexLists
from kvref_conformance.subjects.lists.keys import KeyLists
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.radix import RadixLists
from kvref_conformance.subjects.lists.snapshots import SnapshotLists
from kvref_conformance.subjects.lists.tables import ListTables

#: What prefixes may differ in beside tokens, and what else the naive caches can be asked.
OF_PREFIXES = ("adapter", "adapter_version", "salt", "media", "embeddings", "weak_hash", "events")
#: What else a snapshot cache can be asked.
OF_SNAPSHOTS = ("drafts", "junctions", "window")
#: Models that a reader of configs knows, and what else it can be asked.
OF_GEOMETRY = (
    *("chunked_layers", "uneven_layers", "skipped_layers", "latent_layers", "indexed_layers"),
    *(
        "compressed_layers",
        "recurrent_layers",
        "class_defaults",
        "tensor_parallel",
        "dp_attention",
        "pipeline_parallel",
    ),
    *("snapshot_sizes", "hybrid_blocks"),
)


class Lists:
    """Offers every manager with every operation and feature."""

    claims = Claims(
        name="lists",
        block_sizes=(4, 1, 3, 16),
        features=("pin", "steps", "groups", "pruning", *OF_PREFIXES, *OF_SNAPSHOTS, *OF_GEOMETRY),
        choices={"free-order": "fifo"},
    )
    block_allocator = ListAllocator
    block_tables = ListTables
    prefix_cache = PrefixLists
    snapshot_cache = SnapshotLists
    block_keys = KeyLists
    block_index = IndexLists
    cache_geometry = GeometryLists


class RadixOfLists:
    """A second naive prefix cache, which keeps runs of blocks and evicts them whole."""

    claims = Claims(
        name="lists as runs",
        block_sizes=(4, 1, 3, 16),
        features=OF_PREFIXES,
        choices={"eviction-order": "lru_node"},
    )
    prefix_cache = RadixLists
