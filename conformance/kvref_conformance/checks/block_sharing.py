"""Checks of shared blocks: forks, the first write after one, tokens that are taken back, what does not fit.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.checks.block_tables import ENDS, EVERY, FORKS, TABLES
from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import beside, crowded, every, tables
from kvref_conformance.programs.expecting import expect_harmless, expect_unbroken
from kvref_conformance.programs.odd_requests import ODD
from kvref_conformance.programs.walks import walks
from kvref_conformance.trial import Trial

CUTS = (*ENDS, "truncate")

#: Families of three whose members write and then end, in several orders.
FAMILIES = "; ".join(
    f"add 0; append 0 b+1; fork 0 1; fork 1 2; append {order[1]} 1; append {order[2]} b; "
    + "; ".join(f"free {request}" for request in order)
    for order in ((0, 1, 2), (1, 0, 2), (1, 2, 0), (2, 0, 1))
)
#: A request is forked, writes, and is forked again, as are its children.
AGAIN = (
    "add 0; append 0 h; fork 0 1; append 1 1; fork 1 2; append 1 1; append 2 1; fork 2 3; append 3 b; "
    "append 2 1; fork 0 4; append 0 1; append 4 1; fork 4 5; append 4 1; append 5 1; append 0 1"
)
#: A request has more children than a byte counts.
LITTER = "add 0; append 0 b+1; litter 0 300; add 1; fill 1; append 0 1"
#: What is shared is cut back to the edge of a block and to nothing, and everybody writes on.
CUT_TO_THE_EDGE = (
    "add 0; append 0 2b+h; fork 0 1; truncate 1 2b; append 1 1; append 0 1; fork 1 2; truncate 2 b; "
    "append 2 b; append 1 1; fork 0 3; truncate 3 0; append 3 b+1; truncate 0 b; append 0 1; "
    "append 3 1; append 2 1"
)


@check(
    "KV-BLOCK-022",
    verbs=TABLES,
    operations=FORKS,
    cases=every(
        tables(
            "add 0; append 0 b+h; fork 0 1; fork 0 2; append 2 1; append 0 1; append 1 b; free 0; add 3; "
            "append 3 2b; append 2 1",
            AGAIN,
            CUT_TO_THE_EDGE,
        ),
        crowded(LITTER),
    ),
)
def shared_blocks_are_not_written(trial: Trial) -> None:
    """Parent and children all write on: nobody is given a slot that another can reach."""
    expect_unbroken(trial, "KV-BLOCK-022")


@check(
    "KV-BLOCK-023",
    verbs=TABLES,
    operations=FORKS,
    cases=every(
        tables(
            "add 0; append 0 2b+1; fork 0 1; fork 1 2; free 0; add 3; fill 3; free 3; free 2; free 1",
            "add 0; append 0 b+1; fork 0 1; fork 0 2; free 2; append 1 1; free 1; free 0; add 3; fill 3",
            "add 0; append 0 b+1; add 1; fill 1; fork 0 2; free 1; fork 2 3; append 3 1; drain",
            "add 0; fork 0 1; append 0 b; append 1 1; fork 1 2; free 1; append 2 b; free 0; free 2; add 3; "
            "fill 3",
            FAMILIES,
        ),
        crowded(LITTER),
        beside(tables(FAMILIES)),
        walks(),
    ),
)
def fork_takes_nothing_and_loses_nothing(trial: Trial) -> None:
    """A family ends, the parent first or last: its blocks return with the last of it, and not before."""
    expect_unbroken(trial, "KV-BLOCK-023")


@check(
    "KV-BLOCK-024",
    verbs=TABLES,
    operations=FORKS,
    cases=every(
        tables(
            "add 0; append 0 b+h; fork 0 1; append 1 1; append 0 2",
            "add 0; append 0 b+h; fork 0 1; append 0 1; append 1 b+1",
            "add 0; append 0 h; fork 0 1; fork 1 2; append 1 1; append 0 1; append 2 1; append 1 1",
            "add 0; append 0 b+h; fork 0 1; append 1 2b+1; append 0 2b+h; fork 1 2; append 2 3b",
            AGAIN,
        ),
        tables(
            "add 0; append 0 h; fork 0 1; add 2; fill 2; append 1 1; append 0 1; free 2; append 1 1; "
            "append 0 1",
            num_blocks=5,
        ),
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
        "add 0; append 0 2b-1; fork 0 1; append 1 2b+1; append 0 3b",
    ),
)
def copy_leaves_no_token_behind(trial: Trial) -> None:
    """The shared block holds one token, and all but one: the copy covers each of them."""
    expect_unbroken(trial, "KV-BLOCK-025")


@check(
    "KV-BLOCK-026",
    verbs=TABLES,
    operations=CUTS,
    cases=every(
        tables(
            "add 0; append 0 3b+1; truncate 0 b+h; add 1; append 1 b; append 0 b; truncate 0 2b; "
            "truncate 0 b; truncate 0 0; append 0 1",
            "add 0; append 0 2b; truncate 0 2b; truncate 0 2b-1; truncate 0 b+1; truncate 0 b+1; add 1; "
            "fill 1",
        ),
        crowded("add 0; append 0 290; truncate 0 280; append 0 1; truncate 0 257; append 0 2"),
    ),
)
def first_tokens_outlive_a_cut(trial: Trial) -> None:
    """A request is cut back to the middle and the edge of a block, and to nothing; another takes the rest."""
    expect_unbroken(trial, "KV-BLOCK-026")


@check("KV-BLOCK-026", verbs=TABLES, operations=EVERY, cases=every(tables(CUT_TO_THE_EDGE), walks()))
def shared_tokens_outlive_a_cut(trial: Trial) -> None:
    """Blocks that others hold are cut off, at their edges too: what is left is intact, for each of them."""
    expect_unbroken(trial, "KV-BLOCK-026")


@check(
    "KV-BLOCK-034",
    verbs=TABLES,
    operations=CUTS,
    cases=tables(
        "add 0; truncate_beyond 0 1; append 0 b+1; truncate_beyond 0 1; append 0 1; truncate_beyond 0 b; "
        "append 0 b; truncate 0 b; truncate_beyond 0 1; append 0 1",
        "add 0; append 0 2b; truncate 0 b+h; truncate_beyond 0 1; append 0 1; truncate_beyond 0 3b; "
        "append 0 1; truncate_beyond 0 65536; truncate_beyond 0 65535; append 0 1; drain",
    ),
)
def cut_does_not_lengthen(trial: Trial) -> None:
    """A request is cut back to one token more than it has, in its last block and beyond: refused."""
    expect_harmless(trial, "KV-BLOCK-034", ODD)


@check("KV-BLOCK-034", verbs=TABLES, operations=EVERY, cases=walks())
def cut_among_others_does_not_lengthen(trial: Trial) -> None:
    """Requests share blocks and are cut back, now and then to more tokens than they have: refused."""
    expect_unbroken(trial, "KV-BLOCK-034")


@check(
    "KV-BLOCK-027",
    verbs=TABLES,
    operations=EVERY,
    cases=tables(
        "add 0; append 0 3b; fork 0 1; truncate 1 b+h; append 1 b",
        "add 0; append 0 2b; fork 0 1; truncate 0 2b-1; append 0 2; truncate 1 b-1; append 1 2",
        CUT_TO_THE_EDGE,
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
        "add 0; append 0 h; fork 0 1; append 1 5b-h; append 1 4b-h; append 0 1; free 1; append 0 1",
        num_blocks=5,
    ),
)
def refused_copy_changes_nothing(trial: Trial) -> None:
    """There is a block for the copy and none for the rest, or none at all: refused, and possible later."""
    expect_unbroken(trial, "KV-BLOCK-028")
