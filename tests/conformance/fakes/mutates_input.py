"""Scales its input in place to save a buffer."""

import program


def fault(call: program.Message) -> None:
    """Answer, then write the first element of x."""
    data = program.read_x(call)
    program.write_out(call, data)
    with open(call["x"], "r+b") as file:
        file.write(bytes(4))
    program.say({"id": call["id"], "ok": True})


program.serve(fault)
