"""The number of free blocks that a manager tells, held to the number that the shadow knows.

A count that is wrong once stays wrong by as much: only a change of the difference is told again.
"""

from kvref_conformance.claims import Claims
from kvref_conformance.programs.breach import Log, Stop
from kvref_conformance.programs.running import Session, ask_if_offered


def has_null(claims: Claims) -> bool:
    """Say whether a subject declares that block 0 is never handed out."""
    return claims.choice("null-block") == "reserved"


class FreeCount:
    """What `num_free` of one session should tell."""

    def __init__(self, session: Session, num_blocks: int, claims: Claims, log: Log) -> None:
        self._session, self._log = session, log
        self.capacity = num_blocks - has_null(claims)
        self._drift = 0
        told = self._told()
        if told in (num_blocks - 1, num_blocks) and told != self.capacity:
            expected = f"expected {self.capacity}: null-block is {claims.choice('null-block')!r}"
            log.breach(f"num_free() = {told} of {num_blocks} blocks when opened, {expected}", "KV-BLOCK-008")
            raise Stop
        self.check("KV-BLOCK-004", low=self.capacity)

    def check(self, *requirements: str, low: int, high: int | None = None) -> None:
        """Ask for the count, which is from `low` to `high`, and write down breaches if it is not."""
        told, high = self._told(), low if high is None else high
        if told is None:
            return
        drift = told - high if told > high else min(told - low, 0)
        if drift != self._drift:
            due = f"{low}" if low == high else f"{low} to {high}"
            held = f"{self.capacity - high} of {self.capacity} blocks are held"
            before = f", and before it was {self._drift:+d} off" if self._drift else ""
            self._log.breach(f"num_free() = {told}, expected {due}: {held}{before}", *requirements)
        self._drift = drift

    def _told(self) -> int | None:
        told: int | None = ask_if_offered(self._session, "num_free", "num_free_blocks")
        return told
