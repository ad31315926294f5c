"""Sends whatever reply the call carries, with the id filled in."""

import json

import program


def fault(call: program.Message) -> None:
    """Send it."""
    program.say({"id": call["id"], **json.loads(call["fault"])})


program.serve(fault)
