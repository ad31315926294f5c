"""What a real trace hits at every capacity, under three counting rules and through two engines' caches."""

from functools import cache
from pathlib import Path

from palette import canvas

from kvref.arrays import Array
from kvref.planning.counting import Counting
from kvref.planning.distances import HitCurve
from kvref.planning.replay import Replay
from kvref.planning.traces import Trace

TRACE = Path(__file__).parents[2] / "tests" / "data" / "traces" / "mooncake_conversation_trace.jsonl.gz"
#: Rule of a curve -> how it counts, by token or by block, and its colour.
CURVES = {
    "of blocks": (Counting(), False, "blue"),
    "of full blocks": (Counting(tail="full_blocks"), False, "green"),
    "of input tokens, second half of the requests": (Counting(warm_up=0.5), True, "orange"),
}
#: Where caches of engines are replayed.
CAPACITIES = (1_000, 3_000, 10_000, 30_000, 100_000)
ENGINES = {"vllm": "o", "sglang": "x"}


@cache
def trace() -> Trace:
    """The trace, read once."""
    return Trace.read(TRACE)


def curve(counting: Counting, by_token: bool) -> tuple[Array, Array]:
    """Return the capacities at which a rule's curve rises, and the shares from there on."""
    found = HitCurve.of(trace(), counting)
    capacities, blocks, tokens = found.points()
    whole = found.at(None)
    return capacities, tokens / whole.input_tokens if by_token else blocks / whole.blocks


@cache
def replayed(engine: str) -> tuple[float, ...]:
    """Return what an engine's cache hits at the chosen capacities, of full blocks."""
    return tuple(Replay(trace(), engine).at(capacity).of_blocks for capacity in CAPACITIES)


def draw(mode: str, path: Path) -> None:
    """Draw the curves as steps and the replays as marks."""
    with canvas(mode, path, (7.6, 3.6)) as (figure, palette):
        axes = figure.subplots()
        for name, (counting, by_token, colour) in CURVES.items():
            capacities, shares = curve(counting, by_token)
            axes.step(capacities, 100 * shares, where="post", color=getattr(palette, colour), label=name)
        for engine, mark in ENGINES.items():
            axes.plot(
                CAPACITIES,
                [100 * share for share in replayed(engine)],
                mark,
                color=palette.ink,
                fillstyle="none",
                label=f"of full blocks, the cache as {engine} runs it",
            )
        axes.set_xscale("log")
        axes.set_xlim(500, 200_000)
        axes.set_ylim(0, 42)
        axes.set_xlabel("capacity in blocks of 512 tokens")
        axes.set_ylabel("hits, %")
        axes.grid(visible=True, axis="y")
        axes.legend(loc="lower right", frameon=False, fontsize=8)
