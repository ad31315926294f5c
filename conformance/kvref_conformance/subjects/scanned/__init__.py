"""The built-in subject of recurrent layers: scans written a second time, to be broken one method at a time.

It takes requests chunk by chunk in float32, as a GPU kernel does, and shares no line with the reference.
Every decision a kernel can get wrong is a method of its own; an exhibit of the museum overrides one of them.
"""

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.scanned.conv import Conv
from kvref_conformance.subjects.scanned.delta import Delta
from kvref_conformance.subjects.scanned.gates import Gates
from kvref_conformance.subjects.scanned.ragged import Ragged
from kvref_conformance.subjects.scanned.selective import Selective
from kvref_conformance.subjects.scanned.ssd import StateSpaceDual

#: Every feature that concerns a recurrent layer.
FEATURES = (
    *("has_initial_state", "conv_bias", "silu", "skip", "output_gate", "dt_bias", "dt_softplus", "dt_limit"),
    *("delta_scale", "qk_l2norm", "padding_rows", "channel_gate", "lower_bound", "strided", "value_width"),
)


class Scanned(Conv, Selective, StateSpaceDual, Delta, Gates):
    """Offers every verb of recurrent layers with every feature."""

    claims = Claims(
        name="scanned",
        dtypes=("float32", "bfloat16", "float16"),
        head_dims=(64, 32),
        state_dims=(16, 24),
        conv_widths=(4, 2),
        features=FEATURES,
        batch_invariant=True,
        scan_arithmetic=ScanArithmetic(chunk_size=Ragged.chunk, running_sums=False),
    )

    def value_first(self) -> bool:
        """Hold states as declared."""
        return "state-layout" in self.claims.choices and self.claims.choice("state-layout") == "value_key"
