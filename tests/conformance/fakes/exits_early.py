"""Leaves in the middle of a call with a status of its own."""

import sys

import program


def fault(call: program.Message) -> None:
    """Give up."""
    sys.exit(3)


program.serve(fault)
