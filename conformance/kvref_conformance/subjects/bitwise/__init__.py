"""The built-in codec: every format written a second time from the bits of float32, to be broken like `Tiled`.

Casts are shifts and one addition, decisions are read from the claims, and no line is shared with the
reference, which takes its codes from tables. Every decision a codec can get wrong is a method of its own; an
exhibit of the museum overrides one of them.
"""

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import ALL_FORMATS, Claims
from kvref_conformance.subjects.bitwise.attend import Attend
from kvref_conformance.subjects.tiled import Tiled

#: What the attention over codes supports: what the kernel behind it does.
FEATURES = (
    "prefill",
    "lse",
    "non_causal",
    "window",
    "chunk_size",
    "softcap",
    "sinks",
    "alibi",
    "spans",
    "mask",
)


class Bitwise(Attend):
    """Offers the verbs of formats, with every format and any declared path."""

    claims = Claims(
        name="bitwise",
        arithmetic=Arithmetic(block=Tiled.tile, merges=1),
        dtypes=("float32", "bfloat16", "float16"),
        head_dims=(64, 80, 128),
        block_sizes=(16, 8, 32),
        features=FEATURES,
        formats=ALL_FORMATS,
    )
