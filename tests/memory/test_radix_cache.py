"""A prefix cache over a radix tree: what requests hit, what they read, what returns, what is refused."""

from collections import Counter
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from memory import workloads
from memory.graphs import graph_of
from memory.sglang import sglang_runs

from kvref.errors import ArgumentError, KVError, OutOfBlocksError, OwnershipError, UnknownRequestError
from kvref.memory.namespace import COMMON, Namespace, Span
from kvref.memory.profiles import PROFILES, Profile
from kvref.memory.radix_cache import CANONICAL, RadixCache
from kvref.memory.radix_contents import block_contents

SGLANG = PROFILES["sglang"]
TURN = list[tuple[list[int], list[int]]]


def compute(cache: RadixCache, request: int, tokens: Any, **how: Any) -> int:
    """Admit a request and compute all of it; return its hit."""
    hit = cache.admit(request, tokens, **how).num_cached_tokens
    cache.commit(request)
    return hit


def serve(cache: RadixCache, request: int, tokens: Any, **how: Any) -> int:
    """Do the same, and finish it."""
    hit = compute(cache, request, tokens, **how)
    cache.finish(request)
    return hit


def cached(cache: RadixCache, tokens: Any) -> int:
    """How many blocks the tree has of a prefix; asking changes nothing."""
    return cache.tree.find(block_contents(tokens, cache.block_size)).num_blocks


def served(profile: Profile, requests: TURN) -> tuple[int, int]:
    """Serve a workload one request at a time: hits in tokens, evictions in blocks."""
    cache, hits = RadixCache(workloads.NUM_BLOCKS, profile, workloads.BLOCK_SIZE), 0
    for request, (prompt, decoded) in enumerate(requests):
        hits += compute(cache, request, prompt)
        if decoded:
            cache.extend(request, decoded)
            cache.commit(request)
        cache.finish(request)
    cache.check_invariants()
    assert cache.num_free == workloads.NUM_BLOCKS
    return hits, cache.evictions


@pytest.fixture(scope="module")
def turns() -> dict[str, TURN]:
    """Both workloads, as prompts and decoded tokens."""
    return {"W1": [(prompt, []) for prompt in workloads.w1()], "W3": workloads.w3()}


@pytest.mark.parametrize("workload", ["W1", "W3"])
@pytest.mark.parametrize("name", ["sglang", "sglang-lfu"])
def test_hits_and_evictions_are_sglangs(name: str, workload: str, turns: dict[str, TURN]) -> None:
    """To the token, under both policies that were asked."""
    expected = workloads.oracles()["profiles"][name][workload]
    profile = SGLANG if name == "sglang" else replace(SGLANG, policy="lfu")
    hits, evictions = served(profile, turns[workload])
    assert hits == expected["hit_tokens"]
    assert evictions * workloads.BLOCK_SIZE == expected.get(
        "evicted_tokens", evictions * workloads.BLOCK_SIZE
    )


@pytest.mark.parametrize("workload", ["W1", "W3"])
def test_canonical_tree_is_a_queue_of_blocks(workload: str, turns: dict[str, TURN]) -> None:
    """Leaves cut block by block, oldest first, are what vLLM's free queue evicts: the same counts exactly."""
    expected = workloads.oracles()["profiles"]["vllm"][workload]
    assert served(CANONICAL, turns[workload]) == (expected["hit_tokens"], expected["evicted_blocks"])


def test_what_whole_nodes_and_renewed_rests_cost(turns: dict[str, TURN]) -> None:
    """Between vLLM's hits on W1 and SGLang's lie two choices: nodes that go whole, and rests renewed."""
    hits = [
        served(replace(CANONICAL, evict_unit=unit, split=split), turns["W1"])[0]
        for unit, split in (("block", "keeps"), ("node", "keeps"), ("block", "renews"), ("node", "renews"))
    ]
    assert hits == [2_382_080, 2_342_912, 2_357_632, 2_330_624]


