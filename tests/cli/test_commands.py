"""The other commands: spec, museum, show, smoke."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvref.cli import main
from kvref.formats.format import FORMATS
from kvref.formats.records import NUMBERS, RECORDS
from kvref_conformance.choices import CHOICES, Choice
from kvref_conformance.museum import all_exhibits
from kvref_conformance.requirements import load_requirements, spec_version


def kvref(*arguments: str) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, list(arguments), catch_exceptions=False)


def test_spec_lists_every_requirement() -> None:
    """Ids, slugs, levels, laws, rings."""
    result = kvref("spec")
    assert result.exit_code == 0
    for requirement in load_requirements().values():
        assert f"{requirement.id}  {requirement.slug}" in result.output
    listed = json.loads(kvref("spec", "--json").stdout)
    assert listed["spec_version"] == spec_version()
    assert len(listed["requirements"]) == len(load_requirements())


@pytest.mark.parametrize("name", ["KV-ATTN-021", "kv-attn-021", "window-own-token"])
def test_spec_shows_one_requirement_with_its_checks_and_exhibits(name: str) -> None:
    """By id or by slug: the sentence, what tests it, and the faults it stops."""
    data = json.loads(kvref("spec", name, "--json").stdout)
    assert data["text"] == load_requirements()["KV-ATTN-021"].text
    assert "window_holds_exactly_w_tokens" in [check["name"] for check in data["checks"]]
    assert data["exhibits"]
    assert data["text"] in kvref("spec", name).output


@pytest.mark.parametrize("name", ["nvfp4-division", "nvfp4_division"])
def test_spec_shows_a_choice_with_its_answers(name: str) -> None:
    """By its name in either spelling: every answer, what each risks, and the requirements it opens."""
    data = json.loads(kvref("spec", name, "--json").stdout)["choice"]
    choice = CHOICES["nvfp4-division"]
    assert (data["canonical"], data["alternatives"]) == ("divide", choice.alternatives)
    assert {"id": "KV-FMT-040", "slug": "two-level-scale"} in data["requirements"]
    shown = kvref("spec", name).output
    for words in ("divide", "canonical", *choice.alternatives.values(), "KV-FMT-040 two-level-scale"):
        assert words in shown


def test_spec_shows_both_where_a_requirement_and_a_choice_have_one_name() -> None:
    """`dead-slots` is a rule and the answer to how far it holds."""
    data = json.loads(kvref("spec", "dead-slots", "--json").stdout)
    assert data["slug"] == data["choice"]["name"] == "dead-slots"
    shown = kvref("spec", "dead-slots").output
    assert data["text"] in shown
    assert CHOICES["dead-slots"].alternatives["any_finite"] in shown


@pytest.mark.parametrize("choice", CHOICES.values(), ids=lambda choice: choice.name)
def test_every_choice_opens_a_requirement(choice: Choice) -> None:
    """Under its name `kvref spec` has somewhere to lead to."""
    assert json.loads(kvref("spec", choice.name, "--json").stdout)["choice"]["requirements"]


def test_museum_lists_every_exhibit_and_shows_one() -> None:
    """Name, fault, where it was seen, what it breaks."""
    exhibits = all_exhibits()
    rows = json.loads(kvref("museum", "--json").stdout)
    assert [row["name"] for row in rows] == [exhibit.name for exhibit in exhibits]
    listed = kvref("museum").output
    assert all(exhibit.name in listed for exhibit in exhibits)
    shown = kvref("museum", exhibits[0].name).output
    assert exhibits[0].summary in shown
    assert json.loads(kvref("museum", exhibits[0].name, "--json").stdout)["breaks"] == list(
        exhibits[0].breaks
    )


@pytest.mark.parametrize("command", ["spec", "museum", "show"])
def test_an_unknown_name_exits_with_2(command: str) -> None:
    """With a sentence that says where the names are."""
    result = kvref(command, "no-such-thing")
    assert result.exit_code == 2
    assert "no-such-thing" in result.output


def test_show_toy_attention_is_the_founding_example() -> None:
    """Three scores, their exact softmax, and 500.5 times the work without a cache."""
    data = json.loads(kvref("show", "toy-attention", "--json").stdout)
    assert data["scores"] == pytest.approx([0.8, -0.41, 0.55], abs=0)
    assert [round(w, 10) for w in data["weights"]] == [0.4814640986, 0.1435712844, 0.374964617]
    assert sum(data["weights"]) == pytest.approx(1.0, abs=2**-52)
    assert (data["tokens"], data["computed_without_cache"], data["ratio"]) == (1000, 500500, 500.5)
    shown = kvref("show", "toy-attention").output
    assert "500.5 times" in shown
    assert "0.4815" in shown


def test_show_footprint_has_the_known_ratios() -> None:
    """FP8 half of bfloat16, NVFP4 9/16 and MXFP4 17/32 of FP8; every format and record is listed."""
    golden = json.loads((Path(__file__).parents[1] / "data" / "golden_formats.json").read_text())
    data = json.loads(kvref("show", "footprint", "--json").stdout)
    rows = {row["name"]: row for row in data["formats"]}
    assert rows.keys() == {*NUMBERS, *FORMATS}
    assert rows["fp8_e4m3"]["over_bf16"] == golden["fp8_over_bf16"]
    assert rows["nvfp4"]["over_fp8"] == golden["nvfp4_over_fp8"]
    assert rows["mxfp4"]["over_fp8"] == golden["mxfp4_over_fp8"]
    assert rows["nvfp4"]["bytes_per_token"] == 2 * 8 * 72
    assert rows["nvfp4"]["bytes_read_per_step"] == 2 * 8 * 72 * data["context"]
    records = {row["name"]: row for row in data["records"]}
    assert records.keys() == RECORDS.keys()
    assert (records["deepseek_v4"]["bytes_per_token"], records["deepseek_v4"]["bytes_per_block"]) == (
        584,
        37440,
    )
    shown = kvref("show", "footprint").output
    assert "0.53125" in shown
    assert all(name in shown for name in [*FORMATS, *RECORDS])


def test_show_footprint_lists_what_size_takes() -> None:
    """Every name that an error of `--format` offers, float32 and float16 among them, and no other."""
    offered = kvref("size", "kimi-k3", "--format", "fp9").output.split("expected one of ")[1]
    data = json.loads(kvref("show", "footprint", "--json").stdout)
    names = [row["name"] for row in (*data["formats"], *data["records"])]
    assert names == "".join(offered.split("\n")).split(", ")


def test_smoke_says_the_harness_works() -> None:
    """One line a verb."""
    result = kvref("smoke", "tiled", "--in-process")
    assert result.exit_code == 0
    steps = json.loads(kvref("smoke", "tiled", "--in-process", "--json").stdout)["steps"]
    assert {step["blame"] for step in steps} == {"ok"}


def test_smoke_tells_a_broken_harness_from_a_broken_kernel(tmp_path: Path) -> None:
    """A program that speaks nonsense exits with 3, a kernel that raises with 1."""
    assert kvref("smoke", "--exec", "echo hello").exit_code == 3
    (tmp_path / "raises.py").write_text(
        "class Raises:\n    def write_kv(self, *a, **k):\n        raise ValueError('no')\n"
    )
    result = kvref("smoke", f"{tmp_path}/raises.py:Raises", "--in-process")
    assert result.exit_code == 1
    assert "implementation at fault" in result.output


def test_smoke_can_show_the_wire(tmp_path: Path) -> None:
    """A harness author wants to see the lines."""
    (tmp_path / "s.py").write_text("class S:\n    def write_kv(self, *a, **k):\n        pass\n")
    result = CliRunner().invoke(main, ["smoke", f"{tmp_path}/s.py:S", "--wire"])
    assert '-> {"id":"1","op":"hello"' in result.stderr


def test_every_command_has_json_and_help() -> None:
    """Programs read the one, people the other."""
    for name in main.commands:
        text = kvref(name, "--help").output
        assert "--json" in text, name


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full on this system")
@pytest.mark.parametrize("words", ["spec", "show paging", "check lists --area block_keys"])
def test_a_full_disk_is_told_in_a_sentence(words: str, tmp_path: Path) -> None:
    """Whatever was to be printed: exit code 2, and no traceback, not even when Python ends."""
    command = [sys.executable, "-m", "kvref.cli", *words.split()]
    with open("/dev/full", "w") as full:
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, cwd=tmp_path)
    errors = run.stderr.decode()
    assert run.returncode == 2
    assert errors.splitlines()[-1] == "Error: the output cannot be written: No space left on device"
    assert "Traceback" not in errors
