"""Writes a new file and renames it over the output, and leaves another behind."""

import os

import program


def fault(call: program.Message) -> None:
    """Replace the file by one of the same size."""
    with open(call["out"], "rb") as file:
        data = file.read()
    for path in (call["out"] + ".new", call["out"] + ".log"):
        with open(path, "wb") as file:
            file.write(data)
    os.replace(call["out"] + ".new", call["out"])
    program.say({"id": call["id"], "ok": True})


program.serve(fault)
