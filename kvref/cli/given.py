"""What was given on the command line, and whether it goes together.

`kvref check` has three forms: a run, a replay of one case (`--case`), a search (`--fuzz`). An option that a
form would ignore is an error, because somebody meant it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvref.errors import ArgumentError

#: Option -> the forms in which it says something; an option that is not here does in all of them.
FORMS = {
    "areas": ("run", "fuzz"),
    "level": ("run",),
    "reports": ("run",),
    "workers": ("run",),
    "known": ("run",),
    "finds": ("run", "fuzz"),
    "no_finds": ("run",),
    "keep": ("case",),
    "seed": ("fuzz",),
    "shard": ("fuzz",),
    "out": ("fuzz",),
}


def form_of(options: Mapping[str, Any]) -> str:
    """Return which form of `kvref check` was given: run, case or fuzz.

    Raises: click.UsageError if it is two of them, or an option is given that the form would ignore.
    """
    if options["case_file"] is not None and options["fuzz"] is not None:
        raise click.UsageError("--case replays and --fuzz searches, expected one of them")
    if options["fuzz"] is not None and not options["fuzz"] >= 0:  # NaN passes any range
        raise click.UsageError(f"--fuzz {options['fuzz']}, expected seconds >= 0")
    form = "case" if options["case_file"] is not None else "fuzz" if options["fuzz"] is not None else "run"
    for parameter in click.get_current_context().command.params:
        forms = FORMS.get(str(parameter.name), (form,))
        if form in forms or not _given(str(parameter.name)):
            continue
        how = f"with --{form}" if form != "run" else f"without --{forms[0]}"
        raise click.UsageError(f"{parameter.opts[0]} {how} would be ignored, expected it left out")
    return form


def target_of(options: Mapping[str, Any]) -> Any:
    """Return the target that the options name, the suite's own implementation where they name none.

    Raises: click.UsageError, ArgumentError.
    """
    from kvref_conformance.runner.target import Target

    if options["program"] is not None and options["subject"] is not None:
        raise click.UsageError("--exec names the program to check, expected no SUBJECT beside it")
    return Target(
        subject="tiled" if options["subject"] is None else options["subject"],
        python=options["python"],
        program=options["program"],
        in_process=options["in_process"],
        timeout=options["timeout"],
    )


def finds_of(options: Mapping[str, Any]) -> Path | None:
    """Return the folder for files that replay failures, None where none are to be written.

    Where the default folder cannot be made, a note on stderr says so and the run does without.
    Raises: ArgumentError if a folder was named that cannot be made.
    """
    if options["no_finds"]:
        return None
    folder: Path = options["finds"] if options["out"] is None else options["out"]
    if _can_be_written(folder):
        return folder
    if options["fuzz"] is not None or _given("finds"):
        raise ArgumentError(f"folder {str(folder)!r} cannot be written, expected one for case files")
    click.echo(f"{folder} cannot be written here: no files that replay failures", err=True)
    return None


def shard_of(text: str) -> Any:
    """Return which part of a seed a search takes: the I-th of N.

    Raises: click.UsageError if it is not of the form I/N with 1 <= I <= N.
    """
    from kvref_conformance.runner.fuzz_programs import Shard

    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise click.UsageError(f"--shard {text!r}, expected I/N with I from 1 to N")
    return Shard(int(number), int(of))


def check_report_file(path: Path) -> None:
    """Check before a run that a report can be written after it.

    Raises: ArgumentError if its name has no form, or its folder cannot be written.
    """
    from kvref_conformance.report.files import check_suffix

    check_suffix(path)
    if path.is_dir() or not _can_be_written(path.parent):
        raise ArgumentError(
            f"report file {str(path)!r} cannot be written, expected a file in a folder of yours"
        )


def _given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT


def _can_be_written(folder: Path) -> bool:
    """Say whether a folder can be written, or made in the nearest one that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
