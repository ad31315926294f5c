"""Tests of programs for prefix caches: what makes sense, what every slot holds, what a breach says."""

from collections.abc import Iterable
from typing import Any

import pytest

from kvref.errors import OutOfBlocksError
from kvref_conformance.cases import Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.programs.running import Run, run
from kvref_conformance.subjects.lists import OF_PREFIXES
from kvref_conformance.subjects.lists.naming import Content
from kvref_conformance.subjects.lists.prefix import PrefixLists
from kvref_conformance.subjects.lists.radix import RadixLists

LONG = (
    "admit 1 1 6 2 4; part 2 3 1 6 3 5; commit 2; commit 1; more 2 99; decode 1 4 3; salt 3 1; "
    "image 3 7 1 2; admit 3 0 5; again 1; stranger 9; huge 9; reset; "
    "commit 1; finish 1; commit 3; abort 3; commit 2; finish 2; reset; adapter 1 1; version 1 2; "
    "embed 1 7 0 1; admit 1 1 6"
)
OPERATIONS = tuple(MANAGERS["prefix_cache"].operations)
NODES = Claims(features=OF_PREFIXES, choices={"eviction-order": "lru_node"})


def performed(program: str, cache: Any = PrefixLists, claims: Claims | None = None, **options: Any) -> Run:
    """Run a program on a prefix cache, of twelve blocks of four if nothing else is said."""
    subject = type("Subject", (), {"prefix_cache": cache})
    options = {"num_blocks": 12, "program": program, **options}
    case = Case(verb="prefix_cache", seq_lens=(), query_lens=(), block_size=4, options=options)
    session = InProcessHost(subject()).open("prefix_cache", **opening(case))
    return run(program, session, case, claims or Claims(features=OF_PREFIXES))


def offering(operations: Iterable[str], **others: Any) -> Any:
    """Return a cache of lists that offers these operations, some of them in another way."""

    def passed_on(name: str) -> Any:
        return lambda self, *given, **more: getattr(self.cache, name)(*given, **more)

    def opened(self: Any, *given: Any, **more: Any) -> None:
        self.cache = PrefixLists(*given, **more)

    return type("Some", (), {"__init__": opened, **{name: passed_on(name) for name in operations}, **others})


def messages(ran: Run) -> dict[str, str]:
    """Return what is said about each requirement."""
    return {breach.requirement: breach.message for breach in ran.breaches}


@pytest.mark.parametrize(("cache", "claims"), [(PrefixLists, None), (RadixLists, NODES)])
def test_honest_lists_breach_nothing(cache: Any, claims: Claims | None) -> None:
    """Every step is performed, on keys and on runs."""
    ran = performed(LONG, cache, claims)
    assert ran.breaches == ()
    assert ran.performed == LONG.count(";") + 1


@pytest.mark.parametrize("drop", range(LONG.count(";") + 1))
def test_any_part_of_a_program_is_a_program(drop: int) -> None:
    """Steps that make no sense without the one that was dropped are passed over."""
    steps = LONG.split("; ")
    assert performed("; ".join(steps[:drop] + steps[drop + 1 :])).breaches == ()
    assert performed("; ".join(steps[drop:])).breaches == ()


@pytest.mark.parametrize(
    "step",
    [
        *("commit 7", "finish 7", "abort 7", "more 7 1", "decode 7 1 1", "again 7", "dance 1"),
        *("admit 1 1 1", "admit 3", "admit 3 1", "admit 3 1 0", "part 3 0 1 1", "commit", "commit 1 1"),
        *(
            "admit 3 -1 1",
            "stranger 1",
            "huge 1",
            "decode 1 1 1",
            "finish 1",
            "more 1 1",
            "salt 1",
            "image 1 2",
        ),
        *("image 1 2", "admit 3 1 9999", "admit 3 1 10000"),
    ],
)
def test_step_that_makes_no_sense_is_passed_over(step: str) -> None:
    """A request is in flight; nothing is asked of requests that are not there, and no numbers are missing."""
    assert performed(f"admit 1 1 3; {step}").performed == 1


def test_what_is_not_claimed_is_not_given() -> None:
    """A salt for a cache that knows none is passed over, and the request comes without."""
    ran = performed("salt 1 1; image 1 1 0 1; admit 1 1 4; commit 1; admit 2 1 5", claims=Claims())
    assert ran.performed == 3
    assert ran.breaches == ()


