"""Managers over the wire: state lasts, sessions are apart, and what goes wrong costs its own case."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref_conformance.contracts import Failed
from kvref_conformance.host import Session
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.host.managed import check_given
from kvref_conformance.host.messages import _TAKEN, check_reply
from kvref_conformance.host.process import ProcessHost, python_command
from kvref_conformance.host.session_messages import (
    apply_message,
    close_message,
    given_fields,
    open_message,
    read_given,
    read_session,
)
from kvref_conformance.host.wire import Message, ProtocolError, decode, encode
from kvref_conformance.managers import MANAGERS, MAX_LIST, MAX_NUMBER, Manager, Parameter
from kvref_conformance.subjects.lists import Lists

FAKES = Path(__file__).parents[1] / "fakes"


@pytest.fixture
def start() -> Iterator[Callable[..., ProcessHost]]:
    """Start the stateful fake; every one is ended when the test is over."""
    hosts: list[ProcessHost] = []

    def starter(**options: Any) -> ProcessHost:
        hosts.append(ProcessHost([sys.executable, "-S", str(FAKES / "stateful.py")], **options))
        return hosts[-1]

    yield starter
    for host in hosts:
        host.close()


@pytest.fixture(scope="module")
def lists() -> Iterator[ProcessHost]:
    """The built-in managers in a process of their own."""
    where = "kvref_conformance.subjects.lists:Lists"
    with ProcessHost(python_command(sys.executable, where)) as host:
        yield host


def failure(session: Session, operation: str, **arguments: Any) -> Failed:
    """Return how an operation failed."""
    with pytest.raises(Failed) as caught:
        session.do(operation, **arguments)
    return caught.value


def test_state_lasts_from_operation_to_operation(start: Callable[..., ProcessHost]) -> None:
    """An allocation is remembered, also after a refusal."""
    pool = start().open("block_allocator", num_blocks=3)
    assert pool.do("allocate", num_blocks=2) == {"blocks": [0, 1]}
    assert failure(pool, "allocate", num_blocks=2).kind == "refused"
    assert pool.do("num_free") == {"num_free_blocks": 1}


def test_sessions_are_apart(start: Callable[..., ProcessHost]) -> None:
    """What one holds another may hand out; one that is closed leaves the others as they are."""
    host = start()
    one, other = host.open("block_allocator", num_blocks=2), host.open("block_allocator", num_blocks=2)
    assert one.do("allocate", num_blocks=2) == other.do("allocate", num_blocks=2)
    one.close()
    assert other.do("num_free") == {"num_free_blocks": 0}


@pytest.mark.parametrize(
    ("blocks", "complaint"),
    [
        (90, "allocate gave no blocks"),
        (91, "allocate gave blocks = 3 (int), expected a list"),
        (92, "blocks = '1,x', expected integers separated by commas"),
        (94, "blocks[1] is missing"),
        (95, "expected integers separated by commas"),
        (96, "expected a list"),
    ],
)
def test_an_answer_in_another_form_is_a_failure_of_the_operation(
    start: Callable[..., ProcessHost], blocks: int, complaint: str
) -> None:
    """It is no crash: the program runs on, and the session with it."""
    pool = start().open("block_allocator", num_blocks=3)
    found = failure(pool, "allocate", num_blocks=blocks)
    assert found.kind == "shape"
    assert complaint in found.detail
    assert not pool.gone
    assert pool.do("num_free") == {"num_free_blocks": 3}


@pytest.mark.parametrize(
    ("blocks", "kind"), [(93, "protocol"), (97, "protocol"), (98, "timeout"), (99, "crash")]
)
def test_a_fault_takes_the_sessions_with_it_and_no_other_case(
    start: Callable[..., ProcessHost], blocks: int, kind: str
) -> None:
    """All that the program held is gone, and says so at once; a new session finds a fresh program."""
    host = start(timeout=1.0)
    pool, beside = host.open("block_allocator", num_blocks=3), host.open("block_allocator", num_blocks=3)
    assert failure(pool, "allocate", num_blocks=blocks).kind == kind
    assert pool.gone
    assert beside.gone
    assert failure(beside, "num_free").kind == "crash"
    beside.close()
    assert host.open("block_allocator", num_blocks=3).do("num_free") == {"num_free_blocks": 3}


def test_a_restart_ends_every_session(start: Callable[..., ProcessHost]) -> None:
    """What must be the same in every process is asked of two."""
    host = start()
    pool = host.open("block_allocator", num_blocks=3)
    host.restart()
    assert pool.gone
    assert host.open("block_allocator", num_blocks=3).do("allocate", num_blocks=1) == {"blocks": [0]}


def test_a_python_subject_answers_alike_here_and_there(lists: ProcessHost) -> None:
    """The wire changes nothing: the same operations, the same answers, the same refusals."""
    here = InProcessHost(Lists)
    assert here.hello().verbs == lists.hello().verbs
    answers = []
    for host in (here, lists):
        tables = host.open("block_tables", num_blocks=9, block_sizes=[4, 3])
        tables.do("add", request=7)
        found = [tables.do("append", request=7, num_tokens=5), tables.do("fork", parent=7, child=8)]
        found.append(tables.do("append", request=8, num_tokens=2))
        found += [tables.do("block_table", request=8, group=g) for g in (0, 1)]
        refused = failure(tables, "append", request=9, num_tokens=1)
        answers.append([*found, refused.kind, refused.detail])
        tables.close()
    assert answers[0] == answers[1]


def test_a_list_of_the_largest_allowed_length_crosses(lists: ProcessHost) -> None:
    """A line holds it; one entry more is a mistake of the check, and says so before anything is sent."""
    pool = lists.open("block_allocator", num_blocks=MAX_LIST)
    assert len(pool.do("allocate", num_blocks=MAX_LIST)["blocks"]) == MAX_LIST  # type: ignore[arg-type]
    pool.do("free", blocks=list(range(MAX_LIST)))
    with pytest.raises(TypeError, match="4097 entries, expected at most 4096"):
        pool.do("free", blocks=[0] * (MAX_LIST + 1))


#: Offers one operation of one manager.
ONLY = """
class Only:
    class block_allocator:
        def __init__(self, num_blocks):
            self.num_blocks = num_blocks

        def allocate(self, count):
            return [0] * count