@pytest.mark.parametrize("run", sglang_runs("caches"), ids=lambda run: f"{run['policy']}-{run['size']}")
def test_overlapping_requests_as_in_sglang(run: dict[str, Any]) -> None:
    """Chunks, outputs, ends and aborts in any order: hits, evictions and free blocks after each step."""
    cache = RadixCache(run["num_blocks"], replace(SGLANG, policy=run["policy"]), run["size"])
    for kind, request, *arguments, evictions, free in run["steps"]:
        if kind == "admit":
            text, most, hit = arguments
            given = cache.admit(request, [ord(letter) for letter in text], max_new_tokens=most)
            assert given.num_cached_tokens == hit
        elif kind == "extend":
            text, most = arguments
            cache.extend(request, [ord(letter) for letter in text], max_new_tokens=most)
        else:
            getattr(cache, kind)(request)
        assert (cache.evictions, cache.num_free) == (evictions, free)
        cache.check_invariants()


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (11, 8), (12, 8)])
def test_hit_leaves_a_token_on_the_grid(length: int, hit: int) -> None:
    """Back to the block before the last token, however much is cached."""
    cache = RadixCache(8, block_size=4)
    serve(cache, 0, range(12))
    assert serve(cache, 1, range(length)) == hit


def test_slots_are_where_blocks_are() -> None:
    """Of cached and scheduled tokens, in order, the last block partly."""
    cache = RadixCache(8, block_size=4)
    assert cache.admit(0, range(6)).slots == [0, 1, 2, 3, 4, 5]
    assert cache.extend(0, [6, 7, 8]) == [6, 7, 8]
    assert cache.slots(0) == list(range(9))
    cache.commit(0)
    admitted = cache.admit(1, [*range(4), 9, 9, 9], max_new_tokens=2)
    assert admitted == (4, [0, 1, 2, 3, 12, 13], [])
    assert cache.extend(1) == [14]
    assert cache.extend(1) == []


def test_chunk_is_hit_when_it_is_computed() -> None:
    """Not when it is scheduled, and not only when its request is finished; only whole blocks are."""
    cache = RadixCache(16, block_size=2)
    cache.admit(0, range(9), max_new_tokens=5)
    assert cache.admit(1, range(9)).num_cached_tokens == 0
    cache.abort(1)
    cache.commit(0)
    assert cache.admit(1, range(9)).num_cached_tokens == 4
    cache.abort(1)
    cache.extend(0)
    assert cache.admit(1, range(9)).num_cached_tokens == 4
    cache.check_invariants()


def test_two_copies_become_one() -> None:
    """The second to compute a prefix reads the first's blocks afterwards, and its own are free again."""
    cache = RadixCache(16, block_size=2)
    first, second = cache.admit(0, range(7)).slots, cache.admit(1, range(7)).slots
    assert not set(first) & set(second)
    cache.commit(0)
    assert cache.num_free == 16 - 8
    cache.commit(1)
    assert cache.num_free == 16 - 5
    assert cache.slots(1) == [*first[:6], second[6]]
    cache.finish(0)
    assert cache.slots(1) == [*first[:6], second[6]]
    cache.finish(1)
    assert cache.num_free == 16
    cache.check_invariants()


def test_aborted_prefill_keeps_what_the_tree_has() -> None:
    """Blocks of committed chunks stay the tree's: whoever hits them reads them (sglang#38319, M024)."""
    cache = RadixCache(7, block_size=2)
    slots = cache.admit(0, range(9), max_new_tokens=4).slots
    cache.commit(0)
    cache.extend(0, max_new_tokens=4)
    cache.abort(0)
    assert cache.num_free == 7
    other = cache.admit(1, [9] * 8).slots
    assert not set(other) & set(slots[:4])
    assert cache.admit(2, range(5), max_new_tokens=1) == (4, [*slots[:4], *cache.slots(2)[4:]], [])
    cache.check_invariants()


def test_abort_before_its_step_leaves_nothing() -> None:
    """What was scheduled and never computed is not hit."""
    cache = RadixCache(8, block_size=2)
    cache.admit(0, range(8))
    cache.abort(0)
    assert serve(cache, 1, range(8)) == 0


def test_next_turn_hits_the_answer() -> None:
    """Prompt and decoded tokens; those computed, on the grid."""
    for profile, hit in ((CANONICAL, 10), (replace(CANONICAL, cached_outputs=False), 4)):
        cache = RadixCache(16, profile, 2)
        compute(cache, 0, range(5))
        for token in range(5, 11):
            cache.extend(0, [token])
            cache.commit(0)
        cache.finish(0)
        assert serve(cache, 1, range(20)) == hit
        cache.check_invariants()


