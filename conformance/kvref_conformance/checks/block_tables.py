"""Checks of block tables: where tokens lie, who can reach them, and how many blocks they take.

In the programs `b` is the block size, and `h` half of it.
"""

from kvref_conformance.checks.check import check
from kvref_conformance.programs.asking import alike, beside, crowded, every, grouped, opened, tables, tight
from kvref_conformance.programs.expecting import expect_harmless, expect_unbroken
from kvref_conformance.programs.odd_requests import ODD
from kvref_conformance.programs.walks import late, spread, walks
from kvref_conformance.trial import Trial

TABLES = ("block_tables",)
ENDS = ("add", "append", "block_table", "free")
FORKS = (*ENDS, "fork")
EVERY = (*FORKS, "truncate")

#: Two requests grow by turns, one ends, and a third takes its blocks.
GROWN = (
    "add 0; append 0 b+1; add 1; append 1 2b; append 0 b; append 1 1; append 0 1; free 0; "
    "add 2; append 2 3b+1; append 1 b-1"
)
#: Requests of unaligned lengths grow by turns, fork, are cut back and end.
MIXED = (
    "add 0; append 0 b+2; add 1; append 1 2b-1; fork 0 2; append 2 b; append 0 1; truncate 1 b-1; "
    "append 1 b+2; free 0; add 3; append 3 2b+1; append 2 1; free 1; fork 3 0; truncate 0 b+1; append 0 b; "
    "append 3 1; free 3; append 2 b-1"
)
#: Requests take a pool of more blocks than a byte counts, by turns.
CROWD = "add 0; append 0 b+1; add 1; append 1 260b; append 0 3b; append 1 1; fill 0; free 1; append 0 b"
#: No token is appended beside shared blocks.
NONE_BESIDE = (
    "add 0; append 0 b+h; fork 0 1; append_none 1; append_none 0; append 1 1; append_none 0; append 0 1; "
    "append_none 1; append 1 b"
)
#: No token is appended, and far more than there is room for; and numbers that are another's in fewer bits.
NUMBERS = (
    "add 0; append_none 0; append 0 b+1; append_none 0; append 0 65537; append 0 1; add_far 256; "
    "append 256 1; append 0 b; add_far 65536; append 65536 b; append 0 1; free 256; append 65536 1; free 0; "
    "append_unknown 0; append 65536 1"
)


@check(
    "KV-BLOCK-003",
    verbs=TABLES,
    operations=ENDS,
    cases=every(
        tables(
            "add 0; append 0 b; add 1; append 1 b; add 2; append 2 b; add 3; fill 3; free 0; free 2; add 4; "
            "fill 4",
            "add 0; append 0 1; add 1; fill 1; append 0 b-1; append 0 1; free 1; append 0 1; fill 0",
            "add 0; append 0 1; fill 0; append 0 1; free 0; add 1; append 1 b; fill 1; append 1 1; drain",
            "add 0; append 0 b+h; fork 0 1; free 0; add 2; fill 2; append 1 1; free 2; append 1 b",
            num_blocks=7,
        ),
        opened("add 0; fill 0; free 0", num_blocks=1),
        opened("add 0; fill 0; free 0", num_blocks=64),
        beside(tables(GROWN)),
    ),
)
def every_free_block_takes_tokens(trial: Trial) -> None:
    """Blocks of requests that have ended, and slots of one's own, can be had with no other block free."""
    expect_unbroken(trial, "KV-BLOCK-003")


@check("KV-BLOCK-004", verbs=TABLES, operations=(*ENDS, "num_free"), cases=tables(GROWN))
def count_follows_requests(trial: Trial) -> None:
    """Requests grow by turns, and one ends: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-004",
    verbs=TABLES,
    operations=(*EVERY, "num_free"),
    cases=every(tables(MIXED), beside(tables(MIXED)), walks()),
)
def count_follows_tables(trial: Trial) -> None:
    """Requests grow, fork, are cut back and end: the count is exact at each step."""
    expect_unbroken(trial, "KV-BLOCK-004")


@check(
    "KV-BLOCK-008",
    verbs=TABLES,
    operations=ENDS,
    cases=tables("add 0; fill 0; free 0", num_blocks=5),
)
def null_block_holds_no_tokens(trial: Trial) -> None:
    """One request takes the whole pool: block 0 is in its table if it is no null block, and only then."""
    expect_unbroken(trial, "KV-BLOCK-008")


@check(
    "KV-BLOCK-009",
    verbs=TABLES,
    operations=FORKS,
    cases=every(
        tables(
            "add 0; append 0 b+1; fork 0 1; append 1 b; append 0 1; drain; add 1; append 1 b; drain",
            "add 0; append 0 b+h; fork 0 1; append_none 1; append_none 0; append 1 1; append_none 0; drain",
        ),
        crowded("add 0; fill 0; drain; add 1; append 1 1"),
        walks(),
    ),
)
def all_blocks_of_requests_come_back(trial: Trial) -> None:
    """All requests end: one request can take the whole pool, and again."""
    expect_unbroken(trial, "KV-BLOCK-009")


@check(
    "KV-BLOCK-020",
    verbs=TABLES,
    operations=ENDS,
    cases=every(tables(GROWN, NUMBERS), crowded(CROWD), walks()),
)
def token_lies_where_the_table_says(trial: Trial) -> None:
    """Requests grow by less and by more than a block: new slots are those of the new positions."""
    expect_unbroken(trial, "KV-BLOCK-020")


@check(
    "KV-BLOCK-021", verbs=TABLES, operations=ENDS, cases=every(tables(GROWN, NUMBERS), beside(tables(GROWN)))
)
def requests_read_their_own(trial: Trial) -> None:
    """Requests grow by turns, and one takes the blocks of another that has ended."""
    expect_unbroken(trial, "KV-BLOCK-021")


@check("KV-BLOCK-021", verbs=TABLES, operations=EVERY, cases=every(tables(MIXED), walks()))
def whatever_happens_requests_read_their_own(trial: Trial) -> None:
    """Requests grow, fork, are cut back and end: at each step each reads what its own prefix wrote."""
    expect_unbroken(trial, "KV-BLOCK-021")


@check("KV-BLOCK-020", verbs=TABLES, operations=ENDS, cases=spread)
def slots_beyond_two_bytes(trial: Trial) -> None:
    """Requests have more tokens, and the pool more slots, than two bytes count: none is another's."""
    expect_unbroken(trial, "KV-BLOCK-020")


