"""Is killed by a signal in the middle of a call."""

import os
import signal
import sys

import program


def fault(call: program.Message) -> None:
    """Say a last word, then fault."""
    print("about to read block 4096", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


program.serve(fault)
