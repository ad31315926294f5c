"""Checks of windows: what a request lets go of that no later token attends to, and what it keeps.

In the programs `b` is the block size.
"""

from kvref_conformance.checks.block_tables import ENDS, TABLES
from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import beside, every, opened, windowed
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.programs.walks import late_windows, walks
from kvref_conformance.trial import Trial

PRUNES = (*ENDS, "prune")

#: A request grows and is pruned by turns, forks, and both end.
SLID = (
    "add 0; append 0 b; prune 0; append 0 2b; prune 0; append 0 1; prune 0; append 0 b-1; prune 0; "
    "fork 0 1; append 1 b+1; prune 1; append 0 1; free 0; append 1 b; prune 1; free 1"
)
#: A pruned request forks inside a block, each is pruned beside the other, and both names are used again.
SLID_APART = (
    "add 0; append 0 2b+1; prune 0; fork 0 1; append 1 1; append 0 2b; prune 0; append 1 b; free 0; prune 1; "
    "add 0; append 0 2b; fork 1 2; append 2 1; prune 0; free 1; prune 2; append 2 b; free 2; append 0 b; "
    "prune 0; drain; add 0; append 0 3b; prune 0; add 1; fill 1; fork 0 2; free 2; add 2; "
    "append 2 1; free 1; drain; add 0; "
    "append 0 b+1; fork 0 1; append 1 2b; prune 1; prune 0; append 0 1"
)
#: A pruned request is cut back as far as its window allows, and grows again.
SLID_BACK = (
    "add 0; append 0 3b; prune 0; truncate 0 3b-1; append 0 1; append 0 b; truncate 0 3b+1; prune 0; "
    "truncate 0 3b; append 0 b; truncate 0 4b; fork 0 1; truncate 1 4b-1; append 1 1; prune 1; append 0 1; "
    "free 0; truncate 1 3b+1; append 1 b; free 1; add 2; append 2 b; truncate 2 0; append 2 1; drain"
)
#: A request is pruned around the edges of blocks, under a window that holds several.
WIDE = "add 0; append 0 6b-2; " + "; append 0 b-3; ".join(
    ["prune 0; append 0 1; prune 0; append 0 1; prune 0; append 0 1; prune 0"] * 3
)
#: Of three tokens at a time two are rejected, and the request is pruned; and pruned again.
DRAFTED = "add 0; append 0 2b; prune 0; prune 0; " + "; ".join(
    f"append 0 3; truncate 0 2b+{kept}; prune 0; prune 0" for kept in range(1, 7)
)
#: A request is pruned around each edge of a block.
EDGES = "add 0; append 0 b-2; " + "; append 0 b-3; ".join(
    ["prune 0; append 0 1; prune 0; append 0 1; prune 0; append 0 1; prune 0"] * 3
)


@check(
    "KV-BLOCK-004",
    verbs=TABLES,
    operations=(*PRUNES, "num_free"),
    features=("pruning",),
    cases=windowed(SLID, SLID_APART),
)
def count_follows_windows(trial: Trial) -> None:
    """Requests slide, fork and end: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-029", verbs=TABLES, operations=PRUNES, features=("pruning",), cases=windowed(SLID, SLID_APART)
)
def pruned_request_gives_back_what_it_held(trial: Trial) -> None:
    """A pruned request ends, and the child it had: what was pruned is not given back again."""
    expect_unbroken(trial, "KV-BLOCK-029")


@check("KV-BLOCK-009", verbs=TABLES, operations=PRUNES, features=("pruning",), cases=windowed(SLID_APART))
def all_blocks_of_windows_come_back(trial: Trial) -> None:
    """Requests slide beside each other and end: one request can take the whole pool."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-030",
    verbs=TABLES,
    operations=PRUNES,
    features=("pruning",),
    cases=every(
        windowed(EDGES, thorough=True),
        windowed(SLID, SLID_APART, DRAFTED),
        beside(windowed(SLID)),
        opened(WIDE, num_blocks=12, windows="2b"),
        opened(WIDE, num_blocks=12, windows="5b+1"),
        opened("add 0; append 0 290; prune 0; append 0 1; prune 0", num_blocks=300, windows="257"),
        walks(opened_with="windows"),
        late_windows,
    ),
)
def window_keeps_what_is_attended(trial: Trial) -> None:
    """A request is pruned at each place in a block: what lies wholly before the window goes, and no more."""
    expect_unbroken(trial, "KV-BLOCK-030")


@check(
    "KV-BLOCK-021",
    verbs=TABLES,
    operations=PRUNES,
    features=("pruning",),
    cases=every(windowed(SLID_APART), walks(opened_with="windows")),
)
def what_is_attended_is_read(trial: Trial) -> None:
    """Requests slide side by side and share blocks: each reads its own within its window."""
    expect_unbroken(trial, "KV-BLOCK-021")


@check(
    "KV-BLOCK-026",
    verbs=TABLES,
    operations=(*PRUNES, "truncate"),
    features=("pruning",),
    cases=windowed(SLID_BACK),
)
def pruned_request_is_cut_back(trial: Trial) -> None:
    """A request has slid, and its last tokens are rejected: the others stay where they are."""
    expect_unbroken(trial, "KV-BLOCK-026")


@check(
    "KV-BLOCK-033",
    verbs=TABLES,
    operations=PRUNES,
    features=("pruning",),
    cases=windowed("prune_unknown 0; add 0; append 0 3b; prune_unknown 1; free 0; prune_unknown 0"),
)
def stranger_is_not_pruned(trial: Trial) -> None:
    """A request is pruned before it begins and after its end: refused, and nothing changes."""
    expect_unbroken(trial, "KV-BLOCK-033")
