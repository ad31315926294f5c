"""What one request takes over its length, for models of different kinds of layers."""

from pathlib import Path

from palette import canvas

from kvref.planning.catalog import geometry_by_name

#: Model -> colour and line.
MODELS = {
    "Llama-3.1-70B": ("ink", "-"),
    "Gemma-3-27B": ("green", "-"),
    "DeepSeek-R1": ("blue", "-"),
    "Qwen3.5-397B-A17B": ("orange", "-"),
    "Kimi-K3": ("red", "-"),
    "gpt-oss-20b": ("green", "--"),
    "DeepSeek-V4-Pro": ("blue", "--"),
}
#: Lengths of requests: powers of two.
CONTEXTS = tuple(2**k for k in range(6, 18))


def sizes(name: str) -> tuple[int, ...]:
    """Return the bytes of a request of each length, states included."""
    found = geometry_by_name(name)
    return tuple(found.kv_bytes(tokens) + found.snapshot_bytes for tokens in CONTEXTS)


def draw(mode: str, path: Path) -> None:
    """Draw a line for each model."""
    with canvas(mode, path, (7.6, 3.8)) as (figure, palette):
        axes = figure.subplots()
        for name, (colour, line) in MODELS.items():
            axes.loglog(
                CONTEXTS,
                [n / 2**20 for n in sizes(name)],
                line,
                base=2,
                color=getattr(palette, colour),
                label=name,
            )
        axes.set_xlabel("tokens of the request")
        axes.set_ylabel("MiB in bfloat16, states included")
        axes.grid(visible=True, axis="y")
        axes.legend(frameon=False, fontsize=8)
