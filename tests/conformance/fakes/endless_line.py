"""Writes a gigabyte without a newline."""

import sys

import program


def fault(call: program.Message) -> None:
    """Write until the pipe breaks, at most 1 GiB."""
    for _ in range(1024):
        sys.stdout.buffer.write(b"x" * 2**20)
    sys.stdout.buffer.flush()


program.serve(fault)
