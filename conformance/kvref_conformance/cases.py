"""Points of the domain: which lengths, heads, widths and dtypes a check is run at.

A case is a recipe, not tensors: every input follows from it, so a failing case is a few numbers in a file,
and shrinking works on those numbers. The lattice is hostile on purpose: at least two requests of unequal,
unaligned lengths, head counts that are no power of two, a scale far from head_dim ** -0.5.

Realises: KV-CONF-005 minimum-domain.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import cycle, product
from math import lcm
from typing import Any, Literal

from kvref.errors import ArgumentError
from kvref_conformance.claims import MINIMUM_GROUPS, Claims
from kvref_conformance.managers import MANAGERS, Value

Level = Literal["quick", "full", "exhaustive"]
LEVELS: tuple[Level, ...] = ("quick", "full", "exhaustive")
Option = int | float | str | bool
#: Groups visited beside the minimum domain at level exhaustive.
MORE_GROUPS = (2, 4, 5, 16)
#: A context longer than this is of thousands of tokens.
LONG = 4096
#: Option of a case that takes consecutive tokens of an input made for it: the first of them.
FIRST = "first"
#: Option of a case about a manager: what is done to it, as text; steps are separated by semicolons.
PROGRAM = "program"
#: How many length patterns `length_patterns` returns.
PATTERNS = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of the domain."""

    verb: str
    """A verb, or a manager: then there are no lengths, and the option `program` says what is done."""
    seq_lens: tuple[int, ...]
    query_lens: tuple[int, ...]
    num_kv_heads: int = 2
    group: int = 3
    head_dim: int = 64
    block_size: int = 16
    dtype: str = "float32"
    seed: int = 0
    options: Mapping[str, Option] = field(default_factory=dict)
    """What the check adds: a window, a position to hunt."""

    @property
    def num_q_heads(self) -> int:
        """Query heads: kv heads times the group."""
        return self.num_kv_heads * self.group

    @property
    def num_tokens(self) -> int:
        """Query tokens over all requests."""
        return sum(self.query_lens)

    def with_options(self, **options: Option) -> "Case":
        """Return the case with options added."""
        return replace(self, options={**self.options, **options})

    def option(self, name: str) -> Any:
        """Return an option the check has set."""
        return self.options[name]

    def size(self) -> tuple[int, ...]:
        """Order cases by how much a reader has to look at: fewer requests, tokens, heads, channels.

        Of programs: fewer steps, then shorter ones.
        """
        if PROGRAM in self.options:
            return (self.options[PROGRAM].count(";") + 1, len(self.options[PROGRAM]))  # type: ignore[union-attr, arg-type]
        return (len(self.seq_lens), sum(self.seq_lens), self.num_tokens, self.num_q_heads, self.head_dim)

    def to_dict(self) -> dict[str, Any]:
        """Return the case as JSON values."""
        return {**asdict(self), "options": dict(self.options)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Case":
        """Read a case from JSON values.

        Raises: ArgumentError naming the field and what was expected.
        """
        kinds = {f.name: f.type for f in fields(Case)}
        if (
            not isinstance(data, Mapping)
            or set(data) - set(kinds)
            or not {"verb", "seq_lens", "query_lens"} <= set(data)
        ):
            raise ArgumentError(f"case = {data!r:.200}, expected an object with fields {', '.join(kinds)}")
        values: dict[str, Any] = dict(data)
        for name in ("seq_lens", "query_lens"):
            values[name] = _lengths(name, values[name])
        if len(values["seq_lens"]) != len(values["query_lens"]):
            raise ArgumentError(
                "case.seq_lens and case.query_lens differ in length, expected one each a request"
            )
        for name in ("num_kv_heads", "group", "head_dim", "block_size", "seed"):
            value, least = values.get(name, 1), 0 if name == "seed" else 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 2**20:
                raise ArgumentError(f"case.{name} = {value!r}, expected an integer from {least} to 2**20")
        return Case(**values)


def opening(case: Case) -> dict[str, Value]:
    """Return the arguments that the manager of a case is opened with: its options, and its block size.

    A list stands among the options as text, its entries separated by commas.
    Raises: ArgumentError if the case does not say them.
    """
    found: dict[str, Value] = {}
    for parameter in MANAGERS[case.verb].opens:
        given = case.options.get(parameter.name)
        if given is not None:
            whole = parameter.kind == "ints"
            found[parameter.name] = [int(n) for n in str(given).split(",")] if whole else int(given)
        elif parameter.name in ("block_size", "block_sizes"):
            found[parameter.name] = case.block_size if parameter.kind == "int" else [case.block_size]
        elif parameter.feature is None:
            raise ArgumentError(f"case.options has no {parameter.name}, expected it of {case.verb}")
    return found


def lattice(
    claims: Claims, verb: str, level: Level, *, prefill: bool | None = None, min_len: int = 1
) -> list[Case]:
    """Return the cases every attending check starts from.

    Quick: every group of the minimum domain and every claimed dtype, width and block size at least once.
    Full: every combination of group, dtype and length pattern. Exhaustive: every combination of group (more
    of them), dtype, width and block size. `prefill` False keeps one query token a request; `min_len` bounds
    contexts from below.
    """
    chunks = "prefill" in claims.features and prefill is not False
    cases = []
    for seed, (group, dtype, head_dim, block_size, shape) in enumerate(_points(claims, level)):
        pattern = length_patterns(block_size, min_len)[shape]
        cases.append(
            Case(
                verb=verb,
                seq_lens=pattern,
                query_lens=_query_lens(pattern, chunks),
                num_kv_heads=1 + seed % 2 if group > 1 else 3,
                group=group,
                head_dim=head_dim,
                block_size=block_size,
                dtype=dtype,
                seed=seed,
            )
        )
    return cases


def length_patterns(block_size: int, min_len: int = 1) -> list[tuple[int, ...]]:
    """Return batches of unequal context lengths around the block grid, none shorter than `min_len`."""
    b = max(block_size, 2)
    patterns = [(2 * b + 3, b - 1), (b + 1, 1, 2 * b), (3 * b - 1, b), (1, 2 * b + 1, b + b // 2)]
    grid = -(-min_len // b) * b
    return [tuple(n if n >= min_len else n + grid for n in pattern) for pattern in patterns]


def tile_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return decoding over contexts that end around the tiles of kernels: 64, 128 and 256 tokens, ± 1.

    One case at level quick; at the others each end meets every group of the minimum domain. And one context
    of thousands of tokens, with few heads.
    """
    point = lattice(claims, verb, level, prefill=False)
    if level == "quick":
        ends = [(257, 128, 63), (LONG + 5, 70)]
    else:
        ends = [*[(n + 1, n, n - 1) for n in (64, 128, 256)] * len(MINIMUM_GROUPS), (LONG + 5, 70)]
    cases = [
        replace(point[i % len(point)], seq_lens=lens, query_lens=(1,) * len(lens), seed=500 + i)
        for i, lens in enumerate(ends)
    ]
    return [replace(case, num_kv_heads=1) if max(case.seq_lens) > LONG else case for case in cases]


def prompt_cases(claims: Claims, verb: str, level: Level) -> list[Case]:
    """Return prompts of several tiles of queries: 150 tokens, and 131 after a context, beside a short one."""
    if "prefill" not in claims.features:
        return []
    points = lattice(claims, verb, level)
    some = points[1:2] if level == "quick" else points[:: len(points) // 4 or 1]
    return [
        replace(case, seq_lens=(150, 7, 170), query_lens=(150, 2, 131), num_kv_heads=1, seed=600 + i)
        for i, case in enumerate(some)
    ]


def smaller(case: Case) -> Iterator[Case]:
    """Yield simpler cases to try when this one fails: fewer requests, shorter contexts, fewer heads."""
    if FIRST in case.options:
        yield from _fewer_tokens(case)
        return
    for request in range(len(case.seq_lens)):
        if len(case.seq_lens) > 1:
            keep = [i for i in range(len(case.seq_lens)) if i != request]
            yield _pick(case, [case.seq_lens[i] for i in keep], [case.query_lens[i] for i in keep])
    for request, (n, n_q) in enumerate(zip(case.seq_lens, case.query_lens, strict=True)):
        for shorter in sorted({n // 2, n - case.block_size, n - 1}):
            if 0 <= shorter < n:
                yield _pick(
                    case,
                    _set(case.seq_lens, request, shorter),
                    _set(case.query_lens, request, min(n_q, shorter)),
                )
        for fewer in sorted({1, n_q // 2, n_q - 1}):
            if 0 < fewer < n_q:
                yield _pick(case, case.seq_lens, _set(case.query_lens, request, fewer))
    if case.num_kv_heads > 1:
        yield replace(case, num_kv_heads=1)
    for group in (1, case.group - 1):
        if 1 <= group < case.group:
            yield replace(case, group=group)


def _fewer_tokens(case: Case) -> Iterator[Case]:
    """Take either half of the tokens, then all but one at either end; also halves of whole 32s."""
    first, n = case.option(FIRST), case.seq_lens[0]
    for count in dict.fromkeys((n // 2, n // 64 * 32, n - 1)):
        if 0 < count < n:
            yield replace(case, seq_lens=(count,))
            yield replace(case, seq_lens=(count,)).with_options(**{FIRST: first + n - count})


def _points(claims: Claims, level: Level) -> Iterator[tuple[int, str, int, int, int]]:
    """Yield (group, dtype, head_dim, block_size, number of the length pattern)."""
    dtypes, widths, sizes = claims.dtypes, claims.head_dims, claims.block_sizes
    if level == "quick":
        for i in range(max(len(MINIMUM_GROUPS), len(dtypes), len(widths), len(sizes))):
            group = MINIMUM_GROUPS[i % len(MINIMUM_GROUPS)]
            yield group, dtypes[i % len(dtypes)], widths[i % len(widths)], sizes[i % len(sizes)], i % PATTERNS
    elif level == "full":
        for i, (group, dtype, shape) in enumerate(product(MINIMUM_GROUPS, dtypes, range(PATTERNS))):
            turn = i // lcm(len(widths), len(sizes))  # else equal counts would pair up the same way for ever
            yield group, dtype, widths[i % len(widths)], sizes[(i + turn) % len(sizes)], shape
    else:
        every = product((*MINIMUM_GROUPS, *MORE_GROUPS), dtypes, widths, sizes)
        for i, (group, dtype, head_dim, block_size) in enumerate(every):
            yield group, dtype, head_dim, block_size, i % PATTERNS


def _query_lens(seq_lens: Sequence[int], prefill: bool) -> tuple[int, ...]:
    """One query token for some requests, a chunk for others, the whole context for the rest."""
    if not prefill:
        return tuple(min(1, n) for n in seq_lens)
    shares = cycle((3, 1, 2))
    return tuple(
        {1: n, 2: -(-n // 2), 3: min(n, 1)}[share] for n, share in zip(seq_lens, shares, strict=False)
    )


def _pick(case: Case, seq_lens: Sequence[int], query_lens: Sequence[int]) -> Case:
    return replace(case, seq_lens=tuple(seq_lens), query_lens=tuple(query_lens))


def _set(values: tuple[int, ...], at: int, value: int) -> tuple[int, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _lengths(name: str, value: Any) -> tuple[int, ...]:
    fine = isinstance(value, list | tuple) and len(value) <= 1024
    if not fine or any(isinstance(n, bool) or not isinstance(n, int) or not 0 <= n <= 2**24 for n in value):
        raise ArgumentError(f"case.{name} = {value!r:.100}, expected a list of lengths from 0 to 2**24")
    return tuple(value)
