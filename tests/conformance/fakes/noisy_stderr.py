"""Fills stderr with warnings and a traceback, and answers honestly."""

import sys

import program


def fault(call: program.Message) -> None:
    """Write two megabytes of alarm, more than any pipe holds."""
    sys.stderr.write('Traceback (most recent call last):\n{"id":"1","error":"not a reply"}\n' * 30000)
    sys.stderr.flush()
    program.copy(call)


program.serve(fault)
