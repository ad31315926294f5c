"""The declaration: whatever a subject says about itself is read, or refused with the field's name."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.formats.paths import Path
from kvref_conformance.claims import MAX_BLOCK, ClaimError, Claims


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
