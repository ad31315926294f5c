"""Answers and leaves at once, as a program for one call would."""

import sys

import program


def fault(call: program.Message) -> None:
    """Answer honestly, then end."""
    program.copy(call)
    sys.exit(0)


program.serve(fault)
