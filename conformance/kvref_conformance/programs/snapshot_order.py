"""Which snapshot a step evicts, held to the declared order.

A snapshot is used when it is saved and when it is restored, both at a commit. Which of several that one
commit uses goes first is left open, and so is whether a save that was spared, for there is a snapshot of the
prefix, counts as a use. Where requests hold slots that no step names, nothing can be said.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvref_conformance.programs.state_cells import StepTold

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_snapshots import WatchedSnapshots


class StateOrder:
    """When each snapshot was used last."""

    def __init__(self) -> None:
        self._now = 0
        self._used: dict[int, int] = {}
        """State slot -> the commit that used it last."""

    def use(self, slots: Iterable[int]) -> None:
        """Note the snapshots that one commit uses."""
        self._now += 1
        self._used.update(dict.fromkeys(slots, self._now))

    def leave_open(self, slots: Iterable[int]) -> None:
        """Note that it is open when snapshots were used last."""
        for slot in slots:
            self._used.pop(slot, None)

    def reset(self) -> None:
        """Forget all."""
        self._used.clear()

    def judge(self, cache: "WatchedSnapshots", said: str, step: StepTold) -> None:
        """Hold a step to evict the snapshot that was used longest ago."""
        if cache.several or cache.claims.choice("state-eviction-order") != "lru":
            return
        idle = (cache.ledger.idle_states() & self._used.keys()) - cache.held_states(most=True) - {step.source}
        gone, left = idle & step.targets.keys(), idle - step.targets.keys()
        last = max(gone, key=self._used.__getitem__, default=None)
        first = min(left, key=self._used.__getitem__, default=None)
        if last is not None and first is not None and self._used[first] < self._used[last]:
            evicted = f"evicts the snapshot in state slot {last}, before that in {first}"
            cache.log.breach(f"{said} and {evicted}, which was used longer ago", "KV-SNAP-024")
