"""The tables of the spec and the tables of the suite say the same, word for word."""

import re
from collections.abc import Iterable

import pytest

from kvref.formats.format import FORMATS, Format
from kvref.formats.ggml import BLOCKS
from kvref.formats.paths import PATHS
from kvref_conformance.choices import CHOICES, FORMAT_CHOICES
from kvref_conformance.claims import FEATURES
from kvref_conformance.contracts import VERBS, Argument, Verb
from kvref_conformance.managers import MANAGERS, MAX_LIST, MAX_NUMBER, Parameter
from kvref_conformance.requirements import (
    Directive,
    chapters,
    load_requirements,
    read_directives,
    spec_dir,
)


def directives(name: str) -> list[Directive]:
    """The directives of the spec with this name."""
    return [d for chapter in chapters() for d in read_directives(chapter) if d.name == name]


def one_line(text: str) -> str:
    """Text with every run of white space as one space, since tables may be wrapped."""
    return re.sub(r"\s+", " ", text).strip()


def written(argument: Argument) -> str:
    """An argument as the spec writes it: `!` if the verb may write it, brackets if it is optional."""
    name = argument.name + "!" * argument.in_place
    return f"[{name}]" if argument.feature or argument.some_formats else name


def signature(verb: Verb) -> str:
    """A verb as the spec writes it."""
    first = [written(a) for a in verb.arguments if a.positional]
    named = [written(a) for a in verb.arguments if not a.positional]
    optional = {*verb.some_formats, *("lse" for a in verb.arguments if a.name == "return_lse")}
    returned = [f"[{name}]" if name in optional else name for name in verb.returns]
    arguments = ", ".join([*first, "*", *named] if named else first)
    return f"{verb.name}({arguments}) -> {', '.join(returned) or 'nothing'} # {verb.summary}"


def tensor_lines() -> list[str]:
    """Every tensor with its axes; the verbs are named where a name has more than one shape."""
    shapes: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for verb in VERBS.values():
        for argument in verb.arguments:
            if argument.shape:
                shapes.setdefault(argument.name, {}).setdefault(argument.shape, []).append(verb.name)
    return [
        f"{name} [{', '.join(axes)}]" + (f" in {', '.join(verbs)}" if len(by_shape) > 1 else "")
        for name, by_shape in shapes.items()
        for axes, verbs in by_shape.items()
    ]


def test_verb_table() -> None:
    """A porter who reads the spec writes methods that the suite calls with exactly these arguments."""
    (table,) = directives("verbs")
    stated = one_line("\n".join(table.body))
    assert stated == one_line(" ".join(signature(verb) for verb in VERBS.values()))


def spelled(name: str, takes: Iterable[Parameter], summary: str, gives: str = "") -> str:
    """A manager's opening, or an operation, as the spec writes it: what is optional in brackets, by name."""
    required = [str(p) for p in takes if p.feature is None]
    optional = [str(p) for p in takes if p.feature is not None]
    arguments = ", ".join([*required, "*", *optional] if optional else required)
    return f"{name}({arguments}){gives} # {summary}"


def test_manager_table() -> None:
    """A porter who reads the spec writes operations that the suite drives with exactly these arguments."""
    (table,) = directives("managers")
    due = []
    for manager in MANAGERS.values():
        due.append(spelled(manager.name, manager.opens, manager.summary))
        for o in manager.operations.values():
            gives = f" -> {', '.join(map(str, o.returns)) or 'nothing'}"
            due.append(spelled(f"{manager.name}.{o.name}", o.arguments, o.summary, gives))
    assert one_line("\n".join(table.body)) == one_line(" ".join(due))


def test_limits_of_a_list() -> None:
    """What the chapter says of numbers and lists is what the suite accepts."""
    text = one_line((spec_dir() / "conformance.md").read_text(encoding="utf-8"))
    assert f"A list has at most {MAX_LIST} entries" in text
    assert f"at most {MAX_NUMBER.bit_length() - 1} bits" in text


