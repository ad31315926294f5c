"""Programs for geometry: made-up models whose sizes are known, told to two readers that share no line."""

import json
import random
from collections.abc import Mapping
from itertools import islice
from math import ceil
from typing import Any

import pytest
from exhibits import breaks, breaks_without, finds

from kvref.errors import KVError
from kvref.planning.catalog import catalog, config_of, geometry_by_name
from kvref_conformance.cases import PROGRAM, Case
from kvref_conformance.checks import cache_geometry, geometry_ranks
from kvref_conformance.checks.check import Check
from kvref_conformance.claims import Claims
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.managers import MANAGERS
from kvref_conformance.museum import cache_geometry as museum
from kvref_conformance.museum.exhibit import Exhibit
from kvref_conformance.museum.kill_matrix import examine
from kvref_conformance.programs import drawn_geometry
from kvref_conformance.programs.drawn import draw_case
from kvref_conformance.programs.models import FAMILIES, model_of
from kvref_conformance.programs.odd_models import ABSURD, UNDECIDED
from kvref_conformance.programs.running import Run, run
from kvref_conformance.programs.shrinking import shrink_program, steps_of
from kvref_conformance.subjects.lists import OF_GEOMETRY, Lists
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.reference_geometry import Reference, ReferenceGeometry

GEOMETRY = "cache_geometry"
OPERATIONS = tuple(MANAGERS[GEOMETRY].operations)
EXHIBITS: dict[str, Exhibit] = {
    name: vars(value)["exhibit"]
    for name, value in vars(museum).items()
    if isinstance(value, type) and "exhibit" in vars(value)
}
#: Models of the catalogue that the naive reader knows no words for.
UNKNOWN_TO_LISTS = 3


def case_of(program: str) -> Case:
    """Return the case of a program."""
    return Case(verb=GEOMETRY, seq_lens=(), query_lens=(), options={PROGRAM: program})


def performed(subject: Any, program: str, claims: Claims | None = None) -> Run:
    """Run a program on a subject that offers geometry."""
    session = InProcessHost(subject).open(GEOMETRY)
    return run(program, session, case_of(program), claims or Claims(features=OF_GEOMETRY))


def drawn(seed: int, claims: Claims | None = None, length: int = 30) -> str:
    """Return a drawn program."""
    chosen = claims or Claims(features=OF_GEOMETRY)
    return str(draw_case(GEOMETRY, random.Random(seed), chosen, OPERATIONS, length).option(PROGRAM))


@pytest.mark.parametrize("subject", [Lists, Reference], ids=["lists", "reference"])
def test_honest_readers_breach_nothing(subject: Any) -> None:
    """On models that nobody wrote, of every family that is claimed."""
    for seed in range(40):
        program = drawn(seed, subject.claims)
        assert performed(subject(), program, subject.claims).breaches == (), program


def test_most_steps_make_sense() -> None:
    """A search that is passed over finds nothing."""
    programs = [drawn(seed) for seed in range(20)]
    done = sum(performed(Lists(), program).performed for program in programs)
    assert done > 0.6 * sum(program.count(";") + 1 for program in programs)


def test_every_family_and_every_alteration_is_drawn() -> None:
    """Nothing is left to the fixed programs alone."""
    steps = " ".join(drawn(seed, length=60) for seed in range(60))
    words = {step.split()[0] for step in steps.split(";") if step.split()}
    assert set(FAMILIES) <= words
    for name, count in (("odd", len(UNDECIDED)), ("absurd", len(ABSURD))):
        assert all(f"{name} {number};" in f"{steps};" for number in range(count))


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_not_claimed_is_passed_over(name: str) -> None:
    """And what follows it, for there is no model then."""
    program = next(p for seed in range(200) for p in [drawn(seed)] if f"{name} " in p)
    family = FAMILIES[name]
    step = next(s for s in program.split(";") if s.split()[0] == name)
    ran = performed(Lists(), f"{step}; size 5 2", Claims())
    made = model_of(name, [int(n) for n in step.split()[1:]])
    assert ran.performed == (0 if family.features or made is None else 2)


