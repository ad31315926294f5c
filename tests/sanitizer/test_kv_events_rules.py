"""Planted faults in streams of KV-cache events: each rule is broken by the smallest stream, and named."""

from hashlib import sha256
from typing import Any

import pytest
from kv_event_lines import (
    CLEARED,
    batch,
    blocks,
    dynamo,
    found,
    judged,
    lookup,
    numbered,
    removed,
    stored,
)

from kvref.errors import ArgumentError
from kvref.memory.namespace import Namespace
from kvref.memory.vllm_keys import event_hash, vllm_block_keys
from kvref.sanitizer.kv_event_findings import RULES
from kvref.sanitizer.kv_event_scheme import VllmScheme
from kvref_conformance.requirements import load_requirements

ONE, TWO, THREE = [11, 12], [21, 22], [31, 32]
GONE = {"removed": {"block_hashes": [1]}}
CPU: dict[str, Any] = {"medium": "CPU"}

#: Rule -> streams that break it, each with the line and the event where it shows, and the earlier line.
PLANTED: dict[str, list[tuple[list[Any], int, int, int | None]]] = {
    "KV-PREFIX-030": [
        ([stored([1], None, ONE), stored([2], None, ONE)], 2, 1, 1),
        ([stored([1], None, ONE), removed(1), stored([2], None, ONE)], 3, 1, 1),
        ([stored([1, 2], None, ONE + TWO), stored([3], 1, TWO)], 2, 1, 1),
        ([dynamo(blocks(None, (1, 7))), dynamo(blocks(None, (2, 7)))], 2, 1, 1),
    ],
    "KV-PREFIX-040": [
        ([stored([2], 1, TWO)], 1, 1, None),
        ([stored([1], None, ONE), removed(1), stored([2], 1, TWO)], 3, 1, 2),
        ([stored([1], 1, ONE)], 1, 1, None),
        ([stored([1], None, ONE), batch(stored([3], 2, THREE), stored([2], 1, TWO))], 2, 1, None),
        ([stored([1], None, ONE, **CPU), stored([2], 1, TWO)], 2, 1, None),
        ([stored([1], None, ONE, group_idx=1), stored([2], 1, TWO)], 2, 1, None),
        ([batch(stored([1], None, ONE)), batch(stored([2], 1, TWO), rank=1)], 2, 1, None),
        ([dynamo(blocks(None, (1, 7)), 1), dynamo(blocks(1, (2, 8)), 2)], 2, 1, None),
    ],
    "KV-PREFIX-041": [
        ([stored([1], None, ONE), stored([1], None, ONE)], 2, 1, 1),
        ([stored([1], None, ONE), batch(CLEARED, rank=1), batch(stored([1], None, ONE), rank=None)], 3, 1, 1),
        ([stored([1, 2], None, ONE + TWO), stored([2], 1, TWO)], 2, 1, 1),
    ],
    "KV-PREFIX-042": [
        ([removed(1)], 1, 1, None),
        ([stored([1], None, ONE), removed(1), removed(1)], 3, 1, 2),
        ([stored([1], None, ONE), removed(1, 1)], 2, 1, 2),
        ([stored([1], None, ONE), removed(1, **CPU)], 2, 1, None),
        ([stored([1], None, ONE), removed(1, group_idx=2)], 2, 1, None),
        ([dynamo(blocks(None, (1, 7)), 1), dynamo(GONE, 1, 1)], 2, 1, None),
    ],
    "KV-PREFIX-043": [
        ([stored([1], None, [1, 2, 3])], 1, 1, None),
        ([stored([1, 2], None, ONE)], 1, 1, None),
        ([stored([1], None, [])], 1, 1, None),
        ([stored([], None, ONE)], 1, 1, None),
        ([stored([1], None, ONE, size=0)], 1, 1, None),
        ([stored([1], None, ONE, extra_keys=[None, None])], 1, 1, None),
    ],
    "KV-PREFIX-044": [
        ([stored([1], None, ONE), removed(1), stored([1], None, TWO)], 3, 1, 1),
        ([stored([1], None, ONE), removed(1), CLEARED, stored([1], None, TWO)], 4, 1, 1),
        ([stored([1], None, ONE), removed(1), stored([1], None, ONE, lora_name="a")], 3, 1, 1),
        ([stored([1], None, ONE), removed(1), stored([1], None, ONE, cache_salt="a")], 3, 1, 1),
        ([stored([1], None, ONE), removed(1), stored([1], None, ONE, extra_keys=[["a"]])], 3, 1, 1),
        ([stored([1, 2], None, ONE + TWO), removed(2), stored([2], None, TWO)], 3, 1, 1),
        ([batch(stored([1], None, ONE)), batch(stored([1], None, TWO), rank=1)], 2, 1, 1),
        ([dynamo(blocks(None, (1, 7))), dynamo(blocks(None, (1, 8)), 1, 1)], 2, 1, 1),
    ],
    "KV-PREFIX-045": [
        ([stored([1], None, ONE), CLEARED, removed(1)], 3, 1, 2),
        ([batch(stored([1], None, ONE)), batch(CLEARED, stored([2], 1, TWO))], 2, 2, 2),
        ([dynamo(blocks(None, (1, 7))), dynamo("cleared"), dynamo(GONE)], 3, 1, 2),
    ],
    "KV-PREFIX-046": [
        ([stored([1], None, ONE), lookup([*ONE, 9], 0)], 2, 1, 1),
        ([stored([1], None, ONE), lookup([*TWO, 9], 2)], 2, 1, None),
        ([stored([1, 2], None, ONE + TWO), removed(1), lookup([*ONE, *TWO, 9], 4)], 3, 1, 2),
        ([stored([1], None, ONE), CLEARED, lookup([*ONE, 9], 2)], 3, 1, 2),
        ([stored([1], None, ONE, lora_name="a"), lookup([*ONE, 9], 2)], 2, 1, None),
        ([stored([1], None, ONE), lookup([*ONE, 9], 2, lora_name="a")], 2, 1, None),
        ([stored([1], None, ONE, extra_keys=[["t"]]), lookup([*ONE, 9], 2, cache_salt="u")], 2, 1, None),
        ([stored([1], None, ONE), lookup(ONE, 2)], 2, 1, None),
        ([lookup(ONE, 2)], 1, 1, None),
    ],
}  # fmt: skip


