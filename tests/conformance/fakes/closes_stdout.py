"""Closes its stdout and runs on."""

import os
import time

import program


def fault(call: program.Message) -> None:
    """Say nothing ever again."""
    os.close(1)
    time.sleep(3600)


program.serve(fault)
