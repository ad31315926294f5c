"""The reference's geometry of a cache under the suite's contract.

Only spelling changes: a config comes as text, bytes an element stand for a format of so many, and a fraction
of a byte is rounded up.
"""

from dataclasses import replace
from math import ceil

from kvref.planning.config_files import parse_config
from kvref.planning.geometry import geometry_of
from kvref.planning.groups import CacheGeometry
from kvref.planning.ranks import geometry_of_rank, hybrid_block_size
from kvref.planning.stages import geometry_of_stage
from kvref_conformance.claims import Claims

#: Bytes of an element -> a format that stores so many and nothing beside them.
FORMS = {1: "fp8_e4m3", 2: "bfloat16", 4: "float32"}


class ReferenceGeometry:
    """`kvref.planning.geometry` and `kvref.planning.ranks`."""

    def size(
        self,
        config: str,
        num_tokens: int,
        element_bytes: int,
        tensor_parallel: int = 1,
        dp_attention: int = 1,
        first_layer: int = 0,
        num_layers: int | None = None,
    ) -> dict[str, int]:
        """Return the bytes of one request, of one rank where there are several."""
        whole, form = _geometry(config), FORMS[element_bytes]
        stage = whole if num_layers is None else geometry_of_stage(whole, first_layer, num_layers)
        found = geometry_of_rank(stage, tensor_parallel, dp_attention=dp_attention)
        return {
            "bytes_per_token": ceil(found.bytes_per_token(form)),
            "growing_bytes": found.growing_bytes(num_tokens, form),
            "window_bytes": found.window_bytes(num_tokens, form),
            "recurrent_bytes": found.recurrent_bytes,
            "conv_bytes": found.conv_bytes,
        }

    def snapshot(self, config: str, element_bytes: int) -> tuple[int, int]:
        """Return the bytes of a snapshot, and how many tokens take as many."""
        found = _geometry(config)
        return found.snapshot_bytes, ceil(found.snapshot_in_tokens(FORMS[element_bytes]))

    def hybrid_block(self, config: str, element_bytes: int, tensor_parallel: int, multiple: int) -> int:
        """Return the block size at which a block of entries holds a state."""
        found = geometry_of_rank(_geometry(config), tensor_parallel)
        return hybrid_block_size(found, FORMS[element_bytes], multiple=multiple)


def _geometry(config: str) -> CacheGeometry:
    return replace(geometry_of(parse_config(config)), drafts=())  # nothing asks for them


class Reference:
    """Offers the reference's geometry alone."""

    claims = Claims(
        name="reference_geometry",
        features=(
            *("chunked_layers", "uneven_layers", "skipped_layers", "latent_layers", "indexed_layers"),
            *("compressed_layers", "recurrent_layers", "snapshot_sizes", "tensor_parallel", "hybrid_blocks"),
            *("dp_attention", "pipeline_parallel", "class_defaults"),
        ),
    )
    cache_geometry = ReferenceGeometry
