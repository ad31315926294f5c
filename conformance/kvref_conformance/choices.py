"""Choices: the points where engines differ, the canonical answer to each, its named alternatives.

Those of attention are listed here in full, those of block managers in `choices_of_managers`. Those of formats
are the decisions of `kvref.formats.paths`, under the same names with hyphens, and are listed with what each
answer other than the canonical one risks.

Realises: KV-CONF-004 named-choices.
"""

from kvref.formats.paths import PATHS
from kvref_conformance.choice import Choice
from kvref_conformance.choices_of_managers import OF_MANAGERS

__all__ = ["CHOICES", "FORMAT_CHOICES", "Choice", "choice_name"]


_OF_ATTENTION = (
    Choice(
        "empty-row-lse",
        "-inf",
        {"+inf": "a merge that does not know the spelling gives NaN or drops the other part"},
    ),
    Choice(
        "lse-base",
        "e",
        {"2": "merged with a natural-log part, the weights are wrong and no error is raised"},
    ),
    Choice("lse-sink", "excluded", {"included": "merging two such parts counts the sink twice"}),
    Choice(
        "causal-corner",
        "bottom_right",
        {"top_left": "a chunk of queries over a longer cache attends to the oldest tokens, not its own"},
    ),
    Choice(
        "window-spelling",
        "tokens",
        {"left": "a window of W reads W + 1 tokens; a cache that keeps W tokens misses one"},
    ),
    Choice(
        "dead-slots",
        "any_bits",
        {"any_finite": "a NaN or infinity left in a freed or padded slot spreads into live outputs"},
    ),
    Choice(
        "table-padding",
        "any_value",
        {"valid_block": "a padded table filled with −1 or stale ids reads out of bounds"},
    ),
)

_OF_SCANS = (
    Choice(
        "state-layout",
        "key_value",
        {"value_key": "read as it lies, a state is transposed: no shape tells where widths are equal"},
    ),
    Choice(
        "state-padding",
        "any_negative",
        {
            "minus_one": "another negative state index is a slot in front of the pool, and somebody's memory "
            "is written"
        },
    ),
)