def test_tensor_table() -> None:
    """The axes of every tensor are those the suite makes."""
    (table,) = directives("tensors")
    stated = one_line("\n".join(table.body))
    assert stated == one_line(" ".join(tensor_lines()))


def test_feature_table() -> None:
    """Every feature that can be claimed is described, and nothing else is."""
    (table,) = directives("features")
    stated = one_line("\n".join(table.body))
    assert stated == one_line(" ".join(f"{name}: {text}" for name, text in FEATURES.items()))


def test_choices_are_those_of_the_claims() -> None:
    """Canonical answer, alternatives and hazards of every choice are the ones subjects can declare."""
    stated = {}
    for directive in directives("choice"):
        items = one_line("\n".join(directive.body)).removeprefix("- ").split(" - ")
        alternatives = dict(item.split(": ", 1) for item in items)
        stated[directive.argument] = (directive.fields["canonical"], alternatives)
    assert stated == {c.name: (c.canonical, dict(c.alternatives)) for c in CHOICES.values()}


def row_of(format: Format) -> tuple[str, ...]:
    """A format as the chapter lists it: element, what shares a scale, bytes of codes, scales, the rest."""
    size = f"{format.size} channels"
    shared = {
        "given": "the tensor or a head",
        "tensor": "the tensor",
        "token_head": "a token and head",
        "channels": size,
        "tokens": f"{format.size} tokens of a channel",
    }[format.group]
    element = "D/2" if format.packed else "D"
    axes = {
        "given": "[1] or [H]",
        "tensor": "[1]",
        "token_head": "[T, H]",
        "channels": f"[T, H, D/{format.size}]",
        "tokens": f"[T/{format.size}, H, D]",
    }[format.group]
    stored = format.scale_element if format.scale_element.startswith("float") else f"`{format.scale_element}`"
    scales = f"{stored} {axes}" + ", given" * (format.group == "given")
    besides = ""
    if format.global_scale:
        second = "[T, H]" if format.global_scale == "token_head" else "[1]"
        besides = f"global scale float32 {second}" + ", given" * (format.global_scale == "given")
    if format.zeros:
        besides = f"zeros {stored} {axes}"
    if format.name == "int4_token_head":
        besides = "zero point in the scale"
    if format.family == "ggml":
        block = BLOCKS[format.name.removeprefix("ggml_")]
        element, scales = f"{block.bytes} · D/{block.numbers}", "in the codes"
        shared = f"{block.numbers // (4 if block.scale_bytes == 4 else 1)} channels"
    return (f"`{format.name}`", f"`{format.element}`", shared, element, scales, besides)


def test_format_table() -> None:
    """A porter who reads the chapter allocates what the reference returns."""
    text = (spec_dir() / "formats.md").read_text(encoding="utf-8")
    section = text.partition("## The formats by name")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    stated = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]
    assert stated == [row_of(format) for format in FORMATS.values()]


def test_decisions_of_formats_can_be_declared() -> None:
    """Whatever a path of the reference decides, a subject can say, in the same words."""
    declared = {name.replace("-", "_"): (c.canonical, *c.alternatives) for name, c in FORMAT_CHOICES.items()}
    assert declared == PATHS


@pytest.mark.parametrize("known", [CHOICES, FEATURES], ids=["choices", "features"])
def test_requirements_name_known(known: dict[str, object]) -> None:
    """A requirement opens only choices that exist and waits only for features that can be claimed."""
    for requirement in load_requirements().values():
        named = set(requirement.choices) if known is CHOICES else {requirement.feature} - {""}
        assert named <= set(known), requirement.title


def test_every_choice_is_opened_by_a_requirement() -> None:
    """A choice that no requirement opens would excuse nothing and could not be checked."""
    opened = {name for requirement in load_requirements().values() for name in requirement.choices}
    assert opened == set(CHOICES)
