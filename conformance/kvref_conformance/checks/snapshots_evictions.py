"""Checks of which snapshots a cache evicts, and for what.

In the programs `b` is the block size.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.checks.snapshots_hits import DECODES, HITS
from kvref_conformance.programs.asking import every
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS, snapshots
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial


@check(
    "KV-SNAP-024",
    verbs=SNAPSHOTS,
    operations=HITS,
    cases=every(
        snapshots(
            "serve 1 1 b; serve 2 2 b; serve 3 3 b; serve 4 1 b 4 1; serve 5 5 b; admit 6 1 b+1",
            "serve 1 1 b; serve 2 2 b; serve 3 1 b 3 1; serve 4 4 b; serve 5 5 b; admit 6 1 b+1",
            num_states=4,
        ),
        snapshots("serve 1 1 b; serve 2 2 b; serve 3 3 b; serve 4 4 b; serve 5 5 b", num_states=3),
    ),
)
def the_longest_unused_snapshot_goes_first(trial: Trial) -> None:
    """One prompt is saved after another, and some are restored, until there is no slot without a snapshot."""
    expect_unbroken(trial, "KV-SNAP-024")


@check(
    "KV-SNAP-025",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots(
            "serve 1 1 b; serve 2 2 b; serve 3 3 b; admit 4 3 b+1; commit 4; admit 5 5 b", num_states=3
        ),
        snapshots(
            "serve 1 1 4b; serve 2 2 b; part 3 b 3 3b; commit 3; more 3 2b; commit 3; finish 3; "
            "admit 4 3 3b+1",
            num_states=5,
        ),
    ),
)
def snapshots_make_room_for_snapshots(trial: Trial) -> None:
    """Prompts and chunks of them, when every slot that nobody runs in holds a snapshot."""
    expect_unbroken(trial, "KV-SNAP-025")
