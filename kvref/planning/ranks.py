"""What one rank keeps, and the block in which a hybrid model's entries and states take the same memory.

Ranks of tensor parallelism share out KV heads, and the heads of states. Where there are fewer KV heads than
ranks each head is kept more than once. One vector for all heads, and the key of an indexer, each rank keeps
whole. A group of Mamba-2 that all heads read is copied. Where the attention of such ranks is data-parallel,
groups of them share out the requests, and a group keeps nothing of the requests of another.

Realises: KV-SIZE-014 tensor-parallel-replication, KV-SIZE-015 hybrid-block-size, KV-SIZE-018
dp-attention-groups.
For porters: `geometry_of_rank` gives a geometry like any other, so that every sum is the same code.
Source: vLLM 0.32.0, whose logs for Kimi K3 and Qwen3.6 give the block sizes 768 and 784.
"""

from dataclasses import replace
from fractions import Fraction
from typing import NoReturn

from kvref.arrays import check_count
from kvref.errors import ArgumentError
from kvref.formats.footprints import Form
from kvref.planning.groups import CacheGeometry, LayerGroup, StateGroup, entry_bytes

#: Kinds whose entries have no heads.
WHOLE = ("latent", "indexer", "compressed")


def geometry_of_rank(
    geometry: CacheGeometry, tensor_parallel: int, *, dp_attention: int = 1
) -> CacheGeometry:
    """Return what each of so many ranks keeps of a request that is its own.

    `dp_attention` groups of ranks share out the requests between them, and each group the heads.
    Raises: ArgumentError if the ranks cannot share out the heads, or no groups of equal size can be made.
    """
    check_count("tensor_parallel", tensor_parallel)
    if tensor_parallel % check_count("dp_attention", dp_attention):
        raise ArgumentError(
            f"dp_attention = {dp_attention} groups, expected a divisor of {tensor_parallel} ranks "
            "(KV-SIZE-018 dp-attention-groups)"
        )
    ranks = tensor_parallel // dp_attention
    return replace(
        geometry,
        groups=tuple(_entries(group, ranks) for group in geometry.groups),
        states=tuple(_state(state, ranks) for state in geometry.states),
        drafts=tuple(_entries(group, ranks) for group in geometry.drafts),
    )


def hybrid_block_size(geometry: CacheGeometry, form: Form = "bfloat16", *, multiple: int = 16) -> int:
    """Return the smallest multiple of so many tokens whose entries of one layer hold one layer's state.

    The geometry is that of one rank. Engines take 16 tokens, or 128 for latent attention.
    Raises: ArgumentError if the model has no entries that grow, or no state; as `entry_bytes`.
    """
    check_count("multiple", multiple)
    growing = [g for g in geometry.groups if g.layers and g.window is None and g.kind != "indexer"]
    if not growing or not geometry.states:
        raise ArgumentError(
            f"{geometry.name or 'the model'} is no hybrid: expected layers that attend and layers with a "
            "state (KV-SIZE-015 hybrid-block-size)"
        )
    entry = min(Fraction(entry_bytes(group, form)) / group.tokens_per_entry for group in growing)
    held = max(state.recurrent_bytes + state.conv_bytes for state in geometry.states)
    return multiple * -(-held // (multiple * entry))


def _entries(group: LayerGroup, ranks: int) -> LayerGroup:
    if group.kind in WHOLE or not group.v_dim:
        return group
    heads = group.num_heads
    if heads % ranks and ranks % heads:
        _refuse(f"{heads} KV heads of {group.kind} layers", ranks)
    return replace(group, num_heads=max(1, heads // ranks))


def _state(state: StateGroup, ranks: int) -> StateGroup:
    """Share out the first axis of both parts; groups of Mamba-2 apart from the heads' channels."""
    if ranks == 1:
        return state
    recurrent, conv = state.recurrent, state.conv
    groups = max(1, state.num_groups // ranks) if state.num_groups else 0
    if recurrent and recurrent[0] % ranks:
        _refuse(f"{recurrent[0]} heads of {state.family} layers", ranks)
    if conv:
        shared = state.num_groups * state.group_channels
        own = conv[0] - shared
        if own % ranks or (state.num_groups % ranks and ranks % max(state.num_groups, 1)):
            _refuse(f"{conv[0]} channels of {state.family} layers", ranks)
        conv = (own // ranks + groups * state.group_channels, *conv[1:])
    held = (recurrent[0] // ranks, *recurrent[1:]) if recurrent else ()
    return replace(state, recurrent=held, conv=conv, num_groups=groups)


def _refuse(what: str, ranks: int) -> NoReturn:
    raise ArgumentError(
        f"tensor_parallel = {ranks} ranks cannot share out {what}, expected one to divide the other "
        "(KV-SIZE-014 tensor-parallel-replication)"
    )
