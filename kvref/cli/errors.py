"""Errors of the command line: one sentence on stderr, and the documented exit code."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from kvref.errors import KVError

P = ParamSpec("P")
R = TypeVar("R")

USAGE, BROKEN, INTERRUPTED = 2, 3, 130


class CommandError(click.ClickException):
    """A sentence for the user and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = code  # click declares it for the class; here it belongs to the error


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what can be wrong with an input, or with a subject's start, into a `CommandError`."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from kvref_conformance.contracts import Failed

        try:
            return command(*args, **kwargs)
        except KVError as error:
            raise CommandError(str(error), USAGE) from error
        except Failed as failed:
            raise CommandError(f"the subject gave no answer: {failed}", BROKEN) from failed
        except KeyboardInterrupt:
            raise CommandError("interrupted", INTERRUPTED) from None

    return run
