"""Programs for an index over the blocks of several workers: what each of them holds of a prefix.

A prefix is a path: n blocks of branch b, then n of the next. It has one key a block, and paths that begin
alike share keys. With branch b + 1000 in place of b, keys differ from there on, in the first 4 digits alone.

    store w b n b n …        worker w stores the whole path, from the root on
    grow w s b n …           worker w stores the path behind its first s blocks, which it holds
    remove w at n b n …      worker w removes n blocks of the path, from block `at` on
    clear w                  worker w holds nothing any more
    match b n …              what every worker holds of the path

What lies behind a removed block may be forgotten or kept until it is stored again: a match that reaches it is
not judged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log, Stop
from kvref_conformance.programs.prompts import are_pairs
from kvref_conformance.programs.running import Session, attempt
from kvref_conformance.programs.shadow import label, root
from kvref_conformance.programs.step import Step

#: Blocks of one path.
LONGEST = 512
#: Branches that differ by so much have keys that differ in their first digits alone.
ALIKE = 1000


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Index":
    """Return what performs the steps of one program."""
    return Index(session, log)


def path_of(pairs: list[int]) -> list[str]:
    """Return the keys of a path."""
    own, head, keys = root("path"), 0, []
    for branch, count in zip(pairs[::2], pairs[1::2], strict=True):
        head = (head * 31 + branch // ALIKE) % 2**16
        for at in range(count):
            own = label(own, (branch % ALIKE, at))
            keys.append(f"{own ^ head << 48:016x}")
    return keys


@dataclass
class Worker:
    """What one worker holds."""

    held: set[str] = field(default_factory=set)
    doubtful: set[str] = field(default_factory=set)
    """Keys behind one that was removed."""
    removed: set[str] = field(default_factory=set)
    twice: set[str] = field(default_factory=set)
    parents: dict[str, str] = field(default_factory=dict)

    def store(self, parent: str, keys: list[str]) -> None:
        """Hold keys, each behind the one before."""
        for key in keys:
            if key in self.held:
                self.twice.add(key)
            self.held.add(key)
            self.doubtful.discard(key)
            self.parents[key] = parent
            parent = key

    def remove(self, keys: list[str]) -> None:
        """Hold keys no more; what is behind them is doubtful."""
        self.held -= set(keys)
        self.doubtful -= set(keys)
        self.removed |= set(keys)
        for key in list(self.held):
            before = key
            while before in self.parents and before not in keys:
                before = self.parents[before]
            if before in keys:
                self.held.discard(key)
                self.doubtful.add(key)


class Index:
    """Performs the steps of one program on one index."""

    def __init__(self, session: Session, log: Log) -> None:
        self.session, self.log = session, log
        self.workers: dict[int, Worker] = {}

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        skip = {"store": 1, "grow": 2, "remove": 3, "clear": 1, "match": 0}.get(step.name)
        if skip is None or len(step.numbers) < skip or min(step.numbers, default=0) < 0:
            return False
        head, pairs = step.numbers[:skip], list(step.numbers[skip:])
        if step.name == "clear":
            return not pairs and self._clear(*head)
        if not are_pairs(pairs) or sum(pairs[1::2]) > LONGEST:
            return False
        done: bool = getattr(self, f"_{step.name}")(*head, path_of(pairs))
        if done and step.name != "match":
            self.log.note(step)
        return done

    def finish(self) -> None:
        """Ask nothing more."""

    def _store(self, worker: int, keys: list[str]) -> bool:
        return self._grow(worker, 0, keys)

    def _grow(self, worker: int, skip: int, keys: list[str]) -> bool:
        one = self.workers.setdefault(worker, Worker())
        if skip >= len(keys) or not set(keys[:skip]) <= one.held:
            return False
        parent = keys[skip - 1] if skip else ""
        self._must("KV-PREFIX-050", "store", worker=worker, parent=parent, keys=keys[skip:])
        one.store(parent, keys[skip:])
        return True

    def _remove(self, worker: int, at: int, count: int, keys: list[str]) -> bool:
        one, gone = self.workers.get(worker), keys[at : at + count]
        if one is None or not gone or not set(gone) <= one.held:
            return False
        self._must("KV-PREFIX-051", "remove", worker=worker, keys=gone)
        one.remove(gone)
        return True

    def _clear(self, worker: int) -> bool:
        if (one := self.workers.get(worker)) is None:
            return False
        self._must("KV-PREFIX-051", "clear", worker=worker)
        gone = [*one.held, *one.doubtful]
        one.remove(gone)
        self.log.note("clear", worker)
        return True

    def _match(self, keys: list[str]) -> bool:
        answer = self._must("KV-PREFIX-050", "match", keys=keys)
        told = dict(zip(answer["workers"], answer["num_blocks"], strict=False))
        if len(answer["workers"]) != len(answer["num_blocks"]) or len(told) != len(answer["workers"]):
            self.log.breach(f"match gives {answer}, expected one number a worker", "KV-PREFIX-050")
            raise Stop
        for worker in sorted({*told, *self.workers}):
            self._judge(worker, keys, told.get(worker, 0))
        return True

    def _judge(self, worker: int, keys: list[str], told: int) -> None:
        one = self.workers.get(worker, Worker())
        least = _run(keys, one.held)
        most = _run(keys, one.held | one.doubtful)
        self.log.note("match of", len(keys), "worker", worker, "at least", least)
        said = f"worker {worker} holds {told} blocks of a path of {len(keys)}"
        if told > most:
            missing = "" if told > len(keys) else keys[most]
            self.log.breach(f"{said}, expected {most}", self._invented(worker, one, missing))
        elif told < least:
            requirement = "KV-PREFIX-053" if self._have_had(keys[max(told, 0)], worker) else "KV-PREFIX-050"
            self.log.breach(f"{said}, expected {least}", requirement)

    def _have_had(self, key: str, worker: int) -> bool:
        """Say whether any other worker holds a key, or held it."""
        return any(key in one.held | one.removed for other, one in self.workers.items() if other != worker)

    def _invented(self, worker: int, one: Worker, missing: str) -> str:
        """Return what is breached if a worker is said to hold a block that it does not."""
        if not missing or missing in one.twice:
            return "KV-PREFIX-052"
        if missing in one.removed:
            return "KV-PREFIX-051"
        others = (two for other, two in self.workers.items() if other != worker)
        return "KV-PREFIX-053" if any(missing in two.held for two in others) else "KV-PREFIX-050"

    def _must(self, requirement: str, operation: str, **arguments: Any) -> Mapping[str, Any]:
        answer = attempt(self.session, operation, **arguments)
        if isinstance(answer, Failed):
            self.log.breach(f"{operation}: {answer}", requirement)
            raise Stop
        return answer


def _run(keys: list[str], held: set[str]) -> int:
    """Count the first keys that are held."""
    return next((at for at, key in enumerate(keys) if key not in held), len(keys))
