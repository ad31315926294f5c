"""Tests of declared orders of eviction: what leaves something open, and a cache that forgets all at once."""

from dataclasses import replace
from typing import Any

import pytest

from kvref.memory.profiles import PROFILES
from kvref.memory.radix_cache import RadixCache
from kvref_conformance.cases import PROGRAM, Case
from kvref_conformance.checks.prefix_evictions import evictions_follow_the_declared_order
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.oracle import Oracle
from kvref_conformance.programs.running import run
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.reference_prefix import CacheOfReference


class Forgetful(PrefixLists):
    """Forgets all that nobody holds when a request lacks room."""

    def make_room(self, count: int, hits: list[int]) -> None:
        """Refuse, or forget every block that is neither held nor hit."""
        super().make_room(count, hits)
        idle = [block for block in self.waiting if block not in hits]
        plain = [block for block in idle if all(block != known for _, known in self.known)]
        for block in idle if count > len(plain) else []:
            self.forget(block)


def failing(cache: Any, order: str, *methods: str) -> list[Case]:
    """Return the cases in which a cache does not keep to the order that it declares."""
    claims = Claims(block_sizes=(4, 1), choices={"eviction-order": order})
    host = InProcessHost(type("Subject", (), {"prefix_cache": staticmethod(cache), "claims": claims})())
    check, oracle = evictions_follow_the_declared_order, Oracle(claims)
    cases = check.cases(claims, "prefix_cache", "quick")
    assert len(cases) >= 16
    return [case for case in cases if evaluate(check, case, host, oracle).status == "fail"]


@pytest.mark.parametrize(("split", "order"), [("keeps", "lru_node"), ("renews", "lru_node_renewed")])
def test_how_a_split_node_ages_is_declared(split: Any, order: str) -> None:
    """SGLang dates both halves of a node that it splits; a tree may date the hit alone, and is another."""
    profile = replace(PROFILES["sglang"], split=split)

    def cache(num_blocks: int, block_size: int) -> CacheOfReference:
        return CacheOfReference(RadixCache(num_blocks, profile, block_size))

    (other,) = {"lru_node", "lru_node_renewed"} - {order}
    assert failing(cache, order) == []
    assert failing(cache, other)
    assert failing(cache, "lru_tail_first")


@pytest.mark.parametrize("order", ["lru_head_first", "lru_tail_first"])
def test_which_end_of_a_prefix_goes_first_is_declared(order: str) -> None:
    """Neither end may go first where the other is declared."""
    cache = type("Ordered", (PrefixLists,), {"eviction_order": order})
    (other,) = {"lru_head_first", "lru_tail_first"} - {order}
    assert failing(cache, order) == []
    assert failing(cache, other)
    assert failing(cache, "lru_node")


def test_all_that_nobody_holds_may_go_at_once() -> None:
    """Who forgets everything for want of room says so, and nobody else does."""
    assert failing(Forgetful, "all_at_once") == []
    assert failing(Forgetful, "lru_tail_first")
    assert failing(PrefixLists, "all_at_once")


def test_a_request_larger_than_the_pool_ends_the_comparison() -> None:
    """What follows a refusal is not determined."""
    claims = Claims(block_sizes=(1,), choices={"eviction-order": "all_at_once"})
    host = InProcessHost(type("Subject", (), {"prefix_cache": Forgetful, "claims": claims})())
    program = "admit 0 1 3; commit 0; finish 0; admit 1 1 2 2 9; admit 1 1 3"
    options = {"num_blocks": 4, PROGRAM: program}
    case = Case(verb="prefix_cache", seq_lens=(), query_lens=(), block_size=1, options=options)
    assert evaluate(evictions_follow_the_declared_order, case, host, Oracle(claims)).status == "pass"


@pytest.mark.parametrize(
    "order", ["lru_tail_first", "lru_node", "lru_node_renewed", "all_at_once", "unspecified"]
)
def test_a_pool_of_a_null_block_alone_is_judged(order: str) -> None:
    """A search makes pools as small as they go: block 0 is null, and every request is refused."""
    claims = Claims(block_sizes=(1,), choices={"eviction-order": order, "null-block": "reserved"})
    cache = type("Nothing", (PrefixLists,), {"num_free": lambda self: 0})
    host = InProcessHost(type("Subject", (), {"prefix_cache": cache, "claims": claims})())
    options = {"num_blocks": 1, PROGRAM: "huge 1"}
    case = Case(verb="prefix_cache", seq_lens=(), query_lens=(), block_size=1, options=options)
    session = host.open("prefix_cache", num_blocks=1, block_size=1)
    assert "KV-PREFIX-024" not in {
        b.requirement for b in run("admit 1 1 2; huge 1", session, case, claims).breaches
    }
