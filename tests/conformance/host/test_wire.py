"""Lines: every message comes back as it went, and no bytes are anything but a message or a ProtocolError."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvref_conformance.host.wire import (
    MAX_LINE,
    Message,
    ProtocolError,
    decode,
    encode,
    get_scalar,
    integers,
    names,
    put_scalar,
    text,
)

#: Any code points at all, half surrogate pairs included; built from integers, which needs no Unicode tables.
ANY_TEXT = st.lists(st.integers(0, 0x10FFFF).map(chr), max_size=10).map("".join)
TEXT = ANY_TEXT.filter(lambda x: not any("\ud800" <= c <= "\udfff" for c in x))
KEYS = st.builds(str.__add__, st.sampled_from("_qQ"), st.text("qZ_.9", max_size=9))
VALUES = TEXT | st.integers(-(2**63), 2**63 - 1) | st.booleans()
MESSAGES = st.dictionaries(KEYS, VALUES, max_size=8)


@given(MESSAGES)
def test_a_message_survives_the_line(message: Message) -> None:
    """Reading what was written gives the same keys, values and types."""
    line = encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    found = decode(line)
    assert found == message
    assert [type(value) for value in found.values()] == [type(value) for value in message.values()]


@given(st.binary(max_size=300))
def test_any_bytes_give_a_message_or_a_protocol_error(line: bytes) -> None:
    """A harness may write anything; nothing but a ProtocolError may come of it."""
    try:
        decode(line)
    except ProtocolError as error:
        assert str(error).isprintable()  # noqa: PT017


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | ANY_TEXT, inner, max_size=3),
)


@given(JSON)
def test_any_json_gives_a_message_or_a_protocol_error(value: object) -> None:
    """Valid JSON of another shape is no message either."""
    line = json.dumps(value).encode()
    try:
        assert decode(line) == value
    except ProtocolError:
        flat = isinstance(value, dict) and all(isinstance(part, bool | int | str) for part in value.values())
        assert not flat or line != encode_or_nothing(value)


def encode_or_nothing(value: object) -> bytes | None:
    """Return the line of a message, None if it is none."""
    try:
        return encode(value).rstrip(b"\n")  # type: ignore[arg-type]
    except ProtocolError:
        return None


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"", "not JSON"),
        (b"[info] ready\n", "not JSON"),
        (b"[1]", "holds no JSON object"),
        (b'{"a":1}{"b":2}', "not JSON"),
        (b'{"a":1,"a":2}', "one key twice"),
        (b'{"a":1.5}', "the number 1.5, expected floats as hex-float strings"),
        (b'{"a":NaN}', "the number NaN"),
        (b'{"a":-Infinity}', "the number -Infinity"),
        (b'{"a":null}', "a holds NoneType"),
        (b'{"a":{"b":1}}', "a holds dict"),
        (b'{"a":[1]}', "a holds list"),
        (b'{"a b":1}', "key 'a b' is not a plain name"),
        (b'{"":1}', "is not a plain name"),
        (b'{"a":9223372036854775808}', "outside 64 bits"),
        (b'{"a":' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"a":"\\ud800"}', "surrogate"),
        (b'{"a":"\xff"}', "not UTF-8 at byte 6"),
        (b"[" * 20000, "not JSON"),
        (b'{"a":"' + b"x" * MAX_LINE + b'"}', f"more than {MAX_LINE} bytes"),
    ],
)
def test_what_is_wrong_with_a_line_is_said(line: bytes, complaint: str) -> None:
    """The author of a harness reads these messages first."""
    with pytest.raises(ProtocolError) as caught:
        decode(line)
    assert complaint in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_message_longer_than_a_line_is_not_sent() -> None:
    """What the other side would have to refuse does not leave."""
    with pytest.raises(ProtocolError, match="expected at most"):
        encode({"a": "é" * (MAX_LINE // 2)})


@given(st.floats())
def test_a_float_keeps_every_bit(value: float) -> None:
    """Hexadecimal text is exact, for subnormals, infinities and minus zero too."""
    found = get_scalar({"scale": put_scalar("scale", value)}, "scale")
    assert isinstance(found, float)
    assert math.isnan(found) if math.isnan(value) else (found == value)
    assert math.copysign(1, found) == math.copysign(1, value) or math.isnan(value)


@given(TEXT | st.booleans() | st.integers())
def test_a_parameter_keeps_its_type(value: str | int | bool) -> None:
    """A string that reads as a float is refused on the way in, so nothing turns into a number."""
    try:
        sent = put_scalar("style", value)
    except ProtocolError:
        assert isinstance(value, str)
        return
    found = get_scalar({"style": sent}, "style")
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "0x1.8p+1"])
def test_text_that_reads_as_a_float_is_refused(value: str) -> None:
    """Otherwise one side sends text and the other reads a number."""
    with pytest.raises(ProtocolError, match="reads as a number"):
        put_scalar("style", value)


def test_fields_name_what_they_found() -> None:
    """Missing keys, wrong types and wrong lists are told apart."""
    with pytest.raises(ProtocolError, match="key 'verb' is missing"):
        text({}, "verb")
    with pytest.raises(ProtocolError, match="verb = 3, expected a string"):
        text({"verb": 3}, "verb")
    for wrong in ("-1", "1,", "1 2", "0x8", "1,,2", "١"):
        with pytest.raises(ProtocolError, match="expected integers >= 0"):
            integers({"q.shape": wrong}, "q.shape")
    assert integers({"q.shape": ""}, "q.shape") == ()
    with pytest.raises(ProtocolError, match="distinct names"):
        names({"inputs": "q,q"}, "inputs")
    assert names({"inputs": ""}, "inputs") == ()
