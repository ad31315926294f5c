"""Writes one element too many, before the output or after it."""

import program


def fault(call: program.Message) -> None:
    """Write a zero past the end, or before the beginning."""
    data = program.read_x(call)
    program.write_out(call, data)
    program.write_out(call, bytes(4), shift=len(data) if call["fault"] == "after" else -4)
    program.say({"id": call["id"], "ok": True})


program.serve(fault)