@pytest.mark.parametrize(
    "given", ["image 1 7 3 4; image 1 8 5 2", "image 1 7 4 3", "embed 1 7 0 1; image 1 7 0 1"]
)
def test_rows_lie_inside_the_prompt_and_apart(given: str) -> None:
    """Rows behind the end, or two on one token, are no namespace: the admission is passed over."""
    assert performed(f"{given}; admit 1 1 6").performed == given.count(";") + 1


def test_trace_names_blocks_and_not_their_ids() -> None:
    """A cache that hands out other blocks leaves the same trace."""

    class Backwards(PrefixLists):
        def __init__(self, **opened: Any) -> None:
            super().__init__(**opened)
            self.waiting.reverse()

    assert performed(LONG).trace == performed(LONG, Backwards).trace


def test_message_says_whose_data_was_read() -> None:
    """Who wrote it, where, and when: that is where debugging starts."""

    class Everyone(PrefixLists):
        def key(self, name: Any) -> Any:
            return len(name[1])

    said = messages(performed("admit 1 1 4; commit 1; admit 5 2 6", Everyone))["KV-PREFIX-001"]
    assert "position 0 (block 0, slot 0) holds what request 1 wrote at position 0, from step 0" in said


def test_block_is_lost_when_it_is_given_out_and_not_when_it_is_full() -> None:
    """One token in a block of another prefix, and the rest of what it held may not be hit either."""

    class KeepsNames(PrefixLists):
        def forget(self, block: int) -> None:
            """Forget nothing."""

    program = "admit 1 1 4; commit 1; finish 1; admit 2 2 5; abort 2; admit 3 1 5"
    assert "KV-PREFIX-017" in messages(performed(program, KeepsNames, num_blocks=2))


