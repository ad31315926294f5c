"""The museum: public KV-cache faults, each as one faulty change to the built-in subject.

One exhibit per fault class and component; several public reports may share one. The suite is tested with the
exhibits (each must fail what it breaks, and no more than that), and reports its failures in their words.
"""

from importlib import import_module

from kvref_conformance.museum.exhibit import Exhibit

#: Topics, those of the checks.
TOPICS = (
    *("dense", "paged", "dead_slots", "strides", "masks", "spans", "merge", "logits"),
    *("writes", "mla", "sparse", "rope", "layouts", "calls"),
    *("formats_elements", "formats_scales", "formats_micro"),
    *("formats_integers", "formats_bytes"),
    *("formats_attend", "formats_contexts", "formats_readout", "formats_variants"),
    *("block_allocator", "block_tables", "block_sharing"),
    *("prefix_hits", "prefix_namespaces", "prefix_evictions", "prefix_lifecycle"),
    *("snapshots_hits", "snapshots_states", "snapshots_evictions"),
    *("block_keys", "prefix_events", "block_index", "cache_geometry"),
    *("recurrent_conv", "recurrent_windows", "recurrent_packing", "recurrent_states", "recurrent_updates"),
    *("recurrent_delta", "recurrent_lengths", "recurrent_decays", "recurrent_gates", "recurrent_mamba"),
    *("recurrent_heads", "recurrent_extents"),
)


def all_exhibits() -> list[Exhibit]:
    """Return every exhibit, in the order of the spec."""
    modules = [import_module(f"{__name__}.{topic}") for topic in TOPICS]
    return [
        vars(value)["exhibit"]
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and "exhibit" in vars(value)
    ]
