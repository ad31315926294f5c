"""SGLang's UnifiedRadixCache, its default, with the core in Rust; called as RadixCache is.

Choices: as of RadixCache.
Source: SGLang 0.5.23, python/sglang/srt/mem_cache/{registry,unified_radix_cache}.py, unified_cache, and the
compiled core that comes with the wheel.
"""

from typing import Any

from kvref_conformance.claims import Claims

try:
    import kvref_conformance.subjects.sglang_radix_cache as radix
    from kvref_conformance.subjects.sglang_parts import part

    unified = part("unified_radix_cache")
    FULL = part("unified_cache.component_type").ComponentType.FULL
except ImportError as error:
    raise ImportError(
        "the subject sglang_unified_cache needs SGLang: pip install --no-deps sglang==0.5.23, and PyTorch"
    ) from error


class Cache(radix.Cache):
    """A tree of one component, full attention."""

    def tree(self, **given: Any) -> Any:
        """Return a tree over the pools."""
        return unified.UnifiedRadixCache(
            radix.params.CacheInitParams(**given, tree_components=(FULL,), tree_core_backend="rust")
        )


class SglangUnifiedCache:
    """`prefix_cache` by UnifiedRadixCache."""

    claims = Claims(**{**vars(radix.SglangRadixCache.claims), "name": "SGLang UnifiedRadixCache"})
    prefix_cache = Cache
