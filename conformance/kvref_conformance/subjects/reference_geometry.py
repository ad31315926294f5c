"""The reference's geometry of a cache under the suite's contract.

Only spelling changes: a config comes as text, bytes an element stand for a format of so many, and a fraction
of a byte is rounded up.
"""

from math import ceil

from kvref.planning.config_files import parse_config
from kvref.planning.geometry import geometry_of
from kvref.planning.groups import CacheGeometry
from kvref_conformance.claims import Claims

#: Bytes of an element -> a format that stores so many and nothing beside them.
FORMS = {1: "fp8_e4m3", 2: "bfloat16", 4: "float32"}


class ReferenceGeometry:
    """`kvref.planning.geometry`."""

    def size(self, config: str, num_tokens: int, element_bytes: int) -> dict[str, int]:
        """Return the bytes of one request."""
        found, form = _geometry(config), FORMS[element_bytes]
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


def _geometry(config: str) -> CacheGeometry:
    return geometry_of(parse_config(config))


class Reference:
    """Offers the reference's geometry alone."""

    claims = Claims(
        name="reference_geometry",
        features=(
            *("chunked_layers", "uneven_layers", "skipped_layers", "latent_layers", "indexed_layers"),
            *("compressed_layers", "recurrent_layers", "snapshot_sizes"),
        ),
    )
    cache_geometry = ReferenceGeometry
