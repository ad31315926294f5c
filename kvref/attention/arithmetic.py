"""What arithmetic a kernel uses, as declared facts, and what each format loses when it rounds.

A bound can only follow from what a kernel is known to do. An `Arithmetic` states it: where numbers are
rounded and to which format, how long a serial sum may be, how good the exponential is. Nothing in it is a
tolerance; each entry is a fact that someone can check in the kernel's source.

For porters: copy the record; the derivation that uses it is `spec/bounds.md`.
Source: IEEE 754-2019 (formats, subnormal numbers); Higham 2002, sections 2.1 and 3.1 (u and γ).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from kvref.arrays import as_array, check_count, check_flag, check_real, check_scalar, dtype_name
from kvref.errors import ArgumentError, shown
from kvref.roundings import Format as Format
from kvref.roundings import check_fields
from kvref.roundings import gamma as gamma

#: The name that stands for "the dtype of q".
INPUT = "input"

_FORMATS = ("query", "key", "scores", "probabilities", "accumulate", "partial", "output")
_COUNTS = {"merges": 0, "block": 1, "depth": 1}


@dataclass(frozen=True, kw_only=True)
class Arithmetic:
    """Declared facts about a kernel's arithmetic; the defaults describe a FlashAttention-like kernel.

    A dtype may be "input", the dtype of q. Logits, exponentials and running sums are float32 unless said
    otherwise; probabilities are rounded to the input dtype before they multiply V.
    Raises: ArgumentError, DTypeError.
    """

    accumulate: str = "float32"
    """Format of the sums q·k, P·V and of the denominator."""
    scores: str = "float32"
    """Format the logits are stored in before the exponential."""
    probabilities: str = INPUT
    """Format P is rounded to before P·V."""
    query: str | None = None
    """Format q is rounded to again after it was multiplied by a part of `scale`; None: q is used as given."""
    key: str | None = None
    """The same for k, where a kernel scales both, as the function body of ONNX Attention does."""
    partial: str = "float32"
    """Format of the partial outputs of a context read in several splits; their lse is float32."""
    output: str = INPUT
    """Format of the result."""
    merges: int = 1
    """Most merges a partial output passes through: 0 without splits, 1 when all are combined at once."""
    block: int | None = 16
    """Fewest tokens between two rescalings of an online softmax; None where the maximum is found first."""
    depth: int | None = None
    """Most additions any product of P·V passes through, over all splits; None: one per token."""
    exp_error: float = 4.0
    """Relative error of the exponential, in roundoffs of float32."""
    tanh_error: float = 8.0
    """Relative error of the hyperbolic tangent (softcap only), in roundoffs of float32."""
    normalized: bool = False
    """P is divided by its sum before it is rounded, so its entries may be small."""
    rounded_sum: bool = False
    """The denominator adds the rounded P, so that its rounding reaches the lse."""
    rounding: str = "nearest"
    """How all of the above round: "nearest" or "truncate"."""

    def __post_init__(self) -> None:
        for name in _FORMATS:
            value = getattr(self, name)
            if value != INPUT and not (name in ("query", "key") and value is None):
                Format.of(value)
        for name, minimum in _COUNTS.items():
            if name == "merges" or getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=minimum)
        for name in ("exp_error", "tanh_error"):
            if check_scalar(name, getattr(self, name)) < 0:
                raise ArgumentError(f"{name} = {getattr(self, name)}, expected >= 0")
        for name in ("normalized", "rounded_sum"):
            check_flag(name, getattr(self, name))
        if self.rounding not in ("nearest", "truncate"):
            raise ArgumentError(f"rounding = {shown(self.rounding)}, expected 'nearest' or 'truncate'")

    def resolve(self, dtype: str) -> "Arithmetic":
        """Return the same facts with "input" replaced by the dtype of q."""
        named = {name: dtype for name in _FORMATS if getattr(self, name) == INPUT}
        return replace(self, **named) if named else self  # type: ignore[arg-type]

    def format(self, name: str) -> Format:
        """Return the format of one stage, by its field name."""
        return Format.of(getattr(self, name), self.rounding)

    @property
    def working(self) -> str:
        """Format of single operations on logits and weights: float32, or float64 where sums are."""
        return "float64" if self.accumulate == "float64" else "float32"

    @property
    def roundoff(self) -> float:
        """Roundoff of single operations on logits and weights."""
        return Format.of(self.working, self.rounding).roundoff

    @property
    def stores_scores(self) -> bool:
        """Whether storing the logits rounds them to a narrower format than they were computed in."""
        return self.format("scores").roundoff > self.roundoff

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a flat JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "Arithmetic":
        """Read a flat JSON object; what is absent keeps its default.

        Raises: ArgumentError if a name is unknown or a value impossible; DTypeError if a dtype is unknown.
        """
        check_fields(record, Arithmetic)
        for name in set(_FORMATS) & set(record):
            if not isinstance(record[name], str) and not (name in ("query", "key") and record[name] is None):
                raise ArgumentError(
                    f"arithmetic {name} = {shown(record[name])}, expected the name of a dtype"
                )
        return Arithmetic(**record)


def resolved(arithmetic: Arithmetic, name: str, x: ArrayLike) -> Arithmetic:
    """Return an arithmetic with "input" replaced by the dtype of an array, the argument called `name`.

    Raises: ArgumentError if `arithmetic` is not an Arithmetic; DTypeError if `x` holds no real numbers.
    """
    if not isinstance(arithmetic, Arithmetic):
        raise ArgumentError(f"arithmetic = {shown(arithmetic)}, expected an Arithmetic")
    array = as_array(name, x)
    check_real(name, array)
    return arithmetic.resolve(dtype_name(array))


#: The arithmetic of kvref itself: NumPy in float64, merging partial states one after another.
REFERENCE = Arithmetic(
    accumulate="float64",
    scores="float64",
    probabilities="float64",
    partial="float64",
    output="float64",
    block=256,
    normalized=True,
    rounded_sum=True,
)
