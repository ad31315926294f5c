"""Real managers at the points where engines differ, driven as the suite drives them.

They run where their interpreters are named (KVREF_VLLM_PYTHON, KVREF_SGLANG_PYTHON,
KVREF_TRANSFORMERS_PYTHON, KVREF_DYNAMO_PYTHON), PyTorch's where it is installed.
"""

import json
from typing import Any

import pytest
from subject_hosts import OF_MANAGERS, opened

from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.host import Host
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.runner.suite import run_suite
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.tables import ListTables

CACHES = tuple(name for name in OF_MANAGERS if name.startswith(("vllm", "sglang", "transformers")))
TREES = ("sglang_radix_cache", "sglang_unified_cache")


def session_of(hosts: dict[str, Host], name: str, manager: str, **params: Any) -> Any:
    """Return a session on a manager of a subject, or skip where its library is missing."""
    return opened(hosts, name).open(manager, **params)


def serve(session: Any, request: int, tokens: list[int], **given: Any) -> int:
    """Admit a prompt, compute it, end it; return its hit."""
    asked = {"request": request, "tokens": tokens, "max_new_tokens": len(tokens)}
    hit = session.do("admit", **asked, **given)["num_cached_tokens"]
    session.do("commit", request=request)
    session.do("finish", request=request)
    return int(hit)


@pytest.mark.parametrize("name", CACHES)
def test_a_token_is_left_and_hits_are_whole_blocks(hosts: dict[str, Host], name: str) -> None:
    """A prompt of two blocks of four hits one when it comes again; with a token more, both."""
    cache = session_of(hosts, name, "prefix_cache", num_blocks=9, block_size=4)
    hits = [serve(cache, at, list(range(1, count + 1))) for at, count in enumerate((8, 8, 9, 7, 4))]
    assert hits == [0, 4, 8, 4, 0]


@pytest.mark.parametrize("name", CACHES)
def test_ids_are_those_of_the_pool(hosts: dict[str, Host], name: str) -> None:
    """Every block can be had, by its id from 0, or from 1 where block 0 is null."""
    cache = session_of(hosts, name, "prefix_cache", num_blocks=4, block_size=1)
    null = hosts[name].hello().claims["choices"].get("null-block") == "reserved"
    count = 4 - null
    found = cache.do("admit", request=1, tokens=list(range(1, count + 1)), max_new_tokens=count)
    assert sorted(found["slots"]) == list(range(null, 4))
    assert cache.do("num_free")["num_free_blocks"] == 0


@pytest.mark.parametrize("name", CACHES)
def test_extension_that_lacks_room_leaves_the_request_as_it_was(hosts: dict[str, Host], name: str) -> None:
    """The adapter lets no token join that has no slot."""
    cache = session_of(hosts, name, "prefix_cache", num_blocks=4, block_size=4)
    cache.do("admit", request=1, tokens=[1, 2, 3], max_new_tokens=3)
    cache.do("commit", request=1)
    with pytest.raises(Failed):
        cache.do("extend", request=1, tokens=list(range(100, 120)), max_new_tokens=20)
    (slot,) = cache.do("extend", request=1, tokens=[4], max_new_tokens=1)["slots"]
    cache.do("commit", request=1)
    cache.do("finish", request=1)
    assert slot % 4 == 3
    assert serve(cache, 2, [1, 2, 3, 4, 5]) == 4


def test_vllm_publishes_when_it_schedules(hosts: dict[str, Host]) -> None:
    """Two requests of one step: the second hits what the first is going to compute."""
    cache = session_of(hosts, "vllm_kv_cache_manager", "prefix_cache", num_blocks=9, block_size=4)
    cache.do("admit", request=1, tokens=list(range(1, 10)), max_new_tokens=9)
    found = cache.do("admit", request=2, tokens=list(range(1, 10)), max_new_tokens=9)
    assert found["num_cached_tokens"] == 8


def test_vllm_tells_of_each_copy(hosts: dict[str, Host]) -> None:
    """A prompt of one block is computed twice, since a token is left: its hash is stored twice."""
    cache = session_of(hosts, "vllm_kv_cache_manager", "prefix_cache", num_blocks=9, block_size=4)
    for request in (1, 2):
        serve(cache, request, [1, 2, 3, 4])
    events = json.loads(cache.do("take_events")["events"])
    assert [event["type"] for event in events] == ["BlockStored", "BlockStored"]
    assert events[0]["block_hashes"] == events[1]["block_hashes"]


def test_vllm_counts_what_is_freed_below_zero(hosts: dict[str, Host]) -> None:
    """A block freed twice is not refused; an allocation that meets it later fails."""
    pool = session_of(hosts, "vllm_kv_cache_manager", "block_allocator", num_blocks=4)
    (block,) = pool.do("allocate", num_blocks=1)["blocks"]
    pool.do("free", blocks=[block, block])
    assert pool.do("num_free")["num_free_blocks"] == 3
    with pytest.raises(Failed):
        pool.do("allocate", num_blocks=3)


def test_vllm_embeddings_are_in_every_key(hosts: dict[str, Host]) -> None:
    """The first block has no row of embeddings, and another key than in a prompt without any."""
    keys = session_of(hosts, "vllm_kv_cache_manager", "block_keys", block_size=2)
    rows = {"embeddings_digests": ["a"], "embeddings_offsets": [2], "embeddings_lengths": [1]}
    plain, given = (keys.do("keys", tokens=[1, 2, 3, 4], **more)["keys"] for more in ({}, rows))
    assert plain[0] != given[0]


