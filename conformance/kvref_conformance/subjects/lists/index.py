"""A naive index over workers: for each, a list of the keys it holds."""

from collections.abc import Sequence


class IndexLists:
    """Which worker holds which block."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.held: dict[int, list[str]] = {}

    def store(self, worker: int, parent: str, keys: Sequence[str]) -> None:
        """Note that a worker holds blocks after `parent`."""
        own = self.held.setdefault(worker, [])
        own += [key for key in keys if key not in own]

    def remove(self, worker: int, keys: Sequence[str]) -> None:
        """Note that a worker holds these blocks no more."""
        self.held[worker] = [key for key in self.held.get(worker, []) if key not in keys]

    def clear(self, worker: int) -> None:
        """Note that a worker holds nothing."""
        self.held[worker] = []

    def match(self, keys: Sequence[str]) -> tuple[list[int], list[int]]:
        """Return how many of the first keys each worker holds."""
        counts = {worker: self.run(worker, keys) for worker in self.held}
        found = {worker: count for worker, count in sorted(counts.items()) if count}
        return list(found), list(found.values())

    def run(self, worker: int, keys: Sequence[str]) -> int:
        """Count the first keys that a worker holds."""
        count = 0
        for key in keys:
            if key not in self.held[worker]:
                break
            count += 1
        return count
