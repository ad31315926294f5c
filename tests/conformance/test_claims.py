"""The declaration: whatever a subject says about itself is read, or refused with the field's name."""

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.formats.format import FORMATS
from kvref.formats.paths import Path
from kvref_conformance.cases import Level
from kvref_conformance.claims import (
    ALL_BLOCK_SIZES,
    ALL_DTYPES,
    ALL_FORMATS,
    ALL_HEAD_DIMS,
    FEATURES,
    MAX_BLOCK,
    ClaimError,
    Claims,
)
from kvref_conformance.contracts import FORMATTED
from kvref_conformance.probes.code_cases import attends
from kvref_conformance.runner.evaluate import plan
from kvref_conformance.runner.unasked import unasked

CODECS, READERS, ATTENDING = FORMATTED[:2], FORMATTED[1:2], FORMATTED[2:]
FOURS = {"v-scale-layout": "interleaved"}


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ({"features": ["warp"]}, "claims.features holds 'warp'"),
        ({"features": None}, "claims.features = None, expected a list"),
        ({"features": {"lse": 1}}, "claims.features = {'lse': 1}, expected a list"),
        ({"dtypes": []}, "claims.dtypes is empty"),
        ({"dtypes": "float32"}, "claims.dtypes = 'float32', expected a list"),
        ({"dtypes": [["float32"]]}, "claims.dtypes holds"),
        ({"dtypes": ["float32", "float32"]}, "claims.dtypes holds 'float32' twice"),
        ({"head_dims": 64}, "claims.head_dims = 64, expected a list"),
        ({"head_dims": ["a"]}, "claims.head_dims holds 'a', expected a multiple of 8"),
        ({"head_dims": [True]}, "claims.head_dims holds True"),
        ({"head_dims": [64.5]}, "claims.head_dims holds 64.5"),
        ({"head_dims": [1]}, "claims.head_dims holds 1, expected a multiple of 8 from 16 on"),
        ({"head_dims": [2**40]}, "expected at most"),
        ({"head_dims": list(range(16, 16_000, 8))}, "expected a list of at most 64"),
        ({"head_dims": [1024], "block_sizes": [2048]}, f"expected at most {MAX_BLOCK}"),
        ({"block_sizes": [0]}, "claims.block_sizes holds 0, expected an integer >= 1"),
        ({"latent_dims": []}, "claims.latent_dims is empty"),
        ({"rope_styles": ["spiral"]}, "expected one of half, interleaved"),
        ({"layouts": ["zzz"]}, "expected one of nhd, hnd"),
        ({"formats": ["int3"]}, "claims.formats holds 'int3', expected one of fp8_e4m3"),
        ({"formats": []}, "claims.formats is empty"),
        ({"formats": ["kivi_v4"], "head_dims": [80]}, "whose groups fill one of the claimed head_dims (80)"),
        ({"formats": ["fp8_e4m3", "mxfp4"], "head_dims": [24, 72]}, "of this one multiples of 32"),
        ({"choices": {"mx-scale": "round"}}, "expected one of floor, ceil"),
        ({"choices": ["lse-base"]}, "claims.choices = ('lse-base',), expected an object"),
        ({"choices": {"lse-base": ["e"]}}, "expected one of e, 2"),
        ({"choices": {"lse-colour": "e"}}, "claims.choices holds 'lse-colour'"),
        ({"choices": {"e4m3_overflow": "nan"}}, "holds 'e4m3_overflow', write e4m3-overflow"),
        ({"arithmetic": 5}, "claims.arithmetic = 5, expected an object"),
        ({"arithmetic": []}, "claims.arithmetic = (), expected an object"),
        ({"arithmetic": {"block": "x"}}, "claims.arithmetic: block = 'x'"),
        ({"arithmetic": {"accumulate": "int32"}}, "claims.arithmetic: dtype = 'int32'"),
        ({"name": ["x"]}, "claims.name = ('x',), expected text"),
        ({"name": "n" * 1000}, "expected text of at most 200 characters"),
        ({"batch_invariant": "yes"}, "claims.batch_invariant = 'yes', expected True or False"),
        ({"1": 2}, "claims hold '1', expected names among"),
    ],
)
def test_what_says_nothing_that_can_be_checked_is_refused(claims: dict[str, Any], said: str) -> None:
    """Before a case is built from it: not in the middle of a run, and not as a pass."""
    with pytest.raises(ClaimError) as caught:
        Claims.from_dict(claims)
    assert said in str(caught.value)


def test_groups_may_fill_what_no_head_fills() -> None:
    """80 channels are no whole groups of 32, but two heads of them are."""
    claims = Claims(formats=("mxfp4",), head_dims=(80,), choices={"mx-span": "flattened"})
    assert claims.path().mx_span == "flattened"


def test_what_groups_do_not_fill_may_be_asked_to_be_refused() -> None:
    """Two heads of 80 channels are whole groups of 32, so one of 80 is where a writer may mix heads up."""
    assert Claims(formats=("mxfp4",), head_dims=(80,)).canonical().formats == ("mxfp4",)


