"""Checks of sizes: what a model keeps of a request, by its config.

Models have few layers of odd widths, in the keys of real families: what a size turns on is said by no other
number. Contexts end at, before and behind windows and the grids of compressed layers.
"""

from kvref_conformance.cases import PROGRAM, Case, Level
from kvref_conformance.checks.check import check
from kvref_conformance.claims import Claims
from kvref_conformance.programs.asking import Lattice
from kvref_conformance.programs.expecting import expect_unbroken
from kvref_conformance.trial import Trial

GEOMETRY = ("cache_geometry",)
SIZE = ("size",)
#: A hybrid of each kind of recurrence, as small as may be.
_DELTA, _KIMI = "linear 0 3 72 2 3 16 24 1 1 0 1", "kimi 96 16 4 24 1 0 1 1 0"
_MAMBA, _LETTERS = "jamba 3 1 7 2 40 64 16", "letters 2 40 12 16 4 24 1 2 0 3 1"


def programs(*texts: str) -> Lattice:
    """Return a case for each program: sizes have no blocks, and are as quick at every level."""

    def cases(claims: Claims, manager: str, level: Level) -> list[Case]:
        return [Case(verb=manager, seq_lens=(), query_lens=(), options={PROGRAM: text}) for text in texts]

    return cases


@check(
    "KV-SIZE-001",
    verbs=GEOMETRY,
    operations=SIZE,
    cases=programs(
        "types 16 3 24 1 0 1 1; size 100 2; size 16 2; size 1 1; types 40 2 72 0 0 1; size 39 2; size 41 4",
        "pattern 3 8 16 3 24; size 100 2; size 7 1; pattern 2 5 40 3 24; size 90 2",
        "gemma 13 16 3 24; size 100 2; size 5 2; gemma 5 16 3 24; size 100 2",
        "upper 2 5 16 3 24; size 100 2; size 3 1; undivided 4 6 2 24; size 100 2",
    ),
)
def each_layer_is_of_its_kind(trial: Trial) -> None:
    """Lists of words, a pattern, a class's own rule and a first layer say which layers keep every token."""
    expect_unbroken(trial, "KV-SIZE-001")


@check(
    "KV-SIZE-001",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("recurrent_layers",),
    cases=programs(
        "interval 4 8 1 64 2 2 16 24; size 100 2; interval 3 7 3 24 2 2 16 24; size 100 1",
        f"{_DELTA}; size 100 2; {_KIMI}; size 100 2; {_MAMBA}; size 100 2",
        f"{_LETTERS}; size 100 2; blocks 2 40 12 16 4 24 1 2 0 3 1; size 100 2",
        "parallel 3 2 40 12 16 4 24; size 100 2; lightning 2 24 0 1 0 0; size 100 2; "
        "attentionless 3 12 16 4 24; size 100 2",
    ),
)
def a_recurrent_layer_stores_no_entries(trial: Trial) -> None:
    """An interval, words, letters, a period and lists that count from 1: only layers that attend grow."""
    expect_unbroken(trial, "KV-SIZE-001")


@check(
    "KV-SIZE-002",
    verbs=GEOMETRY,
    operations=SIZE,
    cases=programs(*(f"nested {wrapper} 3 3 24; size 100 2" for wrapper in range(4))),
)
def the_decoder_is_found(trial: Trial) -> None:
    """It stands under one of four keys, beside a tower for images that has layers, heads and widths too."""
    expect_unbroken(trial, "KV-SIZE-002")


@check(
    "KV-SIZE-023",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("class_defaults",),
    cases=programs(
        "silent 0 3 2 24; size 100 2; silent 1 3 2 24; size 100 2",
        "silent 2 3 2 24; size 100 2; size 5000 1",
        "silent 3 3 2 24; size 5000 2",
    ),
)
def a_key_that_is_not_there_is_what_the_class_says(trial: Trial) -> None:
    """The width of a head, the number of KV heads and a window; what is null is none, and no default."""
    expect_unbroken(trial, "KV-SIZE-023")


@check(
    "KV-SIZE-003",
    verbs=GEOMETRY,
    operations=SIZE,
    cases=programs(
        "llama 4 3 72; size 100 2; size 1 1; size 100000 4; llama 1 1 8; size 3 2",
        "undivided 3 6 2 24; size 100 2; undivided 3 5 0 24; size 100 2",
    ),
)
def an_entry_has_the_width_that_the_config_says(trial: Trial) -> None:
    """head_dim is not hidden_size over heads where it is given, and KV heads are all heads where none are."""
    expect_unbroken(trial, "KV-SIZE-003")


@check(
    "KV-SIZE-003",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("uneven_layers",),
    cases=programs(
        "uneven 16 2 48 24 0 1 1; size 100 2; size 3 1",
        "globally 0 16 2 24 1 1 0; size 100 2; size 3 1",
    ),
)
def layers_differ_in_heads_and_widths(trial: Trial) -> None:
    """Keys are wider than values, and layers with a window have heads of their own."""
    expect_unbroken(trial, "KV-SIZE-003")


@check(
    "KV-SIZE-004",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("latent_layers",),
    cases=programs("latent 3 96 16; size 100 2; size 1 1; latent 2 72 0; size 100 2"),
)
def a_latent_entry_is_one_vector(trial: Trial) -> None:
    """Rank and rope, whatever is said of heads; without rope the rank alone."""
    expect_unbroken(trial, "KV-SIZE-004")


