"""Reports: one truth in JSON, drawn in several forms, the same bytes every time."""

import io
import json
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import numpy as np
import pytest
from rich.console import Console

from kvref.attention.arithmetic import Arithmetic
from kvref.errors import ArgumentError
from kvref.formats.paths import Path as Decisions
from kvref.formats.scaled import quantize
from kvref_conformance.contracts import VERBS
from kvref_conformance.host.inprocess import InProcessHost
from kvref_conformance.report.badge import to_badge
from kvref_conformance.report.drawing import LEGEND, classify, draw
from kvref_conformance.report.files import FORMS, write_report
from kvref_conformance.report.html import to_html
from kvref_conformance.report.junit import to_junit
from kvref_conformance.report.markdown import to_markdown
from kvref_conformance.report.model import (
    AreaResult,
    KnownResult,
    Picture,
    Report,
    load_report,
    report_from_dict,
)
from kvref_conformance.report.terminal import failure_lines, render
from kvref_conformance.runner.suite import Settings, run_suite
from kvref_conformance.subjects.reference import Reference
from kvref_conformance.subjects.tiled import Tiled

SETTINGS = Settings(areas=("paged_attention", "write_kv"), subject="my_kernels:Kernels", rings=("core",))


class WideWindow(Tiled):
    """Keeps t − W as well; offers two verbs; declares a base-2 lse, wrongly."""

    claims = replace(
        Tiled.claims,
        name="wide <window>",
        dtypes=("float32",),
        features=("window", "prefill", "lse"),
        choices={"lse-base": "2"},
    )
    for _verb in VERBS:
        if _verb not in ("paged_attention", "write_kv"):
            locals()[_verb] = None

    def in_window(self, j: Any, t: Any, window: int) -> Any:
        """Inclusive on both ends."""
        return (j >= t - window) & (j <= t)


@pytest.fixture(scope="module")
def report() -> Report:
    """Return the report on a subject with one fault and one wrong declaration."""
    return run_suite(InProcessHost(WideWindow), settings=SETTINGS)


def failure_of(report: Report, requirement: str) -> Any:
    """Return what failed of one requirement."""
    return next(r for r in report.failures if r.requirement == requirement)


def test_the_json_is_what_the_schema_says(report: Report) -> None:
    """Other people's tools read it."""
    text = (files("kvref_conformance") / "report" / "schema.json").read_text(encoding="utf-8")
    schema = json.loads(text)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(json.loads(report.to_json()), schema)


def test_a_report_read_back_is_the_same_report(report: Report, tmp_path: Path) -> None:
    """Docs and matrices are drawn from committed files."""
    path = tmp_path / "report.json"
    write_report(report, path)
    assert load_report(path).to_json() == report.to_json()


@pytest.mark.parametrize("text", ["[]", "{", '{"schema": "other"}', '{"schema": "kvref-report/1"}'])
def test_what_is_no_report_is_refused(text: str, tmp_path: Path) -> None:
    """A file of another kind must not become an empty report."""
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ArgumentError):
        load_report(path)


@pytest.mark.parametrize("value", [3, "ab", [3], ["ab"], [["ab"]], {"ab": 1}, None])
@pytest.mark.parametrize("name", ["areas", "requirements", "deviations", "known", "survivors", "choices"])
def test_a_field_of_another_kind_is_refused(report: Report, name: str, value: object) -> None:
    """Reports come from other people's runs; reading one ends in a report or in one of kvref's own errors."""
    with suppress(ArgumentError):
        report_from_dict({**report.to_dict(), name: value})
    (first, *_) = report.to_dict()["requirements"]
    with suppress(ArgumentError):
        report_from_dict({**report.to_dict(), "requirements": [{**first, "failure": value}]})


def test_an_unknown_field_is_refused(report: Report) -> None:
    """A newer report is not read as an older one."""
    with pytest.raises(ArgumentError, match="novelty"):
        report_from_dict({**report.to_dict(), "novelty": 1})


def test_two_runs_give_the_same_bytes(report: Report) -> None:
    """No clock, no path, no order that depends on the run; so a committed report can be compared."""
    again = run_suite(InProcessHost(WideWindow), settings=SETTINGS)
    for form in FORMS.values():
        assert form(again) == form(report)


def test_a_report_names_no_place_on_the_machine(report: Report) -> None:
    """It is committed, and read elsewhere."""
    text = report.to_json()
    assert str(Path(__file__).parents[2]) not in text
    assert "platform" not in report.environment


def test_the_failure_is_small_and_says_what_was_seen(report: Report) -> None:
    """Requirement, message, the smallest case, and the sentence of the spec."""
    failed = failure_of(report, "KV-ATTN-021")
    assert failed.failure.case["seq_lens"] == (failed.failure.case["options"]["window"] + 1,)
    assert report.requirement_texts["KV-ATTN-021"].startswith("With `window` W")