@check("KV-BLOCK-021", verbs=TABLES, operations=ENDS, cases=late)
def requests_read_their_own_for_long(trial: Trial) -> None:
    """The same again and again, more than a thousand steps: no slot is another's, and no block is lost."""
    expect_unbroken(trial, "KV-BLOCK-021")


@check(
    "KV-BLOCK-022",
    verbs=TABLES,
    operations=ENDS,
    cases=every(
        tables(GROWN, "add 0; append 0 1; add 1; fill 1; free 1; add 2; append 2 b+1; append 0 b; fill 2"),
        crowded("add 0; append 0 1; add 1; fill 1; append 0 b"),
    ),
)
def slots_are_given_to_one(trial: Trial) -> None:
    """Requests grow by turns, and one outlives another that had all the rest: no slot is reached by two."""
    expect_unbroken(trial, "KV-BLOCK-022")


@check(
    "KV-BLOCK-029",
    verbs=TABLES,
    operations=ENDS,
    cases=tables("add 0; append 0 2b+1; add 1; append 1 b; free 0; free 1; add 0; append 0 1; free 0"),
)
def request_gives_back_what_it_held(trial: Trial) -> None:
    """Requests of one token, of whole blocks and of broken ones end: all blocks are free, each once."""
    expect_unbroken(trial, "KV-BLOCK-029")


@check(
    "KV-BLOCK-031",
    verbs=TABLES,
    operations=ENDS,
    features=("groups",),
    cases=every(
        grouped(
            MIXED,
            "add 0; append 0 b+1; append 0 99b; append 0 1; fork 0 1; append 1 99b; append 1 1; fill 0; "
            "append 1 b",
        ),
        alike(MIXED),
        tight(
            "add 0; fill 0; append 0 1; append 0 2; append 0 b; truncate 0 1; fork 0 1; fill 1; append 0 b; "
            "fill 0"
        ),
        walks(opened_with="block_sizes"),
    ),
)
def groups_hold_the_same_tokens(trial: Trial) -> None:
    """Groups of unequal blocks grow together, or, where one lacks blocks, not at all."""
    expect_unbroken(trial, "KV-BLOCK-031")


@check(
    "KV-BLOCK-032",
    verbs=TABLES,
    operations=ENDS,
    cases=every(
        tables(
            "add 0; append 0 1; append 0 b-1; append 0 1; append 0 2b; append 0 b-1; add 1; append 1 b; "
            "append 1 b; append_none 0; append_none 1",
            NONE_BESIDE,
        ),
        walks(),
    ),
)
def no_block_is_held_without_tokens(trial: Trial) -> None:
    """Requests grow to the edge of a block and beyond: they hold as many blocks as their tokens need."""
    expect_unbroken(trial, "KV-BLOCK-032")


@check(
    "KV-BLOCK-033",
    verbs=TABLES,
    operations=ENDS,
    cases=tables(
        "free_unknown 0; append_unknown 0; add 0; append 0 b+1; add_again 0; append 0 1; add_again 0; drain; "
        "free_unknown 0; append_unknown 0",
        NUMBERS,
        "add 0; append 0 b+1; append_unknown 256; append_unknown 65536; append_unknown 4294967296; "
        "free_unknown 256; free_unknown 65536; free_unknown 4294967296; append 0 b; drain",
    ),
)
def stranger_is_refused(trial: Trial) -> None:
    """A request is added twice, freed twice, and written after its end: refused, and nothing changes."""
    expect_harmless(trial, "KV-BLOCK-033", ODD)


@check("KV-BLOCK-033", verbs=TABLES, operations=ENDS, cases=beside(tables(GROWN)))
def stranger_of_one_is_known_to_another(trial: Trial) -> None:
    """Two managers are given the same requests: each is new to both."""
    expect_unbroken(trial, "KV-BLOCK-033")


@check(
    "KV-BLOCK-033",
    verbs=TABLES,
    operations=EVERY,
    cases=every(
        tables(
            "add 0; append 0 b+1; add 1; append 1 b; fork_onto 0 1; fork_onto 1 1; fork_unknown 2 3; "
            "truncate_unknown 2; append 1 1; fork_unknown 256 2; truncate_unknown 65536; "
            "fork_unknown 4294967296 3; append 0 1; drain",
            "add 0; append 0 b+h; fork 0 1; fork_onto 0 1; fork_onto 1 0; fork_onto 0 0; append 1 1; "
            "append 0 1; truncate_unknown 2; fork_unknown 2 3; fork 1 3; append_unknown 2; add 2; drain",
        ),
        walks(),
    ),
)
def stranger_has_no_children(trial: Trial) -> None:
    """A fork of nobody, a fork onto somebody, a cut of nobody: refused, and nothing changes."""
    expect_harmless(trial, "KV-BLOCK-033", ODD)
