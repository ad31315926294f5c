"""The checks, one module a topic; a check belongs to one requirement."""

from importlib import import_module

from kvref_conformance.checks.check import Check

#: Topics, in the order of the spec.
TOPICS = (
    *("dense", "paged", "dead_slots", "strides", "masks", "spans", "merge", "logits"),
    *("writes", "mla", "sparse", "rope", "layouts", "calls"),
    *("recurrent_conv", "recurrent_mamba", "recurrent_delta", "recurrent_states", "recurrent_packing"),
    "recurrent_extents",
    *("formats_elements", "formats_scales", "formats_micro", "formats_integers", "formats_bytes"),
    *("formats_attend", "formats_contexts", "formats_readout", "formats_variants"),
    *("block_allocator", "block_flight", "block_order", "block_tables", "block_windows", "block_sharing"),
    *("prefix_hits", "prefix_namespaces", "prefix_evictions", "prefix_lifecycle"),
    *("snapshots_hits", "snapshots_states", "snapshots_evictions", "snapshots_requests"),
    *("block_keys", "prefix_events", "block_index", "cache_geometry", "geometry_ranks"),
)
#: Checks of no topic: they draw whole problems.
DRAWN = ("drawn", "recurrent_drawn")


def all_checks() -> list[Check]:
    """Return every check, in the order of the spec; those of the ring `fuzz` come last."""
    modules = [import_module(f"{__name__}.{topic}") for topic in (*TOPICS, *DRAWN)]
    return [value for module in modules for value in vars(module).values() if isinstance(value, Check)]
