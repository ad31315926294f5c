"""Programs for a snapshot cache: the requests of a prefix cache, in a model that keeps states as well.

Steps, where r is a request, d a document, n and m numbers of tokens:

    admit r d n d n …        begin a request with n tokens of document d, then n of the next; schedule all
    part r m d n …           the same, but schedule at most m tokens that are not cached
    more r m                 schedule at most m more tokens of the prompt
    decode r d n …           let decoded tokens join, and schedule them
    draft r k d n …          the same; the last k of them are drafts
    commit r                 what is scheduled is computed now, and all drafts stay
    accept r k               what is scheduled is computed now, and the first k drafts stay
    finish r · abort r       a request ends; it is finished only when all of it is computed
    reset                    forget everything; must be refused while there is a request
    crowd r n d m            n requests, from r on, have m tokens of document d each; all are computed, then
                             all end
    adapter · version · salt · image · embed
                             what request r is to be admitted with, as in `drafts`

These must be refused, and change nothing:

    again r · stranger r · huge r
                             a second admission, operations on a request that is not there, more tokens than
                             there are slots
    ahead r                  an extension of a request whose step is in flight, and its finish, unless steps
                             are declared to be scheduled ahead
    accept_beyond r k · accept_negative r k
                             a commit of a step, with k more accepted than there are drafts, and with −k
    draft_beyond r k · draft_negative r k
                             an extension by one token, of which 1 + k are drafts, and −k

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
from kvref_conformance.programs.watched_snapshots import WatchedSnapshots

#: Step -> how many numbers it takes, at least and at most.
STEPS = {
    name: (least, most)
    for least, most, names in (
        (3, 65, "admit decode"),
        (4, 66, "part draft"),
        (4, 4, "crowd"),
        (2, 2, "more accept accept_beyond accept_negative draft_beyond draft_negative"),
        (1, 1, "commit finish abort again stranger huge ahead"),
        (0, 0, "reset"),
    )
    for name in names.split()
}


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Snapshots":
    """Return what performs the steps of one program."""
    return Snapshots(WatchedSnapshots(session, case, claims, log), log)


class Snapshots(RequestSteps):
    """Performs the steps of one program on one snapshot cache."""

    steps = STEPS
    unknown = "KV-SNAP-021"
    cache: WatchedSnapshots

    @property
    def may_reject(self) -> bool:
        """Whether tokens of a step may be drafts."""
        return "drafts" in self.cache.claims.features

    def note(self, step: Step) -> None:
        """Write down a step, and how many requests are there."""
        self.log.note(step, "then", len(self.cache.live), "are there")

    def finish(self) -> None:
        """Look at nothing more: every step was looked at."""

    def do_decode(self, request: int, *pairs: int) -> bool:
        """Let decoded tokens join, and schedule all of them."""
        return self._join(request, 0, pairs)

    def do_draft(self, request: int, num_drafts: int, *pairs: int) -> bool:
        """Let tokens join of which the last are drafts."""
        fits = self.may_reject and 0 < num_drafts <= sum(pairs[1::2])
        return fits and self._join(request, num_drafts, pairs)

    def _join(self, request: int, num_drafts: int, pairs: tuple[int, ...]) -> bool:
        tokens = self.joining(request, pairs)
        if tokens:
            self.cache.extend(request, tokens, len(tokens), num_drafts)
        return bool(tokens)

    def do_accept(self, request: int, accepted: int) -> bool:
        """Let what is scheduled be computed, and some of the drafts stay."""
        one = self.cache.live.get(request)
        if one is None or one.step is None or not accepted <= one.step.num_drafts:
            return False
        self.cache.commit(request, accepted)
        return True

    def do_huge(self, request: int) -> bool:
        """Admit one token more than there are slots."""
        count = self.cache.capacity * self.cache.block_size + 1
        if request in self.cache.live or count > MAX_LIST:
            return False
        self.refused("admit", request, tokens=tokens_of([1, count]), max_new_tokens=count)
        self.refused("slots", request)
        return True

    def do_ahead(self, request: int) -> bool:
        """Ask for more of a request whose step is in flight."""
        one = self.cache.live.get(request)
        if one is None or one.step is None or self.cache.claims.choice("steps-ahead") != "refused":
            return False
        arguments = {"request": request, "tokens": [1], "max_new_tokens": len(one.prompt.tokens) + 1}
        self.cache.must_not("KV-SNAP-023", "extend", **arguments)
        self.cache.must_not("KV-SNAP-023", "finish", request=request)
        return True

    def do_accept_beyond(self, request: int, more: int) -> bool:
        """Accept more drafts than there are."""
        one = self.cache.live.get(request)
        if not self.may_reject or one is None or one.step is None or not more:
            return False
        self.refused("commit", request, num_accepted=one.step.num_drafts + more)
        return True

    def do_accept_negative(self, request: int, count: int) -> bool:
        """Accept fewer drafts than none."""
        one = self.cache.live.get(request)
        if not self.may_reject or one is None or one.step is None or not count:
            return False
        self.refused("commit", request, num_accepted=-count)
        return True

    def do_draft_beyond(self, request: int, more: int) -> bool:
        """Let more drafts join than tokens."""
        return bool(more) and self._odd_draft(request, 1 + more)

    def do_draft_negative(self, request: int, count: int) -> bool:
        """Let fewer drafts join than none."""
        return bool(count) and self._odd_draft(request, -count)

    def _odd_draft(self, request: int, num_drafts: int) -> bool:
        one = self.cache.live.get(request)
        if not self.may_reject or one is None or not one.is_whole:
            return False
        self.refused("extend", request, tokens=[1], max_new_tokens=1, num_drafts=num_drafts)
        return True
