"""Steps of a program for a cache that requests are admitted to, whatever it keeps of them.

For porters: a step that makes no sense now is passed over; what a request is given waits for its admission.
"""

from collections.abc import Mapping
from typing import Any

from kvref_conformance.contracts import Failed
from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.drafts import PARTS, TEXTS, Drafts
from kvref_conformance.programs.prompts import Prompt, are_pairs, tokens_of
from kvref_conformance.programs.step import Step

#: Requests of one crowd.
CROWD = 1024


class RequestSteps:
    """Performs the steps that prefix caches and snapshot caches have in common."""

    steps: Mapping[str, tuple[int, int]]
    """Step -> how many numbers it takes, at least and at most."""
    unknown: str
    """The requirement about requests that are not there, or are there already."""

    def __init__(self, cache: Any, log: Log) -> None:
        self.cache, self.log = cache, log
        self.drafts = Drafts(cache.claims.features)

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        if step.name in TEXTS or step.name in PARTS:
            return self.drafts.perform(step)
        least, most = self.steps.get(step.name, (1, 0))
        if not least <= len(step.numbers) <= most or min(step.numbers, default=0) < 0:
            return False
        try:
            if not getattr(self, f"do_{step.name}")(*step.numbers):
                return False
        except Failed as failed:
            if failed.kind == "unsupported":
                return False
            raise
        self.note(step)
        return True

    def note(self, step: Step) -> None:
        """Write down that a step was performed."""
        raise NotImplementedError

    def do_admit(self, request: int, *pairs: int) -> bool:
        """Begin a request and schedule all of it."""
        return self.do_part(request, sum(pairs[1::2]), *pairs)

    def do_part(self, request: int, most: int, *pairs: int) -> bool:
        """Begin a request and schedule some of it."""
        given, count = self.drafts.of(request), sum(pairs[1::2])
        if request in self.cache.live or not are_pairs(pairs) or not given.fits(count):
            return False
        if most < 1 or count > MAX_LIST:
            return False
        self.drafts.drop(request)
        self.cache.admit(request, Prompt(given, tokens_of(pairs)), most)
        return True

    def do_crowd(self, first: int, count: int, *pair: int) -> bool:
        """Begin many equal requests, compute all, and end all."""
        numbers = range(first, first + count)
        if not 0 < count <= CROWD or any(number in self.cache.live for number in numbers):
            return False
        with self.cache.unseen():
            if not all(self.do_admit(number, *pair) for number in numbers):
                return False
            there = [number for number in numbers if self.do_commit(number)]
        with self.cache.unseen():
            return all(self.do_finish(number) for number in there)

    def do_more(self, request: int, most: int) -> bool:
        """Schedule more of a prompt."""
        one = self.cache.live.get(request)
        if one is None or one.is_in_flight or one.is_whole or most < 1:
            return False
        self.cache.extend(request, [], most)
        return True

    def joining(self, request: int, pairs: tuple[int, ...]) -> list[int]:
        """Return the decoded tokens that may join a request, or none."""
        one = self.cache.live.get(request)
        if one is None or not one.is_whole or not are_pairs(pairs):
            return []
        tokens = tokens_of(pairs)
        return tokens if len(one.prompt.tokens) + len(tokens) <= MAX_LIST else []

    def do_commit(self, request: int) -> bool:
        """Let what is scheduled be computed."""
        one = self.cache.live.get(request)
        if one is None or not one.is_in_flight:
            return False
        self.cache.commit(request)
        return True

    def do_finish(self, request: int) -> bool:
        """End a request that is computed."""
        if request not in self.cache.live or not self.cache.live[request].is_whole:
            return False
        self.cache.end(request, "finish")
        return True

    def do_abort(self, request: int) -> bool:
        """End a request, whatever it has computed."""
        if request in self.cache.live:
            self.cache.end(request, "abort")
            return True
        return False

    def do_reset(self) -> bool:
        """Forget everything, or be refused."""
        self.cache.reset()
        return True

    def do_again(self, request: int) -> bool:
        """Admit a request that is there, with tokens of its own."""
        if (one := self.cache.live.get(request)) is None:
            return False
        self.refused("admit", request, tokens=one.prompt.tokens, max_new_tokens=len(one.prompt.tokens))
        return True

    def do_stranger(self, request: int) -> bool:
        """Ask every operation about a request that is not there."""
        if request in self.cache.live:
            return False
        for operation in ("extend", "commit", "finish", "abort", "slots"):
            arguments = {"tokens": [1], "max_new_tokens": 1} if operation == "extend" else {}
            self.refused(operation, request, **arguments)
        return True

    def refused(self, operation: str, request: int, **arguments: Any) -> None:
        """Ask for what must be refused, under the rule about requests that are there or are not."""
        self.cache.must_not(self.unknown, operation, request=request, **arguments)
