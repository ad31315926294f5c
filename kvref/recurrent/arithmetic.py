"""What arithmetic a recurrent layer's kernel uses, as declared facts.

The bound on a scan follows from a `ScanArithmetic` alone: where numbers are rounded and to which format, how
often the state is, how many tokens are taken at once. Nothing in it is a tolerance; each entry is a fact that
someone can check in the kernel's source.

For porters: copy the record; the derivation that uses it is in `spec/recurrent.md`, on bounds.
Source: the places where public kernels round: flash-linear-attention, mamba_ssm, vLLM and transformers.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from kvref.arrays import as_array, check_count, check_flag, check_real, check_scalar, check_word, dtype_name
from kvref.errors import ArgumentError, shown
from kvref.roundings import Format, check_fields

#: What tensor cores make of float32 operands: the range of float32 with 11 significant bits.
TENSORFLOAT32 = "tensorfloat32"
#: The name that stands for "the dtype of the first argument": x, q, or a of a gate.
INPUT = "input"
#: How often a kernel rounds the state to the format it is kept in.
STATE_ROUNDINGS = ("token", "chunk", "call")

_FORMATS = ("working", "products", "gates", "stored", "state", "output")


@dataclass(frozen=True, kw_only=True)
class ScanArithmetic:
    """Declared facts about a scan's arithmetic; the defaults describe float32 inside, as every engine has it.

    A dtype may be "input", the dtype of x, q, or the a of a gate.
    Raises: ArgumentError, DTypeError.
    """

    working: str = "float32"
    """Format of exponentials, sums and single operations."""
    products: str = "float32"
    """Format that operands of matrix products are rounded to, unless they have it; also "tensorfloat32"."""
    gates: str = "float32"
    """Format that a step size or a log decay is stored in once it is computed."""
    stored: str = "float32"
    """Format a finished sum is stored in before its activation, its skip or its output gate."""
    state: str = "float32"
    """Format the recurrent state is rounded to."""
    state_rounded: str = "call"
    """How often it is: after every "token", after every "chunk", or once a "call", at the end."""
    chunk_size: int | None = 64
    """Tokens taken at once, counted from each request's first; None: one after another, always."""
    depth: int | None = None
    """Most additions a product passes through in a sum over channels or tokens; None: one for each."""
    running_sums: bool = True
    """Decays inside a chunk come from differences of one running sum, not from a sum for each segment."""
    output: str = INPUT
    """Format of the result."""
    exp_error: float = 4.0
    """Relative error of exponential and logarithm, in roundoffs of `working`."""
    plain_softplus: bool = False
    """softplus is log(1 + exp(x)) as written: what is small beside 1 is lost."""
    rounding: str = "nearest"
    """How all of the above round: "nearest" or "truncate"."""

    def __post_init__(self) -> None:
        for name in _FORMATS:
            if getattr(self, name) != INPUT and (name, getattr(self, name)) != ("products", TENSORFLOAT32):
                Format.of(getattr(self, name))
        check_word("state_rounded", self.state_rounded, STATE_ROUNDINGS)
        for name in ("chunk_size", "depth"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        if self.state_rounded == "chunk" and self.chunk_size is None:
            raise ArgumentError("state_rounded = 'chunk', expected a chunk_size with it")
        if check_scalar("exp_error", self.exp_error) < 0:
            raise ArgumentError(f"exp_error = {self.exp_error}, expected >= 0")
        for name in ("running_sums", "plain_softplus"):
            check_flag(name, getattr(self, name))
        check_word("rounding", self.rounding, ("nearest", "truncate"))

    def resolve(self, dtype: str) -> "ScanArithmetic":
        """Return the same facts with "input" replaced by the dtype of the first argument."""
        named = {name: dtype for name in _FORMATS if getattr(self, name) == INPUT}
        return replace(self, **named) if named else self  # type: ignore[arg-type]

    def format(self, name: str) -> Format:
        """Return the format of one stage, by its field name."""
        if getattr(self, name) == TENSORFLOAT32:
            range_ = Format.of("float32", self.rounding)
            return replace(range_, roundoff=range_.roundoff * 2.0**13)
        return Format.of(getattr(self, name), self.rounding)

    def extra(self, name: str) -> float:
        """Return the roundoff of a stage if it is narrower than the working format, and 0 if it is not."""
        own, working = self.format(name).roundoff, self.format("working").roundoff
        return own if own > working else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a flat JSON object."""
        return asdict(self)

    @staticmethod
    def from_dict(record: Mapping[str, Any]) -> "ScanArithmetic":
        """Read a flat JSON object; what is absent keeps its default.

        Raises: ArgumentError if a name is unknown or a value impossible; DTypeError if a dtype is unknown.
        """
        check_fields(record, ScanArithmetic)
        return ScanArithmetic(**record)


def resolved_scan(arithmetic: ScanArithmetic, name: str, x: ArrayLike) -> ScanArithmetic:
    """Return an arithmetic with "input" replaced by the dtype of an array, the argument called `name`.

    Raises: ArgumentError if `arithmetic` is not a ScanArithmetic; DTypeError if `x` holds no real numbers.
    """
    if not isinstance(arithmetic, ScanArithmetic):
        raise ArgumentError(f"arithmetic = {shown(arithmetic)}, expected a ScanArithmetic")
    array = as_array(name, x)
    check_real(name, array)
    return arithmetic.resolve(dtype_name(array))
