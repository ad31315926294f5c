"""Drawn programs for prefix caches, keys and indexes: what goes wrong when much goes on at once.

Most pools are small, so that they are nearly full all the time. Two requests compute the same, others are
refused and come again, prefills are aborted half way, and the next turn begins with what was decoded.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from kvref_conformance.claims import Claims
from kvref_conformance.programs.drawn_prompts import DOCUMENTS, REMEMBERED, REQUESTS, Prompts, spelled

#: Workers that a program names.
WORKERS = 3
#: How many programs are orderly.
ORDERLY = 0.2
#: Step -> how often it is tried; `renew` ends all requests and resets, for a cache that has evicted
#: something owes nobody a hit.
WEIGHTS = {
    "admit": 21,
    "part": 9,
    "commit": 28,
    "finish": 12,
    "decode": 14,
    "more": 14,
    "abort": 5,
    "reset": 1,
    "renew": 7,
    "again": 1,
    "stranger": 1,
    "huge": 1,
    "pile": 1,
    "far": 1,
}
#: What is added to a number of a request that may be too large: it has the same last 8 or 16 bits.
FAR = (256, 65536)


def options(manager: str, rng: random.Random, claims: Claims) -> dict[str, Any]:
    """Return what a manager is opened with, beside the size of its blocks."""
    found: dict[str, Any] = {}
    if manager == "prefix_cache":
        found["num_blocks"] = rng.choice((3, 4, 5, 6, 8, 12, 24))
        if "weak_hash" in claims.features and rng.random() < 0.2:
            found["hash_bits"] = rng.choice((1, 2, 4))
    return found


def draw(manager: str, rng: random.Random, claims: Claims, length: int, block_size: int) -> str:
    """Return a program of about so many steps."""
    make = {"prefix_cache": Requests, "block_keys": Prompts, "block_index": _Workers}[manager]
    drawn = make(rng, claims, block_size)
    steps: list[str] = []
    while len(steps) < length:
        steps += drawn.steps()
    return "; ".join(steps)


@dataclass
class Requests(Prompts):
    """Requests that come and go, several in flight."""

    live: dict[int, bool] = field(default_factory=dict)
    """Request -> whether a step of it is in flight, unless it was refused."""
    left: dict[int, int] = field(default_factory=dict)
    """Request -> tokens of its prompt that are not scheduled, unless they are cached."""
    prompts: dict[int, list[int]] = field(default_factory=dict)
    """Request -> its prompt, and what it has decoded."""
    before: list[list[str]] = field(default_factory=list)
    """The steps of the last admissions."""
    orderly: bool | None = None
    """Whether requests come one after another, so that the order of eviction can be followed."""
    fresh: int = DOCUMENTS
    """A document that no request has had."""

    def steps(self) -> list[str]:
        """Return the next steps, most of which make sense."""
        if self.orderly is None:
            self.orderly = self.rng.random() < ORDERLY
        if self.orderly:
            return self._one_alone()
        name = self.rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if name in ("admit", "part"):
            return self._admission(name)
        if name == "reset":
            return ["reset"]
        if name == "renew":
            return self._renewal()
        if name == "pile":
            return [f"pile {self.rng.randint(2, 9)}"]
        if name == "far":
            number = self.rng.randrange(REQUESTS) + self.rng.choice(FAR)
            return [f"far {number} {spelled(self.prompt())}", f"commit {number}", f"finish {number}"]
        request = self._request(name)
        if request is None:
            name, request = "commit", self._request("commit")
        if request is None:
            return self._admission("admit")
        if name == "decode":
            return self._decodings(request)
        if name == "more":
            return [self._chunk(request)]
        self._note(name, request)
        return [f"{name} {request}"]

    def _one_alone(self) -> list[str]:
        """Return a request of whole blocks from beginning to end; its last block is new."""
        self.fresh += 1
        prefix = f"{self.rng.randrange(1, DOCUMENTS)} {self.rng.randint(1, 3) * self.block_size}"
        prompt = self.rng.choice(("", f"{prefix} ", f"{prefix} ", f"{prefix} "))
        return [f"admit 0 {prompt}{self.fresh} {self.block_size}", "commit 0", "finish 0"]

    def _admission(self, name: str) -> list[str]:
        if self.before and self.rng.random() < 0.15:
            return self.rng.choice(self.before)  # which makes sense if it was refused, or has ended
        request = self.rng.randrange(REQUESTS)
        if request in self.live and len(self.live) < REQUESTS:
            request = self.rng.choice([r for r in range(REQUESTS) if r not in self.live])
        given, prompt = self.asking(request)
        most = self.count() if name == "part" else sum(prompt[1::2])
        self.live[request], self.prompts[request] = True, prompt
        self.left[request] = max(sum(prompt[1::2]) - most, 0)
        head = f"part {request} {most}" if name == "part" else f"admit {request}"
        steps = [*given, f"{head} {spelled(prompt)}"]
        self.before = [*self.before, steps][-REMEMBERED:]
        return steps

    def _renewal(self) -> list[str]:
        """Return the steps that end every request, and a reset."""
        steps = [f"abort {request}" for request in self.live]
        self.live.clear()
        return [*steps, "reset"]

    def _decodings(self, request: int) -> list[str]:
        """Return steps in which a request decodes, or is refused and goes on with other tokens.

        Then another request asks for the first ones.
        """
        free = [r for r in range(REQUESTS) if r not in self.live]
        if self.rng.random() > 0.2 or not free:
            return [self._joining(request) if self.rng.random() < 0.15 else self._decoding(request)]
        before, other, size = self.prompts.get(request, []), self.rng.choice(free), self.block_size
        first, second = self.rng.sample(range(DOCUMENTS), 2)
        asked = [*before, first, size * self.rng.randint(1, 2) + 1]
        self.live[request], self.live[other], self.left[other] = False, True, 0
        self.prompts[request], self.prompts[other] = [*before, second, size], asked
        return [
            f"decode {request} {first} {size * self.rng.randint(2, 6)}",
            f"decode {request} {second} {size}",
            f"commit {request}",
            f"admit {other} {spelled(asked)}",
        ]

    def _decoding(self, request: int) -> str:
        """Return a step in which a request decodes; what it has by then may be the next prompt."""
        self.live[request] = True
        new = [self.rng.randrange(DOCUMENTS), self.rng.choice((1, 2, self.count()))]
        self.prompts[request] = [*self.prompts.get(request, []), *new]
        self.known = [*self.known, self.prompts[request]][-REMEMBERED:]
        return f"decode {request} {spelled(new)}"

    def _joining(self, request: int) -> str:
        """Return a step in which tokens join a request, and not all of them are scheduled."""
        _, _, *new = self._decoding(request).split()
        most = self.count()
        self.left[request] = max(int(new[1]) - most, 0)
        return f"join {request} {most} {' '.join(new)}"

    def _chunk(self, request: int) -> str:
        """Return a step in which a request goes on with its prompt."""
        most = self.count()
        self.live[request], self.left[request] = True, max(self.left[request] - most, 0)
        return f"more {request} {most}"

    def _request(self, name: str) -> int | None:
        """Return a request that a step makes sense for; None if there is none."""
        if name in ("abort", "again"):
            fitting = list(self.live)
        elif name == "commit":
            fitting = [r for r, busy in self.live.items() if busy]
        elif name in ("finish", "decode", "more"):
            idle = [r for r, busy in self.live.items() if not busy]
            fitting = [r for r in idle if bool(self.left[r]) == (name == "more")]
        else:
            return self.rng.randrange(REQUESTS)
        return self.rng.choice(fitting) if fitting else None

    def _note(self, name: str, request: int) -> None:
        if name == "commit":
            self.live[request] = False
        if name in ("finish", "abort"):
            self.live.pop(request, None)


@dataclass
class _Workers(Prompts):
    """Workers that store and remove parts of the same paths."""

    def steps(self) -> list[str]:
        """Return one step on an index, and what every worker then holds."""
        worker, path = self.rng.randrange(WORKERS), self.prompt()
        count = sum(path[1::2])
        match = f"match {spelled(path)}"
        name = self.rng.choices(("store", "grow", "remove", "clear"), (8, 3, 6, 1))[0]
        if name == "clear":
            return [f"clear {worker}", match]
        head = f"{name} {worker}"
        if name == "grow":
            head = f"{head} {self.rng.randrange(count)}"
        elif name == "remove":
            at = self.rng.randrange(count)
            head = f"{head} {at} {self.rng.randint(1, count - at)}"
        return [f"{head} {spelled(path)}", match]

    def count(self) -> int:
        """Return a number of blocks."""
        return self.rng.randint(1, 4)
