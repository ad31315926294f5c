"""What the exhibits of sizes have in common: their manager, a small hybrid, names of requirements."""

GEOMETRY = ("cache_geometry",)
#: One layer that attends and one that is recurrent.
HYBRID = "interval 2 2 1 8 1 1 8 8"


def sizes(*numbers: int) -> tuple[str, ...]:
    """Return the requirements on sizes of these numbers."""
    return tuple(f"KV-SIZE-{number:03d}" for number in numbers)
