"""Answers into a buffer that nobody empties: the commonest fault of a first harness."""

import json

import program

stdout = open(1, "w", buffering=2**16, closefd=False)  # noqa: SIM115


def fault(call: program.Message) -> None:
    """Write the reply and keep it."""
    program.write_out(call, program.read_x(call))
    stdout.write(json.dumps({"id": call["id"], "ok": True}) + "\n")


program.serve(fault)
