"""Public bugs, each as the few events of an engine that had it: the sanitizer names the rule and the culprit.

The histories in `tests/data/histories` were written from the reports; their first line names the report.
"""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvref.cli import main
from kvref.sanitizer.sanitizer import sanitize

HISTORIES = Path(__file__).parents[1] / "data" / "histories"

#: History -> every finding: requirement, line, and words of its message.
BUGS: dict[str, list[tuple[str, int, str]]] = {
    "M004-adapters-with-one-name": [
        (
            "KV-PREFIX-008",
            9,
            "request 2 hits position 0 in slot 0 of block 0, which holds the same tokens under ",
        ),
    ],
    "M005-media-without-offset": [
        ("KV-PREFIX-011", 9, "a row of media 'A' instead of a row of media 'B', written by request 1"),
    ],
    "M011-hit-without-recurrent-state": [
        (
            "KV-BLOCK-040",
            13,
            "request 2 computes position 8 without the recurrent state of the tokens it hit",
        ),
    ],
    "M024-tree-keeps-blocks-of-an-aborted-request": [
        ("KV-PREFIX-017", 12, "request 3 hits block 0, which was handed out to request 2"),
    ],
    "M052-published-before-computed": [
        (
            "KV-PREFIX-005",
            5,
            "block 2 is published with 4 tokens, one of them in slot 0, which was never written",
        ),
        ("KV-PREFIX-005", 9, "request 2 hits position 8 in slot 0 of block 2, which was never written"),
    ],
    "M054-no-block-for-decoded-tokens": [
        ("KV-BLOCK-020", 8, "request 1 computes position 8, but its table has 2 blocks of 4"),
    ],
    "M074-evicted-block-stays-in-lookup": [
        ("KV-PREFIX-017", 14, "request c hits block 0, which was handed out to request b"),
    ],
    "M102-draft-pool-not-filled": [
        (
            "KV-BLOCK-021",
            13,
            "request 2 reads position 0 in slot 0 of block 8, which still holds what request 1",
        ),
    ],
    "M135-fork-without-reference": [
        ("KV-BLOCK-005", 9, "request other is given block 6, which request parent still holds"),
        (
            "KV-BLOCK-021",
            12,
            "request parent reads position 4 in slot 0 of block 1, which holds a prefix of request other",
        ),
    ],
    "M167-window-block-freed-twice": [
        ("KV-BLOCK-006", 9, "request 2 lets go of block 0, which nobody holds"),
    ],
    "M173-freed-while-a-step-writes": [
        ("KV-BLOCK-011", 13, "request 2 is given block 2, but step 2, which may still use it, has not ended"),
    ],
    "M176-zeroed-after-it-arrived": [
        ("KV-BLOCK-021", 7, "request 1 reads position 0 in slot 0 of block 4, whose contents are lost"),
    ],
    "M207-decodes-what-never-arrived": [
        ("KV-BLOCK-040", 6, "request 1 computes position 9 without positions 0 to 8, which nobody computed"),
        ("KV-BLOCK-021", 6, "whose contents are lost (transfer pull-1 failed)"),
    ],
    "M212-end-of-prompt-dropped": [
        (
            "KV-BLOCK-040",
            12,
            "request 2 computes position 10 without positions 8 to 9, which nobody computed",
        ),
        ("KV-BLOCK-021", 12, "request 2 reads position 8 in slot 0 of block 3, which was never written"),
    ],
    "M217-freed-while-being-sent": [
        (
            "KV-BLOCK-011",
            9,
            "request 2 is given block 1, but transfer send-1, which may still use it, has not ended",
        ),
    ],
    "M226-pinned-the-other-copy": [
        ("KV-BLOCK-011", 16, "request 3 is given block 5, but transfer send-2, which may still use it"),
        ("KV-BLOCK-001", 16, "request 3 is given block 4, twice"),
        (
            "KV-BLOCK-021",
            17,
            "request 3 reads position 4 in slot 0 of block 4, which holds position 8 of request 3",
        ),
    ],
    "M249-resumed-at-the-prompt": [
        (
            "KV-BLOCK-040",
            14,
            "request 1 computes position 12 without positions 10 to 11, which nobody computed",
        ),
        ("KV-BLOCK-021", 14, "request 1 reads position 10 in slot 2 of block 5, which was never written"),
    ],
    "M250-hit-from-before-an-eviction": [
        (
            "KV-PREFIX-017",
            13,
            "request 2 hits block 1, which was evicted and not published since; it holds what ",
        ),
    ],
    "M251-second-chunk-never-comes": [
        (
            "KV-BLOCK-041",
            25,
            "request 1 has waited for 5 steps in which others were computed, expected at most 4",
        ),
    ],
    "M275-aborted-pull-keeps-blocks": [
        ("KV-BLOCK-044", 12, "request 1 was aborted and still holds 3 blocks: 4, 2, 7"),
    ],
    "M281-slots-of-another-block-size": [
        (
            "KV-BLOCK-020",
            4,
            "request 1 writes position 2 into slot 10 of block 2, but by its table it lies in slot 22",
        ),
        ("KV-BLOCK-021", 5, "request 1 reads position 2 in slot 2 of block 5, which was never written"),
    ],
    "M313-hit-shorter-than-its-window": [
        ("KV-BLOCK-020", 11, "request 2 reads position 3, but entry 1 of its table is none"),
    ],
    "M318-sleep-keeps-the-index": [
        ("KV-PREFIX-001", 10, "request 2 hits position 0 in slot 0 of block 0, whose contents are lost"),
    ],
    "M336-key-of-token-ids-alone": [
        (
            "KV-PREFIX-009",
            10,
            "the same tokens under salt 'tenant-1' instead of 'tenant-2', written by request 1",
        ),
    ],
}


