"""What a subject says about itself: arithmetic, choices, features, limits. Declared, then checked exactly.

Realises: KV-CONF-003 claims-are-checked, KV-CONF-005 minimum-domain.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from kvref.arrays import check_flag
from kvref.attention.bounds import Arithmetic
from kvref.attention.rope import STYLES
from kvref.errors import ArgumentError, KVError
from kvref.formats.format import FORMATS
from kvref.formats.paths import Path
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.storage.layouts import LAYOUTS
from kvref_conformance.choices import CHOICES, FORMAT_CHOICES
from kvref_conformance.formatted import KV_HEADS, fits, is_split
from kvref_conformance.nearest import meant


class ClaimError(ArgumentError):
    """A declaration that says nothing the suite could check."""


#: Feature -> what a subject that claims it must support.
FEATURES: dict[str, str] = {
    "prefill": "more than one query token a request",
    "lse": "return_lse=True returns the log of the total weight beside the output",
    "non_causal": "causal=False attends to the whole context",
    "window": "sliding window",
    "chunk_size": "chunked-local attention",
    "softcap": "tanh soft cap on the logits",
    "sinks": "a learned sink logit for each query head",
    "alibi": "ALiBi slopes",
    "spans": "bidirectional spans inside a causal context",
    "mask": "a boolean mask for each request",
    "value_width": "values narrower or wider than keys",
    "strided": "caches given as strided views, element offsets beyond 2^31 included",
    "out": "results written into a tensor given as out=",
    "x_split": "layouts that split head_dim into pieces of x elements",
    "yarn": "apply_rope stretches frequencies over a longer context, and multiplies by a magnitude",
    "has_initial_state": "scans: requests that say 0 start from zeros, whatever their state holds",
    "conv_bias": "a bias for each channel of a convolution",
    "silu": "SiLU behind a convolution",
    "skip": "D: each input of a Mamba scan is added to its output, times a factor",
    "output_gate": "z: the output of a Mamba scan is multiplied by SiLU of it",
    "dt_bias": "a bias is added to dt",
    "dt_softplus": "dt is the softplus of what is given",
    "dt_limit": "dt is clipped to a least and a largest value",
    "delta_scale": "the scale of a delta rule is passed; without it, it is head_k_dim ** -0.5",
    "qk_l2norm": "queries and keys of a delta rule are divided by their length",
    "padding_rows": "updates: a negative state index stands for no request",
    "channel_gate": "decay_gate: a gate for each channel of the keys",
    "lower_bound": "decay_gate: the bounded form, a lower bound times a sigmoid",
    "prepare": "replay: what was prepared once is run again with changed metadata and padded rows",
    "pin": "block_allocator: pinned blocks are not handed out",
    "steps": "block_allocator: blocks freed while a step may write them are not handed out before it ends",
    "groups": "block_tables: several groups of layers, each with a block size and tables of its own",
    "pruning": "block_tables: blocks wholly below a sliding window are let go",
    "adapter": "prefixes under different adapters are apart",
    "adapter_version": "prefixes under different versions of one adapter are apart",
    "salt": "prefixes under different salts are apart",
    "media": "prefixes with different media are apart, and with one medium at different places",
    "embeddings": "prefixes with different prompt embeddings are apart",
    "drafts": "snapshot_cache: the last tokens of a step may be rejected, and the next starts before them",
    "junctions": "snapshot_cache: where a prompt leaves a prefix that is cached, a state is saved",
    "weak_hash": "opened with hash_bits, keys collide, and contents are compared before they are shared",
    "events": "prefix_cache: take_events tells what was stored and removed",
    "chunked_layers": "cache_geometry: models with layers that attend within a chunk",
    "uneven_layers": "cache_geometry: models whose layers differ in heads or widths, or share entries",
    "skipped_layers": "cache_geometry: models with layers that a search has left without attention",
    "latent_layers": "cache_geometry: models of latent attention",
    "indexed_layers": (
        "cache_geometry: models whose layers keep keys of an indexer, beside whatever else is claimed"
    ),
    "compressed_layers": "cache_geometry: models whose layers keep one entry for several tokens",
    "recurrent_layers": "cache_geometry: models with recurrent layers",
    "class_defaults": "cache_geometry: models whose configs leave out what their classes say",
    "tensor_parallel": "cache_geometry: size is asked for one of several ranks",
    "dp_attention": "cache_geometry: size is asked for a rank whose group has requests of its own",
    "pipeline_parallel": "cache_geometry: size is asked for one stage of a pipeline",
    "snapshot_sizes": "cache_geometry: snapshot says how large one is",
    "hybrid_blocks": "cache_geometry: hybrid_block says how long blocks of a hybrid model are",
}

#: Query heads per kv head that every attending claim covers.
MINIMUM_GROUPS = (1, 3, 7, 8)
#: The widest domain the suite exercises; claimed share is measured against it.
ALL_DTYPES = ("float32", "float16", "bfloat16")
ALL_HEAD_DIMS = (64, 80, 96, 128, 192, 256)
ALL_STATE_DIMS = (16, 64, 128)
ALL_CONV_WIDTHS = (2, 3, 4)
ALL_BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
ALL_FORMATS = tuple(FORMATS)
#: The same of managers, for which small and odd blocks are cheap.
MANAGER_BLOCK_SIZES = (1, 3, 4, 8, 16, 32, 64, 128, 256)

#: Answers one field may list: many times what a kernel is built for, and few enough to be run.
MAX_ANSWERS = 64
#: Characters of a name or a version.
MAX_NAME = 200
#: Probes write a token's position into channels, and layouts split them by 8.
MIN_WIDTH, WIDTH_STEP = 16, 8
#: Channels of the widest block that is claimed, so that what a claim makes the suite allocate is limited.
MAX_BLOCK = 2**20
#: Inputs of the longest short convolution.
MAX_WINDOW = 64

#: Fields that are records of facts.
_FACTS: dict[str, type[Any]] = {"arithmetic": Arithmetic, "scan_arithmetic": ScanArithmetic}
#: Field -> the least number it may hold, and of what it is a multiple.
_EXTENTS = {
    "head_dims": (MIN_WIDTH, WIDTH_STEP),
    "latent_dims": (MIN_WIDTH, WIDTH_STEP),
    "state_dims": (MIN_WIDTH, WIDTH_STEP),
    "block_sizes": (1, 1),
    "conv_widths": (2, 1),
}
_NAMED = {"dtypes": (*ALL_DTYPES, "float64"), "features": tuple(FEATURES), "rope_styles": STYLES}
_NAMED |= {"layouts": tuple(LAYOUTS), "formats": ALL_FORMATS}


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The declaration of one subject. Every field has a default; the defaults are the strictest reading.

    Raises: ClaimError naming the field, what was found and what was expected.
    """

    name: str = ""
    version: str = ""
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    scan_arithmetic: ScanArithmetic = field(default_factory=ScanArithmetic)
    """The same of recurrent layers."""
    dtypes: tuple[str, ...] = ("float32",)
    """Dtypes of q, k, v and the caches."""
    head_dims: tuple[int, ...] = (64, 128)
    block_sizes: tuple[int, ...] = (16,)
    features: tuple[str, ...] = ()
    choices: Mapping[str, str] = field(default_factory=dict)
    batch_invariant: bool = False
    """A request's output has the same bits alone and in any batch."""
    rope_styles: tuple[str, ...] = ("half",)
    layouts: tuple[str, ...] = ("nhd", "hnd")
    latent_dims: tuple[int, ...] = (512,)
    state_dims: tuple[int, ...] = (16,)
    """Entries of a Mamba state for each channel."""
    conv_widths: tuple[int, ...] = (4,)
    """Inputs that a short convolution sees."""
    formats: tuple[str, ...] = ("fp8_e4m3",)
    """Formats of quantised caches; the choices say by which path."""

    def __post_init__(self) -> None:
        try:
            check_flag("batch_invariant", self.batch_invariant)
        except KVError as error:
            raise ClaimError(f"claims.{error}") from None
        for field_name in ("name", "version"):
            _check_text(field_name, getattr(self, field_name))
        for field_name, allowed in _NAMED.items():
            _check_list(field_name, getattr(self, field_name), empty=field_name == "features")
            _check_names(field_name, getattr(self, field_name), allowed)
        for field_name, (least, step) in _EXTENTS.items():
            _check_list(field_name, getattr(self, field_name))
            for value in getattr(self, field_name):
                _check_extent(field_name, value, least, step)
        widest = max(*self.head_dims, *self.latent_dims, *self.state_dims) * max(self.block_sizes)
        if max(self.conv_widths) > MAX_WINDOW:
            raise ClaimError(
                f"claims.conv_widths holds {max(self.conv_widths)}, expected at most {MAX_WINDOW}"
            )
        if widest > MAX_BLOCK:
            raise ClaimError(f"claims describe a block of {widest} channels, expected at most {MAX_BLOCK}")
        _check_choices(self.choices)
        for field_name, kind in _FACTS.items():
            found = getattr(self, field_name)
            if not isinstance(found, kind):
                raise ClaimError(f"claims.{field_name} = {found!r:.80}, expected an object of facts")
        _check_formats(self)

    def choice(self, name: str) -> str:
        """Return the declared answer to a choice, canonical where nothing is declared."""
        return self.choices.get(name, CHOICES[name].canonical)

    def path(self) -> Path:
        """Return the declared decisions inside formats."""
        return Path(**{name.replace("-", "_"): self.choice(name) for name in FORMAT_CHOICES})

    def canonical(self) -> "Claims":
        """Return the same claims with every choice canonical."""
        return Claims(**{**_shallow(self), "choices": {}})

    def to_dict(self) -> dict[str, Any]:
        """Return the claims as JSON values."""
        facts = {name: getattr(self, name).to_dict() for name in _FACTS}
        return {**asdict(self), **facts, "choices": dict(self.choices)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> "Claims":
        """Read claims from JSON values, as a foreign program sends them.

        Raises: ClaimError naming the field and what was expected.
        """
        known = {f.name for f in fields(Claims)}
        for name in data:
            if name not in known:
                raise ClaimError(
                    f"claims hold {name!r:.80}{meant(name, known)}, expected names among "
                    f"{', '.join(sorted(known))}"
                )
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in data.items()
        }
        for name, kind in _FACTS.items():
            if isinstance(values.get(name), Mapping):
                try:
                    values[name] = kind.from_dict(values[name])
                except KVError as error:
                    raise ClaimError(f"claims.{name}: {error}") from None
        return Claims(**values)