def cases() -> list[Any]:
    """Each stream, by its rule and number."""
    return [
        pytest.param(rule, *case, id=f"{rule[-3:]}-{number}")
        for rule, streams in PLANTED.items()
        for number, case in enumerate(streams)
    ]


@pytest.mark.parametrize(("rule", "messages", "line", "event", "earlier"), cases())
def test_planted_fault_is_named(
    rule: str, messages: list[Any], line: int, event: int, earlier: int | None
) -> None:
    """The rule, the line, the event in it, and the earlier line that it contradicts."""
    first = judged(*messages).findings[0]
    assert (first.requirement, first.line, first.event) == (rule, line, event)
    assert [told[0] for told in first.excerpt] == ([] if earlier is None else [earlier])
    assert f"{rule} {RULES[rule]}" in first.told()
    assert f"line {line}, event {event}: " in first.told()


def test_rules_are_those_of_the_spec() -> None:
    """Each rule has its slug from the chapter, and a stream here that breaks it."""
    spec = load_requirements()
    assert {rule: spec[rule].slug for rule in RULES} == dict(RULES)
    assert set(PLANTED) | {"KV-PREFIX-033"} == set(RULES)


@pytest.mark.parametrize(
    "messages",
    [
        [batch(stored([1, 2], None, ONE + TWO)), batch(stored([3], 2, THREE), removed(3, 2, 1))],
        [stored([1], None, ONE), removed(1), stored([1], None, ONE)],
        [stored([1], None, ONE), CLEARED, stored([1], None, ONE), removed(1)],
        [stored([1], None, ONE), CLEARED, stored([2], None, ONE)],
        [CLEARED, CLEARED],
        [batch(stored([1], None, ONE)), batch(stored([1], None, ONE), rank=1), batch(removed(1), rank=1)],
        [{"worker": w, "batch": batch(stored([1], None, t))} for w, t in (("a", ONE), ("b", TWO))],
        [stored([1], None, ONE, medium=None), removed(1)],
        [stored([1], None, ONE, lora_name="a"), stored([2], None, ONE)],
        [stored([1], None, ONE, cache_salt="a"), stored([2], None, ONE, cache_salt="b")],
        [stored([at], None, ONE, extra_keys=[[["image", at]]]) for at in (0, 1)],
        [stored([1], None, ONE), stored([1], None, [*ONE, *TWO], size=4, group_idx=1)],
        [stored([1], None, ONE), stored([2], 1, TWO, **CPU), stored([2], 1, TWO), removed(2, **CPU)],
        [stored([7], 3, ONE, kv_cache_spec_kind="sliding_window")],
        [stored([1], None, [], size=0, **CPU), stored([1], None, ONE), removed(1, **CPU)],
        [stored([1], None, [[1, 2], [2, 3]]), removed(1)],
        [stored([1, 2], None, ONE + TWO), removed(1), stored([1], None, ONE)],
        [stored([], None, []), removed()],
    ],
)  # fmt: skip
def test_honest_streams_are_clean(messages: list[Any]) -> None:
    """Ranks, workers, media, groups and namespaces are apart; what is removed may come back."""
    assert found(*messages) == []


