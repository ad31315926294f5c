"""Checks of sizes: what states take, and what one rank, one group of ranks and one stage keep.

Models are those of `cache_geometry`. Ranks are more than heads and fewer, and stages begin and end between
layers of every kind.
"""

from kvref_conformance.checks.cache_geometry import GEOMETRY, SIZE, programs
from kvref_conformance.checks.check import check
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

SNAPSHOT, BLOCK = ("snapshot",), ("hybrid_block",)
#: A hybrid of each kind of recurrence, as small as may be.
_DELTA, _KIMI = "linear 0 3 72 2 3 16 24 1 1 0 1", "kimi 96 16 4 24 1 0 1 1 0"
_MAMBA, _LETTERS = "jamba 3 1 7 2 40 64 16", "letters 2 40 12 16 4 24 1 2 0 3 1"


@check(
    "KV-SIZE-007",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("recurrent_layers",),
    cases=programs(
        "interval 4 8 1 64 2 2 16 24; size 100 2; size 1 2; linear 1 3 72 2 3 16 24 1 1 0 1; size 100 2",
        f"{_KIMI}; size 100 2; {_MAMBA}; size 100 2",
        f"{_LETTERS}; size 100 2; parallel 3 2 40 12 16 4 24; size 100 2",
        "attentionless 3 12 16 4 24; size 100 2; lightning 2 24 0 1 0 0; size 100 2",
    ),
)
def a_state_has_two_parts(trial: Trial) -> None:
    """The recurrent part in its dtype, and the inputs of the convolution: whatever the number of tokens."""
    expect_unbroken(trial, "KV-SIZE-007")


@check(
    "KV-SIZE-008",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("recurrent_layers",),
    cases=programs("interval 4 8 1 64 2 2 16 24; size 100 1", f"{_LETTERS}; size 100 1; size 100 4"),
)
def a_convolution_keeps_its_dtype(trial: Trial) -> None:
    """Entries of one byte, and of four: the inputs that a convolution keeps are still activations."""
    expect_unbroken(trial, "KV-SIZE-008")


@check(
    "KV-SIZE-014",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("tensor_parallel",),
    cases=programs(
        "llama 3 8 24; ranks 2 100 2; ranks 8 100 2; ranks 16 100 2; types 16 4 24 1 0 1; ranks 2 100 2; "
        "ranks 8 100 2; ranks 1 100 2",
        "latent 3 96 16; ranks 4 100 2; selecting 3 96 16 24; ranks 4 100 1",
        "linear 0 2 72 4 3 16 24 1 1 0; ranks 4 100 2; kimi 96 16 4 24 1 0 1; ranks 4 100 2; "
        "jamba 3 1 7 2 40 64 16; ranks 2 100 2",
        "letters 2 40 12 16 4 24 1 2 0; ranks 4 100 2; letters 2 40 12 16 1 24 1 2 0; ranks 4 100 2",
    ),
)
def ranks_share_heads_and_copy_what_has_none(trial: Trial) -> None:
    """Heads go round once and are copied from there on; of a vector for all heads each rank has a copy."""
    expect_unbroken(trial, "KV-SIZE-014")


@check(
    "KV-SIZE-015",
    verbs=GEOMETRY,
    operations=BLOCK,
    features=("hybrid_blocks", "recurrent_layers"),
    cases=programs(
        "linear 0 2 72 4 3 16 24 1 1 0; joint 1 2 16; joint 2 2 16; joint 1 1 16; joint 1 2 1",
        "kimi 96 16 4 24 1 0 1; joint 1 2 128; joint 4 1 64; letters 2 40 12 16 4 24 1 2 0; joint 2 2 16",
    ),
)
def a_hybrid_block_holds_a_state(trial: Trial) -> None:
    """Both parts of a state, in entries of one layer, on one rank, rounded up to the multiple."""
    expect_unbroken(trial, "KV-SIZE-015")


@check(
    "KV-SIZE-018",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("tensor_parallel", "dp_attention"),
    cases=programs(
        "llama 3 8 24; grouped 8 2 100 2; grouped 8 8 100 2; grouped 8 1 100 1; types 16 4 24 1 0 1; "
        "grouped 4 2 100 2",
        "latent 3 96 16; grouped 8 8 100 2; grouped 8 2 100 1; kimi 96 16 4 24 1 0 1; grouped 8 2 100 2",
    ),
)
def a_group_of_ranks_has_requests_of_its_own(trial: Trial) -> None:
    """Within a group heads are shared out as among so many ranks, and a vector for all heads is copied."""
    expect_unbroken(trial, "KV-SIZE-018")


@check(
    "KV-SIZE-019",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("pipeline_parallel",),
    cases=programs(
        "llama 5 3 24; stage 0 2 100 2; stage 2 2 100 2; stage 4 1 100 1; stage 0 5 100 2",
        "types 16 3 24 1 0 1 1; stage 0 1 100 2; stage 1 2 100 2; stage 3 1 5 2",
        f"{_DELTA}; stage 0 2 100 2; stage 2 1 100 1; {_KIMI}; stage 1 2 100 2",
        "latent 3 96 16; stage 1 1 9 2",
    ),
)
def a_stage_keeps_its_own_layers(trial: Trial) -> None:
    """Runs from the first layer, from the middle and to the last; each kind of layer at either end."""
    expect_unbroken(trial, "KV-SIZE-019")


@check(
    "KV-SIZE-020",
    verbs=GEOMETRY,
    operations=SNAPSHOT,
    features=("snapshot_sizes", "recurrent_layers"),
    cases=programs(f"{_DELTA}; snapshot 2; snapshot 1; {_KIMI}; snapshot 2; {_LETTERS}; snapshot 1"),
)
def a_snapshot_is_both_parts_of_every_state(trial: Trial) -> None:
    """And as large as the entries of so many tokens."""
    expect_unbroken(trial, "KV-SIZE-020")


@check(
    "KV-SIZE-022",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("pipeline_parallel", "uneven_layers"),
    cases=programs(
        "globally 2 16 2 24 1 0 1 1 0; stage 3 2 100 2; stage 0 3 100 2; stage 1 4 100 2; stage 4 1 100 2",
    ),
)
def a_stage_reads_what_it_stores(trial: Trial) -> None:
    """Where the layers that share are on another stage than those that store, nobody can run the model."""
    expect_unbroken(trial, "KV-SIZE-022")