def full_claims(claims: Claims) -> Claims:
    """Return the same subject claiming the whole domain: what the claimed share is measured against."""
    wide = {"dtypes": ALL_DTYPES, "head_dims": ALL_HEAD_DIMS, "block_sizes": ALL_BLOCK_SIZES}
    wide |= {"state_dims": ALL_STATE_DIMS, "conv_widths": ALL_CONV_WIDTHS}
    return Claims(**{**_shallow(claims), **wide, "features": tuple(FEATURES), "formats": ALL_FORMATS})


def _shallow(claims: Claims) -> dict[str, Any]:
    return {f.name: getattr(claims, f.name) for f in fields(Claims)}


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise ClaimError(f"claims.{name} = {value!r:.80}, expected text of at most {MAX_NAME} characters")


def _check_list(name: str, values: Any, *, empty: bool = False) -> None:
    if not isinstance(values, tuple | list) or len(values) > MAX_ANSWERS:
        raise ClaimError(f"claims.{name} = {values!r:.80}, expected a list of at most {MAX_ANSWERS} answers")
    if not values and not empty:
        raise ClaimError(f"claims.{name} is empty, expected at least one (KV-CONF-005 minimum-domain)")
    for at, value in enumerate(values):
        if value in values[:at]:
            raise ClaimError(f"claims.{name} holds {value!r:.80} twice, expected it once")


