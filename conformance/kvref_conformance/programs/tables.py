"""Programs for block tables: requests that grow, fork, are cut back and end.

Steps, where r, p and c number requests and n counts tokens:

    add r · append r n · fork p c · truncate r n · prune r · free r
    fill r                       append as many tokens as there is room for
    litter p n                   n children of p begin and end
    drain                        all requests end; then one takes the whole pool, and ends

`odd_requests` has the steps that must be refused, and those that may be. An append that needs more blocks
than are free must be refused as well. After every step all tables are read. A step is passed over if the
subject does not offer its operation.
"""

from kvref_conformance.cases import Case, opening
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.odd_requests import ODD, OddRequests
from kvref_conformance.programs.running import Session, attempt, is_refused
from kvref_conformance.programs.step import Step
from kvref_conformance.programs.tables_judged import TablesJudged

#: Step -> how many numbers it takes.
STEPS = {
    **dict.fromkeys(("append", "fork", "truncate", "litter"), 2),
    **dict.fromkeys(("add", "prune", "free", "fill"), 1),
    "drain": 0,
}

#: Tokens that `fill` appends at once, and children of a litter.
MOST, LITTER = 1024, 1000


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Tables":
    """Return what performs the steps of one program."""
    return Tables(TablesJudged(session, opening(case), claims, log), log)


class Tables:
    """Performs the steps of one program on block tables."""

    def __init__(self, judged: TablesJudged, log: Log) -> None:
        self.judged, self.session, self.log = judged, judged.session, log
        self.sharing = judged.sharing
        self.odd = OddRequests(judged, self.begun)

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        owner = self.odd if step.name in ODD else self
        if {**STEPS, **ODD}.get(step.name) != len(step.numbers):
            return False
        try:
            done: bool = getattr(owner, step.name)(*step.numbers)
        except Failed as failed:
            if failed.kind != "unsupported":
                raise
            return False
        if done:
            self.log.note(step, self.judged.as_told(step.numbers[: 2 if step.name == "fork" else 1]))
        return done

    def finish(self) -> None:
        """Ask nothing more: every step was judged."""

    def add(self, request: int) -> bool:
        """Begin a request."""
        if request in self.sharing.rows or request < 0:
            return False
        self.judged.must("KV-BLOCK-033", "add", request=request)
        return self.begun(request)

    def begun(self, request: int) -> bool:
        """Let a request be there that the subject has added."""
        self.sharing.add(request)
        self.judged.begin(request)
        self.judged.after_step("KV-BLOCK-032", request)
        return True

    def append(self, request: int, count: int) -> bool:
        """Let a request have more tokens, in pieces that one answer can hold; or ask for more than fit."""
        if request not in self.sharing.rows or count < 1:
            return False
        fits = self.sharing.needed(request, count) <= self.sharing.num_free
        most = MAX_LIST // len(self.sharing.block_sizes) if fits else count
        for done in range(0, count, most):
            self._append(request, min(most, count - done))
        return True

    def _append(self, request: int, count: int) -> None:
        """Ask for the slots of so many tokens in one call."""
        needed, free = self.sharing.needed(request, count), self.sharing.num_free
        answer = attempt(self.session, "append", request=request, num_tokens=count)
        said = f"append({request}, {count}), which needs {needed} blocks of {free} that are free"
        if not isinstance(answer, Failed):
            self.judged.appended(request, count, answer, fits=needed <= free)
            if needed > free:
                self.judged.stop(f"{said}, was not refused", "KV-BLOCK-032")
        elif needed > free:
            self.judged.refused(request, said)
        else:
            whole = len(self.sharing.rows) == 1 and not self.sharing.num_tokens[request]
            also = ["KV-BLOCK-009"] if whole and not self.sharing.most(request) > count else []
            also += self.judged.refused_before(request)
            self.judged.stop(f"{said}: {answer}", "KV-BLOCK-003", *also)

    def fill(self, request: int) -> bool:
        """Let a request have as many tokens as there is room for, in pieces that one answer can hold."""
        filled = False
        while request in self.sharing.rows and self.append(request, min(self.sharing.most(request), MOST)):
            filled = True
        return filled

    def fork(self, parent: int, child: int) -> bool:
        """Begin a request with all tokens of another."""
        if parent not in self.sharing.rows or child in self.sharing.rows or child < 0:
            return False
        self.judged.must("KV-BLOCK-023", "fork", parent=parent, child=child)
        self.sharing.fork(parent, child)
        self.judged.begin(child, parent)
        self.judged.forked(parent, child)
        self.judged.after_step("KV-BLOCK-023", child)
        return True

    def truncate(self, request: int, count: int) -> bool:
        """Keep only the first tokens."""
        if request not in self.sharing.rows or not self.sharing.may_truncate(request, count):
            return False
        self.judged.must("KV-BLOCK-026", "truncate", request=request, num_tokens=count)
        self.sharing.truncate(request, count)
        self.judged.cut_back(request, count)
        self.judged.after_step("KV-BLOCK-026", request)
        return True

    def prune(self, request: int) -> bool:
        """Let go of what no later token attends to."""
        if request not in self.sharing.rows or not any(self.sharing.windows):
            return False
        self.judged.must("KV-BLOCK-030", "prune", request=request)
        self.sharing.prune(request)
        self.judged.after_step("KV-BLOCK-030", request)
        return True

    def free(self, request: int) -> bool:
        """End a request."""
        if request not in self.sharing.rows:
            return False
        self.judged.must("KV-BLOCK-029", "free", request=request)
        shared = self.sharing.free(request)
        self.judged.end(request)
        self.judged.after_step("KV-BLOCK-023" if shared else "KV-BLOCK-029")
        return True

    def litter(self, parent: int, count: int) -> bool:
        """Let children of a request begin and end; whoever has no room for so many requests refuses some."""
        if parent not in self.sharing.rows or not 0 < count <= LITTER:
            return False
        names = (name for name in range(parent, parent + 2 * LITTER) if name not in self.sharing.rows)
        children = [name for name, _ in zip(names, range(count), strict=False)]
        born = [c for c in children if not is_refused(self.session, "fork", parent=parent, child=c)]
        for child in born:
            self.judged.must("KV-BLOCK-023", "free", request=child)
        self.judged.after_step("KV-BLOCK-023", parent)
        return True

    def drain(self) -> bool:
        """End all requests; let one take the whole pool, and end it."""
        for request in list(self.sharing.rows):
            self.free(request)
        return self.add(0) and (self.fill(0) or True) and self.free(0)
