"""Steps of a program for block tables that must be refused, and steps that may be.

These must be refused, where r, p and c number requests:

    add_again r · fork_onto p c  a request that is there begins
    append_unknown r · truncate_unknown r · fork_unknown r c · prune_unknown r · free_unknown r
    truncate_beyond r k          to k tokens more than the request has

These may be refused, and whoever does them has to do them right:

    append_none r                no tokens at all
    add_far r                    a request begins whose number may be too large for the subject
"""

from collections.abc import Callable

from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Stop
from kvref_conformance.programs.running import attempt, is_refused
from kvref_conformance.programs.tables_judged import TablesJudged

#: Step -> how many numbers it takes.
ODD = {
    **dict.fromkeys(("fork_onto", "fork_unknown", "truncate_beyond"), 2),
    **dict.fromkeys(("add_again", "append_unknown", "truncate_unknown", "prune_unknown", "free_unknown"), 1),
    **dict.fromkeys(("append_none", "add_far"), 1),
}


class OddRequests:
    """Performs these steps on block tables."""

    def __init__(self, judged: TablesJudged, begun: Callable[[int], bool]) -> None:
        self.judged, self.session, self.sharing = judged, judged.session, judged.sharing
        self._begun = begun

    def add_again(self, request: int) -> bool:
        """Begin a request that is there."""
        return request in self.sharing.rows and self._refuses("add", request=request)

    def fork_onto(self, parent: int, child: int) -> bool:
        """Fork into a request that is there."""
        there = parent in self.sharing.rows and child in self.sharing.rows
        return there and self._refuses("fork", parent=parent, child=child)

    def append_unknown(self, request: int) -> bool:
        """Append to a request that is not there."""
        return self._is_new(request) and self._refuses("append", request=request, num_tokens=1)

    def truncate_unknown(self, request: int) -> bool:
        """Cut back a request that is not there."""
        return self._is_new(request) and self._refuses("truncate", request=request, num_tokens=0)

    def fork_unknown(self, parent: int, child: int) -> bool:
        """Fork a request that is not there."""
        new = parent != child and self._is_new(parent) and self._is_new(child)
        return new and self._refuses("fork", parent=parent, child=child)

    def prune_unknown(self, request: int) -> bool:
        """Prune a request that is not there."""
        windows = any(self.sharing.windows)
        return windows and self._is_new(request) and self._refuses("prune", request=request)

    def free_unknown(self, request: int) -> bool:
        """End a request that is not there."""
        return self._is_new(request) and self._refuses("free", request=request)

    def truncate_beyond(self, request: int, more: int) -> bool:
        """Cut a request back to more tokens than it has."""
        if request not in self.sharing.rows or more < 1:
            return False
        had = self.sharing.num_tokens[request]
        said = f"truncate({request}, {had + more}), of {had} tokens,"
        if not is_refused(self.session, "truncate", request=request, num_tokens=had + more):
            self.judged.stop(f"{said} was not refused", "KV-BLOCK-034")
        self.judged.unchanged(f"after {said} was refused", "KV-BLOCK-034")
        self.judged.note_refusal(request, "KV-BLOCK-034")
        return True

    def append_none(self, request: int) -> bool:
        """Append no tokens: where that makes a copy, nothing after it can be judged."""
        if request not in self.sharing.rows:
            return False
        answer = attempt(self.session, "append", request=request, num_tokens=0)
        if isinstance(answer, Failed):
            self.judged.unchanged(f"after append({request}, 0) was refused", "KV-BLOCK-028")
            return True
        if answer["slots"]:
            message = f"append({request}, 0) gave slots {answer['slots'][:8]}, expected none"
            self.judged.stop(message, "KV-BLOCK-020")
        if answer["copy_sources"]:
            raise Stop
        self.judged.unchanged(f"after append({request}, 0)", "KV-BLOCK-032")
        return True

    def add_far(self, request: int) -> bool:
        """Begin a request, unless the subject has no such number."""
        if not self._is_new(request):
            return False
        if is_refused(self.session, "add", request=request):
            self.judged.unchanged(f"after add({request}) was refused", "KV-BLOCK-033")
            return True
        return self._begun(request)

    def _is_new(self, request: int) -> bool:
        return request >= 0 and request not in self.sharing.rows

    def _refuses(self, operation: str, **arguments: int) -> bool:
        """Ask for what must be refused and change nothing."""
        said = f"{operation}({', '.join(map(str, arguments.values()))})"
        if not is_refused(self.session, operation, **arguments):
            self.judged.stop(f"{said} was not refused", "KV-BLOCK-033")
        self.judged.unchanged(f"after {said} was refused", "KV-BLOCK-033")
        for request in (number for name, number in arguments.items() if name != "num_tokens"):
            if self._is_new(request) and not is_refused(
                self.session, "block_table", request=request, group=0
            ):
                self.judged.stop(f"request {request} is there after {said} was refused", "KV-BLOCK-033")
        return True
