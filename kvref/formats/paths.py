"""Paths: the decisions a writer or reader takes inside a format, each with a name and named answers.

Two libraries that claim the same format differ in what they do past the largest number, at a tie, with NaN,
in how they divide, in how they choose a scale. None of these is a tolerance: each is a fact, and under a
declared path every code is determined. The first answer of each is the canonical one.

Realises: KV-FMT-003 overflow-as-declared, KV-FMT-005 nan-as-declared, KV-FMT-021 division-as-declared.
For porters: the canonical path is enough to begin with; the others are what the engines of the day do.
Source: the code of the engines and libraries named in `spec/formats.md`, each at its choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from kvref.errors import FormatError, shown

#: Decision -> its answers, the canonical one first.
PATHS: dict[str, tuple[str, ...]] = {
    "e4m3_overflow": ("saturate", "nan"),
    "e5m2_overflow": ("saturate", "inf"),
    "fnuz_overflow": ("saturate", "nan"),
    "fp8_nan": ("signed", "positive", "negative", "quiet", "largest", "largest_positive"),
    "fp8_zero": ("kept", "negative_only", "dropped"),
    "e2m1_nan": ("largest", "zero", "negative_zero", "signed_zero", "flipped_zero", "refuse"),
    "e2m1_ties": ("even", "away", "toward_zero"),
    "e2m1_zero": ("kept", "negative_only", "dropped", "negative"),
    "int_ties": ("even", "away", "up"),
    "int8_lowest": ("-128", "-127"),
    "scale_division": ("divide", "reciprocal", "input", "input_scale", "approximate"),
    "tensor_scale": ("amax", "unit", "amax_over_200", "amax_over_100"),
    "scale_floor": ("none", "1e-6", "1e-4", "smallest_normal"),
    "scale_power": ("exact", "up"),
    "mx_scale": ("floor", "ceil", "even", "even_one_bit", "rceil", "nearest"),
    "mx_exponent": ("field", "log2", "log2_input"),
    "mx_zero_group": ("smallest", "1e-10"),
    "mx_inf_group": ("largest", "top", "nan"),
    "mx_smallest_divisor": ("exact", "smallest_normal", "one"),
    "mx_span": ("head", "flattened"),
    "nvfp4_operand": ("decode", "encode"),
    "nvfp4_global": ("amax/2688", "amax/448", "unit"),
    "nvfp4_division": ("divide", "reciprocal", "two_reciprocals", "encode", "approximate"),
    "nvfp4_scale_floor": ("zero", "smallest", "smallest_normal", "epsilon", "one"),
    "nvfp4_tiny_group": ("zero", "signed_zero", "largest"),
    "nvfp4_nan_group": ("ignored", "nan"),
    "nvfp4_largest": ("six", "four_over_six"),
    "constant_group": ("zero", "nan"),
    "q8_0_reciprocal": ("of_scale", "of_amax"),
    "multiply_add": ("rounded", "fused"),
    "nibble_order": ("low_first", "high_first", "split"),
    "scale_layout": ("linear", "tiled_128x4"),
    "v_scale_layout": ("linear", "interleaved"),
    "decode_dtype": ("float32", "output"),
    "nvfp4_decode_order": ("elements_first", "scales_first"),
    "scale_axis": ("channels", "tokens"),
    "attend_values": ("exact", "input"),
}


@dataclass(frozen=True, kw_only=True)
class Path:
    """One answer to every decision; the defaults are canonical.

    Raises: FormatError if an answer is not one of `PATHS`.
    """

    e4m3_overflow: str = "saturate"
    e5m2_overflow: str = "saturate"
    fnuz_overflow: str = "saturate"
    fp8_nan: str = "signed"
    fp8_zero: str = "kept"
    e2m1_nan: str = "largest"
    e2m1_ties: str = "even"
    e2m1_zero: str = "kept"
    int_ties: str = "even"
    int8_lowest: str = "-128"
    scale_division: str = "divide"
    tensor_scale: str = "amax"
    scale_floor: str = "none"
    scale_power: str = "exact"
    mx_scale: str = "floor"
    mx_exponent: str = "field"
    mx_zero_group: str = "smallest"
    mx_inf_group: str = "largest"
    mx_smallest_divisor: str = "exact"
    mx_span: str = "head"
    nvfp4_operand: str = "decode"
    nvfp4_global: str = "amax/2688"
    nvfp4_division: str = "divide"
    nvfp4_scale_floor: str = "zero"
    nvfp4_tiny_group: str = "zero"
    nvfp4_nan_group: str = "ignored"
    nvfp4_largest: str = "six"
    constant_group: str = "zero"
    q8_0_reciprocal: str = "of_scale"
    multiply_add: str = "rounded"
    nibble_order: str = "low_first"
    scale_layout: str = "linear"
    v_scale_layout: str = "linear"
    decode_dtype: str = "float32"
    nvfp4_decode_order: str = "elements_first"
    scale_axis: str = "channels"
    attend_values: str = "exact"

    def __post_init__(self) -> None:
        for field in fields(self):
            answer = getattr(self, field.name)
            if not isinstance(answer, str) or answer not in PATHS[field.name]:
                raise FormatError(
                    f"path.{field.name} = {shown(answer)}, expected one of {', '.join(PATHS[field.name])}"
                )

    @staticmethod
    def of(answers: Mapping[str, str]) -> "Path":
        """Return the path of some declared answers, canonical where nothing is declared.

        A decision may be spelled as the choice that it is, with hyphens.
        Raises: FormatError if a decision or an answer has no such name, or a decision is there twice.
        """
        if not isinstance(answers, Mapping):
            raise FormatError(f"answers = {answers!r:.80}, expected an object of decision and answer")
        spelled: dict[str, str] = {}
        for name, answer in answers.items():
            decision = str(name).replace("-", "_")
            if decision not in PATHS:
                raise FormatError(f"path holds {name!r:.80}, expected names among {', '.join(PATHS)}")
            if decision in spelled:
                raise FormatError(f"path holds {shown(decision)} in two spellings, expected it once")
            spelled[decision] = answer
        return Path(**spelled)


CANONICAL = Path()


def check_path(path: Path) -> None:
    """Check that a path is one.

    Raises: FormatError.
    """
    if not isinstance(path, Path):
        raise FormatError(f"path = {path!r:.80}, expected a Path")
