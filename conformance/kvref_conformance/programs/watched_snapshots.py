"""A snapshot cache that is asked and watched: every answer is held to the shadow beside it.

The shadow follows the subject: blocks and state slots are its own, and the shadow only knows what was written
into each. What a step does is done at its commit. After every operation the slots of every request and both
counts are looked at.
"""

from collections.abc import Collection, Mapping
from typing import Any

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.cells import Cell, Cells
from kvref_conformance.programs.live import Told
from kvref_conformance.programs.prompts import Prompt
from kvref_conformance.programs.running import Session, attempt
from kvref_conformance.programs.snapshot_hits import judge_hit
from kvref_conformance.programs.snapshot_ledger import SnapshotLedger
from kvref_conformance.programs.snapshot_looks import look_at_blocks, look_at_slots, look_at_states
from kvref_conformance.programs.snapshot_order import StateOrder
from kvref_conformance.programs.snapshot_room import give_out, judge_refusal, note_force, publish
from kvref_conformance.programs.snapshot_steps import judge_blocks, judge_source, judge_targets
from kvref_conformance.programs.state_cells import ZEROS, StateCells, StepTold
from kvref_conformance.programs.stateful import Stateful
from kvref_conformance.programs.watched import Watched


class WatchedSnapshots(Watched):
    """One session, the shadow of its memory, and what may be hit."""

    counted = "KV-SNAP-010"

    def __init__(self, session: Session, case: Case, claims: Claims, log: Log) -> None:
        self.session, self.claims, self.log = session, claims, log
        self.block_size = case.block_size
        blocks, self.num_states = int(case.option("num_blocks")), int(case.option("num_states"))
        self.window = int(case.options.get("window", 0))
        self.shared = claims.choice("state-pool") == "shared"
        self.several = claims.choice("running-states") == "several"
        self.null = int(claims.choice("null-block") == "reserved")
        self.num_blocks = blocks + self.num_states if self.shared else blocks
        """Ids of blocks, and where one pool serves both, of states as well."""
        self.capacity = self.num_blocks - self.null
        self.cells, self.states = Cells(), StateCells()
        interval = int(case.option("snapshot_interval"))
        self.ledger = SnapshotLedger.under(claims, case.block_size, interval, self.window)
        self.live: dict[int, Stateful] = {}
        self.saved: set[int] = set()
        """State slots that may be a snapshot."""
        self.order = StateOrder()
        self.told = Told()
        self.drift = {"num_free": 0, "num_free_states": 0}
        """By how much each count was off, last time."""
        self.eager = claims.choice("publish-time") == "scheduled"
        self.look("KV-SNAP-010")

    # --- what is held

    def block(self, slot: int) -> int:
        """Return the block of a slot."""
        return slot // self.block_size

    def blocks_of(self, num_tokens: int) -> int:
        """Count the blocks of so many tokens."""
        return -(-num_tokens // self.block_size)

    def held_blocks(self, but: int | None = None, *, most: bool = False) -> set[int]:
        """Return the blocks that requests hold; `most`: and those that they may hold."""
        found: set[int] = set()
        for name, one in self.live.items():
            if name == but:
                continue
            first = 0 if most else self.ledger.first_seen(one.computed)
            found |= {self.block(slot) for slot in one.slots[first:] if slot >= 0}
            found |= one.loose if most else set()
        return found

    def held_states(self, but: int | None = None, *, most: bool = False) -> set[int]:
        """Return the state slots that requests hold; `most`: and the snapshots that they start from."""
        found: set[int] = set()
        for name, one in self.live.items():
            if name == but:
                continue
            if one.step is not None:
                found |= {*one.step.targets, *([one.step.source] if most else [])}
            elif most or len(one.places) == 1:
                found |= one.places
        return found - {ZEROS}

    def count_held_states(self) -> tuple[int, int]:
        """Return how many state slots are held at least, and at most.

        A request that goes on from a snapshot, for drafts were rejected, may have a slot to go on in.
        """
        open_ones = [one for one in self.live.values() if one.step is None and len(one.places) > 1]
        least = len(self.held_states()) + len(open_ones)
        most = len(self.held_states(most=True)) + sum(one.was_cut for one in self.live.values())
        if self.several and self.live:
            most = self.capacity if self.shared else self.num_states
        return min(least, most), most

    def free_states(self) -> int:
        """Count the state slots that no request holds, if each holds as many as it may."""
        return self.num_states - self.count_held_states()[1]

    # --- operations

    def admit(self, request: int, prompt: Prompt, most: int) -> None:
        """Admit a request and judge its hit and its first step. Raises: Stop if they cannot be followed."""
        count = len(prompt.tokens)
        arguments: dict[str, Any] = {"request": request, "tokens": prompt.tokens, "max_new_tokens": most}
        answer = attempt(self.session, "admit", **arguments, **prompt.given.arguments())
        said = f"admit(request {request}, {count} tokens, max_new_tokens {most})"
        if isinstance(answer, Failed):
            judge_refusal(self, said, answer, self.blocks_of(count), 1)
            self.must_not("KV-SNAP-017", "slots", request=request)
            return
        hit, slots = answer["num_cached_tokens"], answer["slots"]
        said = f"{said} hits {hit} tokens"
        if self.blocks_of(count) > self.num_blocks - self.null:
            self.stop(f"{said}: {count} tokens in {self.capacity} blocks", "KV-SNAP-021")
        judge_hit(self, said, prompt, hit, slots[: max(hit, 0)], answer["source"])
        if not 0 <= hit <= count or len(slots) != hit + min(most, count - hit):
            due = hit + min(most, count - hit)
            self.stop(f"{said} and gives {len(slots)} slots, expected {due}", "KV-SNAP-017")
        junction = self.ledger.junction(prompt) if self._has_junctions else 0
        one = Stateful(prompt, hit, junction if junction > hit else 0, slots[:hit], computed=hit)
        self.live[request] = one
        self._schedule(request, said, answer, slots[hit:], 0)

    def extend(self, request: int, tokens: list[int], most: int, num_drafts: int = 0) -> None:
        """Let tokens join a request, schedule more, and judge the step. Raises: Stop, as `admit`."""
        one = self.live[request]
        total = len(one.prompt.tokens) + len(tokens)
        stop = min(one.first + most, total)
        given = {"num_drafts": num_drafts} if num_drafts else {}
        said = f"extend(request {request}, {len(tokens)} tokens, max_new_tokens {most}"
        said += f", {num_drafts} drafts)" if num_drafts else ")"
        answer = attempt(self.session, "extend", request=request, tokens=tokens, max_new_tokens=most, **given)
        if isinstance(answer, Failed):
            own = bool(num_drafts) or bool(one.places & self.ledger.known_states())
            judge_refusal(
                self, said, answer, self.blocks_of(stop) - self.blocks_of(one.first), num_drafts + own
            )
            return
        one.prompt.add(tokens)
        if len(answer["slots"]) != stop - one.first:
            due = stop - one.first
            self.stop(f"{said} gives {len(answer['slots'])} slots, expected {due}", "KV-SNAP-017")
        self._schedule(request, said, answer, answer["slots"], num_drafts)

    def commit(self, request: int, accepted: int | None = None) -> None:
        """Let the step of a request be computed. Raises: Stop if that is refused."""
        one = self.live[request]
        step = one.step
        assert step is not None
        stays = step.num_drafts if accepted is None else accepted
        given = {"num_accepted": stays} if step.num_drafts else {}
        self.must("KV-SNAP-010", "commit", request=request, **given)
        kept = step.stop - step.num_drafts + stays
        self.states.run(step, one.prompt, request, self.log.step)
        self.saved.update(slot for _, slot in step.saves)
        self.order.use([step.source, *dict(step.saves).values()])
        self.cells.commit(one.slots[step.start :], request)
        one.step, one.computed, one.loose = None, kept, set()
        one.was_cut = kept < step.stop
        self._cut(one, kept)
        ends = {step.start: step.source, **dict(step.saves), step.stop: step.state}
        label = one.prompt.labels[kept - 1] if kept else None
        one.places = {slot for at, slot in ends.items() if at == kept and label is not None}
        publish(self, request, one, step, kept)
        self.look("KV-SNAP-010")

    def end(self, request: int, operation: str) -> None:
        """Finish or abort a request. Raises: Stop if that is refused."""
        self.must("KV-SNAP-010", operation, request=request)
        one = self.live.pop(request)
        if operation == "abort":
            if one.step is not None and self.eager:  # what is published when it is scheduled is run
                self.states.run(one.step, one.prompt, request, self.log.step)
            elif one.step is not None:
                self.states.abort(one.step, one.prompt)
            self.cells.abort(one.slots, one.prompt)
        else:
            self.ledger.publish(one.prompt, one.slots, request, finished=True)
            self.saved |= one.places  # its last state may stay
        self.order.leave_open(one.places if one.step is None else [one.step.source])
        self.ledger.end(one.prompt, request, one.saved, finished=operation == "finish")
        self.look("KV-SNAP-010")

    def reset(self) -> None:
        """Reset the cache, or ask for it while there are requests. Raises: Stop if the answer is wrong."""
        if self.live:
            self.told.refused_reset = True
            self.must_not("KV-SNAP-020", "reset")
            return
        self.must("KV-SNAP-020", "reset")
        self.cells.reset()
        self.states.reset()
        self.ledger.reset()
        self.order.reset()
        self.saved.clear()
        self.told = Told()
        self.look("KV-SNAP-020")

    def look(self, requirement: str) -> None:
        """Look at slots and counts; `requirement` is what is breached if one is wrong."""
        if self._unseen:
            return
        for request in self.live:
            look_at_slots(self, request, requirement)
        look_at_blocks(self, requirement)
        look_at_states(self, requirement)

    # --- what an answer does

    @property
    def _has_junctions(self) -> bool:
        return "junctions" in self.claims.features and not self.eager and not self.window

    def _schedule(
        self, request: int, said: str, answer: Mapping[str, Any], slots: list[int], num_drafts: int
    ) -> None:
        one = self.live[request]
        saves = list(zip(answer["save_positions"], answer["save_states"], strict=False))
        step = StepTold(
            one.first, one.first + len(slots), answer["source"], answer["state"], saves, num_drafts
        )
        if len(answer["save_positions"]) != len(answer["save_states"]):
            said_saves = (
                f"{len(answer['save_positions'])} save_positions, {len(answer['save_states'])} save_states"
            )
            self.stop(f"{said} and gives {said_saves}", "KV-SNAP-018")
        judge_blocks(self, said, request, slots)
        if step.start > one.hit:
            judge_source(self, said, request, step)
        judge_targets(self, said, request, step)
        give_out(self, {self.block(slot) for slot in slots} - {self.block(s) for s in one.slots} - one.loose)
        note_force(self, said, one, step)
        self.order.judge(self, said, step)
        for at, slot in enumerate(slots, step.start):
            cell = Cell(
                one.prompt.labels[at], one.prompt, at, request, self.log.step, self.cells.epoch, self.eager
            )
            self.cells.schedule(slot, cell)
        self.states.schedule(step, one.prompt, request)
        self.lose(states=step.targets)
        one.slots += slots
        one.step = step
        start = "zeros" if step.source == ZEROS else "its own" if step.start > one.hit else "a snapshot"
        self.log.note(said, "from", start, "saves", [position for position, _ in saves])
        self.look("KV-SNAP-010")

    def lose(self, blocks: Collection[int] = (), states: Collection[int] = ()) -> None:
        """Lose what blocks and state slots held; where one pool serves both, they are the same."""
        if self.shared:
            blocks = states = {*blocks, *states}
        size = self.block_size
        slots = [slot for b in blocks for slot in range(b * size, b * size + size)]
        self.cells.give_out(slots)
        for slot in states:
            self.states.lose(slot)
        self.saved.difference_update(states)
        self.ledger.lose(slots, states)

    def _cut(self, one: Stateful, kept: int) -> None:
        """Let rejected tokens leave a request."""
        if kept == len(one.slots):
            return
        self.states.rejected.update(one.prompt.labels[kept:])
        one.loose = {self.block(slot) for slot in one.slots[kept:]}
        del one.slots[kept:]
        one.loose -= {self.block(slot) for slot in one.slots}
        del one.prompt.tokens[kept:], one.prompt.labels[kept:]
