"""Streams that vLLM, SGLang and Dynamo published, held to the rules; and the histories of the same runs.

The recordings are made by `record_vllm.py`, `record_sglang.py` and `record_dynamo.py` beside this file.
"""

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from kvref.memory.history import expanded
from kvref.memory.namespace import Namespace, Span
from kvref.memory.vllm_keys import event_hash, vllm_block_keys
from kvref.sanitizer.kv_event_findings import KVEventReport
from kvref.sanitizer.kv_event_kinds import Lookup, Removed
from kvref.sanitizer.kv_event_scheme import VllmScheme
from kvref.sanitizer.kv_event_stream import KVEvents, sanitize_kv_events
from kvref.sanitizer.kv_events import message_of
from kvref.sanitizer.sanitizer import sanitize

DATA = Path(__file__).parents[1] / "data" / "kv_events"
ADAPTERS = {"sql": "/adapters/sql", "law": "/adapters/law"}
#: Recording of vLLM -> PYTHONHASHSEED of the run, and its block size.
RUNS = {"vllm-int": ("vllm-none-hash", 4), "vllm-whole": ("7", 8)}


#: A row of the table in the page of reports: recording, copies, faults, requirements.
ROW = re.compile(r"^\| `([\w.-]+\.gz)` \| `(\w+)` \| (\d+) \| ?(.*?) ?\|$", re.MULTILINE)
REPORTS = Path(__file__).parents[2] / "conformance" / "reports" / "README.md"


def report_of(name: str, **given: Any) -> KVEventReport:
    """What a recording shows."""
    return sanitize_kv_events(DATA / name, name=name, **given)


def rules_of(name: str, **given: Any) -> set[str]:
    """The rules that a recording breaks."""
    return {finding.requirement[-3:] for finding in report_of(name, **given).findings}


def messages_of(name: str) -> list[Any]:
    """The lines of a recording."""
    return [json.loads(line) for line in gzip.decompress((DATA / name).read_bytes()).splitlines()]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("form", ["jsonl", "msgpack"])
def test_vllm_is_clean_where_each_copy_is_counted(name: str, form: str) -> None:
    """Under pressure, with salts, adapters, images, aborts and resets: every rule holds, every hash is the
    scheme's, and every answer of the cache is what the mirror says.
    """
    if form == "msgpack":
        pytest.importorskip("msgpack")
    seed, _ = RUNS[name]
    report = report_of(f"{name}.{form}.gz", copies="each", scheme=VllmScheme(seed, ADAPTERS))
    assert report.findings == []
    assert (report.unjudged, report.holes, report.repeated) == ({}, [], 0)
    assert report.events > 200
    assert report.lookups > 100


