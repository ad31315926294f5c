"""State slots as lists: who holds each, which name each holds, and which is handed out next.

Slots that nobody holds lie in one list and are handed out from its front. Those that hold a name join at the
back, so that the snapshot used longest ago goes first, and the others at the front.
"""

from kvref.errors import OutOfStatesError
from kvref_conformance.subjects.lists.naming import Name


class States:
    """Slots for one state each."""

    def __init__(self, num_states: int) -> None:
        self.num_states = num_states
        self.waiting = list(range(num_states))
        """Slots that nobody holds, the first to be handed out in front."""
        self.holders = [0] * num_states
        self.known: list[tuple[Name, int]] = []
        """Names of prefixes and the slots that hold the states after them, the oldest first."""

    def check_room(self, count: int) -> None:
        """Refuse more slots than nobody holds.

        Raises: OutOfStatesError.
        """
        if count > len(self.waiting):
            raise OutOfStatesError(
                f"{count} state slots are needed, {len(self.waiting)} can be had (KV-SNAP-011)"
            )

    def look_up(self, name: Name) -> int | None:
        """Return the slot that holds the state after a prefix."""
        return next((slot for known, slot in self.known if known == name), None)

    def is_snapshot(self, slot: int) -> bool:
        """Say whether a slot holds the state after a prefix that others may find."""
        return any(known == slot for _, known in self.known)

    def take(self) -> int:
        """Hand out the first slot; what it held is lost."""
        slot = self.waiting.pop(0)
        self.withdraw(slot)
        self.holders[slot] = 1
        return slot

    def hold(self, slot: int) -> None:
        """Hold a slot once more."""
        if slot in self.waiting:
            self.waiting.remove(slot)
        self.holders[slot] += 1

    def let_go(self, slot: int) -> None:
        """Let go of a slot; if nobody holds it any more, it waits to be handed out."""
        self.holders[slot] -= 1
        if self.holders[slot] == 0:
            self.put_back(slot)

    def put_back(self, slot: int) -> None:
        """Let a slot wait: at the back if it is a snapshot, in front if not."""
        if self.is_snapshot(slot):
            self.waiting.append(slot)
        else:
            self.waiting.insert(0, slot)

    def store(self, name: Name, slot: int) -> None:
        """Let a slot be the snapshot of a prefix, if it has none."""
        if self.look_up(name) is None:
            self.known.append((name, slot))

    def withdraw(self, slot: int) -> None:
        """Let a slot be a snapshot no more."""
        self.known = [(name, known) for name, known in self.known if known != slot]

    def forget_under(self, name: Name) -> None:
        """Let go of every snapshot of a prefix that begins with one whose blocks were lost."""
        texts, items = name
        for (own, longer), slot in list(self.known):
            if own == texts and longer[: len(items)] == items:
                self.withdraw(slot)
                if slot in self.waiting:
                    self.waiting.remove(slot)
                    self.waiting.insert(0, slot)