@check(
    "KV-SIZE-005",
    verbs=GEOMETRY,
    operations=SIZE,
    cases=programs(
        "types 16 3 24 1 0 1; size 15 2; size 16 2; size 17 2; size 1 2; size 1000 2; size 100 1",
        "gemma 7 16 3 24; size 100 2; pattern 2 5 40 3 24; size 39 2; size 41 2",
        "upper 1 3 16 2 24; size 100 2",
    ),
)
def a_window_holds_its_tokens_and_no_more(trial: Trial) -> None:
    """Contexts below, at and above the window."""
    expect_unbroken(trial, "KV-SIZE-005")


@check(
    "KV-SIZE-006",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("chunked_layers",),
    cases=programs("chunks 8 16 3 24; size 100 2; size 16 2; size 15 1; chunks 3 40 2 24; size 41 2"),
)
def a_chunk_holds_its_tokens_and_no_more(trial: Trial) -> None:
    """Three of four layers attend within a chunk, and the config says how long it is, not which they are."""
    expect_unbroken(trial, "KV-SIZE-006")


@check(
    "KV-SIZE-009",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("uneven_layers",),
    cases=programs("globally 2 16 2 24 1 0 1 1 0; size 100 2; size 3 1; globally 1 40 2 24 0 1 1; size 41 2"),
)
def a_layer_that_reads_anothers_entries_stores_none(trial: Trial) -> None:
    """The last layers of a model share what earlier ones store."""
    expect_unbroken(trial, "KV-SIZE-009")


@check(
    "KV-SIZE-010",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("compressed_layers", "indexed_layers"),
    cases=programs(
        "compressed 72 16 24 4 128 0 4; size 1000 2; size 127 2; size 129 2; size 1 2; size 5 1",
        "compressed 65 40 24 128 0 4; size 4096 1; size 3 4",
    ),
)
def several_tokens_share_an_entry(trial: Trial) -> None:
    """Contexts that end on the grid and beside it, fractions of a byte a token, a window in every layer."""
    expect_unbroken(trial, "KV-SIZE-010")


@check(
    "KV-SIZE-011",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("indexed_layers", "latent_layers"),
    cases=programs(
        "selecting 3 96 16 24; size 100 2; size 100 1",
        "indexed 96 16 24 1 1 1; size 100 2; indexed 96 16 24 1 0 0 1; size 100 2",
    ),
)
def an_indexer_has_one_key_in_the_layers_that_select(trial: Trial) -> None:
    """One key a token, however many heads ask for it, and none where a layer shares another's selection."""
    expect_unbroken(trial, "KV-SIZE-011")


@check(
    "KV-SIZE-012",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("latent_layers",),
    cases=programs("latent 3 96 16; drafts 1; size 100 2; latent 3 96 16; drafts 3; size 100 1"),
)
def layers_that_draft_are_apart(trial: Trial) -> None:
    """What they would store is no part of what the model keeps."""
    expect_unbroken(trial, "KV-SIZE-012")


@check(
    "KV-SIZE-012",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("compressed_layers", "indexed_layers"),
    cases=programs("compressed 72 16 24 4 128 0 4; drafts 1; size 1000 2"),
)
def lists_that_go_on_behind_the_last_layer_describe_drafts(trial: Trial) -> None:
    """A list of ratios has entries for layers that draft, too."""
    expect_unbroken(trial, "KV-SIZE-012")


@check(
    "KV-SIZE-013",
    verbs=GEOMETRY,
    operations=SIZE,
    cases=programs(
        "types 16 3 24 1 0 1 1; odd 0",
        "types 16 3 24 1 0 1 1; odd 1; llama 4 3 24; odd 3",
        "llama 4 3 24; odd 4",
        "llama 4 3 24; odd 5",
        "types 16 3 24 1 0 1 1; odd 6",
    ),
)
def what_nobody_can_decide_is_refused(trial: Trial) -> None:
    """Layers of unknown kinds, lists that are too short, keys that speak of the cache in unknown words."""
    expect_unbroken(trial, "KV-SIZE-013")


@check(
    "KV-SIZE-013",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("recurrent_layers", "latent_layers"),
    cases=programs(f"{_KIMI}; odd 7"),
)
def a_key_within_an_object_is_a_key(trial: Trial) -> None:
    """What is said in an object of its own, beside the lists of layers, may decide as well."""
    expect_unbroken(trial, "KV-SIZE-013")


@check(
    "KV-SIZE-013",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("skipped_layers",),
    cases=programs("skipped 3 24 1 0 1; odd 7"),
)
def a_key_of_one_block_is_a_key(trial: Trial) -> None:
    """A search describes every layer in an object of its own, and each of them is read."""
    expect_unbroken(trial, "KV-SIZE-013")


@check(
    "KV-SIZE-017",
    verbs=GEOMETRY,
    operations=SIZE,
    cases=programs(
        "llama 4 3 24; absurd 5; absurd 6; absurd 7; absurd 8; absurd 9; absurd 10",
        "llama 4 3 24; absurd 0; absurd 1; absurd 2; absurd 3; absurd 4",
        "llama 4 3 24; absurd 11; absurd 12; absurd 13; absurd 16; absurd 17; types 16 3 24 1 0; absurd 15",
    ),
)
def what_is_no_model_is_refused(trial: Trial) -> None:
    """Numbers of layers and heads that are none, texts that are no config."""
    expect_unbroken(trial, "KV-SIZE-017")


@check(
    "KV-SIZE-021",
    verbs=GEOMETRY,
    operations=SIZE,
    features=("skipped_layers",),
    cases=programs("skipped 3 24 1 0 1 0 0; size 100 2; size 1 1"),
)
def a_layer_without_attention_keeps_nothing(trial: Trial) -> None:
    """It is counted among the layers all the same."""
    expect_unbroken(trial, "KV-SIZE-021")
