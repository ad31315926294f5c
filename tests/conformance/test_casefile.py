"""Case files travel between people: they say everything, and are read with suspicion."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref.errors import KVError
from kvref_conformance.cases import Case
from kvref_conformance.runner.casefile import MAX_BYTES, CaseFile, load_case, parse_case, save_case

CASE = Case(
    verb="paged_attention",
    seq_lens=(17, 3),
    query_lens=(1, 3),
    group=7,
    dtype="bfloat16",
    options={"window": 16},
)
FOUND = CaseFile(
    spec_version="0.1.0",
    requirement="KV-ATTN-021",
    slug="window-own-token",
    check="window_holds_exactly_w_tokens",
    case=CASE,
    subject="my_kernels",
    subject_version="1.2",
    message="out[0] = 1, expected 2",
    kind="",
)


def changed(**changes: Any) -> str:
    """Return the text of the file with fields changed."""
    return json.dumps({**json.loads(FOUND.to_json()), **changes})


def changed_case(**changes: Any) -> str:
    """Return the text of the file with fields of its case changed."""
    return changed(case={**CASE.to_dict(), **changes})


def test_a_file_says_the_whole_case(tmp_path: Path) -> None:
    """What is read is what was written, so the failure comes back."""
    path = save_case(tmp_path / "finds", FOUND)
    assert path.name == "KV-ATTN-021-0001.json"
    assert load_case(path) == FOUND


def test_files_are_numbered_and_written_once(tmp_path: Path) -> None:
    """A second find gets a second file; the same find again does not."""
    first = save_case(tmp_path, FOUND)
    other = save_case(tmp_path, parse_case(changed_case(seq_lens=[18, 3])))
    assert other.name == "KV-ATTN-021-0002.json"
    assert save_case(tmp_path, FOUND) == first


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"schema": "kvref-case/1", "schema": "kvref-case/1"}',
        "[" * 50_000,
        changed(schema="kvref-case/2"),
        changed(extra="x"),
        changed(message=3),
        changed(case=None),
        changed_case(verb="generate"),
        changed_case(dtype="float31"),
        changed_case(seq_lens=[-1, 3]),
        changed_case(seq_lens=[True, 3]),
        changed_case(seq_lens=[17]),
        changed_case(group=0),
        changed_case(options=[1]),
        changed_case(options={"window": 1e300}),
        changed_case(options={"window": [1]}),
        changed_case(seed=1.5),
        changed_case(seq_lens=[2**24, 2**24], group=2**20),
        changed_case(path="/etc/passwd"),
        changed_case(seed=0).replace('"seed": 0', '"seed": NaN'),
    ],
)
def test_anything_else_is_refused_before_memory_is_touched(text: str) -> None:
    """Unknown fields, wrong types, and sizes that no honest case has."""
    with pytest.raises(KVError):
        parse_case(text)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    """The size is looked at first."""
    path = tmp_path / "case.json"
    path.write_text(" " * (MAX_BYTES + 1))
    with pytest.raises(KVError, match="expected at most"):
        load_case(path)
    with pytest.raises(KVError, match="cannot be read"):
        load_case(tmp_path / "none.json")


def test_a_check_of_another_suite_is_named() -> None:
    """A file that names no check of ours says which one it wanted."""
    with pytest.raises(KVError, match="no_such_check"):
        parse_case(changed(check="no_such_check")).find_check()
    with pytest.raises(KVError, match="belongs to KV-ATTN-021"):
        parse_case(changed(requirement="KV-ATTN-020")).find_check()
    assert FOUND.find_check().requirement == "KV-ATTN-021"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(json.loads(FOUND.to_json()))), JSON)
def test_no_field_can_do_more_than_be_refused(field: str, value: object) -> None:
    """Whatever stands in a field, reading ends in a case file or in one of kvref's own errors."""
    with suppress(KVError):
        parse_case(json.dumps({**json.loads(FOUND.to_json()), field: value}))


@given(st.sampled_from(sorted(CASE.to_dict())), JSON)
def test_no_number_of_a_case_can_either(field: str, value: object) -> None:
    """The same, one level down."""
    with suppress(KVError):
        parse_case(json.dumps({**json.loads(FOUND.to_json()), "case": {**CASE.to_dict(), field: value}}))
