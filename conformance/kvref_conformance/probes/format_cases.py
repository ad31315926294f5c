"""Cases of formats: which formats, dtypes and widths a writing or a reading is made for, and how long it is.

A build makes the whole input of a check for one format, dtype and width. A case takes some consecutive tokens
of it, all of them at first; a failing one is made smaller by taking fewer.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

from kvref.formats.format import FORMATS, Format
from kvref.formats.paths import Path
from kvref_conformance.cases import FIRST, Case, Level
from kvref_conformance.claims import ALL_DTYPES, Claims
from kvref_conformance.formatted import KV_HEADS, Reading, Writing, fits
from kvref_conformance.trial import Trial

#: Makes a whole input from a case's format, dtype, heads, width and seed.
Build = Callable[[Case, Path], Writing] | Callable[[Case, Path], Reading]
Lattice = Callable[[Claims, str, Level], list[Case]]
HEADS = KV_HEADS


def kind_of(case: Case) -> Format:
    """Return the format of a case."""
    return FORMATS[case.option("format")]


def format_cases(
    build: Build,
    only: Callable[[Format], bool],
    *,
    dtypes: Sequence[str] = ALL_DTYPES,
    every_dtype: bool = False,
    all_through: bool = False,
) -> Lattice:
    """Return the lattice of a build over the claimed formats for which `only` holds.

    Quick: each format in float32 and one other claimed dtype, or in every one of `dtypes`; widths in turn.
    Full: every dtype. Exhaustive: every dtype and width. `all_through` is for the checks that see to it that
    whatever is claimed is exercised: each dtype and each width occurs for each format, at level quick too.
    """
    turn = sum(map(ord, build.__name__))

    def cases(claims: Claims, verb: str, level: Level) -> list[Case]:
        mine = [dtype for dtype in claims.dtypes if dtype in dtypes]
        found = []
        for i, name in enumerate(claims.formats):
            places = places_of(name, claims)
            if not only(FORMATS[name]) or not places or not mine:
                continue
            chosen = mine if every_dtype or level != "quick" else _some(mine, turn + i)
            if all_through:
                chosen = [mine[k % len(mine)] for k in range(max(len(mine), len(places)))]
            for j, dtype in enumerate(chosen):
                for at in range(len(places) if level == "exhaustive" else 1):
                    head_dim, heads = places[(turn + i + j + at) % len(places)]
                    found.append(format_case(verb, name, dtype, heads, head_dim, seed=i))
        return [sized for case in found if (sized := _whole(build, case, claims.path())) is not None]

    return cases


def format_case(verb: str, name: str, dtype: str, heads: int, head_dim: int, seed: int = 0) -> Case:
    """Return the case of a format, its length still to be said."""
    return Case(
        verb=verb,
        seq_lens=(1,),
        query_lens=(0,),
        num_kv_heads=heads,
        group=1,
        head_dim=head_dim,
        dtype=dtype,
        seed=seed,
        options={"format": name, FIRST: 0},
    )


def places_of(name: str, claims: Claims) -> list[tuple[int, int]]:
    """Return the claimed widths that a format can have, each with a number of heads."""
    path, found = claims.path(), []
    for head_dim in claims.head_dims:
        heads = next((heads for heads in HEADS if fits(name, path, heads, head_dim)), None)
        if heads is not None:
            found.append((head_dim, heads))
    return found


def writing_of(build: Callable[[Case, Path], Writing], trial: Trial) -> Writing:
    """Return the tokens that a trial's case takes of a writing."""
    case = trial.case
    return build(case, trial.claims.path()).part(case.option(FIRST), case.seq_lens[0])


def reading_of(build: Callable[[Case, Path], Reading], trial: Trial) -> Reading:
    """Return the tokens that a trial's case takes of a reading."""
    case = trial.case
    return build(case, trial.claims.path()).part(case.option(FIRST), case.seq_lens[0])


def _some(dtypes: list[str], turn: int) -> list[str]:
    others = [dtype for dtype in dtypes if dtype != "float32"]
    one = [others[turn % len(others)]] if others else []
    return [*(["float32"] if "float32" in dtypes else []), *one]


def _whole(build: Build, case: Case, path: Path) -> Case | None:
    """Return the case with all tokens of its build; None if that has none."""
    key = (case.option("format"), case.dtype, case.num_kv_heads, case.head_dim, case.seed)
    tokens = _tokens(build, key, path)
    return with_tokens(case, tokens) if tokens else None


def with_tokens(case: Case, tokens: int) -> Case:
    """Return the case with a number of tokens."""
    return Case(**{**vars(case), "seq_lens": (tokens,)})


@lru_cache(maxsize=2**16)
def _tokens(build: Build, key: tuple[str, str, int, int, int], path: Path) -> int:
    name, dtype, heads, head_dim, seed = key
    return build(format_case("", name, dtype, heads, head_dim, seed), path).tokens
