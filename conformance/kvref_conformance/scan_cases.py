"""Points of the domain of recurrent layers: lengths around the chunk grid, heads, widths, dtypes.

A case has the fields of any other: `query_lens` are the tokens that are scanned, and a request whose
`seq_lens` is larger has been scanned before, so it starts from a state that is not zero. `num_kv_heads`
counts heads of keys, or groups of B and C, and `group` the heads that share one.

Realises: KV-CONF-005 minimum-domain.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from kvref_conformance.cases import Case, Level, Option
from kvref_conformance.claims import MINIMUM_GROUPS, Claims
from kvref_conformance.verbs_of_scans import UPDATES

#: Scans of channels: of heads they know nothing.
OF_CHANNELS = ("causal_conv", "selective_scan")
#: What has heads that are all alike: no group shares anything.
UNGROUPED = ("kimi_delta_attention", "decay_gate")
#: Scans with keys and values, whose widths may differ.
DELTA = ("gated_delta_rule", "kimi_delta_attention")
MAMBA = ("selective_scan", "ssd_scan")
#: Tokens a scan takes at once where the subject says that it takes one: others take 64.
USUAL_CHUNK = 64
#: Heads of keys and heads that share one, beside two by three: fewer shared, one more, as many.
RATIOS = ((3, 2), (4, 3), (3, 3))
_SCAN_OF = {update: scan for scan, update in UPDATES.items()}
#: How many length patterns `scan_lengths` returns.
PATTERNS = 4


def scan_of(verb: str) -> str:
    """Return the scan that a verb does, or does for one token."""
    return _SCAN_OF.get(verb, verb)


def is_update(verb: str) -> bool:
    """Say whether a verb takes one token of each request and writes a pool."""
    return verb in _SCAN_OF


def chunk_of(claims: Claims) -> int:
    """Return the declared tokens of a chunk."""
    return claims.scan_arithmetic.chunk_size or USUAL_CHUNK


def scan_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return the cases that checks of a scan, an update or a gate start from.

    Quick: every group of the minimum domain and every claimed dtype and width at least once. Full: every
    combination of group, dtype and length pattern. Exhaustive: every combination of group, dtype and widths.
    """
    cases = []
    for seed, (group, dtype, head_dim, widths, pattern) in enumerate(_points(claims, verb, level)):
        lens = update_lengths(pattern) if is_update(verb) else scan_lengths(claims, widths, pattern)
        num_kv_heads, shared = _heads(verb, group, seed)
        cases.append(
            Case(
                verb=verb,
                seq_lens=tuple(n + before for n, before in lens),
                query_lens=tuple(n for n, _ in lens),
                num_kv_heads=num_kv_heads,
                group=shared,
                head_dim=head_dim,
                dtype=dtype,
                seed=seed,
                options=dict(widths),
            )
        )
    return cases


def _heads(verb: str, group: int, seed: int) -> tuple[int, int]:
    """Return the heads of keys, or groups of B and C, and the heads that share one: few, states are large."""
    if scan_of(verb) in OF_CHANNELS:
        return 1 + seed % 3, 1
    if scan_of(verb) in UNGROUPED:
        return group, 1
    return {1: 3, 3: 2}.get(group, 1), group


def scan_lengths(claims: Claims, widths: dict[str, Option], pattern: int) -> list[tuple[int, int]]:
    """Return (tokens, tokens scanned before) of each request: around the chunk grid, below the window."""
    c, w = chunk_of(claims), int(widths.get("conv_width", 4))
    patterns = [
        [(c + 1, 5), (1, 0), (0, 9), (c - 1, 0)],
        [(2 * c + 3, 0), (max(w - 2, 1), 3), (c, 7)],
        [(1, 4), (c + 5, 0), (w - 1, 2), (2, 1)],
        [(c - 1, 2), (0, 0), (2 * c + 1, 1), (2, 0)],
    ]
    return patterns[pattern]


def update_lengths(pattern: int) -> list[tuple[int, int]]:
    """Return one token for each of some requests, of which all but one have been scanned before."""
    return [(1, (3 * i + pattern) % 5) for i in range(3 + pattern)]


