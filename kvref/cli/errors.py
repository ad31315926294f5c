"""Errors of the command line: one sentence on stderr, and the documented exit code."""

import contextlib
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import wraps
from typing import ParamSpec, TypeVar

import click

from kvref.errors import KVError

P = ParamSpec("P")
R = TypeVar("R")

USAGE, BROKEN, INTERRUPTED = 2, 3, 130
#: What writing fails with where nothing more can be written.
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
_UNKNOWN = "the subject declares what the contract has not"


class CommandError(click.ClickException):
    """A sentence for the user and an exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        vars(self)["exit_code"] = code  # click declares it for the class; here it belongs to the error


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Turn what can be wrong with an input, a subject's start, or the suite into a `CommandError`.

    No other error than that of a subject may end in 1, which is a verdict.
    """

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        from kvref_conformance.claims import ClaimError
        from kvref_conformance.contracts import Failed

        try:
            with _ended_by_signals():
                return command(*args, **kwargs)
        except ClaimError as error:
            raise CommandError(f"{_UNKNOWN}: {error}", BROKEN) from error
        except KVError as error:
            raise CommandError(str(error), USAGE) from error
        except Failed as failed:
            declared = failed.detail.partition(f"{ClaimError.__name__}: ")
            if not declared[0] and declared[1]:
                raise CommandError(f"{_UNKNOWN}: {declared[2]}", BROKEN) from failed
            raise CommandError(f"the subject gave no answer: {failed}", BROKEN) from failed
        except KeyboardInterrupt:
            raise CommandError("interrupted", INTERRUPTED) from None
        except (click.ClickException, click.Abort, click.exceptions.Exit, BrokenPipeError):
            raise
        except Exception as error:
            if isinstance(error, OSError) and error.errno in _FULL:
                _discard_output()
                raise CommandError(f"the output cannot be written: {error.strerror}", USAGE) from None
            traceback.print_exc()
            raise CommandError(f"the suite itself failed: {type(error).__name__}", BROKEN) from error

    return run


def _discard_output() -> None:
    """Let what is left in a buffer go nowhere, or Python fails once more when it ends."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """End as Ctrl-C would where a shell or a job asks: subjects are ended, and their files removed."""

    def end(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [
        n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL
    ]  # not nohup's
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
