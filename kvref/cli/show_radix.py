"""The figure of prefixes in a tree: four prompts that share a system prompt, and two by two a document."""

from typing import Any

from kvref.cli.figure import Figure

#: The parts of a prompt and their tokens, and the four prompts.
SYSTEM, DOCUMENT, QUESTION = 400, 1200, 150
PROMPTS = (("sys", "docA", "q1"), ("sys", "docA", "q2"), ("sys", "docB", "q3"), ("sys", "docB", "q4"))


def radix() -> dict[str, Any]:
    """Serve four prompts through a tree of tokens, and through one that knows the system prompt alone."""
    from kvref.memory.radix_cache import RadixCache

    parts = _parts()
    prompts = [[token for name in prompt for token in parts[name]] for prompt in PROMPTS]
    total = sum(map(len, prompts))
    cache = RadixCache(total, block_size=1)
    rows = []
    for request, (names, tokens) in enumerate(zip(PROMPTS, prompts, strict=True)):
        hit = cache.admit(request, tokens).num_cached_tokens
        cache.commit(request)
        cache.finish(request)
        rows.append({"prompt": list(names), "tokens": len(tokens), "hit": hit, "computed": len(tokens) - hit})
    return {
        "system_prompt": SYSTEM,
        "document": DOCUMENT,
        "question": QUESTION,
        "prompts": rows,
        "prefill_no_reuse": total,
        "prefill_cached_system_prompt": _one_prefix(list(parts["sys"]), prompts),
        "prefill_radix": sum(row["computed"] for row in rows),
        "reused_radix": sum(row["hit"] for row in rows),
        "tree": _nodes(cache, parts),
    }


def _parts() -> dict[str, range]:
    """Tokens of every part, no token in two."""
    names = dict.fromkeys(name for prompt in PROMPTS for name in prompt)
    sizes = {"s": SYSTEM, "d": DOCUMENT, "q": QUESTION}
    return {name: range(at * 10_000, at * 10_000 + sizes[name[0]]) for at, name in enumerate(names)}


def _one_prefix(prefix: list[int], prompts: list[list[int]]) -> int:
    """Count what is computed if one prefix is, once, and nothing else is kept."""
    from kvref.memory.radix import RadixTree
    from kvref.memory.radix_contents import block_contents

    tree = RadixTree()
    tree.insert(block_contents(prefix, 1), range(len(prefix)))
    found = (tree.find(block_contents(prompt, 1)).num_blocks for prompt in prompts)
    return len(prefix) + sum(map(len, prompts)) - sum(found)


def _nodes(cache: Any, parts: dict[str, range]) -> list[dict[str, Any]]:
    """List the nodes of a cache's tree: how deep, which parts, how many tokens, used by how many prompts."""
    starts = {tokens.start: name for name, tokens in parts.items()}
    listed = []
    for node in cache.tree.nodes():
        tokens = [int.from_bytes(content, "little") for content in node.contents]
        depth = sum(1 for _ in node.path()) - 2
        names = [starts[token] for token in tokens if token in starts]
        listed.append({"depth": depth, "parts": names, "tokens": len(tokens), "prompts": node.uses})
    return listed


def _spelled(data: dict[str, Any]) -> str:
    lines = [f"{'prompt':<16}tokens    hit  computed"]
    for row in data["prompts"]:
        lines.append(f"{' '.join(row['prompt']):<16}{row['tokens']:>6} {row['hit']:>6}  {row['computed']:>8}")
    lines.append("")
    for branch, node in zip(_branches([node["depth"] for node in data["tree"]]), data["tree"], strict=True):
        used = f"{node['prompts']} prompts" if node["prompts"] > 1 else "1 prompt"
        lines.append(f"{branch + ' '.join(node['parts']):<16}{node['tokens']:>6}    of {used}")
    lines += [
        "",
        f"{data['prefill_no_reuse']} tokens: all computed without reuse, "
        f"{data['prefill_cached_system_prompt']} with the system prompt kept, "
        f"{data['prefill_radix']} with the tree, which reuses {data['reused_radix']}",
    ]
    return "\n".join(lines)


def _branches(depths: list[int]) -> list[str]:
    """Draw what stands before each node of a tree, listed each before its children."""
    drawn = []
    for at, depth in enumerate(depths):
        # a level goes on if a node of it comes before one that is higher up
        goes_on = [_next_at_or_above(depths, at, level) == level for level in range(1, depth + 1)]
        stems = ["│  " if more else "   " for more in goes_on[:-1]]
        drawn.append("".join(stems) + ("├─ " if goes_on[-1] else "└─ ") if depth else "")
    return drawn


def _next_at_or_above(depths: list[int], at: int, level: int) -> int:
    return next((depth for depth in depths[at + 1 :] if depth <= level), 0)


#: Figure -> what computes it, and what spells it out.
RADIX_FIGURES = {"radix": Figure(radix, _spelled)}
