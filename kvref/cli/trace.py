"""`kvref trace`: the hit rates of a trace, at some capacities or at all, each with its counting rule."""

import json
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kvref.cli.errors import friendly

if TYPE_CHECKING:
    from kvref.planning.traces import Trace

#: Capacities in blocks if none is given, as far as they are below what the trace needs at most.
CAPACITIES = (1_000, 10_000, 30_000, 50_000, 100_000)
#: What a profile decides by itself, and what the curve of LRU alone has.
NOT_WITH_PROFILE = ("touch", "tail", "curve", "plot")
#: Options that ask for hit rates; a trace of lengths has none.
OF_RATES = ("capacities", "profile", "warm_up", *NOT_WITH_PROFILE)
BAR = 40


def as_capacities(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> list[int | None]:
    """Return numbers of blocks, None for inf: a cache that never evicts."""
    found: list[int | None] = []
    for value in given:
        digits = value.replace("_", "")
        if digits != "inf" and not (digits.isascii() and digits.isdigit() and 0 < int(digits[:18]) < 10**15):
            raise click.BadParameter(
                f"{value!r:.80}, expected a number of blocks from 1, or inf", context, option
            )
        found.append(None if digits == "inf" else int(digits))
    return found


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--capacity",
    "capacities",
    multiple=True,
    callback=as_capacities,
    metavar="BLOCKS",
    help="Blocks of cache, or inf; repeatable.",
)
@click.option(
    "--profile", metavar="NAME", help="Replay through the reference's cache, run as this engine runs its own."
)
@click.option(
    "--touch",
    type=click.Choice(["tail_first", "head_first"]),
    default="tail_first",
    show_default=True,
    help="Order in which a request's blocks become recent.",
)
@click.option(
    "--tail",
    type=click.Choice(["keyed", "full_blocks"]),
    help="Whether a partial last block can hit; if left out, it can where the trace has an id for it.",
)
@click.option(
    "--warm-up",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    metavar="SHARE",
    help="Share of the requests that fill the cache first and are not counted.",
)
@click.option("--curve", is_flag=True, help="Show the whole curve.")
@click.option("--plot", metavar="FILE.svg", type=click.Path(path_type=Path), help="Draw the whole curve.")
@click.option(
    "--block-size",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    metavar="TOKENS",
    help="Tokens of one hash id.",
)
@click.option(
    "--unit", type=click.Choice(["ms", "s"]), default="ms", show_default=True, help="Unit of timestamps."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@friendly
def trace(file: Path, **options: Any) -> None:
    """Print the hit rates of FILE, a trace of requests with hash ids in Mooncake's format.

    Without --profile: plain LRU, exact at every capacity from one pass. Every rate depends on how hits are
    counted, so the rule is printed with it. A trace of lengths alone (Azure's format) is described.
    """
    from kvref.cli.trace_plot import check_plot_file, svg_of, write_plot
    from kvref.planning.traces import Trace

    _check_options()
    if options["plot"] is not None:
        check_plot_file(options["plot"])
    found = Trace.read(file, block_size=options["block_size"], unit=options["unit"])
    result: dict[str, Any] = {"trace": described(found)}
    if found.has_blocks or any(map(_given, OF_RATES)):
        result |= _replayed(found, options) if options["profile"] is not None else _computed(found, options)
    if options["plot"] is not None:
        title = f"{file.name}: {result['cache']}"
        picture = svg_of(result["curve"], title, result["rule"], found.block_size)
        write_plot(options["plot"], picture)
    if not options["curve"]:
        result.pop("curve", None)
    click.echo(json.dumps(result, indent=1) if options["as_json"] else "\n".join(spelled(result)))


def described(trace: "Trace") -> dict[str, Any]:
    """Return what a trace is, in numbers."""
    return {
        "file": trace.name,
        "requests": trace.num_requests,
        "seconds": float(trace.timestamps[-1] - trace.timestamps[0]) / 1000,
        "mean_input_length": float(trace.input_lengths.mean()),
        "mean_output_length": float(trace.output_lengths.mean()),
        "block_size": trace.block_size,
        "blocks": len(trace.blocks),
        "distinct_blocks": trace.num_distinct,
        "asked_for_once": trace.num_asked_once / trace.num_distinct if trace.has_blocks else None,
    }


def spelled(result: dict[str, Any]) -> list[str]:
    """Return the lines of a result."""
    told = result["trace"]
    rate = f", {told['requests'] / told['seconds']:.3g} a second" if told["seconds"] else ""
    lines = [
        f"{told['file']}: {told['requests']} requests in {told['seconds']:.0f} s{rate}",
        f"{told['mean_input_length']:.0f} input and {told['mean_output_length']:.0f} output tokens a request",
    ]
    if "rates" not in result:
        return [*lines, "lengths alone: which requests share blocks is not in it, so there are no hit rates"]
    lines += [
        f"{told['blocks']} blocks of {told['block_size']} tokens, {told['distinct_blocks']} different, "
        f"{told['asked_for_once']:.1%} of these asked for once",
        "",
        f"{result['cache']}; {result['rule']}",
        "",
        "  capacity    hit rate   of input    of all   mean of",
        "  in blocks  of blocks     tokens    tokens  requests",
    ]
    for row in result["rates"]:
        shares = (row[name] for name in ("of_blocks", "of_input_tokens", "of_all_tokens", "mean_of_requests"))
        capacity = "inf" if row["capacity"] is None else row["capacity"]
        refused = f"   {row['refused']} requests do not fit" if row["refused"] else ""
        lines.append(f"{capacity:>11}" + "".join(f"{share:>10.4f}" for share in shares) + refused)
    return lines + (_spelled_curve(result["curve"]) if "curve" in result else [])


def _spelled_curve(curve: dict[str, Any]) -> list[str]:
    """Return the curve at 1, 2, 5, 10, … blocks."""
    capacities, shares = curve["capacities"], [0.0, *curve["of_blocks"]]
    largest = capacities[-1] if capacities else 1
    places = [factor * 10**exponent for exponent in range(len(str(largest))) for factor in (1, 2, 5)]
    lines = ["", "  capacity   of blocks"]
    for place in [*(p for p in places if p < largest), largest]:
        share = shares[bisect_right(capacities, place)]
        lines.append(f"{place:>11}{share:>10.4f}  {'█' * round(BAR * share / max(shares[-1], 1e-9))}")
    return lines


def _computed(found: "Trace", options: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of plain LRU, and its curve, from stack distances."""
    from kvref.planning.counting import Counting
    from kvref.planning.distances import HitCurve

    tail = found.tail if options["tail"] is None else options["tail"]
    counting = Counting(touch=options["touch"], tail=tail, warm_up=options["warm_up"])
    curve = HitCurve.of(found, counting)
    capacities, blocks, tokens = curve.points()
    whole = curve.at(None)
    return {
        "cache": "plain LRU",
        "rule": str(counting),
        "rates": [curve.at(capacity).as_dict() for capacity in _capacities(found, options)],
        "curve": {
            "capacities": capacities.tolist(),
            "of_blocks": (blocks / max(whole.blocks, 1)).tolist(),
            "of_input_tokens": (tokens / whole.input_tokens).tolist(),
        },
    }


def _replayed(found: "Trace", options: dict[str, Any]) -> dict[str, Any]:
    """Return the rates of the reference's cache, one replay a capacity, with a bar on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from kvref.memory.profiles import profile_of
    from kvref.planning.replay import Replay

    profile = profile_of(options["profile"])
    capacities = _capacities(found, options)
    replay = Replay(found, profile, warm_up=options["warm_up"])
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(profile.name, total=len(capacities) * found.num_requests)
        rates = [replay.at(capacity, done=lambda n: progress.advance(bar, n)) for capacity in capacities]
    return {"cache": replay.cache, "rule": replay.rule, "rates": [rate.as_dict() for rate in rates]}


def _capacities(found: "Trace", options: dict[str, Any]) -> list[int | None]:
    return options["capacities"] or [*(c for c in CAPACITIES if c < found.num_distinct), None]


def _check_options() -> None:
    """Refuse what a profile would ignore, because somebody meant it."""
    if not _given("profile"):
        return
    for parameter in click.get_current_context().command.params:
        if parameter.name in NOT_WITH_PROFILE and _given(parameter.name):
            raise click.UsageError(
                f"{parameter.opts[0]} with --profile would be ignored, expected it left out"
            )


def _given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is not ParameterSource.DEFAULT
