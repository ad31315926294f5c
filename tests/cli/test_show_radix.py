"""The figure of prefixes in a tree, from the reference's own tree."""

import json
from pathlib import Path

from click.testing import CliRunner

from kvref.cli import main
from kvref.cli.show_radix import _branches

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "golden_radix.json").read_text(encoding="utf-8"))

LINES = """\
sys                400    of 4 prompts
├─ docA           1200    of 2 prompts
│  ├─ q1           150    of 1 prompt
│  └─ q2           150    of 1 prompt
└─ docB           1200    of 2 prompts
   ├─ q3           150    of 1 prompt
   └─ q4           150    of 1 prompt
"""


def test_radix_is_the_founding_figure() -> None:
    """7,000 tokens, 5,800 with the system prompt kept, 3,400 with the tree, 3,600 reused."""
    run = CliRunner().invoke(main, ["show", "radix", "--json"], catch_exceptions=False)
    data = json.loads(run.output)
    golden = GOLDEN["radix_reuse"]
    assert {name: data[name] for name in golden["expect"]} == golden["expect"]
    assert {name: data[name] for name in ("system_prompt", "document", "question")} == {
        name: golden["inputs"][name] for name in ("system_prompt", "document", "question")
    }
    assert [row["prompt"] for row in data["prompts"]] == golden["inputs"]["prompts"]
    assert [row["hit"] for row in data["prompts"]] == [0, 1600, 400, 1600]


def test_tree_is_drawn() -> None:
    """Each node under its parent, with its tokens and how many prompts used it."""
    run = CliRunner().invoke(main, ["show", "radix"], catch_exceptions=False)
    assert LINES in run.output
    assert "3400 with the tree, which reuses 3600" in run.output


def test_branches_of_other_trees() -> None:
    """Two roots, and a last child with children of its own."""
    assert _branches([0, 1, 2, 1, 2, 0, 1]) == ["", "├─ ", "│  └─ ", "└─ ", "   └─ ", "", "└─ "]
