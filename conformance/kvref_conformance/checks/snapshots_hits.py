"""Checks of hits in a snapshot cache: whose state is restored, after how many tokens, and that it is.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import beside, every
from kvref_conformance.programs.asking_snapshots import SNAPSHOTS, snapshots
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

HITS = ("admit", "commit", "finish")
DECODES = (*HITS, "extend")
ABORTS = (*HITS, "abort")

#: A prompt in chunks that end before, at and behind the edges of blocks, and outputs.
CHUNKS = (
    "part 1 b-1 1 3b; commit 1; more 1 1; commit 1; more 1 b+1; commit 1; more 1 2b; commit 1; "
    "decode 1 2 b+1; "
    "commit 1; finish 1; admit 2 1 3b 2 b+1; admit 3 1 2b 3 1; admit 4 1 b 4 1"
)
#: Two requests at once, the first of which ends inside a block.
TOGETHER = "admit 1 2 b+1; admit 2 1 2b+1; commit 1; commit 2; admit 3 1 2b+1; admit 4 2 b+1"


@check(
    "KV-SNAP-001",
    verbs=SNAPSHOTS,
    operations=HITS,
    cases=every(
        snapshots(
            "serve 1 1 2b; serve 2 2 2b+1; admit 3 1 2b+1; admit 4 2 2b 3 1",
            "serve 1 1 b 2 b; serve 2 3 b 2 b 4 1; admit 3 2 b 1 1; admit 4 3 b 2 b 1 1",
            "serve 1 1 b+1 2 b; serve 2 1 b+1 3 b; admit 3 1 b+1 2 b 4 1; admit 4 1 b+1 3 b 4 1",
            "serve 1 2 2b; serve 2 65538 2b; admit 3 65538 2b+1; admit 4 2 2b+1",
        ),
        beside(snapshots("serve 1 1 2b; serve 2 2 b; admit 3 1 2b+1; admit 4 2 b+1")),
    ),
)
def state_is_of_the_same_prefix(trial: Trial) -> None:
    """Prompts that differ in the first block, in a later one, or behind a hit; two caches at once."""
    expect_unbroken(trial, "KV-SNAP-001")


@check(
    "KV-SNAP-002",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots(CHUNKS, TOGETHER, "serve 1 1 3b+1; admit 2 1 b+1; admit 3 1 2b 2 1; admit 4 1 3b+2"),
        snapshots(CHUNKS, "serve 1 1 5b; admit 2 1 3b+1; admit 3 1 4b+1; admit 4 1 2b 2 b", every=2),
    ),
)
def state_is_after_as_many_tokens(trial: Trial) -> None:
    """Chunks that end beside the places of snapshots, outputs, and requests in one step."""
    expect_unbroken(trial, "KV-SNAP-002")


@check(
    "KV-SNAP-003",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots("serve 1 1 2b+1; admit 2 1 2b+1; serve 3 2 3b+1; admit 4 2 2b 3 1", CHUNKS, every=2),
        snapshots(
            "serve 1 1 2b+1; admit 2 2 b+1; commit 2; admit 3 3 b+1; commit 3; abort 2; admit 4 1 2b+1",
            "serve 1 1 3b; serve 2 2 3b; serve 3 1 3b+1; admit 4 2 3b+1",
            num_states=4,
        ),
        snapshots(
            "serve 1 1 3b; serve 2 2 2b; serve 3 1 3b+1; admit 4 2 b+1",
            "serve 1 1 b; serve 2 2 4b; admit 3 1 b+1",
            "serve 1 1 b; admit 2 2 4b; abort 2; admit 3 1 b+1",
            num_blocks=4,
        ),
    ),
)
def every_group_has_what_a_hit_says(trial: Trial) -> None:
    """Snapshots further apart than blocks, states that are evicted, and blocks that are."""
    expect_unbroken(trial, "KV-SNAP-003")


@check(
    "KV-SNAP-005",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots(
            "serve 1 1 b; admit 2 1 b 2 1; admit 3 1 b 3 1; commit 2; commit 3; admit 4 1 b 4 1",
            "serve 1 1 2b; serve 2 1 2b 2 b; serve 3 1 2b 3 b; admit 4 1 2b 2 b 5 1; admit 5 1 2b 5 1",
            "admit 1 1 b; commit 1; decode 1 2 1; commit 1; admit 2 1 b 3 1; decode 1 2 1; commit 1; "
            "commit 2; admit 3 1 b 3 1",
        ),
        snapshots("serve 1 1 b; serve 2 1 b 2 1; serve 3 1 b 3 1; admit 4 1 b 4 1", num_states=2),
    ),
)
def restored_states_stay_as_they_are(trial: Trial) -> None:
    """A snapshot that one request restores is restored by others, at once and afterwards."""
    expect_unbroken(trial, "KV-SNAP-005")


@check(
    "KV-SNAP-006",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=snapshots(
        "admit 1 1 2b; admit 2 1 2b+1; commit 1; commit 2; admit 3 1 2b+1",
        "part 1 b 1 2b; admit 2 1 b+1; commit 1; more 1 b; admit 3 1 2b+1; commit 1; admit 4 1 2b+1",
        "admit 1 1 b-1; commit 1; decode 1 2 2; admit 2 1 b-1 2 2; commit 1; admit 3 1 b-1 2 2",
        "serve 1 1 b; admit 2 1 b+1; admit 3 1 b+1; commit 2; admit 4 1 2b+1; commit 3; commit 4",
    ),
)
def steps_in_flight_are_not_hit(trial: Trial) -> None:
    """Equal prompts in one step, in chunks and with outputs."""
    expect_unbroken(trial, "KV-SNAP-006")


@check(
    "KV-SNAP-007",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=snapshots(
        "admit 1 1 1; commit 1; finish 1; admit 2 2 1; commit 2; decode 2 3 1; commit 2; admit 3 3 b-1",
        "serve 1 1 b; serve 2 2 b+1; admit 3 1 b+1; commit 3; decode 3 4 1; part 4 1 4 2b; commit 4; "
        "more 4 b",
        "part 1 1 1 2b; commit 1; more 1 1; commit 1; more 1 2b; commit 1; decode 1 2 b; commit 1",
    ),
)
def new_requests_start_from_zeros(trial: Trial) -> None:
    """Slots that others have left, the first chunk and later ones."""
    expect_unbroken(trial, "KV-SNAP-007")


@check(
    "KV-SNAP-008",
    verbs=SNAPSHOTS,
    operations=HITS,
    cases=snapshots(
        "serve 1 1 2b; admit 2 1 2b; admit 3 1 b; admit 4 1 2b+1; admit 5 1 2b-1",
        "serve 1 1 b; serve 2 1 b; serve 3 1 b; admit 4 1 b+1",
    ),
)
def one_token_is_left(trial: Trial) -> None:
    """Prompts that are cached as a whole."""
    expect_unbroken(trial, "KV-SNAP-008")


@check(
    "KV-SNAP-012",
    verbs=SNAPSHOTS,
    operations=ABORTS,
    cases=every(
        snapshots(
            "serve 1 1 3b; serve 2 2 b; admit 3 1 3b+1",
            "serve 1 1 3b; serve 2 2 b; serve 3 1 3b 3 1; serve 4 1 2b 4 1; admit 5 1 2b 5 1",
            num_states=4,
        ),
        snapshots("serve 1 1 2b; admit 2 2 2b; abort 2; admit 3 1 b+1", num_blocks=3),
        snapshots(
            "serve 1 1 3b; admit 2 2 2b; abort 2; serve 3 1 2b+1; admit 4 1 2b+1",
            "serve 1 1 b 2 b; serve 2 1 b 3 b; serve 3 1 b 2 b 4 1; admit 4 1 b 3 b 4 1",
            num_blocks=4,
        ),
    ),
)
def what_is_left_is_hit(trial: Trial) -> None:
    """Snapshots before and behind a lost one, and those before a lost block."""
    expect_unbroken(trial, "KV-SNAP-012")


@check(
    "KV-SNAP-013",
    verbs=SNAPSHOTS,
    operations=DECODES,
    features=("junctions",),
    cases=every(
        snapshots(
            "serve 1 1 3b; serve 2 1 2b 2 b; admit 3 1 2b 3 1",
            "serve 1 1 6b+1; part 2 1 1 5b+1 2 1; commit 2; more 2 b-1; commit 2; more 2 b; "
            "commit 2; finish 2; "
            "admit 3 1 5b+1 3 1; admit 4 1 4b+1 4 1",
            "serve 1 1 b 2 b; serve 2 1 b 3 b; serve 3 1 b 4 b; admit 4 1 b 5 1; serve 5 1 b 2 b 6 1",
            every=4,
            num_blocks=40,
        ),
        snapshots(
            "serve 1 1 3b; serve 2 1 b 2 b; serve 3 1 b 3 5b; admit 4 1 b 3 3b+1", every=2, num_blocks=40
        ),
    ),
)
def junction_is_hit_by_the_third(trial: Trial) -> None:
    """Two requests part where no multiple of the interval is; the third parts there too."""
    expect_unbroken(trial, "KV-SNAP-013")


@check(
    "KV-SNAP-014",
    verbs=SNAPSHOTS,
    operations=DECODES,
    cases=every(
        snapshots(
            "serve 1 1 3b+1; admit 2 1 3b+1; admit 3 1 2b 2 1; admit 4 1 b+h 2 1",
            CHUNKS,
            "serve 1 1 b; admit 2 1 3b; admit 3 1 2b+1; commit 2; admit 4 1 2b+1",
            "admit 1 1 b-1; commit 1; decode 1 2 1; commit 1; decode 1 3 b; commit 1; finish 1; "
            "admit 2 1 b-1 2 1 3 b 4 1; admit 3 1 b-1 2 1 4 1",
            num_blocks=32,
            num_states=32,
        ),
        snapshots(
            "serve 1 1 3b; admit 2 1 3b+1",
            CHUNKS,
            "serve 1 1 5b; admit 2 1 5b; admit 3 1 4b 2 1",
            num_blocks=32,
            num_states=32,
            every=2,
        ),
        snapshots(
            "serve 1 1 70b; admit 2 1 70b+1; admit 3 1 35b+1; admit 4 1 20b 2 b",
            num_blocks=150,
            num_states=80,
        ),
    ),
)
def what_was_saved_is_hit(trial: Trial) -> None:
    """Prompts come again, longer, shorter and parted, and long ones; chunks and outputs leave snapshots."""
    expect_unbroken(trial, "KV-SNAP-014")


@check(
    "KV-SNAP-022",
    verbs=SNAPSHOTS,
    operations=ABORTS,
    features=("window",),
    cases=every(
        *(
            snapshots(
                "serve 1 1 3b; admit 2 1 3b+1; admit 3 1 2b 2 1; admit 4 1 b+1",
                "admit 1 1 2b; commit 1; decode 1 2 b; commit 1; admit 2 1 2b 2 b; finish 1; "
                "admit 3 1 2b 2 b 3 1",
                window=window,
            )
            for window in ("b+1", "2b+1", "2b")
        ),
        snapshots(
            "admit 1 1 2b; commit 1; admit 2 2 3b; abort 2; admit 3 1 2b+1",
            "serve 0 1 3b; admit 1 2 2b; abort 1; admit 2 1 3b 3 1",
            "serve 0 1 2b; serve 1 1 2b 2 1; admit 2 3 2b; abort 2; admit 3 1 2b 4 1",
            "serve 0 1 3b; serve 1 1 3b 2 1; admit 2 3 2b; abort 2; serve 3 1 b 4 1; admit 4 1 3b 5 1",
            num_blocks=4,
            window="b+1",
        ),
    ),
)
def window_needs_its_own_tokens(trial: Trial) -> None:
    """Hits under a window, while all blocks are there, and where some are lost below it and inside it."""
    expect_unbroken(trial, "KV-SNAP-022")