def test_the_picture_shows_the_slot_that_should_not_have_been_read(report: Report) -> None:
    """W + 1 slots were read, one of them outside the window."""
    picture = failure_of(report, "KV-ATTN-021").failure.picture
    stray = set(picture.read) - set(picture.should)
    assert len(stray) == 1
    assert not set(picture.should) - set(picture.read)
    assert [classify(picture, slot) for slot in stray] == ["stray"]


def test_choices_stand_apart_from_failures(report: Report) -> None:
    """A declared deviation is listed with its hazard, and fails only where it is not kept."""
    (choice,) = report.deviations
    assert choice.choice == "lse-base"
    for form in (to_html, to_markdown):
        assert "natural-log part" in form(report)


PICTURE = Picture(
    request=1,
    token=2,
    head=0,
    block_size=4,
    num_blocks=4,
    owners=((2, 1, 0, 4), (0, 1, 1, 1), (3, 0, 0, 2)),
    should=(8, 9, 10),
    read=(9, 10, 4),
)


def test_every_slot_is_of_one_class() -> None:
    """Read or not, should or not, whose block it is: that is all a reader wants to know."""
    kinds = [classify(PICTURE, slot) for slot in (9, 8, 4, 11, 12, 5)]
    assert kinds == ["hit", "missed", "stray", "live", "other", "dead"]
    assert set(kinds) == set(LEGEND)
    assert [classify(PICTURE, slot) for slot in (1, 14)] == ["dead", "dead"]  # past the length


def test_where_nothing_is_known_to_have_been_read_nothing_is_called_missed() -> None:
    """A crash leaves only what should have been read."""
    unread = replace(PICTURE, read=())
    assert classify(unread, 8) == "hit"
    assert 'class="missed"' not in draw(unread)


def test_the_drawing_is_one_element_of_valid_xml() -> None:
    """It is put into a page as it is."""
    root = ElementTree.fromstring(draw(PICTURE))
    assert root.tag == "svg"
    assert len(list(root.iter("rect"))) == PICTURE.num_blocks * PICTURE.block_size


