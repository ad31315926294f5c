"""Returns an output of another shape than was asked for, and says so."""

import program


def fault(call: program.Message) -> None:
    """Claim one row."""
    program.write_out(call, program.read_x(call))
    program.say({"id": call["id"], "ok": True, "out.shape": "1,5", "out.dtype": "float32"})


program.serve(fault)
