"""Answers twice, so that every later answer is one too late."""

import program


def fault(call: program.Message) -> None:
    """Answer honestly, then once more."""
    program.copy(call)
    program.say({"id": call["id"], "ok": True})


program.serve(fault)
