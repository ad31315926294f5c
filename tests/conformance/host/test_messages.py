"""Calls and replies: each key accounted for, each size checked before anything is allocated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref_conformance.host.messages import (
    ITEM_SIZES,
    MAX_BYTES,
    CallRequest,
    TensorRef,
    call_message,
    check_reply,
    read_call,
    read_ref,
)
from kvref_conformance.host.wire import Message, ProtocolError, decode, encode

REF = TensorRef("/tmp/q.bin", "bfloat16", (2, 3), (8, 1), 64)
CALL = CallRequest(
    "7",
    "paged_attention",
    {"q": REF, "k_cache": REF},
    {"out": TensorRef("/tmp/out.bin", "float32", (2, 3), None, 64)},
    ("k_cache",),
    {"scale": 0.1, "window": 16, "causal": False, "style": "half"},
)
HELLO: Message = {
    "id": "1",
    "ok": True,
    "wire": "kvref-wire/1",
    "name": "fake",
    "version": "",
    "verbs": "write_kv,attention",
    "claims": "{}",
    "env.python": "3.11",
}
ASK_HELLO: Message = {"id": "1", "op": "hello"}


def test_a_call_survives_the_line() -> None:
    """What the suite asks is what the subject reads, to the last bit of the scale."""
    assert read_call(decode(encode(call_message(CALL)))) == CALL


PLAIN = st.text("0123456789abcx,._- /")
REFS = st.builds(
    lambda dtype, shape, strides, offset: TensorRef(
        "/f",
        dtype,
        tuple(shape),
        tuple(strides[: len(shape)]) if strides else None,
        offset * ITEM_SIZES[dtype],
    ),
    st.sampled_from(sorted(ITEM_SIZES)),
    st.lists(st.integers(0, 9), max_size=4),
    st.none() | st.lists(st.integers(0, 2**32), min_size=4, max_size=4),
    st.integers(0, 2**20),
)


@given(REFS)
def test_every_tensor_reference_survives(ref: TensorRef) -> None:
    """Dtypes, ranks from 0 on, empty extents, wide strides and offsets."""
    request = CallRequest("1", "attention", {"q": ref}, {}, (), {})
    assert read_call(decode(encode(call_message(request)))).inputs["q"] == ref


@pytest.mark.parametrize("name", ["id", "op", "verb", "ok", "q.dtype", "two words", "k_cache"])
def test_names_of_arguments_do_not_collide(name: str) -> None:
    """A parameter named like a key of the protocol, or like a tensor, would overwrite it."""
    with pytest.raises(ProtocolError, match="cannot name an argument"):
        call_message(CallRequest("1", "attention", {"k_cache": REF}, {}, (), {name: 1}))


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"q.dtype": "BF16"}, "q.dtype = 'BF16', expected one of float64"),
        ({"q.shape": "2,-3"}, "q.shape = '2,-3', expected integers >= 0"),
        ({"q.shape": "2,3,4"}, "q.strides has 2 axes, expected 3"),
        ({"q.shape": f"{2**40},{2**40}"}, "is too large"),
        ({"q.shape": f"{2**43},0"}, ""),
        ({"q.shape": "1,1,1,1,1,1,1,1,1", "q.strides": "1,1,1,1,1,1,1,1,1"}, "is too large"),
        ({"q.strides": f"{2**45},1"}, "is too large"),
        ({"q.offset": -2}, "q.offset = -2, expected a multiple of 2 bytes"),
        ({"q.offset": 63}, "q.offset = 63, expected a multiple of 2 bytes"),
        ({"q.offset": True}, "q.offset = True"),
        ({"q.offset": MAX_BYTES}, "is too large"),
        ({"q": ""}, "q = '', expected the path of a file"),
        ({"q": "/tmp/\0"}, "expected the path of a file"),
        ({"in_place": "v_cache"}, "in_place names 'v_cache'"),
        ({"params": "scale,softcap"}, "key 'softcap' is missing"),
        ({"inputs": "q,k"}, "key 'k' is missing"),
        ({"surprise": 1}, "unknown key 'surprise'"),
    ],
)
def test_what_is_wrong_with_a_call_is_said(changes: Message, complaint: str) -> None:
    """Sizes are refused by arithmetic on the message, before a byte is allocated."""
    message = {**call_message(CALL), **changes}
    if not complaint:  # an empty tensor needs no memory, however long its other axes
        assert read_ref(message, "q").shape == (2**43, 0)
        return
    with pytest.raises(ProtocolError) as caught:
        read_call(message)
    assert complaint in str(caught.value)


def test_a_hello_with_all_its_parts_is_accepted() -> None:
    """The reply a harness should give."""
    assert check_reply(HELLO, ASK_HELLO) == "ok"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"id": "2"}, "a reply has id '2', expected '1'"),
        ({"id": 1}, "a reply has id 1, expected '1'"),
        ({"ok": False}, "ok = False, expected true"),
        ({"ok": 1}, "ok = 1, expected true"),
        ({"error": "x"}, "a reply has ok and error, expected one of ok, refused, unsupported, error"),
        ({"wire": "kvref-wire/2"}, "wire = 'kvref-wire/2', expected 'kvref-wire/1'"),
        ({"name": ""}, "name is empty"),
        ({"verbs": ""}, "verbs is empty"),
        ({"version": 3}, "version = 3, expected a string"),
        ({"claims_file": "/x"}, "has claims and claims_file"),
        ({"env.python": 3}, "env.python = 3, expected a string"),
        ({"capabilities": "all"}, "unknown key 'capabilities' in the reply to hello"),
    ],
)
def test_what_is_wrong_with_a_hello_is_said(changes: Message, complaint: str) -> None:
    """A harness author sees the key, what was found, and what was expected."""
    with pytest.raises(ProtocolError) as caught:
        check_reply({**HELLO, **changes}, ASK_HELLO)
    assert complaint in str(caught.value)


def test_a_reply_without_an_outcome_is_refused() -> None:
    """An id alone says nothing."""
    with pytest.raises(ProtocolError, match="no outcome"):
        check_reply({"id": "7"}, call_message(CALL))


@pytest.mark.parametrize("outcome", ["refused", "unsupported", "error"])
def test_an_outcome_other_than_ok_is_text_with_frames(outcome: str) -> None:
    """And carries nothing else."""
    asked = call_message(CALL)
    assert check_reply({"id": "7", outcome: "why", "trace": "where"}, asked) == outcome
    for wrong in ({outcome: True}, {outcome: "why", "out.shape": "1"}, {outcome: "why", "trace": 1}):
        with pytest.raises(ProtocolError):
            check_reply({"id": "7", **wrong}, asked)


def test_a_reply_speaks_of_the_outputs_asked_for_only() -> None:
    """A form may be named for an output of the call, and for no other tensor."""
    asked = call_message(CALL)
    assert check_reply({"id": "7", "ok": True, "out.shape": "2,3", "out.dtype": "float32"}, asked) == "ok"
    with pytest.raises(ProtocolError, match=r"unknown key 'lse\.shape'"):
        check_reply({"id": "7", "ok": True, "lse.shape": "2"}, asked)


@given(st.dictionaries(st.sampled_from([*HELLO, "error", "out.shape", "trace"]), PLAIN | st.booleans()))
def test_any_reply_is_accepted_or_refused(reply: Message) -> None:
    """No reply raises anything but ProtocolError."""
    for asked in (ASK_HELLO, call_message(CALL)):
        try:
            check_reply(reply, asked)
        except ProtocolError:
            continue


@given(st.dictionaries(st.sampled_from([*call_message(CALL)]), PLAIN | st.integers()))
def test_any_call_is_read_or_refused(changes: Message) -> None:
    """No call raises anything but ProtocolError."""
    try:
        read_call({**call_message(CALL), **changes})
    except ProtocolError:
        return
