"""Tests of what requests are given besides tokens: only what an engine could be given."""

import pytest

from kvref_conformance.programs.drafts import Drafts
from kvref_conformance.programs.step import parse

FEATURES = ("adapter", "adapter_version", "salt", "media", "embeddings")


@pytest.mark.parametrize(
    ("program", "texts"),
    [
        ("adapter 1 2; version 1 3", {"adapter": 2, "adapter_version": 3}),
        ("version 1 3", {}),
        ("adapter 1 0; version 1 3", {"adapter": 0}),
        ("adapter 1 0; version 1 0", {"adapter": 0, "adapter_version": 0}),
        ("version 1 3; salt 1 2", {"salt": 2}),
    ],
)
def test_a_version_is_that_of_an_adapter(program: str, texts: dict[str, int]) -> None:
    """No engine has a version of nothing; the empty text is none, and is passed all the same."""
    drafts = Drafts(FEATURES)
    for step in parse(program):
        drafts.perform(step)
    assert drafts.of(1).texts == texts