def test_copies_are_counted_where_each_is_told() -> None:
    """Two copies of a block are stored and removed one by one; the key is there while one is."""
    stream = [
        batch(stored([1], None, ONE), stored([1], None, ONE)),
        batch(removed(1)),
        lookup([*ONE, 9], 2),
        batch(stored([2], 1, TWO), removed(1)),
        lookup([*ONE, 9], 0),
    ]
    assert found(*stream, copies="each") == []
    assert found(*stream, batch(removed(1)), copies="each") == [("KV-PREFIX-042", 6, 1)]
    assert [rule for rule, *_ in found(*stream)] == [
        "KV-PREFIX-041",
        "KV-PREFIX-046",
        "KV-PREFIX-040",
        "KV-PREFIX-042",
    ]


def test_copies_are_once_or_each() -> None:
    """Nothing else is an answer."""
    with pytest.raises(ArgumentError, match="copies = 'twice', expected one of once, each"):
        judged(copies="twice")


def test_one_fault_is_told_once() -> None:
    """What is wrong is taken as it was told: a chain behind a missing parent is not wrong at each block."""
    stream = [stored([2, 3], 1, TWO + THREE), stored([4], 3, ONE), removed(4, 3, 2)]
    assert found(*stream) == [("KV-PREFIX-040", 1, 1)]


def test_search_ends_at_as_many_findings_as_asked_for() -> None:
    """The report says that the rest was not read."""
    report = judged(*[removed(n) for n in range(9)], max_findings=3)
    assert (len(report.findings), report.complete) == (3, False)
    assert judged(removed(1)).complete


# --- lookups


def test_answers_are_compared_in_whole_blocks() -> None:
    """Two blocks are there: of five tokens four can be hit, and of four two, or three where the last may be
    within a block.
    """
    both = stored([1, 2], None, ONE + TWO)
    assert found(both, lookup([*ONE, *TWO, 9], 4), lookup([*ONE, *TWO], 2), lookup([*ONE, *TWO], 3)) == []
    assert found(both, lookup([*ONE, *TWO], 4)) == [("KV-PREFIX-046", 2, 1)]
    assert found(both, lookup([*ONE, *TWO], 4, limit=4), lookup([*ONE, *TWO, 9], 2, limit=3)) == []
    assert found(both, lookup([], 0), lookup([9], 0)) == []


