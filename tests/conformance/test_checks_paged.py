"""Checks of addressing: a fault of another rule passes them, and a failure says what lay where."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.claims import Claims
from kvref_conformance.museum import all_exhibits
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.tiled import Tiled

Failing = Callable[..., list[Evidence]]
EXHIBITS = {exhibit.name: exhibit for exhibit in all_exhibits()}
#: Requirements whose checks compare a subject with itself, and the topic each belongs to.
COMPARING = {
    "KV-ATTN-012": "dead_slots",
    "KV-ATTN-013": "paged",
    "KV-ATTN-015": "dead_slots",
    "KV-ATTN-016": "paged",
    "KV-ATTN-017": "paged",
    "KV-ATTN-018": "strides",
    "KV-ATTN-019": "strides",
}


@pytest.mark.parametrize("name", ["HeadsTiled", "ScaleTwice", "LastTokenMissing", "WindowOneTooFew"])
@pytest.mark.parametrize("requirement", COMPARING)
def test_placement_is_not_blamed_for_other_faults(failing: Failing, name: str, requirement: str) -> None:
    """Wherever the context lies, the subject is wrong in the same way."""
    faulty = type("Faulty", (EXHIBITS[name].subject,), {"claims": Tiled.claims})
    assert failing(COMPARING[requirement], faulty, requirement, verbs=("paged_attention",)) == []


class Leaks(Tiled):
    """Fetches whole blocks and multiplies what lies past the length by zero."""

    claims = Claims(features=("prefill",), arithmetic=Tiled.claims.arithmetic)

    def tiles(self, kv_len: int) -> list[Array]:
        return [np.arange(start, start + 16) for start in range(0, kv_len, 16)]

    def blended(self, weights: Array, v: Array) -> Array:
        values = v[:, self.kv_heads(len(weights), v.shape[1])].transpose(1, 0, 2)
        return np.asarray(weights @ values)


def test_a_leak_of_nan_is_named(failing: Failing) -> None:
    """The output is not finite, and the message says which slots were dead; nothing else fails."""
    found = failing("dead_slots", Leaks, verbs=("paged_attention",))
    assert {evidence.requirement for evidence in found} == {"KV-ATTN-012"}
    assert failing("paged", Leaks, verbs=("paged_attention",)) == []
    assert "is not finite (nan) once dead slots hold nan" in found[0].message
    assert re.search(r"dead.*slots.* block \d+", found[0].message.replace(",", ""))


def test_a_leak_is_named_without_choices(failing: Failing) -> None:
    """Who declares that dead slots must be finite is asked no more, until its declaration is ignored."""
    choices = {"dead-slots": "any_finite"}
    declared = Claims(features=("prefill",), arithmetic=Leaks.claims.arithmetic, choices=choices)
    subject: Any = type("Declared", (Leaks,), {"claims": declared})
    assert failing("dead_slots", subject, "KV-ATTN-012", verbs=("paged_attention",)) == []
    subject.claims = declared.canonical()
    assert failing("dead_slots", subject, "KV-ATTN-012", verbs=("paged_attention",))
