"""Checks of shared blocks: forks, the first write after one, tokens that are taken back, what does not fit.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.checks.block_tables import ENDS, EVERY, FORKS, TABLES
from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import expect_unbroken, tables
from kvref_conformance.trial import Trial

CUTS = (*ENDS, "truncate")


@check(
    "KV-BLOCK-022",
    verbs=TABLES,
    operations=FORKS,
    cases=tables(
        "add 0; append 0 b+h; fork 0 1; fork 0 2; append 2 1; append 0 1; append 1 b; free 0; add 3; "
        "append 3 2b; append 2 1"
    ),
)
def shared_blocks_are_not_written(trial: Trial) -> None:
    """Parent and children all write on: nobody is given a slot that another can reach."""
    expect_unbroken(trial, "KV-BLOCK-022")


@check(
    "KV-BLOCK-023",
    verbs=TABLES,
    operations=FORKS,
    cases=tables(
        "add 0; append 0 2b+1; fork 0 1; fork 1 2; free 0; add 3; fill 3; free 3; free 2; free 1",
        "add 0; append 0 b+1; fork 0 1; fork 0 2; free 2; append 1 1; free 1; free 0; add 3; fill 3",
    ),
)
def fork_takes_nothing_and_loses_nothing(trial: Trial) -> None:
    """A family ends, the parent first or last: its blocks return with the last of it, and not before."""
    expect_unbroken(trial, "KV-BLOCK-023")


@check(
    "KV-BLOCK-024",
    verbs=TABLES,
    operations=FORKS,
    cases=tables(
        "add 0; append 0 b+h; fork 0 1; append 1 1; append 0 2",
        "add 0; append 0 b+h; fork 0 1; append 0 1; append 1 b+1",
        "add 0; append 0 h; fork 0 1; fork 1 2; append 1 1; append 0 1; append 2 1; append 1 1",
    ),
)
def first_write_goes_to_a_copy(trial: Trial) -> None:
    """Parent or child is the first to write into a block that is half full: the other sees none of it."""
    expect_unbroken(trial, "KV-BLOCK-024")


@check(
    "KV-BLOCK-025",
    verbs=TABLES,
    operations=FORKS,
    cases=tables(
        "add 0; append 0 2b-1; fork 0 1; append 1 1; append 0 2",
        "add 0; append 0 b+1; fork 0 1; append 0 1; append 1 1",
    ),
)
def copy_leaves_no_token_behind(trial: Trial) -> None:
    """The shared block holds one token, and all but one: the copy covers each of them."""
    expect_unbroken(trial, "KV-BLOCK-025")


@check(
    "KV-BLOCK-026",
    verbs=TABLES,
    operations=CUTS,
    cases=tables(
        "add 0; append 0 3b+1; truncate 0 b+h; add 1; append 1 b; append 0 b; truncate 0 2b; truncate 0 b; "
        "truncate 0 0; append 0 1",
        "add 0; append 0 2b; truncate 0 2b; truncate 0 2b-1; truncate 0 b+1; truncate 0 b+1; add 1; fill 1",
    ),
)
def first_tokens_outlive_a_cut(trial: Trial) -> None:
    """A request is cut back to the middle and the edge of a block, and to nothing; another takes the rest."""
    expect_unbroken(trial, "KV-BLOCK-026")


@check(
    "KV-BLOCK-027",
    verbs=TABLES,
    operations=EVERY,
    cases=tables(
        "add 0; append 0 3b; fork 0 1; truncate 1 b+h; append 1 b",
        "add 0; append 0 2b; fork 0 1; truncate 0 2b-1; append 0 2; truncate 1 b-1; append 1 2",
    ),
)
def write_after_a_cut_harms_nobody(trial: Trial) -> None:
    """Child or parent is cut back into a full block that both hold, and writes on, beside the other."""
    expect_unbroken(trial, "KV-BLOCK-027")


@check(
    "KV-BLOCK-028",
    verbs=TABLES,
    operations=ENDS,
    cases=tables(
        "add 0; append 0 2b+1; add 1; append 1 99b; append 1 1; append 0 99b; append 0 1", num_blocks=5
    ),
)
def refused_append_changes_nothing(trial: Trial) -> None:
    """An append needs more than is free: tables and count stay, and the next append goes on from there."""
    expect_unbroken(trial, "KV-BLOCK-028")


@check(
    "KV-BLOCK-028",
    verbs=TABLES,
    operations=FORKS,
    cases=tables(
        "add 0; append 0 b+h; fork 0 1; add 2; fill 2; append 1 1; append 0 1; free 2; append 1 1",
        "add 0; append 0 b+h; fork 0 1; append 1 99b; append 0 99b; append 1 1; append 0 1",
        num_blocks=5,
    ),
)
def refused_copy_changes_nothing(trial: Trial) -> None:
    """There is a block for the copy and none for the rest, or none at all: refused, and possible later."""
    expect_unbroken(trial, "KV-BLOCK-028")
