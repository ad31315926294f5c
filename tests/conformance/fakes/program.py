"""A correct program on the wire, in forty lines of plain Python; each fake beside it breaks one thing.

Its only verb, `copy`, copies the bytes of `x` to `out`. A fake does wrong where the call has a parameter
`fault`, and copies honestly where it has none.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def say(message: Message) -> None:
    """Write one line and flush it."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def read_x(call: Message) -> bytes:
    """Return the bytes of the input, a float32 tensor."""
    count = 1
    for extent in call["x.shape"].split(","):
        count *= int(extent)
    with open(call["x"], "rb") as file:
        file.seek(int(call.get("x.offset", 0)))
        return file.read(4 * count)


def write_out(call: Message, data: bytes, *, shift: int = 0) -> None:
    """Write bytes where the output lies."""
    with open(call["out"], "r+b") as file:
        file.seek(int(call["out.offset"]) + shift)
        file.write(data)


def copy(call: Message) -> None:
    """Answer honestly."""
    write_out(call, read_x(call))
    say({"id": call["id"], "ok": True})


def serve(fault: Callable[[Message], None], hello: Message | None = None) -> None:
    """Serve until bye; a call that asks for the fault goes to `fault`."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["op"] == "hello":
            fields = {"wire": "kvref-wire/1", "name": "fake", "version": "1", "verbs": "copy"}
            say({"id": request["id"], "ok": True, **fields, **(hello or {})})
        elif request["op"] == "bye":
            say({"id": request["id"], "ok": True})
            return
        elif "fault" in request:
            fault(request)
        else:
            copy(request)