def smallest_case(claims: Claims, verb: str) -> Case:
    """Return the case of one request of one token in the smallest widths: a check makes something of it."""
    widths: dict[str, Option] = {"channels": False}
    if scan_of(verb) in DELTA:
        widths = {"v_dim": min(claims.head_dims)}
    if scan_of(verb) in MAMBA:
        widths = {"state_dim": min(claims.state_dims)}
    if scan_of(verb) == "causal_conv":
        widths = {"conv_width": min(claims.conv_widths)}
    return Case(
        verb=verb,
        seq_lens=(1,),
        query_lens=(1,),
        num_kv_heads=1,
        group=1,
        head_dim=min(claims.head_dims),
        dtype=claims.dtypes[0],
        options=widths,
    )


def state_size(case: Case) -> int:
    """Return how many numbers the state of one request has."""
    behind = next(
        int(case.options[name]) for name in ("v_dim", "state_dim", "conv_width") if name in case.options
    )
    return case.num_q_heads * case.head_dim * (behind - 1 if "conv_width" in case.options else behind)


def every_second(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Half of the cases: for checks whose fault does not depend on the group."""
    return scan_cases(claims, verb, level)[::2]


def grouped(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Several heads of keys or groups of B and C, each shared by several: two by three, and other ratios."""
    cases = [c for c in scan_cases(claims, verb, level) if min(c.group, c.num_kv_heads) > 1]
    short = [(1, i) for i in range(3)] if is_update(verb) else [(5, 1), (2, 0)]
    return cases + [
        replace(relen(case, short), num_kv_heads=heads, group=group)
        for case in cases[:1]
        for heads, group in RATIOS
    ]


def shorter_than_the_window(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Requests with fewer tokens than the window has inputs before, and one with as many."""
    return [
        relen(case, [(n, 4 - i) for i, n in enumerate((1, 0, max(int(case.option("conv_width")) - 2, 1), 2))])
        for case in scan_cases(claims, verb, level)
    ]


def relen(case: Case, lens: Sequence[tuple[int, int]]) -> Case:
    """Return the case with other requests: (tokens, tokens scanned before) of each."""
    return replace(
        case, seq_lens=tuple(n + before for n, before in lens), query_lens=tuple(n for n, _ in lens)
    )


def _points(
    claims: Claims, verb: str, level: Level
) -> Iterator[tuple[int, str, int, dict[str, Option], int]]:
    """Yield (group, dtype, head_dim, other widths, number of the length pattern)."""
    dtypes, dims = claims.dtypes, claims.head_dims
    if level == "quick":
        count = max(
            len(MINIMUM_GROUPS), len(dtypes), len(dims), len(claims.state_dims), len(claims.conv_widths)
        )
        for i in range(count):
            yield (
                _at(i, MINIMUM_GROUPS),
                _at(i, dtypes),
                _at(i, dims),
                widths_of(claims, verb, i),
                i % PATTERNS,
            )
    elif level == "full":
        for i, (group, dtype, pattern) in enumerate(product(MINIMUM_GROUPS, dtypes, range(PATTERNS))):
            yield group, dtype, _at(i, dims), widths_of(claims, verb, i), pattern
    else:
        others = max(len(claims.state_dims), len(claims.conv_widths))
        for i, (group, dtype, dim, other) in enumerate(product(MINIMUM_GROUPS, dtypes, dims, range(others))):
            yield group, dtype, dim, widths_of(claims, verb, other + others * (i % 2)), i % PATTERNS


def widths_of(claims: Claims, verb: str, i: int) -> dict[str, Option]:
    """Return the widths that a verb has beside the first: of values, of a state, of a window."""
    scan = scan_of(verb)
    if scan in DELTA:
        own = _at(i, claims.head_dims)
        apart = "value_width" in claims.features and i % 2 == 1
        return {"v_dim": own if not apart else next((d for d in claims.head_dims if d != own), own // 2)}
    if scan in MAMBA:
        return {"state_dim": _at(i, claims.state_dims)}
    if scan == "causal_conv":
        return {"conv_width": _at(i, claims.conv_widths)}
    return {"channels": False}


def _at(i: int, values: Sequence[Any]) -> Any:
    return values[i % len(values)]