@pytest.mark.parametrize(
    ("operation", "program", "requirement"),
    [
        ("commit", "admit 1 1 4; commit 1", "KV-PREFIX-026"),
        ("finish", "admit 1 1 4; commit 1; finish 1", "KV-PREFIX-022"),
        ("abort", "admit 1 1 4; abort 1", "KV-PREFIX-022"),
        ("reset", "reset", "KV-PREFIX-015"),
        ("admit", "admit 1 1 4", "KV-PREFIX-018"),
        ("extend", "admit 1 1 4; commit 1; decode 1 1 1", "KV-PREFIX-018"),
        ("slots", "admit 1 1 4", "KV-PREFIX-026"),
        ("take_events", "admit 1 1 4", "KV-PREFIX-046"),
        ("num_free", "admit 1 1 4", "KV-PREFIX-022"),
    ],
)
def test_what_must_succeed_and_raises_is_a_breach(operation: str, program: str, requirement: str) -> None:
    """Whatever is raised: a refusal without need and an error are one to whoever asked."""

    def broken(self: Any, *_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    cache = offering(OPERATIONS, **{operation: broken})
    assert list(messages(performed(program, cache))) == [requirement]


@pytest.mark.parametrize("missing", ["slots", "num_free", "take_events", "abort", "reset", "extend"])
def test_what_is_not_offered_is_not_asked(missing: str) -> None:
    """A subject without an operation is judged by what the others show."""
    cache = offering([name for name in OPERATIONS if name != missing])
    program = "admit 1 1 6; commit 1; stranger 8; finish 1; admit 2 1 6"
    assert performed(program, cache).breaches == ()


def test_step_whose_operation_is_not_offered_is_passed_over() -> None:
    """A drawn program may hold steps that a subject has no operation for; they say nothing about it."""
    assert performed("reset; admit 1 1 6", offering(["admit"])).breaches == ()


def test_refused_admission_may_be_asked_again() -> None:
    """A request that was refused is not there: its number is free."""
    ran = performed("admit 1 1 8; admit 2 2 8; commit 1; finish 1; admit 2 2 8", num_blocks=3)
    assert [line for line in ran.trace if "refused" in line]
    assert ran.breaches == ()


def test_refusal_of_what_fits_is_a_breach() -> None:
    """Blocks that nobody holds can be had, cached or not, and so can those of a hit that others hold."""

    class Careful(PrefixLists):
        def make_room(self, count: int, hits: list[int]) -> None:
            if len(self.waiting) < 4:
                raise OutOfBlocksError("better not")

    said = messages(performed("admit 1 1 8; commit 1; admit 2 1 9", Careful, num_blocks=4))["KV-PREFIX-018"]
    assert "2 blocks are free and 1 enough" in said


def test_copy_of_a_last_block_is_taken_on_trust() -> None:
    """Under `full-hit: last_token` a hit ends inside a block, and lies in one of the request's own."""

    class ToTheToken(PrefixLists):
        full_hit = "last_token"

    class WithoutASource(ToTheToken):
        def find(self, content: Content, most: int) -> list[int]:
            return self.waiting[:1]

    claims = Claims(features=OF_PREFIXES, choices={"full-hit": "last_token"})
    assert (
        performed("admit 1 1 4; commit 1; admit 2 1 4; commit 2; decode 2 2 5", ToTheToken, claims).breaches
        == ()
    )
    assert "KV-PREFIX-005" in messages(performed("admit 2 1 4", WithoutASource, claims))


@pytest.mark.parametrize(
    "events",
    [
        '{"type": "BlockRemoved"}',
        "[3]",
        '[{"type": "Lost"}]',
        '[["BlockRemoved", [1.5]]]',
        "not JSON",
        "[[]]",
    ],
)
def test_events_that_cannot_be_read_are_a_breach(events: str) -> None:
    """A mirror that cannot follow predicts nothing."""

    class Mumbling(PrefixLists):
        def take_events(self) -> str:
            return events

    assert list(messages(performed("admit 1 1 4", Mumbling))) == ["KV-PREFIX-046"]


def test_events_may_come_as_lists() -> None:
    """vLLM writes events as arrays: the type, then the values."""

    class Arrays(PrefixLists):
        def take_events(self) -> str:
            import json

            return json.dumps([list(event.values()) for event in json.loads(super().take_events())])

    assert performed(f"admit 1 1 8; commit 1; finish 1; {LONG}", Arrays).breaches == ()


def test_order_is_followed_while_it_is_determined() -> None:
    """Of requests one after another the reference says what is hit; after an abort nobody does."""

    class YoungestFirst(PrefixLists):
        def take(self, count: int) -> list[int]:
            self.waiting.reverse()
            blocks = super().take(count)
            self.waiting.reverse()
            return blocks

    served = "; ".join(f"admit 0 {d} 4; commit 0; finish 0" for d in (1, 2, 3, 4))
    program = f"{served}; admit 0 3 4 9 4"
    assert "KV-PREFIX-024" in messages(performed(program, YoungestFirst, num_blocks=3))
    after_abort = f"admit 0 7 4; abort 0; {program}"
    assert "KV-PREFIX-024" not in messages(performed(after_abort, YoungestFirst, num_blocks=3))


class Welcoming(PrefixLists):
    """Admits what does not fit."""

    def admit(self, request: int, tokens: Any, max_new_tokens: int, **given: Any) -> Any:
        """Give one slot after the other."""
        return (0, list(range(len(tokens)))) if len(tokens) > 48 else super().admit(request, tokens, 1)


def test_what_is_not_refused_is_said_with_all_arguments() -> None:
    """A list is cut in the middle, and what stands behind it is there."""
    said = messages(performed("huge 1", Welcoming))["KV-PREFIX-027"]
    assert "admit(request 1, tokens [10001, 10002, " in said
    assert said.endswith("10048, 10049], max_new_tokens 49) was not refused")


class Poisoned(PrefixLists):
    """Lets tokens join before it knows whether there is room, and names blocks at once."""

    def extend(self, request: int, tokens: Any, max_new_tokens: int) -> list[int]:
        """Name blocks first."""
        one = self.requests.get(request)
        wanted = [*one.content.tokens, *tokens]
        names = self.__dict__.setdefault("names", {}).setdefault(request, [])
        for stop in range((len(names) + 1) * self.block_size, len(wanted) + 1, self.block_size):
            names.append(((("", "", "")), tuple((token,) for token in wanted[:stop])))
        return super().extend(request, tokens, max_new_tokens)

    def name(self, content: Content, stop: int) -> Any:
        """Use the names that were made, while the request is there."""
        live = [one.number for one in self.requests.live if one.content is content]
        names = self.__dict__.get("names", {}).get(live[0], []) if live else []
        at = stop // self.block_size - 1
        return names[at] if 0 <= at < len(names) else super().name(content, stop)


def test_tokens_of_a_refused_extension_leave_no_key() -> None:
    """The request goes on with others; whoever asks for the first ones must not find these."""
    program = (
        "admit 0 1 4; commit 0; admit 1 9 4; decode 0 2 4 3 4; decode 0 5 4; commit 0; finish 0; finish 1; "
        "abort 1; admit 2 1 4 2 4 3 4"
    )
    said = messages(performed(program, Poisoned, num_blocks=3))
    assert "hits 8 tokens: position 4" in said["KV-PREFIX-019"]
    assert performed(program, num_blocks=3).breaches == ()
