"""What a subject claims about formats and no case asks, and why it cannot be asked.

A claim that nothing exercises would be believed. A format, dtype, width or block size concerns each verb that
can be asked in it; what concerns none of the verbs that are offered says nothing, and counts against all of
them, as does a choice that no claimed format leaves open.

Realises: KV-CONF-003 claims-are-checked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from kvref.formats.format import FORMATS, Format
from kvref_conformance.cases import Case
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import Check
from kvref_conformance.choices import CHOICES, FORMAT_CHOICES
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.contracts import FORMATTED, VERBS
from kvref_conformance.formatted import KV_HEADS, fits, is_split
from kvref_conformance.probes.code_cases import attends
from kvref_conformance.probes.format_cases import places_of

WRITE, ATTEND = "quantize_kv", "quantized_paged_attention"
#: Beginnings of decisions that stand in the name, element or family of the formats that have them.
_NAMED = ("e4m3", "e5m2", "fnuz", "fp8", "e2m1", "int8", "int", "mx", "nvfp4", "q8_0")
#: Other decisions that not every format has; the rest are of scales, which nearly all have.
_SHAPED: dict[str, Callable[[Format], bool]] = {
    "tensor_scale": lambda kind: kind.group == "tensor",
    "constant_group": lambda kind: kind.zeros,
    "nibble_order": lambda kind: kind.packed,
    "scale_layout": lambda kind: kind.family in ("mx", "nvfp4"),
    "scale_axis": lambda kind: kind.family in ("mx", "nvfp4"),
    "v_scale_layout": lambda kind: kind.group == "channels" and kind.family != "ggml",
    "attend_values": attends,
}

Planned = Sequence[tuple[Check, Case]]


def unasked(verb: str, offered: Iterable[str], claims: Claims, asked: Planned) -> tuple[str, ...]:
    """Return what a verb claims and is not asked, in words; `asked` is what was asked of it.

    `offered` are all verbs of the subject. Of verbs without formats only one thing is said: why nothing at
    all was asked.
    """
    if verb not in FORMATTED:
        return () if asked else ("none of its checks has a case under these claims",)
    others = [other for other in offered if other in VERBS and other != verb]
    words: dict[tuple[str, str], list[object]] = {}
    for field, visited in _visited(asked).items():
        for value in getattr(claims, field):
            if value not in visited and _counts(field, value, verb, others, claims):
                words.setdefault((field, _why(field, value, verb, claims)), []).append(value)
        if field == "formats" and words and not visited:
            break  # whatever else was not asked follows from that
    found = [f"claims.{field} holds {_listed(values)}: {why}" for (field, why), values in words.items()]
    return (*found, *_features(verb, claims, asked), *_choices(claims))


def _visited(asked: Planned) -> Mapping[str, set[object]]:
    """Return by field of the claims the values that cases about formats have."""
    cases = [case for _, case in asked if "format" in case.options]
    return {
        "formats": {case.option("format") for case in cases},
        "dtypes": {case.dtype for case in cases},
        "head_dims": {case.head_dim for case in cases},
        "block_sizes": {case.block_size for case in cases},
    }


def _counts(field: str, value: object, verb: str, others: Sequence[str], claims: Claims) -> bool:
    """Say whether it counts against a verb that it was not asked in a claimed value.

    It does where that concerns the verb, or no verb that is offered; and where no format concerns the verb.
    """
    if field == "block_sizes" and verb != ATTEND:
        return False
    if _concerns(verb, field, value, claims):
        return True
    if field == "formats":
        if not any(_concerns(verb, field, name, claims) for name in claims.formats):
            return True
        others = [other for other in others if other in FORMATTED]
    return not any(other not in FORMATTED or _concerns(other, field, value, claims) for other in others)


def _concerns(verb: str, field: str, value: object, claims: Claims) -> bool:
    """Say whether a verb of formats can be asked in a value of the claims."""
    kinds = [FORMATS[name] for name in claims.formats if verb != ATTEND or attends(FORMATS[name])]
    if field == "formats":
        return FORMATS[str(value)] in kinds
    if field == "dtypes":
        return verb == ATTEND or value in ALL_DTYPES
    fours = [verb == ATTEND and _by_fours(kind, claims) for kind in kinds]
    number = int(str(value))
    if field == "block_sizes":
        return any(not four or number % 4 == 0 for four in fours)
    return any(
        _has_width(kind, number, verb, claims) and not (four and number // kind.size % 4)
        for kind, four in zip(kinds, fours, strict=True)
    )


def _by_fours(kind: Format, claims: Claims) -> bool:
    """Say whether values of a cache have their scales in turns of four tokens and four groups."""
    return claims.choice("v-scale-layout") == "interleaved" and _SHAPED["v_scale_layout"](kind)


def _has_width(kind: Format, width: int, verb: str, claims: Claims) -> bool:
    """Say whether a verb can be asked about a format in a width: to write, also where it is to refuse."""
    whole = any(fits(kind.name, claims.path(), heads, width) for heads in KV_HEADS)
    return whole or (verb == WRITE and any(is_split(kind, heads, width) for heads in KV_HEADS))


def _why(field: str, value: object, verb: str, claims: Claims) -> str:
    """Return why a claimed value was not asked of a verb, and what could be."""
    path = claims.path()
    if field == "dtypes":
        return f"{verb} is not asked in it, expected some of {', '.join(ALL_DTYPES)}"
    if field == "head_dims":
        sizes = sorted({FORMATS[name].size for name in claims.formats})
        return f"no claimed format has whole groups in it, expected a multiple of {sizes[0]}"
    if field == "formats":
        kind = FORMATS[str(value)]
        if not places_of(kind.name, claims):
            return (
                f"its groups fill none of the claimed head_dims ({_listed(claims.head_dims)}), "
                f"expected a multiple of {kind.size}"
            )
        if not _concerns(verb, field, value, claims):
            return (
                f"{verb} takes no format with zeros or with groups of tokens, expected others, or a verb "
                "that writes or reads these"
            )
        if verb == ATTEND and path.scale_axis == "tokens":
            return "under scale-axis = tokens no scale belongs to one token, expected channels"
        if not set(claims.dtypes) & set(ALL_DTYPES):
            return f"none of the claimed dtypes is one of formats, expected some of {', '.join(ALL_DTYPES)}"
    if verb == ATTEND and path.v_scale_layout == "interleaved":
        return (
            "under v-scale-layout = interleaved tokens and groups come in fours, expected a block size that "
            "is a multiple of 4 and a head_dim of 4, 8, 12 … groups"
        )
    return f"no case of {verb} is about it"


def _features(verb: str, claims: Claims, asked: Planned) -> tuple[str, ...]:
    """Return the claimed features that checks of a verb are about and none of its cases was."""
    seen = {feature for check, _ in asked for feature in check.features}
    mine = {feature for check in all_checks() if check.applies(verb, claims) for feature in check.features}
    return tuple(
        f"claims.features holds {feature}: no case of {verb} is about it"
        for feature in claims.features
        if feature in mine - seen
    )


def _choices(claims: Claims) -> tuple[str, ...]:
    """Return the declared answers that have no meaning in any claimed format."""
    kinds = [FORMATS[name] for name in claims.formats]
    idle = [
        name
        for name, answer in claims.choices.items()
        if name in FORMAT_CHOICES and answer != CHOICES[name].canonical
        if not any(_opens(name.replace("-", "_"), kind) for kind in kinds)
    ]
    if not idle:
        return ()
    return (
        f"claims.choices holds {_listed(idle)}: of no claimed format ({_listed(claims.formats)}), expected "
        "decisions that these leave open",
    )


def _opens(decision: str, kind: Format) -> bool:
    """Say whether a format leaves a decision open."""
    if decision in _SHAPED:
        return _SHAPED[decision](kind)
    own = next((word for word in _NAMED if decision.startswith(f"{word}_")), "")
    return own in f"{kind.name} {kind.element} {kind.family}"


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
