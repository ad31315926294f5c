"""Checks of writing: the reference passes, and each fault of a writer is seen where it belongs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]


class CountsUpwards(Reference):
    """Takes the first slot and counts on: right until a request's slots are scattered."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        start = int(slot_mapping.min(initial=0))
        super().write_kv(k, v, k_cache, v_cache, slot_mapping=start + np.arange(len(slot_mapping)))


class NegativeMeansFromTheEnd(Reference):
    """Indexes with a negative slot."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        super().write_kv(
            k, v, k_cache, v_cache, slot_mapping=slot_mapping % (k_cache.shape[0] * k_cache.shape[1])
        )


class NegativeMeansTheFirst(Reference):
    """Clamps a negative slot to 0, as a buffer filled with zeros does."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        super().write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)
        skipped = slot_mapping < 0
        if skipped.any():
            k_cache[0, 0], v_cache[0, 0] = k[skipped][-1], v[skipped][-1]


class ClearsItsBlocks(Reference):
    """Zeroes the block of every slot before it writes."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        for cache in (k_cache, v_cache):
            cache[slot_mapping[slot_mapping >= 0] // cache.shape[1]] = 0
        super().write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)


class KeysInBoth(Reference):
    """Writes the keys to both caches."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        super().write_kv(k, k, k_cache, v_cache, slot_mapping=slot_mapping)


class LosesSubnormals(Reference):
    """Passes values through arithmetic that flushes subnormal numbers to zero."""

    def write_kv(self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array) -> None:
        tiny = np.abs(k.astype(np.float64)) < 1e-30 if k.dtype != np.float16 else np.abs(k) < 6e-5
        super().write_kv(np.where(tiny, 0, k).astype(k.dtype), v, k_cache, v_cache, slot_mapping=slot_mapping)


class AttendsFirst(Reference):
    """Reads the cache before this step's tokens are in it."""

    def append_and_attend(
        self, q: Array, k: Array, v: Array, k_cache: Array, v_cache: Array, **rest: Any
    ) -> Any:
        slots = rest.pop("slot_mapping")
        answer = self.paged_attention(q, k_cache, v_cache, **rest)
        self.write_kv(k, v, k_cache, v_cache, slot_mapping=slots)
        return answer


class WritesTheNextSlot(Reference):
    """Appends one slot too far, though it attends to the right tokens."""

    def append_and_attend(
        self, q: Array, k: Array, v: Array, k_cache: Array, v_cache: Array, **rest: Any
    ) -> Any:
        answer = super().append_and_attend(q, k, v, k_cache.copy(), v_cache.copy(), **rest)
        slots = rest["slot_mapping"]
        wrong = np.where(slots >= 0, (slots + 1) % (k_cache.shape[0] * k_cache.shape[1]), -1)
        self.write_kv(k, v, k_cache, v_cache, slot_mapping=wrong)
        return answer


def test_the_reference_writes_as_the_spec_says(failing: Failing) -> None:
    """A check that the reference fails would be a false alarm."""
    assert failing("writes", Reference) == []


@pytest.mark.parametrize(
    ("faulty", "requirement"),
    [
        (CountsUpwards, "KV-ATTN-050"),
        (LosesSubnormals, "KV-ATTN-050"),
        (WritesTheNextSlot, "KV-ATTN-050"),
        (NegativeMeansFromTheEnd, "KV-ATTN-051"),
        (NegativeMeansTheFirst, "KV-ATTN-051"),
        (ClearsItsBlocks, "KV-ATTN-052"),
        (KeysInBoth, "KV-ATTN-053"),
        (AttendsFirst, "KV-ATTN-054"),
    ],
)
def test_a_faulty_writer_is_caught(failing: Failing, faulty: type[Reference], requirement: str) -> None:
    """One small fault, and the check of the rule it breaks sees it in every case."""
    assert failing("writes", faulty, requirement)


@pytest.mark.parametrize("faulty", [NegativeMeansTheFirst, ClearsItsBlocks])
def test_a_slot_that_holds_its_token_is_not_blamed(failing: Failing, faulty: type[Reference]) -> None:
    """What happens to other slots is the matter of other rules."""
    assert failing("writes", faulty, "KV-ATTN-050") == []


def test_a_wrong_slot_is_described_by_what_it_holds(failing: Failing) -> None:
    """The reader of a report should see at once that a key went where a value belongs."""
    first = failing("writes", KeysInBoth, "KV-ATTN-053")[0]
    assert "v_cache[" in first.message
    assert "holds the key of its token" in first.message
    moved = failing("writes", CountsUpwards, "KV-ATTN-050")[0]
    assert "expected the key of token" in moved.message


def test_caches_stay_finite_where_the_subject_asks_for_it(failing: Failing) -> None:
    """A subject that needs finite dead slots is not shown NaN."""

    class NeedsFinite(Reference):
        claims = replace(Reference.claims, choices={"dead-slots": "any_finite"})

        def write_kv(
            self, k: Array, v: Array, k_cache: Array, v_cache: Array, *, slot_mapping: Array
        ) -> None:
            assert np.isfinite(k_cache.astype(np.float64)).all()
            super().write_kv(k, v, k_cache, v_cache, slot_mapping=slot_mapping)

    assert failing("writes", NeedsFinite, "KV-ATTN-052") == []
