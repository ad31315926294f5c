"""Managers: what a subject offers is what it has, and what comes back is held to its kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

from kvref.errors import KVError, OutOfBlocksError
from kvref_conformance.cases import Case, opening
from kvref_conformance.checks import all_checks
from kvref_conformance.checks.check import check
from kvref_conformance.claims import FEATURES, Claims
from kvref_conformance.contracts import VERBS, Failed
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.subject import make_subject, verbs_of
from kvref_conformance.managers import (
    AREAS,
    MANAGERS,
    MAX_LIST,
    MAX_NUMBER,
    MAX_TEXTS,
    offering,
    operations_of,
)
from kvref_conformance.runner.evaluate import plan
from kvref_conformance.subjects.lists import Lists
from kvref_conformance.trial import Trial


class Pool:
    """An allocator with two operations."""

    def __init__(self, num_blocks: int) -> None:
        self.free_blocks = list(range(num_blocks))

    def allocate(self, num_blocks: int) -> Any:
        """Hand out blocks."""
        if num_blocks > len(self.free_blocks):
            raise OutOfBlocksError(f"{len(self.free_blocks)} blocks are free, expected {num_blocks}")
        return [self.free_blocks.pop() for _ in range(num_blocks)]

    def num_free(self) -> int:
        """Count."""
        return len(self.free_blocks)


OFFERED = ("block_allocator", "block_allocator.allocate", "block_allocator.num_free")


def subject(**managers: Any) -> Any:
    """A subject class with these managers."""
    return type("Subject", (), managers)


def answering(answer: Any, operation: str = "allocate", manager: str = "block_allocator") -> Any:
    """A subject of which one operation always gives this."""
    made = type("Made", (), {"__init__": lambda self, **_: None, operation: lambda self, *_, **__: answer})
    return subject(**{manager: made})


def opened(answer: Any, operation: str, manager: str = "block_allocator") -> Any:
    """An open manager of which one operation always gives this."""
    host = InProcessHost(answering(answer, operation, manager))
    opens = {"num_blocks": 4, "block_size": 2, "block_sizes": [2]}
    names = [p.name for p in MANAGERS[manager].opens if p.feature is None]
    return host.open(manager, **{name: opens[name] for name in names})


def failure(ask: Callable[[], Any]) -> Failed:
    """Return how something failed."""
    with pytest.raises(Failed) as caught:
        ask()
    return caught.value


def test_names_are_the_contracts() -> None:
    """A manager is no verb, an operation says what it needs, and what is optional has a feature to claim."""
    assert not set(MANAGERS) & set(VERBS)
    assert (*VERBS, *MANAGERS) == AREAS
    for manager in MANAGERS.values():
        for operation in manager.operations.values():
            assert operation.feature in {None, *FEATURES}
            for parameter in (*manager.opens, *operation.arguments, *operation.returns):
                assert parameter.kind in ("int", "ints", "text", "texts")
                assert parameter.feature in {None, *FEATURES}
            assert all(parameter.feature is None for parameter in operation.returns)


def test_features_of_managers_can_be_met() -> None:
    """Each belongs to an operation, an argument, or a check of a manager."""
    named = {o.feature for m in MANAGERS.values() for o in m.operations.values()}
    named |= {
        p.feature for m in MANAGERS.values() for o in m.operations.values() for p in (*m.opens, *o.arguments)
    }
    named |= {name for c in all_checks() if set(c.verbs) & set(MANAGERS) for name in c.features}
    of_verbs = {a.feature for verb in VERBS.values() for a in verb.arguments}
    of_verbs |= {name for c in all_checks() if set(c.verbs) & set(VERBS) for name in c.features}
    assert set(FEATURES) - of_verbs - {"out"} <= named


@pytest.mark.parametrize("manager", [Pool, staticmethod(lambda num_blocks: Pool(num_blocks))])
def test_a_class_and_a_function_offer_the_same(manager: Any) -> None:
    """Presence of a method is the claim; of a function, that of what it returns (KV-CONF-033)."""
    assert verbs_of(make_subject(subject(block_allocator=manager))) == OFFERED
    host = InProcessHost(subject(block_allocator=manager))
    assert host.hello().verbs == OFFERED
    assert host.open("block_allocator", num_blocks=3).do("allocate", num_blocks=2) == {"blocks": [2, 1]}


def test_a_method_of_the_subject_opens_a_manager() -> None:
    """It may keep something of the engine: here, how large the pool really is."""

    class Subject:
        def __init__(self) -> None:
            self.most = 3

        def block_allocator(self, num_blocks: int) -> Pool:
            return Pool(min(num_blocks, self.most))

    host = InProcessHost(Subject)
    assert host.hello().verbs == OFFERED
    assert host.open("block_allocator", num_blocks=99).do("num_free") == {"num_free_blocks": 3}


def test_what_has_no_operation_is_no_manager() -> None:
    """An attribute that is None, or an object without any method of the contract, offers nothing."""
    assert verbs_of(subject(block_allocator=None)()) == ()
    assert verbs_of(subject(block_allocator=object)()) == ()


def test_a_manager_that_cannot_be_opened_fails_the_hello() -> None:
    """Nothing can be asked of it, and the subject is to blame."""

    def broken(num_blocks: int) -> Pool:
        raise RuntimeError("no device")

    found = failure(InProcessHost(subject(block_allocator=staticmethod(broken))).hello)
    assert (found.kind, found.detail.splitlines()[0]) == ("error", "RuntimeError: no device")


def test_every_opening_has_a_state_of_its_own() -> None:
    """KV-CONF-032, without a wire."""
    host = InProcessHost(subject(block_allocator=Pool))
    one, other = host.open("block_allocator", num_blocks=2), host.open("block_allocator", num_blocks=2)
    one.do("allocate", num_blocks=2)
    assert (one.do("num_free"), other.do("num_free")) == ({"num_free_blocks": 0}, {"num_free_blocks": 2})


class Pair(NamedTuple):
    """Two answers in the order of the contract."""

    num_cached_tokens: int
    slots: list[int]


@dataclass
class Admission:
    """The same with other things beside them."""

    slots: list[int]
    num_cached_tokens: int
    request: str = "kept by the engine"


GIVEN = {"num_cached_tokens": 2, "slots": [4, 5, 6]}


@pytest.mark.parametrize(
    "answer",
    [
        (2, [4, 5, 6]),
        [2, (4, 5, 6)],
        Pair(2, [4, 5, 6]),
        Admission([4, 5, 6], 2),
        {"slots": np.array([4, 5, 6], np.int32), "num_cached_tokens": np.int64(2)},
        (2, range(4, 7)),
        (2, [np.uint8(4), 5, np.int64(6)]),
    ],
    ids=["tuple", "list", "named", "record", "mapping", "range", "numpy"],
)
def test_several_things_come_back_in_any_plain_form(answer: Any) -> None:
    """Whole numbers of NumPy are whole numbers."""
    session = opened(answer, "admit", "prefix_cache")
    assert session.do("admit", request=1, tokens=[7, 8, 9], max_new_tokens=4) == GIVEN


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (None, "allocate gave blocks = None (NoneType), expected a list"),
        (3, "allocate gave blocks = 3 (int), expected a list"),
        ("1,2", "allocate gave blocks = '1,2' (str), expected a list"),
        ([1, 2.0], "allocate gave blocks[1] = 2.0 (float), expected an integer"),
        ([1, True], "allocate gave blocks[1] = True (bool), expected an integer"),
        ([None], "blocks[0] = None (NoneType), expected an integer"),
        ([[1, 2]], "blocks[0] = [1, 2] (list), expected an integer"),
        (np.zeros((1, 2), np.int64), "blocks has shape [1, 2], expected one axis"),
        (np.zeros(2), "blocks[0] = np.float64(0.0) (float64), expected an integer"),
        ([2**53], f"blocks[0] = {2**53}, expected a number of at most 53 bits"),
        ([0] * (MAX_LIST + 1), f"blocks has {MAX_LIST + 1} entries, expected at most {MAX_LIST}"),
        ({"block": [1]}, "allocate gave a mapping of block, expected blocks"),
    ],
)
def test_what_is_no_list_of_whole_numbers_is_named(answer: Any, complaint: str) -> None:
    """A report says what came back and what was expected."""
    found = failure(lambda: opened(answer, "allocate").do("allocate", num_blocks=2))
    assert found.kind == "shape"
    assert complaint in found.detail


@pytest.mark.parametrize(
    ("operation", "answer", "complaint"),
    [
        ("admit", (2,), "admit gave (2,) (tuple), expected num_cached_tokens, slots"),
        ("admit", 2, "admit gave 2 (int), expected num_cached_tokens, slots"),
        ("admit", ("2", []), "num_cached_tokens = '2' (str), expected an integer"),
        ("take_events", b"[]", "events = b'[]' (bytes), expected text"),
        ("take_events", "x" * (MAX_TEXTS + 1), f"expected at most {MAX_TEXTS}"),
        ("take_events", "\ud800", "events holds half a surrogate pair, expected UTF-8 text"),
        ("reset", False, "reset gave False (bool), expected None; a refusal is raised"),
        ("commit", [], "commit gave [] (list), expected None"),
    ],
)
def test_other_answers_are_held_to_their_form(operation: str, answer: Any, complaint: str) -> None:
    """One that gives nothing gives None: False would be a refusal that nobody sees."""
    arguments: dict[str, Any] = {"request": 1, "tokens": [3], "max_new_tokens": 1}
    takes = [p.name for p in MANAGERS["prefix_cache"].operations[operation].arguments]
    given = {name: arguments[name] for name in takes if name in arguments}
    found = failure(lambda: opened(answer, operation, "prefix_cache").do(operation, **given))
    assert found.kind == "shape"
    assert complaint in found.detail


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (["a", ""], "keys[1] = '', expected text without commas, not empty"),
        (["a,b"], "keys[0] = 'a,b', expected text without commas"),
        (["a", b"b"], "keys[1] = b'b' (bytes), expected text"),
        ("ab", "keys = 'ab' (str), expected a list"),
        (["x" * 1024] * 49, "keys has 50176 characters, expected at most 49152"),
    ],
)
def test_texts_fit_the_wire(answer: Any, complaint: str) -> None:
    """Also in this process, so that a subject answers alike in both."""
    found = failure(lambda: opened(answer, "keys", "block_keys").do("keys", tokens=[1, 2]))
    assert complaint in found.detail


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OutOfBlocksError("no block is free"), "refused"),
        (KVError("no"), "refused"),
        (NotImplementedError("not yet"), "unsupported"),
        (MemoryError("gone"), "error"),
        (AssertionError(), "error"),
        (SystemExit(3), "error"),
    ],
)
def test_what_is_raised_has_its_kind(error: BaseException, kind: str) -> None:
    """An error of kvref's family refuses; anything else is an error; nothing ends the suite."""

    def allocate(self: Any, count: int) -> None:
        raise error

    made = type("Made", (), {"__init__": lambda self, num_blocks: None, "allocate": allocate})
    session = InProcessHost(subject(block_allocator=made)).open("block_allocator", num_blocks=1)
    assert failure(lambda: session.do("allocate", num_blocks=1)).kind == kind