"""


def test_what_is_not_offered_is_unsupported(tmp_path: Path) -> None:
    """It is an answer of its own: nothing is known of what the subject would have said."""
    (tmp_path / "only.py").write_text(ONLY)
    command = python_command(sys.executable, "only:Only")
    with ProcessHost(command, cwd=str(tmp_path)) as host:
        pool = host.open("block_allocator", num_blocks=2)
        assert failure(pool, "touch", blocks=[0]).kind == "unsupported"
        with pytest.raises(Failed, match="block_tables is not offered"):
            host.open("block_tables", num_blocks=2, block_sizes=[1])
        assert pool.do("allocate", num_blocks=1) == {"blocks": [0]}


NUMBERS = st.integers(-MAX_NUMBER + 1, MAX_NUMBER - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
KINDS = {
    "int": NUMBERS,
    "ints": st.lists(NUMBERS, max_size=6),
    "text": TEXTS,
    "texts": st.lists(TEXTS.filter(lambda x: x and "," not in x), max_size=6),
}


def values_of(parameters: tuple[Parameter, ...]) -> st.SearchStrategy[dict[str, Any]]:
    """Any values of some parameters."""
    return st.fixed_dictionaries({p.name: KINDS[p.kind] for p in parameters})


@given(st.data())
def test_every_operation_survives_the_line(data: st.DataObject) -> None:
    """What the suite asks is what the subject reads, and what it gives is what the suite reads."""
    manager: Manager = data.draw(st.sampled_from(list(MANAGERS.values())))
    operation = data.draw(st.sampled_from(list(manager.operations.values())))
    arguments = data.draw(values_of(operation.arguments))
    message = decode(encode(apply_message("2", "1", manager.name, operation.name, arguments)))
    request = read_session(message)
    assert (request.manager, request.operation) == (manager.name, operation.name)
    assert request.arguments == arguments
    given = data.draw(values_of(operation.returns))
    reply = decode(encode({"id": "2", "ok": True, **given_fields(given)}))
    assert check_reply(reply, message) == "ok"
    assert check_given(operation, read_given(reply, operation)) == given
    opened = data.draw(values_of(manager.opens))
    assert read_session(decode(encode(open_message("1", "1", manager.name, opened)))).arguments == opened


def test_no_argument_is_named_like_a_key_of_the_protocol() -> None:
    """It would overwrite it."""
    taken = {*_TAKEN, "session", "misfit"}
    for manager in MANAGERS.values():
        for operation in manager.operations.values():
            assert not taken & {p.name for p in (*manager.opens, *operation.arguments, *operation.returns)}


APPLY: Message = apply_message("2", "1", "block_allocator", "free", {"blocks": [3, 1]})


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"session": 1}, "session = 1, expected a string"),
        ({"verb": "block_allocator"}, "expected a manager and, to apply, its operation"),
        ({"verb": "block_pool.free"}, "expected a manager"),
        ({"verb": "block_allocator.defragment"}, "block_allocator has no operation 'defragment'"),
        (
            {"params": "blocks,step"},
            "params names 'step', expected arguments of block_allocator.free: blocks",
        ),
        ({"params": ""}, "unknown key 'blocks'"),
        ({"blocks": "1;2"}, "blocks = '1;2', expected integers separated by commas"),
        ({"surprise": 1}, "unknown key 'surprise'"),
    ],
)
def test_what_is_wrong_with_a_message_is_said(changes: Message, complaint: str) -> None:
    """A harness author sees the key, what was found, and what was expected."""
    with pytest.raises(ProtocolError) as caught:
        read_session({**APPLY, **changes})
    assert complaint in str(caught.value)


def test_only_what_an_operation_gives_may_stand_in_its_reply() -> None:
    """A misspelt name would be taken for a missing one."""
    assert check_reply({"id": "2", "ok": True}, APPLY) == "ok"
    for reply in ({"block": "1"}, {"num_free_blocks": 3}):
        with pytest.raises(ProtocolError, match="unknown key"):
            check_reply({"id": "2", "ok": True, **reply}, APPLY)
    with pytest.raises(ProtocolError, match="unknown key"):
        check_reply({"id": "3", "ok": True, "session": "1"}, close_message("3", "1"))