@pytest.mark.parametrize(
    "step",
    [
        *("llama 0 1 8", "llama 1 1", "llama 1 1 8 8", "undivided 1 3 2 8", "types 16 1 8 1 1", "size 4 2"),
        *("globally 2 16 1 8 0 0 1 1", "jamba 2 2 4 1 8 64 16", "types 16 1 8 0 1 2", "drafts 1", "odd 0"),
    ],
)
def test_numbers_that_make_no_model_are_passed_over(step: str) -> None:
    """Every part of a program is a program."""
    assert performed(Lists(), step).performed == 0


@pytest.mark.parametrize(
    "step",
    ["size 0 2", "size 5 3", "ranks 3 5 2", "snapshot 2", "joint 1 2 16", "odd 99", "absurd 99", "drafts 1"],
)
def test_questions_that_have_no_answer_are_passed_over(step: str) -> None:
    """Two heads among three ranks, drafts of a family without any, a snapshot of a model without states."""
    assert performed(Lists(), f"llama 2 2 8; {step}").performed == 1


def test_a_wrong_answer_says_what_was_expected() -> None:
    """The message has the question, the answer, and the right one."""

    class Twice(GeometryLists):
        def size(self, *given: Any, **named: Any) -> dict[str, int]:
            return {name: 2 * value for name, value in super().size(*given, **named).items()}

    subject = type("S", (), {"cache_geometry": Twice})
    (found,) = performed(subject(), "llama 2 3 8; size 5 2").breaches
    assert found.requirement == "KV-SIZE-003"
    assert found.message == "5 tokens at 2 bytes an element: bytes_per_token = 384, expected 192"


def test_a_refusal_of_a_model_that_is_claimed_is_a_fault() -> None:
    """Whoever refuses everything is never wrong about a number."""

    class Refuses:
        def size(self, *given: Any, **named: Any) -> None:
            raise ValueError("not this one")

    subject = type("S", (), {"cache_geometry": Refuses})
    (found,) = performed(subject(), "llama 2 3 8; size 5 2; odd 4").breaches
    assert found.requirement == "KV-SIZE-003"
    assert "llama: refused" in found.message


@pytest.mark.parametrize("name", catalog())
def test_two_readers_agree_about_real_models(name: str) -> None:
    """On every model of the catalogue that the naive one has words for; it refuses the others."""
    try:
        given = GeometryLists().size(json.dumps(without_sources(config_of(name))), 5000, 2)
    except (ValueError, KeyError):
        pytest.skip("the naive reader has no words for it")
    found = geometry_by_name(name)
    assert given == {
        "bytes_per_token": ceil(found.bytes_per_token()),
        "growing_bytes": found.growing_bytes(5000),
        "window_bytes": found.window_bytes(5000),
        "recurrent_bytes": found.recurrent_bytes,
        "conv_bytes": found.conv_bytes,
    }


def test_the_naive_reader_knows_most_models() -> None:
    """What it refuses says nothing."""
    refused = []
    for name in catalog():
        try:
            GeometryLists().size(json.dumps(without_sources(config_of(name))), 1, 2)
        except (ValueError, KeyError):
            refused.append(name)
    assert len(refused) <= UNKNOWN_TO_LISTS, refused