def test_outputs_wait_where_the_profile_says() -> None:
    """SGLang's tree gets a request's outputs at its end; the canonical one block by block."""
    for profile, hit in ((CANONICAL, 8), (SGLANG, 4)):
        cache = RadixCache(16, profile, 2)
        compute(cache, 0, range(5))
        cache.extend(0, range(5, 8))
        cache.commit(0)
        assert cache.admit(1, range(9)).num_cached_tokens == hit
        cache.abort(1)
        cache.finish(0)
        assert cache.admit(1, range(9)).num_cached_tokens == 8


def test_finished_is_when_the_profile_says() -> None:
    """Nothing of a live request is hit, all of a finished one is, and nothing of an aborted one."""
    cache = RadixCache(32, replace(CANONICAL, publish="finished"), 2)
    compute(cache, 0, range(6))
    compute(cache, 1, [7, 8, 9])
    assert cache.admit(2, range(6)).num_cached_tokens == 0
    cache.abort(2)
    cache.finish(0)
    cache.abort(1)
    assert (serve(cache, 2, range(6)), serve(cache, 3, [7, 8, 9])) == (4, 0)
    compute(cache, 4, range(20, 26))
    cache.extend(4, range(26, 30))
    cache.commit(4)
    cache.finish(4)
    assert [len(node.blocks) for node in cache.tree.nodes()][-2:] == [3, 2]


def test_step_that_was_not_run_is_not_published() -> None:
    """A request ends with tokens scheduled: whoever comes next hits what was computed."""
    for end in (RadixCache.finish, RadixCache.abort):
        cache = RadixCache(16, block_size=2)
        cache.admit(0, range(8), max_new_tokens=4)
        cache.commit(0)
        cache.extend(0)
        end(cache, 0)
        assert serve(cache, 1, range(8)) == 4


def test_answer_goes_before_the_question() -> None:
    """Prompt and outputs are two nodes; one that goes whole leaves the other, and outputs are one node."""
    cache = RadixCache(8, SGLANG, 2)
    compute(cache, 0, range(6))
    cache.extend(0, range(6, 12))
    cache.commit(0)
    cache.finish(0)
    serve(cache, 1, [9] * 6)
    assert cache.evictions == 3
    assert serve(cache, 2, range(7)) == 6

    tree = RadixCache(64, block_size=2)
    compute(tree, 0, range(4))
    for token in range(40):
        tree.extend(0, [token])
        tree.commit(0)
    assert [len(node.blocks) for node in tree.tree.nodes()] == [2, 20]


def test_admission_evicts_what_it_may() -> None:
    """The oldest prefix goes; the hit itself, though nobody held it, does not."""
    cache = RadixCache(6, block_size=2)
    serve(cache, 0, range(5))
    serve(cache, 1, range(10, 15))
    assert cache.num_free == 6
    assert serve(cache, 2, [*range(5), 5, 6, 7, 8]) == 4
    assert cache.evictions == 1
    assert serve(cache, 3, range(10, 15)) == 2
    assert cache.evictions == 2


def test_hit_uses_up_what_is_free() -> None:
    """Of 6 blocks that can be had, a hit holds 2: then 4 new ones are given, and 5 are refused."""
    for new, fits in ((4, True), (5, False)):
        cache = RadixCache(8, block_size=2)
        serve(cache, 0, range(4))
        compute(cache, 1, range(20, 24))
        assert cache.num_free == 6
        prompt, before = [*range(4), *range(50, 50 + 2 * new)], graph_of(cache)
        if fits:
            assert cache.admit(2, prompt).num_cached_tokens == 4
            assert cache.num_free == 0
        else:
            with pytest.raises(OutOfBlocksError, match="5 blocks are needed, but 4 of 8 can be had"):
                cache.admit(2, prompt)
            assert graph_of(cache) == before


def test_rest_of_the_node_that_is_hit_may_be_evicted() -> None:
    """All 8 blocks are one node; a request hits 2 of them and gets the other 6."""
    cache = RadixCache(8, block_size=2)
    serve(cache, 0, range(16))
    assert serve(cache, 1, [*range(4), *range(50, 62)]) == 4
    assert cache.evictions == 6


def test_extension_is_refused_as_a_whole() -> None:
    """Its tokens have not joined; with fewer, it is not refused."""
    cache = RadixCache(3, block_size=2)
    compute(cache, 0, range(4))
    before = graph_of(cache)
    with pytest.raises(OutOfBlocksError, match="2 blocks are needed, but 1 of 3"):
        cache.extend(0, [4, 5, 6])
    assert graph_of(cache) == before
    assert len(cache.extend(0, [4, 5, 6], max_new_tokens=2)) == 2


