"""Programs for a prefix cache: requests that name documents, and what each of them reads.

Steps, where r is a request, d a document, n and m numbers of tokens:

    admit r d n d n …        begin a request with n tokens of document d, then n of the next; schedule all
    part r m d n …           the same, but schedule at most m tokens that are not cached
    more r m                 schedule at most m more tokens of the prompt
    decode r d n …           let decoded tokens join, and schedule them
    join r m d n …           let decoded tokens join, and schedule at most m of them
    commit r                 what is scheduled is computed now
    finish r · abort r       a request ends; it is finished only when all of it is computed
    reset                    forget everything; must be refused while there is a request
    pile n                   leave the events of the next n steps, and take them together
    far r d n …              may be refused: the same as admit, with a number that may be too large
    crowd r n d m            n requests, from r on, have m tokens of document d each; all are computed, then
                             all end; what they hold is looked at when all are there
    adapter · version · salt · image · embed
                             what request r is to be admitted with, as in `drafts`
    again r · stranger r · huge r
                             must be refused: a second admission, operations on a request that is not there,
                             more tokens than there are slots

Between an admission or an extension and its commit a step is in flight. Steps of requests may overlap. A step
whose operation is not offered is passed over.
"""

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.prompts import tokens_of
from kvref_conformance.programs.requests import RequestSteps
from kvref_conformance.programs.running import Session
from kvref_conformance.programs.step import Step
from kvref_conformance.programs.watched_cache import WatchedCache

#: Step -> how many numbers it takes, at least and at most.
STEPS = {
    name: (least, most)
    for least, most, names in (
        (3, 65, "admit decode far"),
        (4, 66, "part join"),
        (4, 4, "crowd"),
        (2, 2, "more"),
        (1, 1, "commit finish abort again stranger huge pile"),
        (0, 0, "reset"),
    )
    for name in names.split()
}


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Prefixes":
    """Return what performs the steps of one program."""
    return Prefixes(WatchedCache(session, case, claims, log), log)


class Prefixes(RequestSteps):
    """Performs the steps of one program on one prefix cache."""

    steps = STEPS
    unknown = "KV-PREFIX-027"
    cache: WatchedCache

    def note(self, step: Step) -> None:
        """Write down a step, and what is free behind it."""
        self.log.note(step, "then", self.cache.free, "are free")
        if step.name != "pile":
            self.cache.mirror.step(self.cache.session)

    def finish(self) -> None:
        """Hold what was seen to what is declared."""
        self.cache.finish()

    def do_far(self, request: int, *pairs: int) -> bool:
        """Begin a request, unless the subject has no such number."""
        self.cache.told.far = True
        done = self.do_admit(request, *pairs)
        self.cache.told.far = False
        return done

    def do_decode(self, request: int, *pairs: int) -> bool:
        """Let decoded tokens join, and schedule all of them."""
        return self.do_join(request, sum(pairs[1::2]), *pairs)

    def do_join(self, request: int, most: int, *pairs: int) -> bool:
        """Let decoded tokens join, and schedule some of them."""
        tokens = self.joining(request, pairs)
        if not tokens or most < 1:
            return False
        self.cache.extend(request, tokens, most)
        return True

    def do_pile(self, count: int) -> bool:
        """Leave the events of some steps."""
        return self.cache.mirror.pile(count)

    def do_huge(self, request: int) -> bool:
        """Admit one token more than there are slots: all at once, and one token for now."""
        count = self.cache.capacity * self.cache.block_size + 1
        if request in self.cache.live or count > MAX_LIST:
            return False
        for most in (count, 1):
            self.refused("admit", request, tokens=tokens_of([1, count]), max_new_tokens=most)
            self.refused("slots", request)
        return True
