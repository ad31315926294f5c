"""One word per thing: the synonyms that other engines use do not creep into ours."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

#: What not to write -> the word for it.
SYNONYMS = {
    r"pages?|page_(?:size|table|ids?)|num_pages": "block, block_size, block_tables",
    r"sequences?|seq_ids?|num_seqs": "request, num_requests",
    r"cu_seqlens(?:_q)?|qo_indptr": "query_start_loc",
    r"context_lens|seqlens_k": "seq_lens",
    r"sm_scale|softmax_scale": "scale",
    r"head_size|dim_head": "head_dim",
    r"num_qo_heads|num_heads_q|num_attention_heads": "num_q_heads",
    r"num_heads_kv|num_key_value_heads": "num_kv_heads",
    r"logsumexp|log-sum-exp|softmax_lse": "lse",
    r"descales?|dequant_scales?|block[_ ]scales?|scale[_ ]blocks?|micro-?blocks?": "scales, of groups",
    r"quantum|quanta|qvalues?": "code, codes",
    r"simpl[ey]": "nothing: say what it is",
}

#: Adapters speak their engine's language to it. The built-in subject is ours.
ADAPTERS = ROOT / "conformance" / "kvref_conformance" / "subjects"

#: (file or folder, word) that means something else there, or is another engine's own name in running text.
ALLOWED = {
    ("spec/conformance.md", "page"): "a page of HTML",
    ("conformance/kvref_conformance/report/", "page"): "a page of HTML or Markdown",
    ("kvref/formats/pages.py", "page"): "the bytes of a block, in the order in which an engine lays them out",
    ("kvref/formats/pages.py", "pages"): "the same, more than one",
    ("kvref/attention/batch.py", "cu_seqlens_q"): "the docstring maps our word to FlashAttention's",
    ("kvref/attention/batch.py", "qo_indptr"): "the docstring maps our word to FlashInfer's",
    **{
        (place, word): "a key of a config"
        for place in (
            "kvref/planning/",
            "conformance/kvref_conformance/museum/cache_geometry/",
            "conformance/kvref_conformance/programs/models_of_",
            "conformance/kvref_conformance/programs/odd_models.py",
            "conformance/kvref_conformance/subjects/lists/layers.py",
        )
        for word in ("num_attention_heads", "num_key_value_heads")
    },
    ("kvref/planning/indifferent_keys.py", "softmax_scale"): "a key of a config",
    ("kvref/planning/state_shapes.py", "head_size"): "a key of a config",
}


def texts() -> Iterator[tuple[str, str]]:
    """Every file of ours, as (path, text); in Markdown, quoted code is left out: names of other engines."""
    for folder in ("kvref", "conformance/kvref_conformance", "spec"):
        for path in sorted((ROOT / folder).rglob("*")):
            if "_spec" in path.parts or (ADAPTERS in path.parents and path.parent == ADAPTERS):
                continue
            text = path.read_text(encoding="utf-8") if path.suffix in (".py", ".md") else ""
            if path.suffix == ".md":
                text = re.sub(r"`[^`\n]+`", "", re.sub(r":source:.*", "", text))
            yield str(path.relative_to(ROOT)), text


@pytest.mark.parametrize("pattern", SYNONYMS)
def test_one_word_per_thing(pattern: str) -> None:
    """A reader who meets a second word looks for a second thing."""
    banned = re.compile(rf"(?<![A-Za-z_])(?:{pattern})(?![A-Za-z_])")
    found = [
        f"{path}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}"
        for path, text in texts()
        for match in banned.finditer(text)
        if not any(path.startswith(place) and match[0] == word for place, word in ALLOWED)
    ]
    assert found == [], f"write {SYNONYMS[pattern]}"


def test_allowlist_is_used() -> None:
    """An exception that nothing needs would excuse the next slip."""
    found = list(texts())
    unused = [
        (place, word)
        for place, word in ALLOWED
        if not any(path.startswith(place) and word in text for path, text in found)
    ]
    assert unused == []