def without_sources(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without notes on where it was read."""
    return {name: value for name, value in config.items() if not name.startswith("_")}


@pytest.mark.parametrize("name", EXHIBITS)
def test_an_exhibit_breaks_what_it_says(name: str) -> None:
    """No more, and no less."""
    exhibit = EXHIBITS[name]
    failing = set(examine(exhibit.subject(), exhibit.verbs).failing)
    assert set(exhibit.breaks) <= failing <= {*exhibit.breaks, *exhibit.may_also_break}


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_program_shows_the_fault(name: str) -> None:
    """On the fault and not on the honest reader, and no step of it can be left out."""
    exhibit = EXHIBITS[name]
    assert breaks(exhibit, case_of(exhibit.program))
    assert performed(Lists(), exhibit.program).breaches == ()
    assert not list(breaks_without(exhibit, case_of(exhibit.program)))


@pytest.mark.parametrize("name", EXHIBITS)
def test_a_search_finds_the_fault(name: str) -> None:
    """And makes it short: a model and one question, with one step more at most."""
    exhibit = EXHIBITS[name]
    found = next(islice(finds(exhibit, random.Random(name)), 1))
    short = shrink_program(found, lambda tried: breaks(exhibit, tried), 600)
    assert len(steps_of(short)) <= len(steps_of(case_of(exhibit.program))) + 1


def test_every_checked_requirement_has_an_exhibit() -> None:
    """A check that no fault has ever failed may be asking nothing."""
    found = [*vars(cache_geometry).values(), *vars(geometry_ranks).values()]
    checked = {value.requirement for value in found if isinstance(value, Check)}
    assert {requirement for exhibit in EXHIBITS.values() for requirement in exhibit.breaks} == checked


def test_the_reference_is_asked_what_it_offers() -> None:
    """The adapter changes spelling alone."""
    config = json.dumps(config_of("Kimi-K3"))
    found = ReferenceGeometry().size(config, 10, 2)
    assert found["bytes_per_token"] == 27_648
    assert ReferenceGeometry().snapshot(config, 2) == (449_372_160, 16_254)


def needs_of(model: Any) -> set[str]:
    """The features without which nobody can size a model, by the keys of its config."""
    text = model.text
    keys = {
        "chunked_layers": ("attention_chunk_size",),
        "uneven_layers": ("swa_num_key_value_heads", "num_global_key_value_heads"),
        "skipped_layers": ("block_configs",),
        "latent_layers": ("kv_lora_rank",),
        "indexed_layers": ("index_head_dim",),
        "compressed_layers": ("compress_ratios",),
        "recurrent_layers": (
            *(
                "conv_kernel",
                "linear_conv_kernel_dim",
                "linear_attn_config",
                "mamba_d_conv",
                "attn_type_list",
            ),
        ),
    }
    found = {feature for feature, names in keys.items() if any(name in text for name in names)}
    kind = text.get("model_type")
    silent = kind == "mistral" or (kind == "qwen3" and "head_dim" not in text)
    return found | ({"class_defaults"} if silent else set())


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_needs_what_its_config_needs(name: str) -> None:
    """A subject is asked about no model of a kind that it does not claim."""
    rng = random.Random(name)
    made = [FAMILIES[name].model(drawn_geometry._numbers(rng, FAMILIES[name])) for _ in range(40)]
    needs = [needs_of(model) for model in made if model is not None]
    assert needs
    assert all(need == set(FAMILIES[name].features) for need in needs)


@pytest.mark.parametrize("feature", OF_GEOMETRY)
def test_a_subject_without_a_feature_is_not_asked_for_it(feature: str) -> None:
    """It refuses what it does not know, and fails nothing for it: not one feature is a hidden condition."""

    class Partly(GeometryLists):
        """Knows all but one thing."""

        def size(self, config: str, *given: Any, **named: Any) -> dict[str, int]:
            """Refuse models and arguments of that feature."""
            text = self.decoder(self.parsed(config))
            asked = {"tensor_parallel": "tensor_parallel", "dp_attention": "dp_attention"}
            asked |= {"first_layer": "pipeline_parallel", "num_layers": "pipeline_parallel"}
            used = {asked[name] for name in named if name in asked}
            if feature in used | needs_of(type("M", (), {"text": text})):
                raise KVError(f"no {feature} here")
            return super().size(config, *given, **named)

        def snapshot(self, config: str, element_bytes: int) -> tuple[int, int]:
            """Offer it if it is claimed."""
            if feature in (
                "snapshot_sizes",
                *needs_of(type("M", (), {"text": self.decoder(self.parsed(config))})),
            ):
                raise KVError("no snapshots here")
            return super().snapshot(config, element_bytes)

        def hybrid_block(self, config: str, *given: Any) -> int:
            """Offer it if it is claimed."""
            if feature in (
                "hybrid_blocks",
                *needs_of(type("M", (), {"text": self.decoder(self.parsed(config))})),
            ):
                raise KVError("no blocks of hybrids here")
            return super().hybrid_block(config, *given)

    claims = Claims(features=tuple(one for one in OF_GEOMETRY if one != feature))
    subject = type("Subject", (), {"claims": claims, "cache_geometry": Partly})
    assert examine(subject, (GEOMETRY,)).failing == ()
    for seed in range(10):
        program = drawn(seed, claims)
        assert performed(subject(), program, claims).breaches == (), program
