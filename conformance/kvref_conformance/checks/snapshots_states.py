"""Checks of state slots in a snapshot cache: who has which, drafts, aborts, refusals.

In the programs `b` is the block size.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.snapshots_hits import ABORTS, CHUNKS, DECODES
from kvref_conformance.programs.asking import every
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS, snapshots
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

COUNTED = (*ABORTS, "extend", "slots", "num_free", "num_free_states")


@check(
    "KV-SNAP-009",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots(
            "serve 1 1 b; admit 2 1 b 2 1; admit 3 1 b 3 1; admit 4 1 b 4 1; commit 2; commit 3; commit 4; "
            "decode 2 5 1; decode 3 6 1; commit 2; commit 3; decode 2 7 1; decode 4 7 1",
            "admit 1 1 1; admit 2 2 1; admit 3 3 1; commit 1; commit 2; commit 3; finish 1; decode 2 4 1; "
            "decode 3 5 1; commit 3; commit 2; decode 3 6 b",
            "admit 1 1 b; commit 1; admit 2 1 b 2 1; decode 1 3 b; commit 2; commit 1; decode 2 3 b; "
            "decode 1 4 1",
        ),
        snapshots(
            "serve 1 1 b; admit 2 1 b 2 1; admit 3 1 b 3 1; abort 2; admit 4 4 1; admit 5 5 1; commit 3",
            num_states=3,
        ),
    ),
)
def running_states_are_private(trial: Trial) -> None:
    """Requests restore one snapshot and go on; others end meanwhile, so that their places in a batch move."""
    expect_unbroken(trial, "KV-SNAP-009")


@check(
    "KV-SNAP-010",
    verbs=SNAPSHOTS,
    operations=COUNTED,
    cases=every(
        snapshots(
            "admit 1 1 2b; abort 1; admit 2 2 b; commit 2; abort 2; admit 3 3 b+1; commit 3; finish 3",
            "part 1 b 1 2b; commit 1; abort 1; part 2 b 2 2b; commit 2; more 2 b; abort 2; serve 3 1 2b+1",
            "serve 1 1 b; admit 2 1 b 2 1; abort 2; admit 3 1 b 3 1; commit 3; abort 3; admit 4 1 b 4 1; "
            "commit 4; finish 4",
            "admit 1 1 b; commit 1; decode 1 2 b; commit 1; decode 1 3 1; abort 1; serve 2 1 b 2 b 4 1",
        ),
        snapshots(
            "admit 1 1 b; admit 2 2 b; commit 1; commit 2; finish 1; finish 2; serve 3 3 2b", num_states=3
        ),
        snapshots("crowd 1 135 1 b; serve 301 2 2b; admit 302 2 2b+1", num_blocks=280, num_states=400),
    ),
)
def states_come_back(trial: Trial) -> None:
    """Requests are aborted before and behind a commit, and finish, hundreds at once; slots are counted."""
    expect_unbroken(trial, "KV-SNAP-010")


@check(
    "KV-SNAP-010",
    verbs=SNAPSHOTS,
    operations=COUNTED,
    features=("drafts",),
    cases=snapshots(
        "admit 1 1 1; commit 1; draft 1 2 2 3; commit 1; draft 1 2 2 2; commit 1; decode 1 3 1; commit 1",
        "admit 1 1 b; commit 1; draft 1 2 2 2; accept 1 0; draft 1 3 2 4; accept 1 1; finish 1; serve 2 1 b",
        "admit 1 1 b-1; commit 1; draft 1 1 2 2; abort 1; admit 2 1 b-1; commit 2; draft 2 2 2 2; "
        "accept 2 1; abort 2",
    ),
)
def states_of_drafts_come_back(trial: Trial) -> None:
    """All drafts stay, some and none; the request goes on, ends, and is aborted."""
    expect_unbroken(trial, "KV-SNAP-010")


@check(
    "KV-SNAP-011",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots("serve 0 1 2b; serve 1 2 2b; admit 2 3 b; commit 2; admit 3 4 b; commit 3", num_states=4),
        snapshots(
            "serve 0 1 2b; serve 1 2 b; serve 2 1 2b+1; admit 3 3 1; commit 3; decode 3 4 b", num_states=1
        ),
        snapshots(
            "serve 0 1 4b; serve 1 2 4b; serve 2 1 b; serve 3 3 4b-1; serve 4 2 b+1",
            "admit 1 1 2b+1; commit 1; admit 2 1 2b+1; commit 2; finish 1; admit 3 1 2b+1",
            num_blocks=4,
        ),
    ),
)
def snapshots_make_room(trial: Trial) -> None:
    """Requests that need a slot, or blocks, which only snapshots and what nobody holds have."""
    expect_unbroken(trial, "KV-SNAP-011")


@check(
    "KV-SNAP-015",
    verbs=SNAPSHOTS,
    operations=DECODES,
    features=("drafts",),
    cases=every(
        snapshots(
            "admit 1 1 b; commit 1; draft 1 2 2 2; accept 1 0; decode 1 3 1; commit 1; "
            "draft 1 3 4 4; accept 1 1; "
            "decode 1 5 1; commit 1; draft 1 2 6 2; accept 1 2; decode 1 7 1; commit 1",
            "admit 1 1 b-1; commit 1; draft 1 2 2 3; accept 1 0; decode 1 3 b; commit 1; finish 1; "
            "admit 2 1 b-1 2 1 4 1; admit 3 1 b-1 2 1 3 b 4 1",
            "admit 1 1 1; commit 1; draft 1 b 2 b; accept 1 b-1; decode 1 3 1; commit 1; admit 2 1 1 2 b",
            "admit 1 1 b-1; commit 1; draft 1 1 2 1; accept 1 0; admit 2 1 b-1 2 2; decode 1 3 1; commit 1; "
            "commit 2; finish 1; admit 3 1 b-1 3 1 4 1",
            "admit 1 1 b-1; commit 1; draft 1 1 2 1; accept 1 0; decode 1 3 1; commit 1; admit 2 1 b-1 2 2",
            "admit 1 1 b-1; commit 1; draft 1 1 2 1; accept 1 0; decode 1 3 1; commit 1; serve 2 1 b-1 2 1; "
            "admit 3 1 b-1 2 2",
            "admit 1 1 b; commit 1; draft 1 2b 2 2b; accept 1 b; finish 1; admit 2 1 b 2 2b; "
            "admit 3 1 b 2 b 3 1",
            num_states=24,
        ),
    ),
)
def rejected_drafts_leave_nothing(trial: Trial) -> None:
    """None, some and all drafts stay, inside a block and at its edge; the request goes on, and others hit."""
    expect_unbroken(trial, "KV-SNAP-015")


@check(
    "KV-SNAP-016",
    verbs=SNAPSHOTS,
    operations=(*ABORTS, "extend"),
    cases=snapshots(
        "admit 1 1 2b; abort 1; admit 2 1 2b+1; commit 2; admit 3 1 2b+1",
        "part 1 b 1 2b; commit 1; more 1 b; abort 1; admit 2 1 2b+1",
        "admit 1 1 b; commit 1; decode 1 2 b; abort 1; admit 2 1 b 2 b 3 1",
    ),
)
def aborted_steps_leave_nothing(trial: Trial) -> None:
    """A prompt, a later chunk and outputs are dropped before they are computed."""
    expect_unbroken(trial, "KV-SNAP-016")


@check(
    "KV-SNAP-017",
    verbs=SNAPSHOTS,
    operations=COUNTED,
    cases=every(
        snapshots(
            "serve 0 1 2b; admit 2 2 b; commit 2; admit 3 1 2b 4 2b; admit 4 1 2b+1",
            "serve 0 1 b; admit 1 2 2b; admit 2 1 b 3 3b; commit 1; finish 1; admit 3 1 b+1",
            "admit 1 1 3b; commit 1; admit 2 2 2b; decode 1 3 2b; decode 1 4 1; commit 1; finish 1; "
            "admit 3 1 3b+1",
            num_blocks=4,
        ),
        snapshots(
            "admit 1 1 1; admit 2 2 1; admit 3 3 1; commit 1; commit 2; finish 1; finish 2; serve 4 4 b",
            "serve 0 1 b; admit 1 2 1; admit 2 3 1; admit 3 1 b 2 1; commit 1; finish 1; admit 4 1 b 2 1",
            num_states=2,
        ),
    ),
)
def refusals_leave_no_trace(trial: Trial) -> None:
    """Requests for which there are no blocks, or no state slot, some of them behind a hit."""
    expect_unbroken(trial, "KV-SNAP-017")


@check(
    "KV-SNAP-018",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots(CHUNKS, "admit 1 1 1; commit 1; decode 1 2 3b; commit 1; part 2 1 3 b; commit 2; more 2 b"),
        snapshots(CHUNKS, every=3),
    ),
)
def saves_lie_in_their_step(trial: Trial) -> None:
    """Steps of one token and of many, before, at and behind the places of snapshots."""
    expect_unbroken(trial, "KV-SNAP-018")
