"""`kvref check`: hold an implementation to the spec and report what was found."""

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from kvref.cli.errors import friendly
from kvref.cli.given import check_report_file, finds_of, form_of, shard_of, target_of

EPILOG = """\b
Exit codes:
  0  every asked area is conformant, or fails only as the known-failures file says
  1  an asked area is not conformant or not claimed, or a fuzz run found something
  2  the command line, or a file it names, is wrong
  3  the subject cannot be started or spoken to, or the suite itself failed
  4  an entry of the known-failures file passes: delete it
"""


@click.command(epilog=EPILOG)
@click.argument("subject", required=False)
@click.option("--python", "python", metavar="INTERP", help="Interpreter to run the subject in.")
@click.option("--exec", "program", metavar="CMD", help="Program that speaks the wire, instead of SUBJECT.")
@click.option("--in-process", is_flag=True, help="Run the subject in this process (for debugging).")
@click.option(
    "--area", "areas", multiple=True, metavar="AREA", help="Check this verb or manager only; repeatable."
)
@click.option(
    "--level", type=click.Choice(["quick", "full", "exhaustive"]), default="quick", show_default=True
)
@click.option("--canonical", is_flag=True, help="Ignore the declared choices.")
@click.option(
    "--report",
    "reports",
    multiple=True,
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write a report; .json, .xml (JUnit), .html, .md, or badge.json by its name; repeatable.",
)
@click.option("-n", "--workers", type=click.IntRange(0, 256), default=0, help="Worker processes.")
@click.option(
    "--known-failures",
    "known",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="TOML file of failures that keep exit code 0.",
)
@click.option("--finds", metavar="DIR", default="finds", show_default=True, type=click.Path(path_type=Path))
@click.option("--no-finds", is_flag=True, help="Write no files that replay failures.")
@click.option("--case", "case_file", metavar="FILE", type=click.Path(path_type=Path), help="Replay one case.")
@click.option(
    "--keep", metavar="DIR", type=click.Path(path_type=Path), help="With --case: write its tensors."
)
@click.option(
    "--fuzz", type=click.FloatRange(min=0), metavar="SECONDS", help="Search for failures at random."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of --fuzz.")
@click.option("--shard", default="1/1", metavar="I/N", help="With --fuzz: the I-th of N parts of the seed.")
@click.option("--out", metavar="DIR", type=click.Path(path_type=Path), help="Where --fuzz puts its finds.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds that one call may take; an area in which 5 cases take longer is given up.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@friendly
def check(**options: Any) -> None:
    """Check SUBJECT: a built-in name (tiled, torch, …), module:attr, or file.py:attr.

    Without SUBJECT and --exec the suite checks its own implementation, tiled.
    """
    from kvref_conformance.runner.suite import Settings

    form = form_of(options)
    target = target_of(options)
    settings = Settings(
        level=options["level"],
        areas=_areas(options["areas"]),
        canonical=options["canonical"],
        finds=None if form == "case" else finds_of(options),
        survey=True,
        subject=target.command(),
    )
    do = {"run": _run, "case": _replay, "fuzz": _fuzz}[form]
    sys.exit(do(target, settings, options))


def _run(target: Any, settings: Any, options: dict[str, Any]) -> int:
    """Run the suite, write the reports, and return the exit code."""
    from rich.console import Console

    from kvref_conformance.claims import Claims
    from kvref_conformance.contracts import Failed
    from kvref_conformance.host.found import misnamed_in
    from kvref_conformance.report.files import write_report
    from kvref_conformance.report.terminal import render
    from kvref_conformance.requirements import load_requirements
    from kvref_conformance.runner.known_failures import load_known_failures
    from kvref_conformance.runner.plugin import Interrupted, run_under_pytest
    from kvref_conformance.runner.suite import conclude
    from kvref_conformance.runner.verdict import exit_code

    for path in options["reports"]:
        check_report_file(path)
    known = [] if options["known"] is None else load_known_failures(options["known"], load_requirements())
    began = time.monotonic()
    with _subject(target) as host:
        hello = host.hello()
        declared = Claims.from_dict(hello.claims)
        for line in misnamed_in(hello):
            click.echo(f"note: the subject has {line}", err=True)
        verbs = settings.verbs(hello.verbs)
        if not verbs and not settings.areas:
            raise Failed("protocol", f"{hello.name} offers {', '.join(hello.verbs) or 'no verb'}")
        with _progress(target, settings, declared, verbs) as advance:
            try:
                evidence, broken = run_under_pytest(
                    target, declared, verbs, settings, workers=options["workers"], progress=advance
                )
            except Interrupted as ended:
                _tell_so_far(ended)
                raise
            report = conclude(evidence, host, hello, declared, settings, known=known, broken=broken)
    if options["as_json"]:
        click.echo(report.to_json(), nl=False)
    else:
        render(report, Console(), seconds=time.monotonic() - began)
    for path in options["reports"]:
        write_report(report, path)
    return exit_code(report, settings.areas or tuple(verb for verb in verbs if "." not in verb))


def _tell_so_far(ended: Any) -> None:
    """Print what a run found before it was interrupted: a requirement a line, the first message of each."""
    from kvref_conformance.foreign_text import one_line

    failed: dict[str, str] = {}
    for found in ended.evidence:
        if found.status == "fail":
            failed.setdefault(found.requirement, one_line(found.message) or found.failure)
    click.echo(
        f"{len(ended.evidence)} of {ended.planned} cases ran; {len(failed)} requirements failed:", err=True
    )
    for requirement, message in failed.items():
        click.echo(f"FAIL  {requirement}  {message}", err=True)


def _replay(target: Any, settings: Any, options: dict[str, Any]) -> int:
    from rich.console import Console

    from kvref_conformance.runner.casefile import load_case
    from kvref_conformance.runner.replay import replay

    case = load_case(options["case_file"])
    with _subject(target) as host:
        replayed = replay(case, host, settings)
    if options["keep"] is not None:
        replayed.keep(options["keep"])
    if options["as_json"]:
        click.echo(replayed.to_json(), nl=False)
    else:
        replayed.show(Console())
    return 1 if replayed.found.status == "fail" else 0


def _fuzz(target: Any, settings: Any, options: dict[str, Any]) -> int:
    import json

    from kvref_conformance.runner.fuzz import fuzz

    with _subject(target) as host:
        finds = fuzz(
            host,
            settings,
            seconds=options["fuzz"],
            seed=options["seed"],
            out=settings.finds,
            shard=shard_of(options["shard"]),
        )
    if options["as_json"]:
        click.echo(json.dumps(finds.to_dict(), indent=1))
    else:
        for line in finds.lines():
            click.echo(line)
    return 1 if finds.saved else 0


@contextlib.contextmanager
def _subject(target: Any) -> Iterator[Any]:
    """Open the subject and close it again; what one in this process prints stays out of the report."""
    with contextlib.redirect_stdout(sys.stderr):
        host = target.open()
        try:
            yield host
        finally:
            host.close()


def _areas(areas: tuple[str, ...]) -> tuple[str, ...]:
    from kvref.errors import ArgumentError
    from kvref_conformance.managers import AREAS
    from kvref_conformance.nearest import meant

    for area in areas:
        if area not in AREAS:
            raise ArgumentError(f"--area {area!r}{meant(area, AREAS)}, expected one of {', '.join(AREAS)}")
    return areas


def _progress(target: Any, settings: Any, declared: Any, verbs: tuple[str, ...]) -> Any:
    from kvref_conformance.report.progress import progress_bar
    from kvref_conformance.runner.plugin import named_plan

    return progress_bar(len(named_plan(settings.claims(declared), verbs, settings)))
