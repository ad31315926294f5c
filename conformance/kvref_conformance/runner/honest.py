"""An honest implementation that any check can be tried on, to tell a fault from a case that makes no sense.

Used while shrinking: a simpler case is only worth reporting if the suite's own implementation passes there.
"""

from dataclasses import replace

from kvref_conformance.cases import Case
from kvref_conformance.checks.check import Check
from kvref_conformance.choices import FORMAT_CHOICES
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import FORMATTED, RECURRENT
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate
from kvref_conformance.runner.shrink import Honest

#: Who answers what, where it is not the kernel.
_ANSWERED_BY = {"codec": FORMATTED, "manager": tuple(MANAGERS), "scans": RECURRENT}


def honest_under(oracle: Oracle) -> Honest:
    """Return the judgement of the suite's own implementations.

    The kernel answers canonically and with arithmetic of its own, so it is tried under its own claims, which
    are those of a kernel at least as exact as any. The codec makes the declared choices, for the inputs of a
    check follow from them. The managers answer under their own claims, as the kernel does.
    """
    from kvref_conformance.subjects.bitwise import Bitwise
    from kvref_conformance.subjects.lists import Lists
    from kvref_conformance.subjects.scanned import Scanned
    from kvref_conformance.subjects.tiled import Tiled

    codec = Bitwise()
    declared = {name: answer for name, answer in oracle.claims.choices.items() if name in FORMAT_CHOICES}
    codec.claims = replace(Bitwise.claims, choices=declared)
    hosts = {"kernel": InProcessHost(Tiled), "codec": InProcessHost(codec), "manager": InProcessHost(Lists)}
    hosts["scans"] = InProcessHost(Scanned)
    owns = {kind: Oracle(Claims.from_dict(host.hello().claims)) for kind, host in hosts.items()}

    def passes(check: Check, case: Case) -> bool:
        kind = next((kind for kind, areas in _ANSWERED_BY.items() if case.verb in areas), "kernel")
        host, own = hosts[kind], owns[kind]
        offered = host.hello().verbs
        missing = set(check.features) - set(own.claims.features)
        if case.verb not in offered or missing or not check.drives(case.verb, offered):
            return True  # nothing to compare with
        try:
            return evaluate(check, case, host, own).status == "pass"
        except Exception:
            return False

    return passes