def test_reset_forgets_or_is_refused() -> None:
    """Nothing is hit afterwards, every block is free, and live requests stand in its way."""
    cache = RadixCache(8, block_size=2)
    serve(cache, 0, range(6))
    compute(cache, 1, range(3))
    before = graph_of(cache)
    with pytest.raises(OwnershipError, match="1 requests are live"):
        cache.reset()
    assert graph_of(cache) == before
    cache.finish(1)
    cache.reset()
    assert cache.num_free == 8
    assert serve(cache, 2, range(6)) == 0
    cache.check_invariants()


def test_namespaces_and_media_are_apart() -> None:
    """Salt, adapter, its version, model; an image, where it lies, what it is; and equal ones share."""
    image = Span(kind="media", digest="cat", offset=2, length=4)
    spaces = [
        COMMON,
        Namespace(salt="a"),
        Namespace(adapter="a"),
        Namespace(adapter="a", adapter_version="2"),
        Namespace(model="a"),
        Namespace(spans=(image,)),
        Namespace(spans=(replace(image, digest="dog"),)),
        Namespace(spans=(replace(image, offset=3),)),
        Namespace(spans=(replace(image, kind="embeddings"),)),
    ]
    cache = RadixCache(128, block_size=2)
    hits = [serve(cache, at, [5] * 11, namespace=space) for at, space in enumerate(spaces)]
    assert hits == [0, 0, 0, 0, 0, 2, 2, 2, 2]
    assert [serve(cache, at, [5] * 11, namespace=space) for at, space in enumerate(spaces)] == [10] * 9


def test_image_at_the_end_of_a_prompt_is_in_its_block() -> None:
    """The block is filled by decoded tokens, and holds a row of the image all the same."""
    cats, dogs = (
        Namespace(spans=(Span(kind="media", digest=d, offset=4, length=1),)) for d in ("cat", "dog")
    )
    cache = RadixCache(16, block_size=2)
    compute(cache, 0, [5] * 5, namespace=cats)
    cache.extend(0, [6, 6])
    cache.commit(0)
    cache.finish(0)
    prompt = [5] * 5 + [6, 6]
    assert serve(cache, 1, prompt, namespace=dogs) == 4
    assert serve(cache, 2, prompt, namespace=cats) == 6


def test_lower_priority_goes_first() -> None:
    """TensorRT-LLM's order: priority, then the longest unused; a request that names none has 35."""
    cache = RadixCache(6, "tensorrt-llm", 2)
    serve(cache, 0, range(4), priority=80)
    serve(cache, 1, range(10, 14))
    serve(cache, 2, range(20, 24), priority=10)
    left = [[2, 2, 0], [2, 0, 0], [2, 0, 0]]
    for request, priority, expected in ((3, 35, left[0]), (4, 81, left[1]), (5, 82, left[2])):
        serve(cache, request, range(10 * request, 10 * request + 4), priority=priority)
        assert [cached(cache, range(first, first + 4)) for first in (0, 10, 20)] == expected
    assert [cached(cache, range(first, first + 4)) for first in (30, 40, 50)] == [0, 2, 2]


def test_profiles_a_tree_cannot_follow_are_refused() -> None:
    """Chains and rows are other caches; copies beside the tree's, and steps that are not run, it has not."""
    for wrong in ("kvref", "vllm", "llama.cpp", "nobody", None):
        with pytest.raises(ArgumentError, match="expected"):
            RadixCache(4, wrong)  # type: ignore[arg-type]
    for field in (
        {"publish": "scheduled", "duplicates": "keep"},
        {"duplicates": "keep"},
        {"evict_unit": "slot"},
    ):
        with pytest.raises(ArgumentError, match=f"has {next(iter(field))} ="):
            RadixCache(4, replace(SGLANG, **field))  # type: ignore[arg-type]
    for sizes in ((0, 1), (4, 0), (4, -2), (4, 1.5), (True, 1)):
        with pytest.raises(ArgumentError, match="expected"):
            RadixCache(sizes[0], SGLANG, sizes[1])  # type: ignore[arg-type]
    assert RadixCache(4, SGLANG).block_size == 1
    assert RadixCache(4, "tensorrt-llm").block_size == 32