def test_required_arguments_come_by_position_and_optional_ones_by_name() -> None:
    """The names of a subject's own parameters are its own, and without a feature it needs none for it."""
    seen: list[Any] = []

    class Cache:
        def __init__(self, *, num_blocks: int, block_size: int) -> None:
            seen.append((num_blocks, block_size))

        def admit(self, r: int, ids: list[int], most: int, **rest: Any) -> tuple[int, list[int]]:
            seen.append((r, ids, most, rest))
            return 0, []

    session = InProcessHost(subject(prefix_cache=Cache)).open("prefix_cache", num_blocks=8, block_size=4)
    session.do("admit", request=1, tokens=[5], max_new_tokens=2)
    session.do("admit", request=2, tokens=[5], max_new_tokens=2, salt="a", media_digests=["m"])
    assert seen == [(8, 4), (1, [5], 2, {}), (2, [5], 2, {"salt": "a", "media_digests": ["m"]})]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"num_blocks": "2"}, {"num_blocks": 1.0}, {"num_blocks": 2, "step": 1}, {"num_blocks": MAX_NUMBER}],
)
def test_a_check_that_asks_wrongly_is_a_mistake_of_the_suite(arguments: dict[str, Any]) -> None:
    """It is no failure of the subject."""
    session = InProcessHost(subject(block_allocator=Pool)).open("block_allocator", num_blocks=3)
    with pytest.raises(TypeError, match="allocate is given"):
        session.do("allocate", **arguments)


