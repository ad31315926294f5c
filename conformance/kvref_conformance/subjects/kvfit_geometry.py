"""kvfit: an estimator of cache sizes that reads a model's config and refuses what it was not checked for.

It gives components by name, each in bytes for one sequence; here they are added up by what they are. It has
no bytes a token: what a very long context takes, divided by its tokens, stands for it. It is asked for the
whole cache, for its shares of ranks are of whole plans. A config not of its checked families it refuses.

Which models it claims: those of which it knows some family. The suite asks all of each kind, and its report
says which it refuses, and which it gets wrong.
"""

import json
from importlib.metadata import version
from typing import Any

try:
    from kvfit import UnsupportedArchitecture, estimate_cache
except ImportError as error:
    raise ImportError("the subject kvfit needs kvfit: pip install kvfit==0.3.0") from error

from kvref.errors import KVError
from kvref_conformance.claims import Claims

#: A context behind which no window grows and every grid of compressed layers ends.
LONG = 2**20
#: Parts of the names of components -> what they are; the others grow.
PARTS = (
    ("temporal-state", "recurrent_bytes"),
    ("recurrent-state", "recurrent_bytes"),
    ("history", "conv_bytes"),
    ("sliding", "window_bytes"),
    ("local", "window_bytes"),
)


class Geometry:
    """`cache_geometry` by `kvfit.estimate_cache`."""

    def size(self, config: str, num_tokens: int, element_bytes: int) -> dict[str, int]:
        """Return the bytes of one request. Raises: KVError if kvfit refuses the config."""
        found = _added_up(config, num_tokens, element_bytes)
        long = _added_up(config, LONG, element_bytes)
        return {"bytes_per_token": -(-long["growing_bytes"] // LONG), **found}


def _added_up(config: str, num_tokens: int, element_bytes: int) -> dict[str, int]:
    try:
        estimate: Any = estimate_cache(json.loads(config), context_tokens=num_tokens, kv_bytes=element_bytes)
    except (UnsupportedArchitecture, json.JSONDecodeError) as error:
        raise KVError(str(error)) from None
    found = dict.fromkeys(("growing_bytes", "window_bytes", "recurrent_bytes", "conv_bytes"), 0)
    for component in estimate.components:
        part = next((own for name, own in PARTS if name in component.name), "growing_bytes")
        found[part] += round(component.bytes)
    return found


class Kvfit:
    """kvfit's sizes of caches."""

    claims = Claims(
        name="kvfit",
        version=version("kvfit"),
        features=(
            "uneven_layers",
            "latent_layers",
            "indexed_layers",
            "compressed_layers",
            "recurrent_layers",
        ),
    )
    cache_geometry = Geometry
