"""One subject at one case: what a check calls, and what it holds answers to.

A check builds problems, asks them through a trial, and states what must hold. The first statement that does
not hold ends the check with a `Violation`, which keeps the call and the answer for the diagnosis.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref.attention.bounds import exceeds
from kvref.attention.bounds.compare import worst
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.code_problems import present_codes
from kvref_conformance.contracts import Answer, Call
from kvref_conformance.host import Host, Session
from kvref_conformance.journal import Entry, Journaled
from kvref_conformance.managers import Value
from kvref_conformance.oracle import Expected, Oracle
from kvref_conformance.problems import Placement, Problem, present
from kvref_conformance.reading import what_was_read


class Violation(Exception):
    """Something a check states does not hold."""

    def __init__(
        self,
        message: str,
        *,
        result: "Result | None" = None,
        detail: dict[str, Any] | None = None,
        requirement: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.requirement = requirement
        """What does not hold, if it is not the requirement of the check."""
        self.result = result
        self.detail = detail or {}


@dataclass(frozen=True)
class Result:
    """One call and its answer, with the floating-point outputs widened exactly."""

    call: Call
    answer: Answer
    problem: Problem | None = None

    @property
    def out(self) -> Array:
        """The output, `[num_tokens, num_q_heads, v_head_dim]`, float64."""
        return np.asarray(self.answer.outputs["out"]).astype(np.float64)

    @property
    def lse(self) -> Array:
        """The log of the total weight, `[num_tokens, num_q_heads]`, float64."""
        return np.asarray(self.answer.outputs["lse"]).astype(np.float64)


@dataclass
class Trial:
    """A subject behind its host, one case, and the oracle under the subject's claims."""

    host: Host
    case: Case
    oracle: Oracle
    margin: float = 0.0
    """Largest error over bound seen so far."""
    unbounded: bool = False
    """Whether the declared arithmetic left some component without a bound: any answer passed there."""
    attempted: Call | None = None
    """The last call made, answered or not."""
    journal: list[Entry] = field(default_factory=list)
    """Every operation on a manager, and what it gave."""
    sessions: list[Session] = field(default_factory=list)
    """Every manager that was opened: closed when the case has ended."""
    is_in_force: Callable[[str], bool] = lambda requirement: True
    """Says whether a requirement other than the check's own is asked of the subject."""

    @property
    def claims(self) -> Claims:
        """What the subject declares."""
        return self.oracle.claims

    def call(self, call: Call, problem: Problem | None = None) -> Result:
        """Make one call.

        Raises: Failed if it gives no answer.
        """
        self.attempted = call
        return Result(call, self.host.call(call), problem)

    def open(self, manager: str, /, **params: Value) -> Session:
        """Open a manager in a state of its own.

        Raises: Failed.
        """
        session = Journaled(self.host.open(manager, **params), self.journal)
        self.sessions.append(session)
        return session

    def restart(self) -> None:
        """End the subject's program: what it holds is gone, and a fresh one is started when it is needed."""
        self.host.restart()

    def attend(self, problem: Problem, placement: Placement | None = None, *, lse: bool = False) -> Result:
        """Ask a problem through the case's verb.

        Raises: Failed if the call gives no answer.
        """
        where = Placement(seed=self.case.seed + 1) if placement is None else placement
        ask = present if problem.codes is None else present_codes
        return self.call(ask(problem, self.case, where, lse=lse), problem)

    def expect_attention(self, problem: Problem, result: Result, tokens: Array | None = None) -> None:
        """Hold an answer to the oracle: exact where the problem is exact, within the bound elsewhere.

        `tokens [num_tokens]` says whose outputs are judged; None: all of them, and the lse if there is one.
        Raises: Violation.
        """
        expected = self.oracle.attention(problem)
        self._expect_out(problem, result, expected, tokens)
        if tokens is None and "lse" in result.answer.outputs:
            self.expect_within("lse", result, result.lse, expected.lse, expected.lse_bound)

    def expect_hunts(self, problem: Problem, result: Result) -> None:
        """Hold every query to finding its needle in its attended set, and to not finding it elsewhere.

        A needle is found if its value comes back, of whatever kv head. Nothing else of a row is asked.
        Raises: Violation.
        """
        hunted = np.asarray(problem.hunts)
        due = self.oracle.attention(problem).exact
        request = np.repeat(np.arange(len(problem.seq_lens)), problem.query_lens)
        position = problem.context_start_loc[:-1][request][:, None] + np.maximum(hunted, 0)
        values = problem.v.astype(np.float64)[position]  # [T, H, num_kv_heads, Dv]
        found = (values == result.out[:, :, None, :]).all(axis=-1).any(axis=-1)
        wrong = (hunted >= 0) & (found != due)
        if not wrong.any():
            return
        token, head = (int(i) for i in np.argwhere(wrong)[0])
        row = result.out[token, head]
        did = "did not find" if due[token, head] else "found"
        where = f"position {hunted[token, head]}{'' if due[token, head] else ', outside its attended set'}"
        reading = what_was_read(problem, result.call, token, head, row)
        raise Violation(
            f"request {request[token]}, token {token}, head {head}: {did} {where}{reading.sentence}",
            result=result,
            detail={
                "where": [token, head, 0],
                "outside": int(wrong.sum()),
                "of": int(wrong.size),
                "reading": reading.to_dict(),
            },
        )

    def expect_same(self, what: str, problem: Problem, result: Result, other: Result) -> None:
        """Hold two outputs to each other: equal where the problem is exact, else within twice the bound.

        Both may be wrong in the same way; NaN equals NaN. Raises: Violation naming the worst difference.
        """
        expected = self.oracle.attention(problem)
        self.expect_alike(what, result, result.out, other.out, 2 * expected.out_bound)

    def expect_alike(self, what: str, result: Result, observed: Array, other: Array, slack: Array) -> None:
        """Hold two answers of the subject to each other, NaN equal to NaN.

        Raises: Violation naming the worst difference.
        """
        apart = exceeds(observed, other, slack) & ~(_is_nan(observed) & _is_nan(other))
        if apart.any():
            where = worst(observed, other, slack, apart)
            raise Violation(
                f"{what}: out{list(where)} = {observed[where]:.6g}, otherwise {other[where]:.6g}"
                f" ({int(apart.sum())} of {apart.size} differ)",
                result=result,
                detail={"where": list(where), "outside": int(apart.sum()), "of": int(apart.size)},
            )

    def expect_equal(self, what: str, result: Result, observed: Array, expected: Array) -> None:
        """Hold two arrays to the same values, bit for bit (NaN equals NaN).

        Raises: Violation naming the first difference.
        """
        same = (observed == expected) | (_is_nan(observed) & _is_nan(expected))
        if not same.all():
            where = tuple(int(i) for i in np.argwhere(~same)[0])
            raise Violation(
                f"{what}{list(where)} = {observed[where]}, expected {expected[where]}"
                f" ({int((~same).sum())} of {same.size} differ)",
                result=result,
                detail={"where": list(where)},
            )

    def expect_bits(self, what: str, result: Result, observed: Array, expected: Array) -> None:
        """Hold two arrays to the same bits: codes of NaN and the sign of zero count.

        Raises: Violation naming the first difference.
        """
        same = bits(observed) == bits(expected)
        if not same.all():
            where = tuple(int(i) for i in np.argwhere(~same)[0])
            raise Violation(
                f"{what}{list(where)} = {observed[where]} (bits {bits(observed)[where]:#x}), expected "
                f"{expected[where]} (bits {bits(expected)[where]:#x}) "
                f"({int((~same).sum())} of {same.size} differ)",
                result=result,
                detail={"where": list(where)},
            )

    def expect_within(
        self, what: str, result: Result, observed: Array, expected: Array, bound: Array
    ) -> None:
        """Hold an array to a componentwise bound.

        Raises: Violation naming the worst component.
        """
        self.note_margin(observed, expected, bound)
        outside = exceeds(observed, expected, bound)
        if outside.any():
            where = worst(observed, expected, bound, outside)
            raise Violation(
                f"{what}{list(where)} = {observed[where]:.6g}, expected {expected[where]:.6g}"
                f" ± {bound[where]:.2g} ({int(outside.sum())} of {outside.size} outside)",
                result=result,
                detail={"where": list(where), "outside": int(outside.sum()), "of": int(outside.size)},
            )

    def expect(self, holds: bool, message: str, result: Result | None = None, **detail: Any) -> None:
        """Hold anything else.

        Raises: Violation with the message.
        """
        if not holds:
            raise Violation(message, result=result, detail=detail)

    def _expect_out(self, problem: Problem, result: Result, expected: Expected, tokens: Array | None) -> None:
        observed, bound = result.out, expected.out_bound
        outside = exceeds(observed, expected.out, bound)
        if tokens is not None:
            outside &= tokens[:, None, None]
        else:
            self.note_margin(observed, expected.out, bound)
        if not outside.any():
            return
        token, head, channel = worst(observed, expected.out, bound, outside)
        reading = what_was_read(problem, result.call, token, head, observed[token, head])
        raise Violation(
            f"request {problem.request_of(token)}, token {token}, head {head}: out[{channel}] = "
            f"{observed[token, head, channel]:.6g}, expected {expected.out[token, head, channel]:.6g} ± "
            f"{bound[token, head, channel]:.2g}{reading.sentence}",
            result=result,
            detail={
                "where": [token, head, channel],
                "outside": int(outside.any(axis=-1).sum()),
                "of": int(outside[..., 0].size),
                "reading": reading.to_dict(),
            },
        )

    def note_margin(self, observed: Array, expected: Array, bound: Array) -> None:
        """Remember how much of a bound an answer uses up."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.abs(observed - expected) / bound
        self.unbounded = self.unbounded or bool(np.isposinf(bound).any())
        ratio = ratio[np.isfinite(ratio)]
        if ratio.size:
            self.margin = max(self.margin, float(ratio.max()))


def bits(x: Array) -> Array:
    """Return the bits of every element as unsigned integers of the same width."""
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _is_nan(x: Array) -> Array:
    return np.asarray(x != x)