@pytest.mark.parametrize("name", TREES)
def test_sglang_evicts_a_page_more_than_it_needs(hosts: dict[str, Host], name: str) -> None:
    """Two of four pages are free and two are needed; with pages of one token nothing is evicted."""
    for size, hit in ((4, 0), (1, 1)):
        cache = session_of(hosts, name, "prefix_cache", num_blocks=5, block_size=size)
        serve(cache, 1, list(range(1, 2 * size + 1)))
        cache.do("admit", request=2, tokens=list(range(50, 50 + 2 * size)), max_new_tokens=2 * size)
        cache.do("abort", request=2)
        again = cache.do("admit", request=3, tokens=list(range(1, 2 * size + 1)), max_new_tokens=1)
        assert again["num_cached_tokens"] == hit


@pytest.mark.parametrize("name", TREES)
def test_sglang_outputs_wait_for_the_end(hosts: dict[str, Host], name: str) -> None:
    """Another request hits the prompt while the first decodes, and the answer when it is through."""
    cache = session_of(hosts, name, "prefix_cache", num_blocks=20, block_size=2)
    cache.do("admit", request=1, tokens=[1, 2], max_new_tokens=2)
    cache.do("commit", request=1)
    for token in (3, 4):
        cache.do("extend", request=1, tokens=[token], max_new_tokens=1)
        cache.do("commit", request=1)
    assert serve(cache, 2, [1, 2, 3, 9, 9]) == 2
    cache.do("finish", request=1)
    assert serve(cache, 3, [1, 2, 3, 4, 5]) == 4


def test_transformers_evicts_everything_for_a_request_that_does_not_fit(hosts: dict[str, Host]) -> None:
    """A request too large for the pool is refused, and what was cached is gone."""
    name = "transformers_continuous_cache"
    cache = session_of(hosts, name, "prefix_cache", num_blocks=3, block_size=4)
    serve(cache, 1, [1, 2, 3, 4])
    assert serve(cache, 2, [1, 2, 3, 4, 5]) == 4
    with pytest.raises(Failed):
        cache.do("admit", request=3, tokens=list(range(50, 70)), max_new_tokens=20)
    assert serve(cache, 4, [1, 2, 3, 4, 5]) == 0


@pytest.mark.parametrize("name", ["torch_paged_attention", "transformers_continuous_cache"])
def test_tables_tell_the_slots_that_an_append_gives(hosts: dict[str, Host], name: str) -> None:
    """Two requests by turns; a third takes what the first gives back."""
    tables = session_of(hosts, name, "block_tables", num_blocks=4, block_sizes=[2])
    for request, count in ((1, 3), (2, 3)):
        tables.do("add", request=request)
        slots = tables.do("append", request=request, num_tokens=count)["slots"]
        table = tables.do("block_table", request=request, group=0)["blocks"]
        assert slots == [table[at // 2] * 2 + at % 2 for at in range(count)]
    assert tables.do("num_free")["num_free_blocks"] == 0
    freed = tables.do("block_table", request=1, group=0)["blocks"]
    tables.do("free", request=1)
    tables.do("add", request=3)
    tables.do("append", request=3, num_tokens=4)
    assert set(tables.do("block_table", request=3, group=0)["blocks"]) == set(freed)


def test_dynamo_cuts_where_a_block_is_removed(hosts: dict[str, Host]) -> None:
    """Each worker has its own run of a path."""
    index = session_of(hosts, "dynamo_index", "block_index", block_size=16)
    for worker in (3, 5):
        index.do("store", worker=worker, parent="", keys=["a1", "b2", "c3"])
    index.do("remove", worker=5, keys=["b2"])
    found = index.do("match", keys=["a1", "b2", "c3", "d4"])
    assert dict(zip(found["workers"], found["num_blocks"], strict=True)) == {3: 3, 5: 1}


def test_tables_that_only_grow_and_count_are_asked_all_they_offer() -> None:
    """No fork and no truncation, as PyTorch's: the count is asked for all the same."""
    hidden = dict.fromkeys(("fork", "truncate", "prune"))
    subject = type("Subject", (), {"block_tables": type("Growing", (ListTables,), hidden)})()
    subject.claims = Claims(block_sizes=(4, 1))
    (area,) = [area for area in run_suite(InProcessHost(subject)).areas if area.verdict != "not claimed"]
    assert (area.verdict, area.reason, area.operations[-1]) == ("conformant", "", "num_free")


@pytest.mark.parametrize("hidden", ["abort", "reset", "take_events"])
def test_caches_are_asked_what_they_offer(hidden: str) -> None:
    """A step that a cache has no operation for is passed over, as transformers' cache has no reset."""
    subject = type("Subject", (), {"prefix_cache": type("Lacking", (PrefixLists,), {hidden: None})})()
    subject.claims = Claims(block_sizes=(4, 1), features=("salt", *(["events"] * (hidden != "take_events"))))
    (area,) = [area for area in run_suite(InProcessHost(subject)).areas if area.verdict != "not claimed"]
    assert (area.verdict, area.reason) == ("conformant", "")