def test_lookup_by_keys_and_by_hashes_of_tokens() -> None:
    """An index is asked with keys, and Dynamo's with the hashes of tokens; both are held to the mirror."""
    own = {"worker": 1, "dp_rank": 0}
    stream = [
        dynamo(blocks(None, (1, 7), (2, 8))),
        {"lookup": {"block_hashes": [1, 2, 3], "num_cached_blocks": 2}, **own},
        {"lookup": {"tokens_hashes": [7, 8, 9], "num_cached_blocks": 2}, **own},
        {"lookup": {"tokens_hashes": [8], "num_cached_blocks": 0}, **own},
    ]
    assert found(*stream) == []
    stream += [
        {"lookup": {"block_hashes": [1], "num_cached_blocks": 0}, **own},
        {"lookup": {"tokens_hashes": [7, 9], "num_cached_blocks": 2}, **own},
    ]
    assert found(*stream) == [("KV-PREFIX-046", 5, 1), ("KV-PREFIX-046", 6, 1)]


def test_lookup_without_rank_concerns_the_only_one() -> None:
    """With one rank there is no doubt who was asked; with two, rank None is a third that holds nothing."""
    one = batch(stored([1], None, ONE), rank=3)
    assert found(one, lookup([*ONE, 9], 2)) == []
    assert found(one, batch(CLEARED, stored([1], None, ONE), rank=4), lookup([*ONE, 9], 0)) == []
    assert found(one, {**lookup([*ONE, 9], 0), "data_parallel_rank": 4}) == []


def test_window_shortens_an_answer_and_never_lengthens_it() -> None:
    """A group that keeps only some blocks can end a hit early: such answers are counted as not judged."""
    window: dict[str, Any] = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
    stream = [stored([1, 2], None, ONE + TWO), stored([2], 1, TWO, **window), removed(2, group_idx=1)]
    report = judged(*stream, lookup([*ONE, *TWO, 9], 2), lookup([*ONE, *TWO, 9], 4))
    assert (report.findings, report.unjudged) == ([], {"KV-PREFIX-046": 1})
    assert found(*stream, lookup([*ONE, *TWO, *THREE, 9], 6)) == [("KV-PREFIX-046", 4, 1)]
    only = judged(stored([2], 1, TWO, **window), lookup([*ONE, *TWO, 9], 0))
    assert (only.findings, only.unjudged) == ([], {"KV-PREFIX-046": 1})


def test_groups_of_unequal_blocks_answer_together() -> None:
    """A hit is in all groups, and a multiple of all block sizes."""
    stream = [stored([1, 2, 3], None, ONE + TWO + THREE), stored([2], None, ONE + TWO, size=4, group_idx=1)]
    tokens = [*ONE, *TWO, *THREE, 9]
    assert found(*stream, lookup(tokens, 4)) == []
    assert found(*stream, lookup(tokens, 6, group_idx=0), lookup(tokens, 4, group_idx=1)) == []
    assert found(*stream, lookup(tokens, 8)) == [("KV-PREFIX-046", 3, 1)]


# --- holes


def test_nothing_is_said_of_what_lies_behind_a_hole() -> None:
    """Batches 1 and 2 are missing: what is there is not known until all is cleared."""
    stream = [
        numbered(0, stored([1], None, ONE)),
        numbered(3, stored([3], 2, THREE), removed(9), stored([1], None, ONE)),
        lookup([*TWO, 9], 2),
    ]
    report = judged(*stream)
    assert report.findings == []
    assert report.unjudged == {f"KV-PREFIX-{n}": 1 for n in ("040", "041", "042", "046")}
    assert [(hole.line, hole.first, hole.last) for hole in report.holes] == [(2, 1, 2)]
    assert report.holes[0].told() == "batches 1 to 2 are missing of rank 0"
    assert found(*stream, numbered(4, stored([5], None, [1, 2, 3]))) == [("KV-PREFIX-043", 4, 1)]
    assert found(*stream, numbered(4, stored([1], None, TWO)))[0][0] == "KV-PREFIX-044"
    assert found(*stream, numbered(4, CLEARED, removed(3))) == [("KV-PREFIX-045", 4, 2)]


def test_a_stream_that_was_joined_late_has_a_hole_in_front() -> None:
    """The first batch that came has the number 7."""
    report = judged(numbered(7, removed(1)))
    assert (report.findings, [(h.first, h.last) for h in report.holes]) == ([], [(0, 6)])


