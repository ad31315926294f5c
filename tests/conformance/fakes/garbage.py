"""Logs to stdout before it answers."""

import program


def fault(call: program.Message) -> None:
    """Print a progress line first."""
    print("[info] compiling kernels \x1b[32m100%\x1b[0m")
    program.copy(call)


program.serve(fault)
