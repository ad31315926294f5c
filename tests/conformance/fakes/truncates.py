"""Opens the output anew for writing, which cuts it to nothing first."""

import program


def fault(call: program.Message) -> None:
    """Write the elements alone."""
    data = program.read_x(call)
    with open(call["out"], "wb") as file:
        file.write(data)
    program.say({"id": call["id"], "ok": True})


program.serve(fault)