@pytest.mark.parametrize("name", RUNS)
def test_hashes_of_prompts_are_found_in_the_mirror(name: str) -> None:
    """Keys that are computed from a prompt alone find in the mirror what the cache answered."""
    seed, size = RUNS[name]
    judge, compared = KVEvents(copies="each"), 0
    for line, raw in enumerate(messages_of(f"{name}.jsonl.gz"), 1):
        asked = raw.get("lookup")
        if asked is not None:
            tokens = asked["token_ids"]
            keys: list[Any] = list(vllm_block_keys(tokens, size, namespace_of(asked, size), seed=seed))
            keys = [event_hash(key) for key in keys] if name == "vllm-int" else keys
            there = max(judge.mirror.match(keys).values(), default=0) * size
            assert min(there, (len(tokens) - 1) // size * size) == asked["num_cached_tokens"]
            compared += there > 0
        judge.feed(line, message_of(raw))
    assert compared > 30


def namespace_of(asked: dict[str, Any], size: int) -> Namespace:
    """The namespace of a request, its images read back from the extra keys."""
    adapter = asked.get("lora_name", "")
    images = {
        (item[0], item[1] + at * size)
        for at, extra in enumerate(asked.get("extra_keys", ()))
        for item in extra or ()
        if isinstance(item, list)
    }
    return Namespace(
        adapter=adapter,
        adapter_version=ADAPTERS.get(adapter, ""),
        salt=asked.get("cache_salt", ""),
        spans=tuple(Span(kind="media", digest=d, offset=offset, length=5) for d, offset in images),
    )


def test_vllm_tells_of_each_copy() -> None:
    """A mirror that keeps a set loses a block whose other copy is there, and answers less than the cache."""
    found = Counter(finding.requirement[-3:] for finding in report_of("vllm-int.jsonl.gz").findings)
    assert set(found) == {"041", "042", "046"}


def test_vllm_with_a_window_is_clean() -> None:
    """Two groups, one of which keeps a window: answers that it may shorten are not judged."""
    report = report_of("vllm-window.jsonl.gz", copies="each")
    assert report.findings == []
    assert set(report.unjudged) <= {"KV-PREFIX-046"}


def test_vllm_that_reports_hits_as_stores_cannot_be_mirrored() -> None:
    """With kv_cache_report_mode "full" a hit is published as a store: a set is told twice of one block, and a
    count never comes back to nothing.
    """
    assert rules_of("vllm-full-report.jsonl.gz", max_findings=1000) == {"041"}
    assert rules_of("vllm-full-report.jsonl.gz", copies="each") == {"046"}


@pytest.mark.parametrize("name", ["sglang-told.jsonl.gz", "sglang-told-dynamo.jsonl.gz"])
def test_sglang_is_clean_in_namespaces_that_it_tells(name: str) -> None:
    """Salts and named adapters, in both formats: each key is told once, and every answer is the mirror's."""
    report = report_of(name)
    assert (report.findings, report.unjudged) == ([], {})
    assert report.lookups == 120


def test_sglang_leaves_out_other_extra_keys() -> None:
    """Under an extra key that is no adapter's, the published key is that of the same tokens without: one key
    stands in two namespaces, and what one of them evicts is lost to the other. Dynamo's format keeps them
    apart, but nothing that is published says why.
    """
    assert rules_of("sglang-extra-key.jsonl.gz") == {"040", "041", "042", "046"}
    assert rules_of("sglang-extra-key-dynamo.jsonl.gz") == {"030", "046"}


def test_dynamo_finds_what_the_mirror_finds() -> None:
    """Workers and ranks apart, prefixes by the hashes of their tokens, while leaves alone are removed."""
    report = report_of("dynamo-leaves.jsonl.gz")
    assert (report.findings, report.unjudged) == ([], {})
    assert report.lookups == 480


def test_dynamo_forgets_what_lies_behind_a_removed_block() -> None:
    """A block in the middle is removed and stored again: what follows it is held, and the index lacks it."""
    findings = report_of("dynamo-anything.jsonl.gz").findings
    assert {finding.requirement for finding in findings} == {"KV-PREFIX-046"}
    assert all("is there" in finding.message for finding in findings)


@pytest.mark.parametrize("name", RUNS)
def test_history_of_the_same_run_is_clean(name: str) -> None:
    """What the scheduler did with the blocks, replayed over shadow memory; it evicted what was removed."""
    path = DATA / f"{name}.history.jsonl.gz"
    report = sanitize(path)
    assert (report.findings, report.closed) == ((), True)
    events = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    kinds = Counter(event["event"] for event in events)
    assert {"hit", "evict", "preempt", "abort", "publish", "compute", "decode"} <= set(kinds)
    assert kinds["reset"] == 2
    evicted = sum(len(expanded(event["blocks"])) for event in events if event["event"] == "evict")
    told = [message_of(raw) for raw in messages_of(f"{name}.jsonl.gz")]
    removed = [e for message in told for _, e in message.read() if isinstance(e, Removed)]
    assert sum(len(event.keys) for event in removed) == evicted
    answers = [e.answer for message in told for _, e in message.read() if isinstance(e, Lookup)]
    assert sum(answer > 0 for answer in answers) >= kinds["hit"] > 20


@pytest.mark.parametrize("row", ROW.findall(REPORTS.read_text()), ids=lambda row: f"{row[0]} {row[1]}")
def test_page_of_reports_counts_what_is_found(row: tuple[str, str, str, str]) -> None:
    """Each row of the page is what the command finds."""
    name, copies, faults, rules = row
    report = report_of(name, copies=copies, max_findings=100)
    assert (len(report.findings), sorted({f.requirement for f in report.findings})) == (
        int(faults),
        rules.split(", ") if rules else [],
    )


def test_page_of_reports_has_each_engine() -> None:
    """The table is read, and names the recordings of all three."""
    names = [row[0] for row in ROW.findall(REPORTS.read_text())]
    assert {name.partition("-")[0] for name in names} == {"vllm", "sglang", "dynamo"}
    assert len(names) == 9