def test_a_batch_that_comes_again_is_passed_over() -> None:
    """Publishers deliver at least once, and replay what a subscriber asks for."""
    stream = [numbered(n, stored([n + 1], None, [n, n])) for n in (0, 1, 0, 1, 2)]
    report = judged(*stream)
    assert (report.findings, report.repeated, report.holes) == ([], 2, [])


def test_numbers_that_begin_again_later_are_a_new_engine() -> None:
    """It restarted: nothing is there, and what the old one stored is not missed."""
    stream = [numbered(0, stored([1], None, ONE)), numbered(1, stored([2], 1, TWO), ts=1.0)]
    report = judged(*stream, numbered(0, stored([1], None, ONE), ts=2.0), lookup([*ONE, *TWO, 9], 2))
    assert (report.findings, report.repeated, report.holes) == ([], 0, [])


def test_sources_are_numbered_apart() -> None:
    """Each worker and rank counts for itself."""
    stream = [numbered(n, stored([n + 1], None, [n, n]), worker=w) for n in (0, 1) for w in ("a", "b")]
    assert judged(*stream).holes == []


# --- the scheme

ADAPTERS = {"sql": "/adapters/sql"}


def chained(tokens: list[int], keys: list[bytes], whole: bool, **more: Any) -> dict[str, Any]:
    """The blocks of a prompt as vLLM publishes them."""
    named = [key.hex() if whole else event_hash(key) for key in keys]
    return stored(named, None, tokens, **more)


@pytest.mark.parametrize("whole", [True, False])
def test_hashes_of_the_scheme_are_accepted(whole: bool) -> None:
    """As whole hashes or as their last 8 bytes, under every extra key, and behind an earlier block."""
    tokens = [5, 6, 7, 8]
    keys = vllm_block_keys(tokens, 2, Namespace(adapter="sql", adapter_version="/adapters/sql", salt="t"))
    told = chained(tokens, keys, whole, lora_name="sql", extra_keys=[["sql", "t"], ["sql"]])
    again = chained([5, 6], keys[:1], whole, lora_name="sql", extra_keys=[["sql", "t"]])
    behind = stored(
        told["block_hashes"][1:], told["block_hashes"][0], [7, 8], lora_name="sql", extra_keys=[["sql"]]
    )
    scheme = VllmScheme(adapters=ADAPTERS)
    assert found(told, scheme=scheme) == []
    assert judged(again, behind, scheme=scheme).as_json()["unjudged"] == {}
    assert found(again, behind, scheme=scheme) == []
    unknown = judged(told, scheme=VllmScheme())
    assert (unknown.findings, unknown.unjudged) == ([], {"KV-PREFIX-033": 2})


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    "wrong",
    [
        {"seed": "7"},
        {"token_ids": [5, 6, 7, 9]},
        {"extra_keys": [["t"], None]},
        {"extra_keys": [[["image", 0]], None]},
    ],
)
def test_other_hashes_are_told_once(whole: bool, wrong: dict[str, Any]) -> None:
    """A seed, a token or an extra key that the hash does not have: the first block it concerns is named."""
    tokens = [5, 6, 7, 8]
    keys = vllm_block_keys(tokens, 2, seed=wrong.get("seed", "vllm-none-hash"))
    event = chained(tokens, keys, whole) | wrong
    findings = judged(event, event, scheme=VllmScheme(), copies="each").findings
    assert [finding.requirement for finding in findings] == ["KV-PREFIX-033"]
    assert "is not the hash of its tokens" in findings[0].message


def test_embeddings_are_known_by_their_digest() -> None:
    """Text among extra keys may be a salt or a digest, and either reading may be the right one."""
    rows = [bytes([n]) * 8 for n in range(4)]
    keys = vllm_block_keys([0, 0, 0, 0], 2, Namespace(salt="t"), embeddings=rows)
    digests = [sha256(b"".join(rows[at : at + 2])).hexdigest() for at in (0, 2)]
    told = chained([0, 0, 0, 0], keys, True, extra_keys=[["t", digests[0]], [digests[1]]])
    assert found(told, scheme=VllmScheme()) == []
