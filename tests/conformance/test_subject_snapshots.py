"""What real snapshot caches do, each asked in its own environment: where states are kept, and when."""

from typing import Any

import pytest
from subject_hosts import opened

from kvref_conformance.host import Host

OPTIONS = {"num_blocks": 40, "block_size": 1, "num_states": 12, "snapshot_interval": 4}


@pytest.fixture(scope="module")
def hosts() -> Any:
    """Hosts that stay open for all tests here."""
    found: dict[str, Host] = {}
    yield found
    for host in found.values():
        host.close()


@pytest.fixture
def cache(hosts: dict[str, Host]) -> Any:
    """SGLang's tree of a hybrid model."""
    return opened(hosts, "sglang_mamba_cache").open("snapshot_cache", **OPTIONS)


def admit(cache: Any, request: int, tokens: list[int]) -> Any:
    """Begin a request and schedule all of it."""
    return cache.do("admit", request=request, tokens=tokens, max_new_tokens=len(tokens))


def test_a_prefill_donates_the_state_after_its_last_chunk(cache: Any) -> None:
    """It takes two slots, and a third when it gives one to the tree, which the next request copies from."""
    first = admit(cache, 1, list(range(10)))
    assert (first["source"], first["save_positions"]) == (-1, [8])
    assert cache.do("num_free_states")["num_free_states"] == 10
    cache.do("commit", request=1)
    assert cache.do("num_free_states")["num_free_states"] == 9
    second = admit(cache, 2, list(range(12)))
    assert (second["num_cached_tokens"], [second["source"]]) == (8, first["save_states"])
    assert second["state"] not in (first["state"], second["source"])


def test_a_decoded_state_is_hit_when_its_request_has_ended(cache: Any) -> None:
    """The last multiple that decoding passed is kept in one slot, and in the tree from the end on."""
    admit(cache, 1, list(range(6)))
    cache.do("commit", request=1)
    for tokens, saved in (([50, 51], [8]), ([52], []), ([53] * 6, [12])):
        step = cache.do("extend", request=1, tokens=tokens, max_new_tokens=len(tokens))
        assert step["save_positions"] == saved
        cache.do("commit", request=1)
    longer = [*range(6), 50, 51, 52, *[53] * 6, 99]
    assert admit(cache, 2, longer)["num_cached_tokens"] == 4
    cache.do("abort", request=2)
    cache.do("finish", request=1)
    assert admit(cache, 3, longer)["num_cached_tokens"] == 12


def test_a_quarter_of_the_slots_may_run(cache: Any) -> None:
    """As its server sizes them: the fourth request of twelve slots waits."""
    for request in range(3):
        admit(cache, request, [request, 1, 2, 3, 4])
        cache.do("commit", request=request)
    with pytest.raises(Exception, match="max_running_requests = 3"):
        admit(cache, 3, [9, 9])
