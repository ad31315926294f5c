"""Writes bytes to stdout that are no text."""

import sys

import program


def fault(call: program.Message) -> None:
    """Write every byte there is, and a newline."""
    sys.stdout.buffer.write(bytes(range(255, 0, -1)) + b"\n")
    sys.stdout.buffer.flush()


program.serve(fault)