class Model:
    """What a request is, as its caller knows it."""

    def __init__(self, tokens: list[int], space: Namespace) -> None:
        self.tokens, self.space, self.num_prompt = tokens, space, len(tokens)
        self.scheduled = self.computed = 0
        self.pending: list[int] = []

    def label(self, position: int) -> Any:
        """Everything the values at a position depend on."""
        marks = [None] * len(self.tokens)
        for span in self.space.spans:
            for at in range(span.offset, min(span.stop, len(marks))):
                marks[at] = (span.kind, span.digest, at - span.offset)  # type: ignore[call-overload]
        seen = zip(self.tokens[: position + 1], marks, strict=False)
        return self.space.salt, self.space.adapter, tuple(seen)


PROFILES_HERE = [
    CANONICAL,
    SGLANG,
    PROFILES["tensorrt-llm"],
    replace(CANONICAL, publish="finished", policy="slru"),
    replace(SGLANG, cached_outputs=False, policy="lfu", outputs_wait=False),
    replace(CANONICAL, policy="mru", plain="back"),
]
#: Beginnings of one of two documents, and some tokens behind.
token_lists = st.builds(
    lambda which, count, tail: [which, *range(10, 10 + count), *tail],
    st.integers(0, 1),
    st.integers(0, 11),
    st.lists(st.integers(0, 1), max_size=3),
)
spaces = st.sampled_from(
    [
        COMMON,
        COMMON,
        COMMON,
        Namespace(salt="s"),
        Namespace(adapter="s"),
        Namespace(spans=(Span(kind="media", digest="cat", offset=0, length=1),)),
    ]
)