def _check_names(name: str, values: tuple[Any, ...], allowed: tuple[str, ...]) -> None:
    for value in values:
        if value not in allowed:
            near = meant(value, allowed)
            raise ClaimError(f"claims.{name} holds {value!r:.80}{near}, expected one of {', '.join(allowed)}")


def _check_extent(name: str, value: Any, least: int, step: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or value % step:
        wanted = f"an integer >= {least}" if step == 1 else f"a multiple of {step} from {least} on"
        raise ClaimError(f"claims.{name} holds {value!r:.80}, expected {wanted}")


def _check_formats(claims: Claims) -> None:
    """Check that something can be asked of every format: whole groups, or in MX their refusal."""
    path = Path(mx_span=claims.path().mx_span)
    places = [(heads, width) for width in claims.head_dims for heads in KV_HEADS]
    for name in claims.formats:
        if any(fits(name, path, *place) or is_split(FORMATS[name], *place) for place in places):
            continue
        raise ClaimError(
            f"claims.formats holds {name!r}, expected formats whose groups fill one of the claimed head_dims "
            f"({', '.join(map(str, claims.head_dims))}): of this one multiples of {FORMATS[name].size}"
        )


def _check_choices(choices: Any) -> None:
    if not isinstance(choices, Mapping):
        raise ClaimError(f"claims.choices = {choices!r:.80}, expected an object of choice and answer")
    for name in choices:
        if name not in CHOICES and (hyphened := str(name).replace("_", "-")) in CHOICES:
            raise ClaimError(f"claims.choices holds {name!r:.80}, write {hyphened}")
    _check_names("choices", tuple(choices), tuple(CHOICES))
    for name, answer in choices.items():
        _check_names(f"choices[{name!r}]", (answer,), (CHOICES[name].canonical, *CHOICES[name].alternatives))