@pytest.mark.parametrize(
    ("offered", "claimed", "said"),
    [
        (
            CODECS,
            {"dtypes": ("float32", "float64")},
            "claims.dtypes holds float64: quantize_kv is not asked in it, expected some of float32",
        ),
        (
            CODECS,
            {"dtypes": ("float64",)},
            "claims.formats holds fp8_e4m3: none of the claimed dtypes is one of formats, expected some of",
        ),
        (
            CODECS,
            {"formats": ("mxfp4",), "head_dims": (64, 24)},
            "claims.head_dims holds 24: no claimed format has whole groups in it, expected a multiple of 32",
        ),
        (
            READERS,
            {"formats": ("fp8_e4m3", "mxfp4"), "head_dims": (80,)},
            "claims.formats holds mxfp4: its groups fill none of the claimed head_dims (80), expected a "
            "multiple of 32",
        ),
        (
            ATTENDING,
            {"formats": ("fp8_e4m3", "kivi_k4", "int8_midpoint")},
            "claims.formats holds kivi_k4, int8_midpoint: quantized_paged_attention takes no format with",
        ),
        (
            ATTENDING,
            {"formats": ("mxfp4",), "choices": {"scale-axis": "tokens"}},
            "claims.formats holds mxfp4: under scale-axis = tokens no scale belongs to one token, expected",
        ),
        (
            ATTENDING,
            {"formats": ("nvfp4",), "block_sizes": (1,), "choices": FOURS},
            "claims.formats holds nvfp4: under v-scale-layout = interleaved tokens and groups come in fours",
        ),
        (
            ATTENDING,
            {"formats": ("nvfp4",), "block_sizes": (1, 16), "choices": FOURS},
            "claims.block_sizes holds 1: under v-scale-layout = interleaved tokens and groups come in fours",
        ),
        (
            CODECS,
            {"choices": {"nvfp4-division": "encode", "mx-span": "flattened", "e4m3-overflow": "nan"}},
            "claims.choices holds nvfp4-division, mx-span: of no claimed format (fp8_e4m3), expected",
        ),
        (
            ("quantize_kv", *ATTENDING),
            {"formats": ("kivi_k4",)},
            "claims.formats holds kivi_k4: quantized_paged_attention takes no format with",
        ),
        (("convert_layout",), {"layouts": ("nhd",)}, "none of its checks has a case under these claims"),
    ],
)
def test_what_is_claimed_and_never_asked_is_said(
    offered: tuple[str, ...], claimed: dict[str, Any], said: str
) -> None:
    """A claim that no case exercises would be believed (KV-CONF-003); the reason says what would fit."""
    (found,) = unasked_of(offered, Claims(**claimed))
    assert found.startswith(said)


@pytest.mark.parametrize(
    ("offered", "claimed"),
    [
        (("quantize_kv", "attention"), {"dtypes": ("float32", "float64")}),
        (("quantize_kv", *ATTENDING), {"dtypes": ("float32", "float64")}),
        (("quantize_kv", *ATTENDING), {"formats": ("fp8_e4m3", "kivi_k4")}),
        (CODECS, {"formats": ("mxfp4",), "head_dims": (64, 80, 48)}),
        (("write_kv", *CODECS), {"formats": ("mxfp4",), "head_dims": (64, 24)}),
        (ATTENDING, {"formats": ("nvfp4", "fp8_e4m3"), "block_sizes": (1, 16), "choices": FOURS}),
        (CODECS, {"formats": ("nvfp4",), "choices": {"scale-division": "input", "attend-values": "input"}}),
    ],
)
def test_what_concerns_another_verb_counts_against_none(
    offered: tuple[str, ...], claimed: dict[str, Any]
) -> None:
    """Claims are those of a subject, and no verb is asked in everything."""
    assert unasked_of(offered, Claims(**claimed)) == ()


@pytest.mark.parametrize("level", ["quick", "full"])
@pytest.mark.parametrize("name", ALL_FORMATS)
def test_every_format_is_asked_in_everything_claimed(name: str, level: Level) -> None:
    """Whatever can be asked of a verb is asked of it, in each format alone."""
    head_dims = tuple(width for width in ALL_HEAD_DIMS if width % (FORMATS[name].size or 1) == 0)
    wide = {"dtypes": ALL_DTYPES, "block_sizes": ALL_BLOCK_SIZES, "features": tuple(FEATURES)}
    claims = Claims(formats=(name,), head_dims=head_dims, **wide)
    verbs = FORMATTED if attends(FORMATS[name]) else CODECS
    assert unasked_of(verbs, claims, level) == ()


@pytest.mark.parametrize("level", ["quick", "full"])
def test_formats_together_are_asked_in_everything_claimed(level: Level) -> None:
    """Cases are dealt out over the formats, and none is left out."""
    wide = {"dtypes": ALL_DTYPES, "block_sizes": ALL_BLOCK_SIZES, "features": tuple(FEATURES)}
    assert unasked_of(FORMATTED, Claims(formats=ALL_FORMATS, head_dims=ALL_HEAD_DIMS, **wide), level) == ()


def unasked_of(offered: Sequence[str], claims: Claims, level: Level = "quick") -> tuple[str, ...]:
    """Return what is claimed and not asked, of the first verb for which there is anything."""
    for verb in offered:
        if found := unasked(verb, offered, claims, plan((verb,), claims, level)):
            return found
    return ()


def test_the_path_is_what_the_choices_say() -> None:
    """Canonical where nothing is declared, and back to it for `--canonical`."""
    claims = Claims(choices={"e4m3-overflow": "nan", "lse-base": "2"})
    assert claims.path() == Path(e4m3_overflow="nan")
    assert claims.canonical().path() == Path()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ARITHMETIC = st.dictionaries(st.sampled_from(sorted(Claims().to_dict()["arithmetic"])), JSON, max_size=2)


@given(st.dictionaries(st.sampled_from(sorted(Claims().to_dict())), JSON | ARITHMETIC, max_size=3))
def test_any_values_are_read_or_refused(data: dict[str, Any]) -> None:
    """Whatever a program sends: claims that survive JSON, or an error that names the field."""
    with suppress(ClaimError):
        claims = Claims.from_dict(data)
        assert Claims.from_dict(json.loads(json.dumps(claims.to_dict()))) == claims