class CacheAgainstShadow(RuleBasedStateMachine):
    """Any calls in any order: each slot has the label of who wrote it, and nobody reads another's."""

    @initialize(num_blocks=st.integers(3, 12), size=st.integers(1, 3), profile=st.sampled_from(PROFILES_HERE))
    def start(self, num_blocks: int, size: int, profile: Profile) -> None:
        self.cache = RadixCache(num_blocks, profile, size)
        self.capacity, self.size, self.profile = num_blocks, size, profile
        self.live: dict[int, Model] = {}
        self.written: dict[int, Any] = {}
        self.published: set[Any] = set()
        self.names = count()

    def scheduled(self, request: int, slots: list[int]) -> None:
        """From now on the step may write these slots at any time."""
        model = self.live[request]
        self.written.update(dict.fromkeys(slots))
        model.pending += slots
        model.scheduled += len(slots)

    @rule(tokens=token_lists, space=spaces, most=st.none() | st.integers(1, 8))
    def admit(self, tokens: list[int], space: Namespace, most: int | None) -> None:
        request, model = next(self.names), Model(tokens, space)
        known = [n for n in range(len(tokens)) if model.label(n) in self.published]
        room, before = self.cache.num_free, graph_of(self.cache)
        try:
            hit, slots, copies = self.cache.admit(request, tokens, namespace=space, max_new_tokens=most)
        except OutOfBlocksError:
            assert room * self.size < len(tokens), "a request that fits was refused"
            assert graph_of(self.cache) == before
            return
        assert not copies
        assert hit % self.size == 0
        assert hit < len(tokens)
        assert set(range(hit)) <= set(known), "a hit reaches beyond what was published"
        whole = min(len(known) // self.size, (len(tokens) - 1) // self.size) * self.size
        assert hit == whole or self.cache.evictions, "a hit ends too soon"
        assert [self.written[slot] for slot in slots[:hit]] == [model.label(n) for n in range(hit)]
        assert len(slots) == (len(tokens) if most is None else min(len(tokens), hit + most))
        model.scheduled = model.computed = hit
        self.live[request] = model
        self.scheduled(request, slots[hit:])

    @rule(data=st.data(), joined=st.lists(st.integers(0, 1), max_size=5), most=st.none() | st.integers(1, 5))
    def extend(self, data: st.DataObject, joined: list[int], most: int | None) -> None:
        if not self.live:
            return
        request = data.draw(st.sampled_from(sorted(self.live)))
        model, room, before = self.live[request], self.cache.num_free, graph_of(self.cache)
        try:
            slots = self.cache.extend(request, joined, max_new_tokens=most)
        except OutOfBlocksError:
            assert room * self.size < len(model.tokens) + len(joined) - model.scheduled
            assert graph_of(self.cache) == before
            return
        model.tokens += joined
        self.scheduled(request, slots)

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if not self.live:
            return
        request = data.draw(st.sampled_from(sorted(self.live)))
        model = self.live[request]
        self.written.update({slot: model.label(model.computed + at) for at, slot in enumerate(model.pending)})
        model.pending, model.computed = [], model.scheduled
        self.cache.commit(request)
        if self.profile.publish == "computed":
            self.publish(model, outputs=not self.profile.outputs_wait)

    def publish(self, model: Model, outputs: bool) -> None:
        until = model.computed
        if not (outputs and self.profile.cached_outputs):
            until = min(until, model.num_prompt)
        self.published.update(model.label(n) for n in range(until // self.size * self.size))

    @rule(data=st.data(), abort=st.booleans())
    def end(self, data: st.DataObject, abort: bool) -> None:
        if not self.live:
            return
        request = data.draw(st.sampled_from(sorted(self.live)))
        model = self.live.pop(request)
        if abort:
            self.cache.abort(request)
        else:
            self.cache.finish(request)
            self.publish(model, outputs=True)

    @rule()
    def reset(self) -> None:
        before = graph_of(self.cache)
        if self.live:
            with pytest.raises(OwnershipError):
                self.cache.reset()
            assert graph_of(self.cache) == before
        else:
            self.cache.reset()
            self.published.clear()

    @rule(data=st.data(), tokens=token_lists)
    def misuse(self, data: st.DataObject, tokens: list[int]) -> None:
        """Each refused, nothing changed."""
        stranger = next(self.names)
        cache, huge = self.cache, [0] * (self.capacity * self.size + 1)
        late = Namespace(spans=(Span(kind="media", digest="d", offset=len(tokens), length=1),))
        calls: list[tuple[type[KVError], Any]] = [
            *((UnknownRequestError, lambda op=op: getattr(cache, op)(stranger)) for op in OPERATIONS),
            *((ArgumentError, lambda n=n: cache.admit(n, tokens)) for n in (-1, 1.0, "1", None, True)),
            *((ArgumentError, lambda t=t: cache.admit(stranger, t)) for t in NOT_TOKENS),
            *(
                (ArgumentError, lambda n=n: cache.admit(stranger, [1], max_new_tokens=n))
                for n in (0, -1, 1.5)
            ),
            (OutOfBlocksError, lambda: cache.admit(stranger, huge, max_new_tokens=1)),
            (ArgumentError, lambda: cache.admit(stranger, tokens, namespace=late)),
            (ArgumentError, lambda: cache.admit(stranger, tokens, namespace="salt")),  # type: ignore[arg-type]
            (ArgumentError, lambda: cache.admit(stranger, [1], priority=-1)),
        ]
        if self.live:
            known = data.draw(st.sampled_from(sorted(self.live)))
            calls += [
                (UnknownRequestError, lambda: cache.admit(known, tokens)),
                *((ArgumentError, lambda t=t: cache.extend(known, t)) for t in NOT_TOKENS[1:]),
                (ArgumentError, lambda: cache.extend(known, tokens, max_new_tokens=0)),
            ]
        error, call = data.draw(st.sampled_from(calls))
        before = graph_of(cache)
        with pytest.raises(error, match=r"expected|all there is"):
            call()
        assert graph_of(cache) == before

    @invariant()
    def everybody_reads_their_own(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_invariants()
        writers: Counter[int] = Counter()
        readers: set[int] = set()
        blocks: set[int] = set()
        for request, model in self.live.items():
            slots = self.cache.slots(request)
            assert len(slots) == model.scheduled
            assert slots[model.computed :] == model.pending
            read = slots[: model.computed]
            assert [self.written[slot] for slot in read] == [model.label(n) for n in range(model.computed)]
            writers.update(model.pending)
            readers.update(read)
            blocks.update(slot // self.size for slot in slots)
        assert max(writers.values(), default=1) == 1, "two requests write one slot"
        assert readers.isdisjoint(writers), "a slot is read that another request writes"
        assert self.cache.num_free == self.capacity - len(blocks)


OPERATIONS = ("extend", "commit", "finish", "abort", "slots")
NOT_TOKENS: list[Any] = [
    [],
    [-1],
    [1.5],
    ["a"],
    [True],
    [None],
    "ab",
    b"ab",
    7,
    {1, 2},
    [[1]],
    [2**64],
    np.eye(2),
]

TestCacheAgainstShadow = CacheAgainstShadow.TestCase
