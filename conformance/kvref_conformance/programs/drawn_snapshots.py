"""Drawn programs for snapshot caches: the requests of a prefix cache, and drafts that are rejected.

Most pools are small, of blocks, of states, or of both, so that one is evicted while the other stays.
"""

import random
from dataclasses import dataclass
from typing import Any

from kvref_conformance.claims import Claims
from kvref_conformance.programs.drawn_prefix import ORDERLY, WEIGHTS, Requests
from kvref_conformance.programs.drawn_prompts import DOCUMENTS, REMEMBERED, REQUESTS, spelled

#: Steps of a prefix cache that a snapshot cache has none of.
LEFT_OUT = ("pile", "far", "join")
#: How often drafts are tried beside the steps of a prefix cache, and odd numbers of them.
DRAFTS, ODD = 16, 1
#: The share of steps that ask for more of a request whose step may be in flight.
AHEAD = 0.02
#: Drafts of one step.
MOST_DRAFTS = 4
ODD_STEPS = ("accept_beyond", "accept_negative", "draft_beyond", "draft_negative")


def options(rng: random.Random, claims: Claims, block_size: int) -> dict[str, Any]:
    """Return what a snapshot cache is opened with, beside the size of its blocks."""
    found = {
        "num_blocks": rng.choice((3, 4, 6, 8, 12, 24, 24)),
        "num_states": rng.choice((1, 2, 3, 4, 6, 12, 24)),
        "snapshot_interval": rng.choice((1, 1, 2, 3)) * block_size,
    }
    if "window" in claims.features and rng.random() < 0.2:
        found["window"] = rng.choice((1, block_size, block_size + 1, 2 * block_size + 1))
    return found


def draw(rng: random.Random, claims: Claims, length: int, block_size: int) -> str:
    """Return a program of about so many steps."""
    drawn = Turns(rng, claims, block_size)
    steps: list[str] = []
    while len(steps) < length:
        steps += drawn.steps()
    return "; ".join(steps)


@dataclass
class Turns(Requests):
    """Requests that come and go, several in flight, some with drafts."""

    def steps(self) -> list[str]:
        """Return the next steps, most of which make sense."""
        if self.orderly is None:
            self.orderly = self.rng.random() < ORDERLY
        kind = self.rng.random() * (sum(WEIGHTS.values()) + DRAFTS + ODD)
        if "drafts" in self.claims.features and not self.orderly:
            if kind < DRAFTS and (request := self._request("decode")) is not None:
                return self._drafting(request)
            if DRAFTS <= kind < DRAFTS + ODD:
                numbers = self.rng.randrange(REQUESTS), self.rng.randint(1, 3)
                return [f"{self.rng.choice(ODD_STEPS)} {numbers[0]} {numbers[1]}"]
        if self.rng.random() < AHEAD:
            return [f"ahead {self.rng.randrange(REQUESTS)}"]
        while (found := super().steps())[0].split()[0] in LEFT_OUT:
            pass
        return found

    def _drafting(self, request: int) -> list[str]:
        """Return steps in which a request decodes, and some drafts stay; then perhaps a decoded token."""
        drafts = self.rng.randint(1, MOST_DRAFTS)
        document, count = self.rng.randrange(DOCUMENTS), drafts + self.rng.choice((0, 1, 1, 2))
        accepted = self.rng.choice((0, drafts, self.rng.randint(0, drafts)))
        kept = count - drafts + accepted
        before = self.prompts.get(request, [])
        self.prompts[request] = [*before, document, kept] if kept else before
        self.known = [*self.known, [*before, document, count], self.prompts[request]][-REMEMBERED:]
        steps = [f"draft {request} {drafts} {document} {count}", f"accept {request} {accepted}"]
        if self.rng.random() < 0.5:
            again = [self.rng.randrange(DOCUMENTS), self.rng.choice((1, 1, self.count()))]
            self.prompts[request] = [*self.prompts[request], *again]
            steps += [f"decode {request} {spelled(again)}", f"commit {request}"]
        return steps

    def _joining(self, request: int) -> str:
        """Return a step in which a request decodes: all tokens are scheduled."""
        return self._decoding(request)
