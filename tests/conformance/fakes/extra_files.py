"""Leaves files and a directory in the scratch directory."""

import os

import program


def fault(call: program.Message) -> None:
    """Write beside the tensors, then answer honestly."""
    root = os.path.dirname(call["out"])
    os.mkdir(os.path.join(root, "cache"))
    with open(os.path.join(root, "cache", "kernel.so"), "wb") as file:
        file.write(b"leftover")
    program.copy(call)


program.serve(fault)
