"""Checks of requests in a snapshot cache: namespaces, resets, and operations that make no sense.

In the programs `b` is the block size.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.snapshots_hits import DECODES, HITS
from kvref_conformance.checks.snapshots_states import COUNTED
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS, snapshots
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial


def _apart(*given: str, prompt: str = "1 2b+1") -> str:
    """Return a program in which one prompt is served, each time given something else, twice."""
    steps = []
    for request, gift in enumerate([*given, *given]):
        steps += [gift.replace(" r", f" {request}")] if gift else []
        steps.append(f"serve {request} {prompt}")
    return "; ".join(steps)


@check(
    "KV-SNAP-019",
    verbs=SNAPSHOTS,
    operations=HITS,
    features=("salt",),
    cases=snapshots(_apart("salt r 1", "salt r 2", "", "salt r 4"), num_blocks=32, num_states=32),
)
def salts_share_no_state(trial: Trial) -> None:
    """One prompt under four salts, one of which is none; each finds its own when it comes again."""
    expect_unbroken(trial, "KV-SNAP-019")


@check(
    "KV-SNAP-019",
    verbs=SNAPSHOTS,
    operations=HITS,
    features=("adapter",),
    cases=snapshots(_apart("adapter r 1", "adapter r 2", "", "adapter r 4"), num_blocks=32, num_states=32),
)
def adapters_share_no_state(trial: Trial) -> None:
    """The same of adapters."""
    expect_unbroken(trial, "KV-SNAP-019")


@check(
    "KV-SNAP-019",
    verbs=SNAPSHOTS,
    operations=HITS,
    features=("adapter", "adapter_version"),
    cases=snapshots(
        _apart("adapter r 1; version r 1", "adapter r 1; version r 2", "adapter r 1"),
        num_blocks=32,
        num_states=32,
    ),
)
def versions_share_no_state(trial: Trial) -> None:
    """One adapter in two versions, and without one."""
    expect_unbroken(trial, "KV-SNAP-019")


@check(
    "KV-SNAP-019",
    verbs=SNAPSHOTS,
    operations=HITS,
    features=("media",),
    cases=snapshots(
        _apart("image r 1 0 1", "image r 2 0 1", "", prompt="0 2b+1"),
        _apart("image r 1 b 1", "image r 2 b 1", "image r 1 b+1 1", prompt="0 3b+1"),
        num_blocks=32,
        num_states=32,
    ),
)
def media_share_no_state(trial: Trial) -> None:
    """Images in the first block and in a later one, and one that is moved by a token."""
    expect_unbroken(trial, "KV-SNAP-019")


@check(
    "KV-SNAP-019",
    verbs=SNAPSHOTS,
    operations=HITS,
    features=("embeddings",),
    cases=snapshots(
        _apart("embed r 1 0 1", "embed r 2 0 1", "", prompt="0 2b+1"), num_blocks=32, num_states=32
    ),
)
def embeddings_share_no_state(trial: Trial) -> None:
    """Rows of embeddings in place of a token."""
    expect_unbroken(trial, "KV-SNAP-019")


@check(
    "KV-SNAP-011",
    verbs=SNAPSHOTS,
    operations=HITS,
    cases=snapshots(
        *(_apart(gift) for gift in ("salt r 1", "adapter r 1")),
        *(_apart(gift, prompt="0 2b+1") for gift in ("image r 1 0 1", "embed r 1 0 1")),
    ),
)
def what_is_claimed_is_given_a_state(trial: Trial) -> None:
    """A request with each field of a namespace that is claimed, and room for all of it."""
    expect_unbroken(trial, "KV-SNAP-011")


@check(
    "KV-SNAP-020",
    verbs=SNAPSHOTS,
    operations=(*HITS, "reset"),
    cases=snapshots(
        "serve 1 1 2b; reset; admit 2 1 2b+1; commit 2; admit 3 1 2b+1",
        "serve 1 1 b; reset; serve 2 1 b; admit 3 1 b+1; reset; commit 3; finish 3; admit 4 1 b+1",
        "admit 1 1 b; reset; commit 1; reset; finish 1; admit 2 1 b+1; commit 2; finish 2; reset; "
        "serve 3 3 4b",
    ),
)
def resets_forget_states(trial: Trial) -> None:
    """The same prompt behind a reset, and resets under requests, which are refused."""
    expect_unbroken(trial, "KV-SNAP-020")


@check(
    "KV-SNAP-021",
    verbs=SNAPSHOTS,
    operations=COUNTED,
    cases=snapshots(
        "admit 1 1 b+1; again 1; commit 1; again 1; finish 1; admit 2 1 b+1",
        "stranger 1; admit 1 1 b; stranger 2; commit 1; finish 1; stranger 1; admit 1 1 2b; abort 1; "
        "stranger 1",
        "huge 1; admit 1 1 b; huge 2; commit 1; finish 1; huge 1",
        num_blocks=4,
    ),
)
def what_makes_no_sense_is_refused_of_states(trial: Trial) -> None:
    """Requests that are admitted twice, not admitted, or too large."""
    expect_unbroken(trial, "KV-SNAP-021")


@check(
    "KV-SNAP-021",
    verbs=SNAPSHOTS,
    operations=COUNTED,
    features=("drafts",),
    cases=snapshots(
        "admit 1 1 b; accept_beyond 1 1; accept_negative 1 1; commit 1; draft_beyond 1 1; "
        "draft_negative 1 1; "
        "draft 1 2 2 2; accept_beyond 1 1; accept_negative 1 2; accept 1 1; decode 1 3 1; commit 1",
    ),
)
def odd_numbers_of_drafts_are_refused(trial: Trial) -> None:
    """More drafts than tokens, fewer than none, and more accepted than there were."""
    expect_unbroken(trial, "KV-SNAP-021")


@check(
    "KV-SNAP-023",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=snapshots(
        "admit 1 1 b+1; ahead 1; commit 1; decode 1 2 b; ahead 1; commit 1; finish 1; admit 2 1 b+1 2 1",
        "part 1 1 1 2b; ahead 1; commit 1; more 1 b; ahead 1; commit 1; more 1 b; commit 1; decode 1 2 1; "
        "commit 1; finish 1; admit 2 1 2b+1",
    ),
)
def steps_in_flight_are_waited_for(trial: Trial) -> None:
    """An extension and a finish while a prompt, a chunk and outputs are in flight; the request goes on."""
    expect_unbroken(trial, "KV-SNAP-023")
