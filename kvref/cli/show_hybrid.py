"""The figure of a hybrid model: where two prompts part, what blocks alone could reuse, what states allow."""

from typing import Any

#: The figure's model, Kimi K3: 69 recurrent layers, 24 of latent attention with 576 numbers a token.
HYBRID_MODEL = "Kimi-K3"
RECURRENT_LAYERS, HEADS, HEAD_DIM, CONV_WIDTH = 69, 96, 128, 4
ATTENTION_LAYERS, LATENT, BYTES = 24, 576, 2
#: Two prompts of so many tokens, equal up to here; blocks and snapshots.
PROMPT, DIVERGES_AT, BLOCK, INTERVAL = 6144, 3700, 16, 768
#: Tokens that one character of the drawing stands for.
_TOKENS_A_CHARACTER = 96


def hybrid(interval: int = INTERVAL) -> dict[str, Any]:
    """Serve three prompts that share a beginning, through blocks alone and through blocks and snapshots."""
    from kvref.memory.prefix_cache import PrefixCache
    from kvref.recurrent.sizes import kda_state

    first, second, third = (
        [*range(DIVERGES_AT), *range(at * 10_000, at * 10_000 + PROMPT - DIVERGES_AT)] for at in (1, 2, 3)
    )
    blocks = PrefixCache(3 * PROMPT // BLOCK, block_size=BLOCK)
    attention = [_served(blocks, at, tokens)[0] for at, tokens in enumerate((first, second))]
    joint, saved, junction = _joint(first, second, third, interval)
    kda = kda_state(num_heads=HEADS, head_k_dim=HEAD_DIM, head_v_dim=HEAD_DIM, conv_width=CONV_WIDTH)
    state, conv = RECURRENT_LAYERS * kda.recurrent_bytes(), RECURRENT_LAYERS * kda.conv_bytes()
    a_token = ATTENTION_LAYERS * LATENT * BYTES
    return {
        "model": HYBRID_MODEL,
        "kda_layers": RECURRENT_LAYERS,
        "mla_layers": ATTENTION_LAYERS,
        "shared_prompt": PROMPT,
        "diverges_at": DIVERGES_AT,
        "snapshot_every": interval,
        "block_size": BLOCK,
        "full_attention_reuse": attention[1],
        "full_attention_recompute": DIVERGES_AT - attention[1],
        "hybrid_reuse": joint,
        "hybrid_recompute": DIVERGES_AT - joint,
        "junction_reuse": junction,
        "snapshots_at": saved,
        "snapshots_kept": len(saved),
        "state_snapshot_bytes": state,
        "conv_snapshot_bytes": conv,
        "all_snapshots_bytes": len(saved) * state,
        "kv_bytes_per_token_bf16": a_token,
        "attention_kv_for_prompt_bytes": PROMPT * a_token,
        "snapshot_in_tokens_of_kv": round(state / a_token, 2),
    }


def _joint(
    first: list[int], second: list[int], third: list[int], interval: int
) -> tuple[int, list[int], int]:
    """Serve three prompts; return the second one's hit, where the first saved states, the third one's hit."""
    from kvref.memory.snapshot_cache import SnapshotCache

    states = 3 * (PROMPT // interval + 2)
    cache = SnapshotCache(3 * PROMPT // BLOCK, states, block_size=BLOCK, snapshot_interval=interval)
    _, saved = _served(cache, 0, first)
    joint, _ = _served(cache, 1, second)
    junction, _ = _served(cache, 2, third)
    return joint, saved, junction


def _served(cache: Any, request: int, tokens: list[int]) -> tuple[int, list[int]]:
    """Serve one prompt; return its hit, and where it saved states."""
    admission = cache.admit(request, tokens)
    cache.commit(request)
    cache.finish(request)
    return admission.num_cached_tokens, list(getattr(admission, "save_positions", []))


def spelled_hybrid(data: dict[str, Any]) -> str:
    """Draw the prompts, the blocks and the snapshots along the tokens, and say what each reuses."""
    at, whole = data["diverges_at"], data["shared_prompt"]
    joint, blocks = data["hybrid_reuse"], data["full_attention_reuse"]
    marks = [" "] * (whole // _TOKENS_A_CHARACTER + 1)
    for position in data["snapshots_at"]:
        marks[position // _TOKENS_A_CHARACTER] = "▲"
    gib = data["all_snapshots_bytes"] / 2**30
    return "\n".join(
        [
            f"two prompts of {whole} tokens that part after {at}; blocks of {data['block_size']}, "
            f"a snapshot every {data['snapshot_every']}",
            "",
            "first prompt   " + _bar("━", whole),
            "second prompt  " + _bar("━", at) + _bar("╌", whole)[len(_bar("━", at)) :],
            "blocks hit     " + _bar("■", blocks) + f" {blocks}, {at - blocks} of the shared tokens again",
            "snapshots      " + "".join(marks).rstrip(),
            "both hit       " + _bar("■", joint) + f" {joint}, {at - joint} of the shared tokens again",
            "third prompt   " + _bar("■", data["junction_reuse"]) + f" {data['junction_reuse']}, "
            "after the second saved its state where it left the first",
            "",
            f"{data['model']}: a snapshot is {data['state_snapshot_bytes'] / 2**20:g} MiB of recurrent "
            f"state, as much as {data['snapshot_in_tokens_of_kv']:.0f} tokens of keys and values,",
            f"and {data['conv_snapshot_bytes'] / 2**20:.2f} MiB of conv state beside it; "
            f"the {data['snapshots_kept']} of the first prompt are {gib:.2f} GiB,",
            f"its keys and values {data['attention_kv_for_prompt_bytes'] / 2**20:g} MiB",
        ]
    )


def _bar(mark: str, tokens: int) -> str:
    return mark * round(tokens / _TOKENS_A_CHARACTER)
