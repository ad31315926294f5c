"""Writes all but the last three elements."""

import program


def fault(call: program.Message) -> None:
    """Stop early."""
    program.write_out(call, program.read_x(call)[:-12])
    program.say({"id": call["id"], "ok": True})


program.serve(fault)
