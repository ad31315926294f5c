"""Checks of latent attention: the reference passes, and records read another way are seen."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kvref.arrays import Array
from kvref.attention.mla import expand_outputs, mla_attention_naive
from kvref_conformance.cases import Case
from kvref_conformance.probes.records import ROPE_DIM, absorbed_problem, record_needles
from kvref_conformance.runner.evaluate import Evidence
from kvref_conformance.subjects.reference import Reference

Failing = Callable[..., list[Evidence]]


class ForgetsTheRotatedPart(Reference):
    """Scores latents only."""

    def mla_attention(self, q: Array, kv_cache: Array, *, latent_dim: int, **rest: Any) -> Any:
        blind = q.copy()
        blind[..., latent_dim:] = 0
        return super().mla_attention(blind, kv_cache, latent_dim=latent_dim, **rest)


class ValuesFromTheEnd(Reference):
    """Takes the last `latent_dim` numbers of a record as its value."""

    def mla_attention(self, q: Array, kv_cache: Array, *, latent_dim: int, **rest: Any) -> Any:
        turned = np.roll(kv_cache, latent_dim - kv_cache.shape[2], axis=2)
        shift = latent_dim - q.shape[2]
        return super().mla_attention(np.roll(q, shift, axis=2), turned, latent_dim=latent_dim, **rest)


class RotatedPartFirst(Reference):
    """Expects queries as rope | latent, so both halves score against the other one."""

    def mla_attention(self, q: Array, kv_cache: Array, *, latent_dim: int, **rest: Any) -> Any:
        return super().mla_attention(np.roll(q, latent_dim, axis=2), kv_cache, latent_dim=latent_dim, **rest)


class ScalesByItsOwnWidth(Reference):
    """Ignores the scale it is given."""

    def mla_attention(self, q: Array, kv_cache: Array, *, scale: float, **rest: Any) -> Any:
        return super().mla_attention(q, kv_cache, scale=kv_cache.shape[2] ** -0.5, **rest)


def test_the_reference_reads_records_as_the_spec_says(failing: Failing) -> None:
    """A check that the reference fails would be a false alarm."""
    assert failing("mla", Reference) == []


@pytest.mark.parametrize(
    ("faulty", "requirement"),
    [
        (ForgetsTheRotatedPart, "KV-ATTN-060"),
        (ForgetsTheRotatedPart, "KV-ATTN-061"),
        (ValuesFromTheEnd, "KV-ATTN-061"),
        (RotatedPartFirst, "KV-ATTN-061"),
        (ScalesByItsOwnWidth, "KV-ATTN-062"),
    ],
)
def test_a_faulty_reader_of_records_is_caught(
    failing: Failing, faulty: type[Reference], requirement: str
) -> None:
    """One small fault, and the check of the rule it breaks sees it."""
    assert failing("mla", faulty, requirement)


def test_every_scale_is_told_from_the_width(failing: Failing) -> None:
    """Both scales of the check differ from width ** -0.5 by more than any bound, in every dtype."""
    found = failing("mla", ScalesByItsOwnWidth, "KV-ATTN-062")
    assert {evidence.case.option("scale") for evidence in found} == {0.0078125, 0.25}


def test_needles_are_hunted_through_both_halves() -> None:
    """A record whose halves do not both score would hide that one of them is ignored."""
    case = Case(
        verb="mla_attention",
        seq_lens=(19, 7),
        query_lens=(3, 2),
        num_kv_heads=1,
        group=3,
        head_dim=128 + ROPE_DIM,
    )
    problem = record_needles(case)
    assert (problem.q[..., 128:] != 0).any(axis=(1, 2)).any()
    assert (problem.q[..., :128] != 0).any(axis=(1, 2)).any()
    assert (problem.hunts >= 0).all()


def test_absorbing_and_expanding_are_exact_in_bfloat16() -> None:
    """Otherwise the check would compare two roundings and not two forms of attention."""
    case = Case(
        verb="mla_attention",
        seq_lens=(9,),
        query_lens=(2,),
        num_kv_heads=1,
        group=3,
        head_dim=128 + ROPE_DIM,
        dtype="bfloat16",
    )
    problem, naive = absorbed_problem(case)
    assert (np.abs(naive["w_uk"]).sum(axis=1) == 1).all()
    assert (np.abs(naive["w_uv"]).sum(axis=2) == 1).all()
    whole = mla_attention_naive(
        **naive,
        kv_cache=problem.k,
        block_tables=np.arange(9)[None],
        seq_lens=[9],
        query_start_loc=[0, 2],
        scale=0.03125,
    )
    answer = Reference().mla_attention(
        problem.q.astype(np.float64),
        problem.k,
        latent_dim=128,
        block_tables=np.arange(9)[None],
        seq_lens=[9],
        query_start_loc=[0, 2],
        scale=0.03125,
    )
    np.testing.assert_allclose(expand_outputs(answer, naive["w_uv"]), whole.out, rtol=0, atol=1e-14)