#: Decision of a path -> answer -> the hazard. The canonical answer of each decision stands in `PATHS`.
_HAZARDS: dict[str, dict[str, str]] = {
    "e4m3_overflow": {
        "nan": "one number past 464 scales becomes NaN, and so does every output that attends to it",
    },
    "e5m2_overflow": {
        "inf": "one number from 61440 scales on becomes an infinity: as a key it makes the row "
        "NaN, as a value the output infinite",
    },
    "fnuz_overflow": {
        "nan": "one number past the largest becomes NaN, and so does every output that attends to it",
    },
    "fp8_nan": {
        "positive": "the sign of a NaN is lost, so equal inputs have unequal bytes, and hashes, by writer",
        "negative": "every NaN is stored as −NaN, so equal inputs have unequal bytes, and hashes, by writer",
        "quiet": "a NaN of E5M2 has a code of its own, so equal inputs have unequal bytes by writer",
        "largest": "a NaN is stored as an ordinary number, and what produced it is never found",
        "largest_positive": "a NaN of any sign is stored as the largest number, and is never found",
    },
    "fp8_zero": {
        "negative_only": "−0 loses its sign and a tiny negative keeps it: bytes differ by writer at zeros",
        "dropped": "no code is ever −0: bytes differ by writer wherever a negative number vanishes",
    },
    "e2m1_nan": {
        "zero": "a NaN is stored as 0 where others store 6, so equal inputs have unequal bytes by writer",
        "negative_zero": "a NaN is stored as −0 where others store 6, so the bytes differ by writer",
        "signed_zero": "a NaN is stored as a zero whose sign is the NaN's own, which no standard fixes",
        "flipped_zero": "a NaN is stored as a zero whose sign is the other one than the NaN's",
        "refuse": "one NaN among the inputs fails the whole write, in the middle of a batch",
    },
    "e2m1_ties": {
        "away": "numbers halfway between two codes all grow, so a cache is larger than its input on average",
        "toward_zero": "numbers halfway between two codes all shrink, so a cache is smaller on average",
    },
    "e2m1_zero": {
        "negative_only": "−0 loses its sign and a tiny negative keeps it: bytes differ by writer at zeros",
        "dropped": "no code is ever −0: bytes differ by writer wherever a negative number vanishes",
        "negative": "a zero that was given is always stored as −0: bytes differ by writer at zeros",
    },
    "int_ties": {
        "away": "numbers halfway between two codes move away from zero: bytes differ by writer at ties",
        "up": "numbers halfway between two codes all move up, so a cache is shifted upwards on average",
    },
    "int8_lowest": {
        "-127": "what another writer stores as −128 is one code higher here",
    },
    "scale_division": {
        "reciprocal": "a code in a hundred or so is one off: two roundings where division has one",
        "input": "the quotient has the few bits of the input's dtype: a code in thirty is one off",
        "input_scale": "the scale too has the few bits of the input's dtype: all codes lean to one side",
        "approximate": "near a tie the code is not determined: the same tokens may be stored as other bytes",
    },
    "tensor_scale": {
        "unit": "the scale ignores the data: large numbers saturate, small ones lose bits or vanish",
        "amax_over_200": "codes reach 200 of 448: a bit of precision is given for room above the maximum",
        "amax_over_100": "codes reach 100 of 448: two bits of precision are given for room above the maximum",
    },
    "scale_floor": {
        "1e-6": "what is far below 1e-6 vanishes, and a group of zeros has a scale that is not its own",
        "1e-4": "what is far below 1e-4 loses bits or vanishes, in layers with small values whole tokens",
        "smallest_normal": "a group of zeros has the scale 2^-126 and not 0, so the bytes differ by writer",
    },
    "scale_power": {
        "up": "up to half of the range lies unused, and scales differ from amax / largest",
    },
    "mx_scale": {
        "ceil": "all groups but those whose maximum is a power of two have one bit less than by the OCP rule",
        "even": "groups with a maximum just below a power of two have twice the scale of the OCP rule",
        "even_one_bit": "groups with a maximum from 1.75 times a power of two on have twice the OCP scale",
        "rceil": "groups with a maximum past the largest element have twice the scale of the OCP rule",
        "nearest": "a maximum up to √2 past the largest element saturates: more than by the OCP rule",
    },
    "mx_exponent": {
        "log2": "a maximum one last place below a power of two takes the next scale: its group loses a bit",
        "log2_input": "a maximum near a power of two takes the scale of the other side of it",
    },
    "mx_zero_group": {
        "1e-10": "groups of zeros have another scale byte, so equal caches have unequal hashes",
    },
    "mx_inf_group": {
        "top": "a group with an infinity has the scale 2^127 whatever the rule: the bytes differ by writer",
        "nan": "one infinity makes all elements of its group NaN",
    },
    "mx_smallest_divisor": {
        "smallest_normal": "under the scale byte 0x00 codes are made for 2^-126: they are read as half of it",
        "one": "under the scale byte 0x00 codes are made for 1, and so are all zero",
    },
    "mx_span": {
        "flattened": "a group may span two heads, so a head's codes depend on its neighbour and on sharding",
    },
    "nvfp4_operand": {
        "encode": "given the scale that others take, every number is wrong by the square of that scale",
    },
    "nvfp4_global": {
        "amax/448": "group scales reach 75 of 448, and a reader that expects the other rule is 6 times off",
        "unit": "the global scale ignores the data: numbers past 2688 saturate, groups near 0.005 vanish",
    },
    "nvfp4_division": {
        "reciprocal": "a code in two thousand is one off: two roundings where division has one",
        "two_reciprocals": "codes and, rarely, group scales are one off against a single division",
        "encode": "codes and, rarely, group scales are one off against the formula over decode scales",
        "approximate": "near a tie the code is not determined: the same tokens may be stored as other bytes",
    },
    "nvfp4_scale_floor": {
        "smallest": "a group of zeros has the scale 2^-9, and a tiny one codes of 0: bytes differ by writer",
        "smallest_normal": "groups below 2^-6 of what a global scale spans lose bits or vanish",
        "epsilon": "groups that are zero or nearly so have the scale 0.125, far from their own",
        "one": "a group of zeros has the scale 1, and a tiny group one of 2^-9: the bytes differ by writer",
    },
    "nvfp4_tiny_group": {
        "signed_zero": "codes of −0 lie under a scale of zero, others have 0: the bytes differ by writer",
        "largest": "codes of ±6 lie under a scale of zero: whoever replaces that scale reads large numbers",
    },
    "nvfp4_nan_group": {
        "nan": "one NaN makes NaN of the fifteen numbers beside it",
    },
    "nvfp4_largest": {
        "four_over_six": "a group's scale depends on two rounding errors, which other writers do not compare",
    },
    "constant_group": {
        "nan": "a group of equal numbers becomes NaN, and so does what attends to it",
    },
    "q8_0_reciprocal": {
        "of_amax": "numbers are multiplied by 127 / amax: about one code in eight thousand is one off",
    },
    "multiply_add": {
        "fused": "a product and a sum are rounded once instead of twice: last places differ by program",
    },
    "nibble_order": {
        "high_first": "read low nibble first, every two neighbouring channels change places",
        "split": "read low nibble first, the two halves of every group are interleaved",
    },
    "scale_layout": {
        "tiled_128x4": "read row by row, nearly every group has the scale of another",
    },
    "v_scale_layout": {
        "interleaved": "read token by token, values have the scales of their neighbours",
    },
    "decode_dtype": {
        "output": "scale and product are rounded to the output's dtype, on top of what the format loses",
    },
    "nvfp4_decode_order": {
        "scales_first": "the product is rounded twice: its last place differs by reader",
    },
    "scale_axis": {
        "tokens": "a token cannot be appended alone, for its scales are those of the tokens beside it",
    },
    "attend_values": {
        "input": "keys and values are rounded to the dtype of q, on top of what the format loses",
    },
}


def choice_name(decision: str) -> str:
    """Return the name of the choice that is this decision of a path."""
    return decision.replace("_", "-")


#: The choices that are decisions of a path, by their own name.
FORMAT_CHOICES: dict[str, Choice] = {
    choice_name(decision): Choice(choice_name(decision), answers[0], _HAZARDS[decision])
    for decision, answers in PATHS.items()
}
CHOICES: dict[str, Choice] = {
    choice.name: choice for choice in (*_OF_ATTENTION, *_OF_SCANS, *OF_MANAGERS)
} | FORMAT_CHOICES
