"""The built-in subject: an attention kernel written a second time, to be broken one method at a time.

It reads a context in tiles and splits with a running maximum, in float32 with P rounded to the input dtype,
as a GPU kernel does, and shares no line with the reference. Every decision a kernel can get wrong is a method
of its own; an exhibit of the museum overrides one of them. Topics are those of the checks.
"""

from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import FEATURES, Claims
from kvref_conformance.subjects.tiled.calls import Calls
from kvref_conformance.subjects.tiled.layouts import LAYOUTS, Layouts
from kvref_conformance.subjects.tiled.rope import Rope


class Tiled(Calls, Rope, Layouts):
    """Offers every verb of the kernel contract with every feature."""

    claims = Claims(
        name="tiled",
        arithmetic=Arithmetic(block=Calls.tile, merges=1),
        dtypes=("float32", "bfloat16", "float16"),
        head_dims=(64, 80, 128),
        block_sizes=(16, 8, 32),
        features=tuple(FEATURES),
        batch_invariant=True,
        rope_styles=("half", "interleaved"),
        layouts=LAYOUTS,
    )