def test_a_case_says_what_a_manager_is_opened_with() -> None:
    """Lists are text among the options; the block size is the case's own."""
    options = {"num_blocks": 9, "block_sizes": "4,16", "windows": "0,7", "program": "add 0"}
    tables = Case(verb="block_tables", seq_lens=(), query_lens=(), block_size=4, options=options)
    assert opening(tables) == {"num_blocks": 9, "block_sizes": [4, 16], "windows": [0, 7]}
    cache = Case(verb="prefix_cache", seq_lens=(), query_lens=(), block_size=3, options={"num_blocks": 5})
    assert opening(cache) == {"num_blocks": 5, "block_size": 3}
    with pytest.raises(KVError, match="has no num_blocks, expected it of block_allocator"):
        opening(Case(verb="block_allocator", seq_lens=(), query_lens=()))


@check(
    "KV-BLOCK-001",
    verbs=("block_allocator",),
    operations=("allocate", "free"),
    cases=lambda claims, manager, level: [
        Case(verb=manager, seq_lens=(), query_lens=(), options={"num_blocks": 2, "program": "allocate 0 1"})
    ],
)
def takes_and_gives_back(trial: Trial) -> None:
    """Needs two operations."""


def test_a_check_is_asked_where_all_it_needs_is_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """KV-CONF-033: half of what it needs would be a failure of nobody."""
    monkeypatch.setattr("kvref_conformance.runner.evaluate.all_checks", lambda: [takes_and_gives_back])
    assert plan(OFFERED, Claims(), "quick") == []
    ((found, case),) = plan((*OFFERED, "block_allocator.free"), Claims(), "quick")
    assert (found, case.verb) == (takes_and_gives_back, "block_allocator")


def test_operations_are_listed_in_the_order_of_the_contract() -> None:
    """Reports of two subjects can be laid side by side."""
    names = ["prefix_cache.admit", "prefix_cache.reset", "prefix_cache.slots", "block_tables.free"]
    assert operations_of("prefix_cache", reversed(names)) == ("admit", "slots", "reset")
    assert offering("block_keys") == ("block_keys", "block_keys.keys")
    assert set(operations_of("block_tables", verbs_of(Lists()))) == set(MANAGERS["block_tables"].operations)
