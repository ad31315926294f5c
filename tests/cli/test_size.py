"""`kvref size`: what a model keeps of a request, by name and by config, in lines and as JSON."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvref.cli import main
from kvref.cli.size import CONTEXT, geometry_named
from kvref.cli.size_text import amount, counted, layers_spelled
from kvref.planning.catalog import catalog

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_planner.json").read_text(encoding="utf-8"))


def kvref(*words: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(main, ["size", *words])


def told(*words: str) -> dict[str, Any]:
    """What a command prints as JSON."""
    done = kvref(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


@pytest.mark.parametrize(
    ("form", "due"), [("fp8_e4m3", 35_136), ("bfloat16", 70_272), ("fp8_ds_mla", 40_016)]
)
def test_a_model_has_its_bytes_a_token(form: str, due: int) -> None:
    """61 layers of 576 elements: at one byte, at two, and in the record of 656 bytes."""
    data = told("DeepSeek-R1", "--format", form)
    assert data["bytes_per_token"] == due
    assert data["growing_bytes"] == CONTEXT * due


@pytest.mark.parametrize(
    ("figure", "form"), [("planner_deepseek_r1", "fp8_e4m3"), ("planner_deepseek_r1_bf16", "bfloat16")]
)
def test_the_sessions_of_the_founding_document_come_out(figure: str, form: str) -> None:
    """Its mean session takes what the geometry says, in bytes and not in its mixed units."""
    due, inputs = GOLDEN[figure]["expect"], GOLDEN["planner_deepseek_r1"]["inputs"]["workload"]
    sessions = [told("deepseek-r1", "--format", form, "--context", str(w["tokens"])) for w in inputs.values()]
    shares = [w["share"] for w in inputs.values()]
    assert sessions[0]["bytes_per_token"] == due["kv_bytes_per_token"]
    mean = sum(s["bytes"] * share for s, share in zip(sessions, shares, strict=True))
    assert math.isclose(mean, due["kv_bytes_per_session"], rel_tol=1e-12)


def test_parts_of_a_state_are_apart() -> None:
    """A snapshot is both, and takes the bytes of so many tokens."""
    data = told("kimi-k3")
    assert (data["recurrent_bytes"], data["conv_bytes"]) == (434_110_464, 15_261_696)
    assert data["state_bytes"] == 449_372_160
    assert data["snapshot_in_tokens"] == pytest.approx(449_372_160 / 27_648, rel=1e-12)
    assert data["bytes"] == 32_768 * 27_648 + data["state_bytes"]
    assert told("kimi-k3", "--format", "fp8_e4m3")["conv_bytes"] == 15_261_696


@pytest.mark.parametrize(
    ("model", "ranks", "form", "due"),
    [
        ("kimi-k3", 8, "bfloat16", 768),
        ("kimi-k3", 8, "fp8_e4m3", 1536),
        ("Qwen3.5-27B", 1, "bfloat16", 784),
    ],
)
def test_a_hybrid_has_the_block_size_that_engines_log(model: str, ranks: int, form: str, due: int) -> None:
    """The sizes in recipes for vLLM: a property of ranks and format, and not of the model."""
    data = told(model, "--tp", str(ranks), "--format", form)
    assert data["hybrid_block_size"]["block_size"] == due
    assert f"blocks of {due:,} tokens" in kvref(model, "--tp", str(ranks), "--format", form).output


def test_ranks_share_heads_and_copy_latent_vectors() -> None:
    """Eight ranks keep eight latent caches, and an eighth of the states each."""
    whole, rank = told("kimi-k3"), told("kimi-k3", "--tp", "8")
    assert rank["growing_bytes"] == whole["growing_bytes"]
    assert 8 * rank["state_bytes"] == whole["state_bytes"]
    heads = told("Llama-3.1-8B"), told("Llama-3.1-8B", "--tp", "8"), told("Llama-3.1-8B", "--tp", "16")
    assert heads[0]["bytes"] == 8 * heads[1]["bytes"] == 8 * heads[2]["bytes"]
    assert "2 times what the model keeps" in kvref("Llama-3.1-8B", "--tp", "16").output
    done = kvref("Llama-3.1-8B", "--tp", "3")
    assert done.exit_code == 2
    assert "cannot share out 8 KV heads" in done.output


def test_groups_of_ranks_have_requests_of_their_own() -> None:
    """Four groups of two share out heads among two; with as many groups as ranks there is one copy."""
    whole, halves = told("Llama-3.1-8B"), told("Llama-3.1-8B", "--tp", "8", "--dp-attention", "4")
    assert halves["ranks_of_a_request"] == 2
    assert 2 * halves["bytes"] == halves["bytes_of_all_ranks"] == whole["bytes"]
    alone = told("DeepSeek-R1", "--tp", "8", "--dp-attention", "8")
    assert alone["bytes_of_all_ranks"] == alone["bytes"] == told("DeepSeek-R1")["bytes"]
    assert told("DeepSeek-R1", "--tp", "8")["bytes_of_all_ranks"] == 8 * alone["bytes"]
    assert (
        "in 8 groups with requests of their own"
        in kvref("kimi-k3", "--tp", "8", "--dp-attention", "8").output
    )


def test_stages_share_out_layers() -> None:
    """As vLLM deals them out, or as a list says; shown is the one that keeps most, or the one asked for."""
    data = told("Kimi-K2.5", "--pp", "4")
    assert [s["num_layers"] for s in data["pipeline"]["stages"]] == [15, 15, 16, 15]
    assert data["pipeline"]["stage"] == 2
    assert data["bytes_per_token"] == 16 * 576 * 2
    assert data["bytes_of_all_ranks"] == data["bytes_of_model"] == told("Kimi-K2.5")["bytes"]
    last = told("gpt-oss-20b", "--pp", "10,10,4", "--stage", "2")
    assert (last["bytes_per_token"], last["window_bytes"]) == (2 * 2048, 2 * 128 * 2048)
    assert "stage 2 of 3: layers 20 to 23" in kvref("gpt-oss-20b", "--pp", "10,10,4", "--stage", "2").output
    both = told("Llama-3.1-8B", "--tp", "8", "--pp", "4")
    assert (both["ranks_of_a_request"], 32 * both["bytes"]) == (32, both["bytes_of_all_ranks"])


def test_what_an_allocator_takes_is_told_apart() -> None:
    """Running states are two, and a token with a slot in every table takes more than one more token adds."""
    data = told("kimi-k3", "--tp", "8")["allocator"]
    assert 8 * data["state_bytes"] == 2 * 69 * 884_736 * 8
    assert told("gpt-oss-120b")["allocator"]["bytes_per_token"] == 73_728
    assert "a manager of equal blocks takes" in kvref("gpt-oss-120b").output
    assert told("DeepSeek-V4-Pro")["allocator"] is None
    assert told("gpt-oss-120b", "--pp", "2")["allocator"] is None


def test_a_config_is_read_as_one_of_another_class(tmp_path: Path) -> None:
    """Where its own is not known, and the user knows better: a note says so."""
    path = tmp_path / "config.json"
    config = {"model_type": "novel", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 256}
    path.write_text(json.dumps({**config, "num_key_value_heads": 2}))
    assert "model_type = 'novel', expected one that kvref knows" in kvref(str(path)).output
    data = told(str(path), "--as", "llama")
    assert data["bytes_per_token"] == 2 * 2 * 2 * 64 * 2
    assert data["warnings"] == ["model_type = novel, read as llama, as asked"]
    assert "read_as = 'lama', expected a model type" in kvref(str(path), "--as", "lama").output


@pytest.mark.parametrize(("tokens", "held"), [(100, 100), (1024, 1024), (131_072, 1024)])
def test_windows_do_not_grow_past_their_length(tokens: int, held: int) -> None:
    """52 of 62 layers keep the last 1,024 tokens."""
    data = told("Gemma-3-27B", "--context", str(tokens))
    assert data["window_bytes"] == 52 * 4096 * 2 * held
    assert data["growing_bytes"] == 10 * 4096 * 2 * tokens


def test_layers_that_draft_are_counted_when_asked_for() -> None:
    """They are shown either way."""
    apart, counted_in = told("deepseek-r1"), told("deepseek-r1", "--drafts")
    assert len(apart["drafts"]) == len(counted_in["drafts"]) == 1
    assert counted_in["bytes_per_token"] - apart["bytes_per_token"] == 576 * 2
    assert "layers that draft, apart" in kvref("deepseek-r1").output


@pytest.mark.parametrize("name", catalog())
def test_rows_add_up_to_the_sums(name: str) -> None:
    """Of every model of the catalogue, and every layer is of at most one group of each kind."""
    data = told(name)
    rows = data["groups"]
    assert sum(row["bytes"] for row in rows) == data["growing_bytes"] + data["window_bytes"]
    assert sum(row["bytes_per_token"] for row in rows) == data["bytes_per_token"]
    assert sum(row["recurrent_bytes"] for row in data["states"]) == data["recurrent_bytes"]
    assert sum(row["conv_bytes"] for row in data["states"]) == data["conv_bytes"]
    assert all(row["decided_by"] for row in (*rows, *data["states"]))
    assert kvref(name).exit_code == 0


def test_a_config_is_read_from_a_file(tmp_path: Path) -> None:
    """Its name is that of the file."""
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 6, "hidden_size": 600}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**config, "num_key_value_heads": 3, "head_dim": 64}))
    data = told(str(path))
    assert (data["model"], data["bytes_per_token"]) == ("mine", 2 * 2 * 3 * 64 * 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lama-3.1-8b"], "did you mean Llama-3.1-8B"),
        (["gemma"], "did you mean Gemma-3-27B or Gemma-4-26B-A4B"),
        (["q" * 500], "expected a config.json or a name"),
        (["nowhere/config.json"], "config file 'nowhere/config.json' cannot be read"),
        (["kimi-k3", "--format", "fp9"], "form = 'fp9', expected one of"),
        (["gpt-oss-20b", "--format", "fp8_ds_mla"], "a record of one vector"),
        (["kimi-k3", "--compare"], "expected the rest left out"),
        (["--compare", "--format", "fp9"], "form = 'fp9'"),
        ([], "expected a MODEL, or --compare"),
        (["kimi-k3", "--tp", "8", "--dp-attention", "3"], "dp_attention = 3 groups, expected a divisor of 8"),
        (["kimi-k3", "--pp", "94"], "expected at most one for each of 93 layers"),
        (["kimi-k3", "--pp", "90,2"], "92 layers, expected all 93"),
        (["kimi-k3", "--pp", "a"], "pp = 'a', expected a number of stages"),
        (["kimi-k3", "--pp", "2", "--stage", "2"], "stage = 2, expected one of 2 stages"),
        (["kimi-k3", "--stage", "1"], "stage = 1, expected --pp with it"),
        (["DeepSeek-V4.1-Flash", "--pp", "4"], "on another stage"),
        (["--compare", "--pp", "2"], "expected the rest left out"),
        (["kimi-k3", "--context", "0"], "0 is not in the range"),
    ],
)
def test_what_cannot_be_sized_is_told_in_a_sentence(words: list[str], said: str) -> None:
    """Exit code 2, what was found and what was expected."""
    done = kvref(*words)
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_an_error_of_a_config_names_the_key(tmp_path: Path) -> None:
    """Also where it is a key that nobody knows."""
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "num_hidden_layers": -1}')
    done = kvref(str(path))
    assert done.exit_code == 2
    assert "num_hidden_layers = -1" in done.output


def test_a_context_past_the_model_is_noted() -> None:
    """It is sized all the same; without --context no model is asked for more than it takes."""
    assert any("more than the 262144" in w for w in told("Falcon-H1-7B", "--context", "262145")["warnings"])
    assert told("Nemotron-H-56B")["context"] == 8192


def test_models_are_compared_at_one_context() -> None:
    """All of the catalogue, the largest first; the spread is that of this catalogue and no other."""
    data = told("--compare", "--context", "131072")
    sizes = [row["bytes"] for row in data["models"]]
    assert sorted(row["model"] for row in data["models"]) == sorted(catalog())
    assert sizes == sorted(sizes, reverse=True)
    assert data["models"][0]["model"] == "Llama-3.1-405B"
    lines = kvref("--compare", "--context", "131072").output.splitlines()
    bars = [line.count("█") for line in lines if "█" in line]
    assert bars == sorted(bars, reverse=True)
    assert len(bars) == len(catalog())
    assert f"{sizes[0] / sizes[-1]:.4g} times the smallest" in lines[-2]


def test_models_that_a_record_does_not_hold_are_left_out() -> None:
    """And named."""
    data = told("--compare", "--format", "fp8_ds_mla")
    assert "gpt-oss-20b" in data["left_out"]
    assert "DeepSeek-R1" in {row["model"] for row in data["models"]}
    assert f"and {len(data['left_out']) - 1} more" in kvref("--compare", "--format", "fp8_ds_mla").output


def test_numbers_are_spelled_so_that_they_can_be_read() -> None:
    """Binary units by their names, thousands apart, runs of layers joined."""
    assert [amount(n) for n in (0, 1023, 1024, 1536, 449_372_160)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.50 KiB",
        "428.6 MiB",
    ]
    assert (counted(27_648), counted(170.667)) == ("27,648", "170.67")
    assert layers_spelled(list(range(0, 60, 2))) == "30: 0, 2, …, 58"
    assert layers_spelled([]) == "0: "


@pytest.mark.parametrize("words", [["Qwen3.5-27B"], ["gpt-oss-20b"], ["kimi-k3"], ["--compare"]])
def test_columns_are_as_wide_as_their_widest_cells(words: list[str]) -> None:
    """`state gated_delta` is wider than most: numbers of one column end in one place in all lines."""
    head, *rows = kvref(*words).output.splitlines()[2:]
    rows = [row for row in rows[: rows.index("")] if not row.startswith("layers that draft")]
    end = head.index("in all") + len("in all")
    assert all(re.fullmatch(r".*[0-9] [KMGT]?i?B", row[:end]) for row in rows)
    assert all(row[end : end + 2] == "  " != row[end + 2 : end + 4] for row in rows)


def test_a_name_is_found_whatever_its_case() -> None:
    """And a file wins over a name only if it is there."""
    assert geometry_named("KIMI-k3").name == "Kimi-K3"