class Page(HTMLParser):
    """Collects what a page refers to, and whether its tags are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag


def test_the_page_needs_nothing_from_anywhere_and_is_well_formed(report: Report) -> None:
    """It is opened from a mail, offline; names from a subject are text, not markup."""
    page = Page()
    text = to_html(report)
    page.feed(text)
    assert page.links == []
    assert page.open == []
    assert "<window>" not in text
    assert "wide &lt;window&gt;" in text
    assert "<svg" in text


def test_junit_has_a_suite_for_each_area_and_a_test_for_each_requirement(report: Report) -> None:
    """CI systems count them."""
    root = ElementTree.fromstring(to_junit(report))
    suites = {suite.attrib["name"]: suite for suite in root}
    assert set(suites) == {"paged_attention", "write_kv"}
    suite = suites["paged_attention"]
    cases = suite.findall("testcase")
    assert int(suite.attrib["tests"]) == len(cases)
    assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
    assert any("KV-ATTN-021" in case.attrib["name"] for case in cases)


def test_junit_drops_what_xml_cannot_carry(report: Report) -> None:
    """A message may hold any bytes that a subject has printed."""
    (first, *rest) = report.failures
    assert first.failure is not None
    odd = replace(first, failure=replace(first.failure, message="a\x00b\x1b[1m \uffff\ud800"))
    made = replace(report, subject="kernels \x00", requirements=(odd, *rest))
    assert "ab[1m" in to_junit(made)
    ElementTree.fromstring(to_junit(made))


def test_markdown_holds_no_markup_of_a_subject(report: Report) -> None:
    """A name is not a script where the page is rendered."""
    text = to_markdown(replace(report, subject="<script>x</script>|", command="kvref check `x`"))
    assert "# &lt;script&gt;x&lt;/script&gt;\\|" in text
    assert "Reproduce: `kvref check 'x'`" in text


def test_the_badge_counts_conformant_areas(report: Report) -> None:
    """Green only if every claimed area is."""
    badge = json.loads(to_badge(report))
    assert badge["schemaVersion"] == 1
    assert badge["message"].startswith("1 of 2 areas")
    assert badge["color"] == "red"


def test_failure_lines_are_enough_to_start_debugging(report: Report) -> None:
    """Requirement and slug, how many, what was seen, what it looks like, how to bring it back."""
    failed = failure_of(report, "KV-ATTN-021")
    told = replace(
        failed, failure=replace(failed.failure, as_if=("one more token",), replay="kvref check x --case y")
    )
    first, second, third = failure_lines(told)
    assert first.startswith("FAIL  KV-ATTN-021 window-own-token ")
    assert f"{failed.failed} of {failed.cases} cases" in first
    assert second == "      as if: one more token"
    assert third == "      replay: kvref check x --case y"


def test_the_terminal_has_verdicts_choices_and_known_failures(report: Report) -> None:
    """Everything a person needs is on one screen."""
    known = KnownResult(
        requirement="KV-ATTN-050", kind="bug", reason="soon", url="", line=3, outcome="passes"
    )
    console = Console(record=True, width=120, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        render(replace(report, known=(known,)), console, seconds=1.25)
    text = console.export_text()
    for part in (
        "FAIL  KV-ATTN-021",
        "not conformant",
        "lse-base = 2 instead of e",
        "line 3: delete",
        "1.2 s",
    ):
        assert part in text


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_no_digit_of_a_verdict_is_cut_off(report: Report, width: int) -> None:
    """CI logs are 80 columns wide, and a margin of 0.96 is not one of 0.9."""
    area = AreaResult(
        area="merge_attention_states", verdict="conformant", reason="", cases=18, margin=0.96, unbounded=3
    )
    text = io.StringIO()
    render(replace(report, areas=(area,), survivors=("Lax",) * 30), Console(width=width, file=text))
    lines = text.getvalue().splitlines()
    (row,) = (line for line in lines if line.startswith("merge_attention_states  "))
    assert row.split() == ["merge_attention_states", "conformant", "18", "0", "0%", "0.96"]
    assert any(
        "in 3 of 18 cases the declared arithmetic leaves components without a bound" in x for x in lines
    )
    assert any(line.count("Lax") == 30 for line in lines)


def test_a_report_file_has_a_form_by_its_name(report: Report, tmp_path: Path) -> None:
    """An unknown ending is an error before the run, not a surprise after it."""
    for name in ("a.json", "badge.json", "a.html", "a.xml", "a.md"):
        write_report(report, tmp_path / "deep" / name)
    assert json.loads((tmp_path / "deep" / "badge.json").read_text())["label"] == "kvref"
    assert sorted(path.name for path in (tmp_path / "deep").iterdir()) == [
        "a.html",
        "a.json",
        "a.md",
        "a.xml",
        "badge.json",
    ]
    with pytest.raises(ArgumentError, match=r"a\.txt"):
        write_report(report, tmp_path / "a.txt")


def test_numbers_of_numpy_become_numbers_of_json(report: Report) -> None:
    """A margin may be a NumPy float."""
    (first, *rest) = report.requirements
    odd = replace(report, requirements=(replace(first, margin=np.float32(0.5)), *rest))
    assert odd.to_dict()["requirements"][0]["margin"] == 0.5


def test_the_inferred_arithmetic_stands_beside_the_declared_one() -> None:
    """KV-CONF-018: what the answers show, stage by stage, for each claimed dtype."""
    settings = replace(SETTINGS, areas=("paged_attention",), rings=(), survey=True)
    made = run_suite(InProcessHost(WideWindow), settings=settings)
    assert made.inferred["float32"]["accumulate"] == "float32"
    assert made.disagreements == ()
    assert made.survivors == ()
    assert "float32" in to_html(made)


def test_a_lax_declaration_is_called_lax_and_says_what_it_lets_through() -> None:
    """Nobody hides behind a wide bound: the faults that fit into it are named."""

    class Lax(WideWindow):
        claims = replace(WideWindow.claims, arithmetic=Arithmetic(accumulate="bfloat16", scores="bfloat16"))

    settings = replace(SETTINGS, areas=("paged_attention",), rings=(), survey=True)
    made = run_suite(InProcessHost(Lax), settings=settings)
    assert any("accumulate is declared bfloat16, the answers show float32" in w for w in made.disagreements)
    assert "ScaleTwice" in made.survivors
    for form in (to_html, to_markdown):
        assert "ScaleTwice" in form(made)


def test_choices_of_formats_stand_in_every_report_found_beside_declared(tmp_path: Path) -> None:
    """What a subject was seen to do, whatever it says."""

    class Undeclared(Reference):
        claims = replace(Reference.claims, formats=("mxfp4",))
        attention = paged_attention = append_and_attend = None  # presence is a claim

        def quantize_kv(self, x: Any, **rest: Any) -> Any:
            stored = quantize(x, path=Decisions(mx_scale="rceil"), **rest)
            return stored.codes, stored.scales

    settings = replace(SETTINGS, areas=("quantize_kv",), survey=True, smallest=False)
    made = run_suite(InProcessHost(Undeclared), settings=settings)
    (rule,) = (choice for choice in made.choices if choice.choice == "mx-scale")
    assert (rule.declared, rule.found, rule.agrees) == ("floor", ("rceil",), False)
    text = io.StringIO()
    render(made, Console(width=200, file=text))
    assert "choices: mx-scale is declared floor, the answers show rceil" in text.getvalue()
    assert "e2m1-ties = even" in text.getvalue()
    assert "| `mx-scale` | `floor` | **`rceil`** |" in to_markdown(made)
    assert "Choices found by running it" in to_html(made)
    write_report(made, tmp_path / "made.json")
    assert load_report(tmp_path / "made.json").choices == made.choices
    schema = json.loads((files("kvref_conformance") / "report" / "schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(json.loads(made.to_json()), schema)
