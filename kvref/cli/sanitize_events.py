"""`kvref sanitize --kv-events`: hold the events that a cache publishes against what they said before."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, BinaryIO

import click

if TYPE_CHECKING:
    from kvref.sanitizer.kv_event_findings import KVEventReport
    from kvref.sanitizer.kv_event_scheme import VllmScheme

#: Scheme of keys -> what it is.
SCHEMES = ("vllm-sha256-cbor",)
#: Options that need `--kv-events`, with what they are when they are left out.
_NOTHING = {"copies": None, "scheme": None, "hash_seed": None, "adapters": ()}


def event_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of streams of events to a command."""
    options = [
        click.option(
            "--kv-events",
            is_flag=True,
            help="FILE is a stream of KV-cache events of vLLM, SGLang or Dynamo: JSON lines or msgpack.",
        ),
        click.option(
            "--copies",
            type=click.Choice(["once", "each"]),
            help="Whether events tell of a key once, or of each copy as vLLM does.  [default: once]",
        ),
        click.option("--scheme", type=click.Choice(SCHEMES), help="Hold keys to be these hashes."),
        click.option("--hash-seed", metavar="TEXT", help="PYTHONHASHSEED of the engine, for --scheme."),
        click.option(
            "--adapter",
            "adapters",
            multiple=True,
            metavar="NAME=PATH",
            help="Path of an adapter, for --scheme; repeatable.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def check_options(given: dict[str, Any], max_wait: int | None) -> None:
    """Refuse options that would be ignored, because somebody meant them."""
    if given["kv_events"] and max_wait is not None:
        raise click.UsageError("--max-wait is of histories, expected it left out with --kv-events")
    needs = [name for name, nothing in _NOTHING.items() if given[name] != nothing]
    if needs and not given["kv_events"]:
        raise click.UsageError(f"{_spelled(needs[0])} needs --kv-events")
    for name in ("hash_seed", "adapters"):
        if name in needs and given["scheme"] is None:
            raise click.UsageError(f"{_spelled(name)} needs --scheme")


def judged(source: str | BinaryIO, name: str, max_findings: int, given: dict[str, Any]) -> "KVEventReport":
    """Judge a stream."""
    from kvref.sanitizer.kv_event_stream import sanitize_kv_events

    return sanitize_kv_events(
        source,
        name=name,
        copies=given["copies"] or "once",
        scheme=_scheme(given),
        max_findings=max_findings,
    )


def told(report: "KVEventReport") -> str:
    """Return the report as lines."""
    count = len(report.findings)
    lines = [finding.told() for finding in report.findings]
    asked = f" and {report.lookups} lookup{_s(report.lookups)}" if report.lookups else ""
    lines.append(f"{count or 'no'} fault{_s(count)} in {report.events} event{_s(report.events)}{asked}")
    lines += [f"{hole.told()} at {report.unit} {hole.line}" for hole in report.holes]
    if report.repeated:
        were = "batch came again and was" if report.repeated == 1 else "batches came again and were"
        lines.append(f"{report.repeated} {were} passed over")
    lines += [
        f"{requirement} was not judged {times} time{_s(times)}: not enough is told"
        for requirement, times in sorted(report.unjudged.items())
    ]
    if report.copies == "once" and any(found.requirement == "KV-PREFIX-041" for found in report.findings):
        lines.append("keys are stored again while they are there: vLLM tells of each copy, --copies each")
    if not report.complete:
        lines.append("the rest was not read: --max faults were found")
    return "\n".join(lines)


def _scheme(given: dict[str, Any]) -> "VllmScheme | None":
    from kvref.memory.vllm_keys import SEED
    from kvref.sanitizer.kv_event_scheme import VllmScheme

    if given["scheme"] is None:
        return None
    adapters = dict[str, str]()
    for text in given["adapters"]:
        name, equals, path = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r:.80}, expected NAME=PATH", param_hint="--adapter")
        adapters[name] = path
    return VllmScheme(SEED if given["hash_seed"] is None else given["hash_seed"], adapters)


def _spelled(name: str) -> str:
    return "--adapter" if name == "adapters" else f"--{name.replace('_', '-')}"


def _s(count: int) -> str:
    return "" if count == 1 else "s"