def test_every_history_is_judged() -> None:
    """A history that no test looks at shows nothing."""
    assert {path.stem for path in HISTORIES.glob("*.jsonl")} == set(BUGS)
    assert len(BUGS) >= 10


@pytest.mark.parametrize("name", BUGS)
def test_a_public_bug_is_named(name: str) -> None:
    """Exactly the faults of the report, at their lines, with who did it and to whom."""
    report = sanitize(HISTORIES / f"{name}.jsonl")
    assert [(f.requirement, f.line) for f in report.findings] == [
        (rule, line) for rule, line, _ in BUGS[name]
    ]
    for finding, (_, _, words) in zip(report.findings, BUGS[name], strict=True):
        assert words in finding.message
        assert all(0 < line <= finding.line for line, _ in finding.excerpt)
        assert list(finding.excerpt) == sorted(finding.excerpt)
        assert len(finding.excerpt) <= 6


@pytest.mark.parametrize("name", BUGS)
def test_the_command_names_it(name: str) -> None:
    """Exit code 1, the requirement by id and slug, the line, and the earlier lines."""
    path = HISTORIES / f"{name}.jsonl"
    shown = CliRunner().invoke(main, ["sanitize", str(path)])
    assert shown.exit_code == 1
    for rule, line, words in BUGS[name]:
        assert any(
            text.startswith(f"FAIL  {rule} ") and f"line {line}: " in text and words in text
            for text in shown.output.splitlines()
        )
    told = json.loads(CliRunner().invoke(main, ["sanitize", str(path), "--json"]).stdout)
    assert [(f["requirement"], f["line"]) for f in told["findings"]] == [(r, n) for r, n, _ in BUGS[name]]


def test_the_excerpt_tells_the_story() -> None:
    """Who wrote the block, who published it, when it was handed out, who wrote it then."""
    (finding,) = sanitize(HISTORIES / "M074-evicted-block-stays-in-lookup.jsonl").findings
    assert finding.excerpt == (
        (4, "request a wrote positions 0 to 3 into block 0"),
        (5, "block 0 was published by request a"),
        (9, "block 0 was handed out to request b"),
        (10, "request b wrote positions 28 to 29 into block 0"),
    )
