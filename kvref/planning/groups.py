"""What a model keeps of a request: groups of layers with entries of one shape, and groups with states.

An **entry** is what a layer stores for a stretch of tokens: key and value of every KV head, one latent
vector, one index key. Most layers store an entry a token and keep them all. A window keeps the last so many
tokens, a compressed layer stores one entry for several tokens, and a layer that reads another's entries
stores none. A **state** does not grow: a recurrent part and a convolution part, apart because their dtypes
are.

Bytes here are logical: what the entries and states themselves take, without what an allocator adds to them in
blocks and padding. The share of one rank is in `kvref.planning.ranks`.

Realises: KV-SIZE-003 kv-width, KV-SIZE-004 latent-width, KV-SIZE-005 window-bound, KV-SIZE-006 chunked-bound,
KV-SIZE-007 state-parts-apart, KV-SIZE-008 conv-dtype-own, KV-SIZE-010 compressed-layers, KV-SIZE-012
draft-layers-apart, KV-SIZE-016 entry-record, KV-SIZE-020 snapshot-in-tokens.
For porters: `LayerGroup.entries` and `entry_bytes` are the whole arithmetic; the rest adds up.
Source: the formulas of the spec's chapter on sizes; bytes of formats and records from `kvref.formats`.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from kvref.arrays import check_count, dtype_of
from kvref.errors import ArgumentError, FormatError
from kvref.formats import footprints
from kvref.formats.footprints import Form, form_of
from kvref.formats.records import RECORDS, Record

#: What a layer can keep, by the words of the spec. A layer of none of these keeps nothing.
KINDS = ("full", "window", "chunked", "latent", "indexer", "compressed")

#: No request is longer than this.
MAX_TOKENS = 2**53


@dataclass(frozen=True)
class LayerGroup:
    """Layers that store entries of one shape."""

    kind: str
    """One of `KINDS`."""
    layers: tuple[int, ...]
    """The layers that store, from 0."""
    num_heads: int
    """Keys of one entry; 1 where an entry is one vector for all heads."""
    k_dim: int
    """Elements of a key, or of the one vector."""
    v_dim: int
    """Elements of a value; 0 where the vector is key and value at once, or has no value."""
    tokens_per_entry: int = 1
    """How many tokens share an entry; a stretch that is not complete takes one too."""
    window: int | None = None
    """The last so many tokens are kept; None where all are."""
    readers: tuple[int, ...] = ()
    """Layers that read these entries and store none."""
    sources: tuple[int, ...] = ()
    """For each of the readers the layer whose entries it reads."""
    decided_by: str = ""
    """The key of the config, or the rule, that made these layers what they are."""

    @property
    def elements(self) -> int:
        """Elements of one entry of one layer."""
        return self.num_heads * (self.k_dim + self.v_dim)

    def entries(self, num_tokens: int) -> int:
        """Return how many entries one layer keeps of a request of so many tokens."""
        held = num_tokens if self.window is None else min(num_tokens, self.window)
        return -(-held // self.tokens_per_entry)


@dataclass(frozen=True)
class StateGroup:
    """Recurrent layers whose states have one shape."""

    family: str
    """mamba1, mamba2, gated_delta, kda, lightning, rwkv, rwkv7, rg_lru, short_conv or entry_conv."""
    layers: tuple[int, ...]
    recurrent: tuple[int, ...]
    """Shape of the recurrent part, heads or channels first; () where there is none."""
    conv: tuple[int, ...]
    """Shape of the convolution part, [num_channels, conv_width - 1], or of token shifts; () if none."""
    recurrent_dtype: str = "float32"
    conv_dtype: str = "bfloat16"
    """The dtype of activations. It never follows the format of the KV cache."""
    num_groups: int = 0
    """Groups of heads that share B and C (Mamba-2)."""
    group_channels: int = 0
    """Channels of `conv` that belong to one such group."""
    decided_by: str = ""

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of one layer's recurrent part."""
        return _elements(self.recurrent) * dtype_of(self.recurrent_dtype).itemsize

    @property
    def conv_bytes(self) -> int:
        """Bytes of one layer's convolution part."""
        return _elements(self.conv) * dtype_of(self.conv_dtype).itemsize


@dataclass(frozen=True)
class CacheGeometry:
    """All that a model keeps of a request, layer by layer."""

    name: str
    num_layers: int
    groups: tuple[LayerGroup, ...]
    states: tuple[StateGroup, ...] = ()
    drafts: tuple[LayerGroup, ...] = ()
    """What draft layers store, numbered on from `num_layers`; counted by nothing unless it is asked for."""
    max_context: int | None = None
    """The longest context that the config names, in tokens."""
    warnings: tuple[str, ...] = ()
    """What was decided by a default and not by the config."""
    attentions: int = 1
    """Attentions of one layer of the model, each of which is a layer here."""

    def kinds_of(self, layer: int) -> tuple[str, ...]:
        """Return what a layer keeps: kinds of entries, `recurrent`, `shared` if it reads others', or none."""
        stored = [group.kind for group in self.groups if layer in group.layers]
        shared = ["shared"] * any(layer in group.readers for group in self.groups)
        return (*stored, *shared, *(["recurrent"] * any(layer in s.layers for s in self.states)))

    def bytes_per_token(self, form: Form = "bfloat16", *, drafts: bool = False) -> int | Fraction:
        """Return what one more token adds to a long request, windows full: a Fraction where tokens share.

        Raises: FormatError if the form cannot hold a group's entries.
        """
        growing = [group for group in self._chosen(drafts) if group.window is None]
        return _whole(
            sum(
                (len(g.layers) * Fraction(entry_bytes(g, form)) / g.tokens_per_entry for g in growing),
                Fraction(0),
            )
        )

    def growing_bytes(self, num_tokens: int, form: Form = "bfloat16", *, drafts: bool = False) -> int:
        """Return the bytes of the entries that are kept for all of a request's tokens.

        Raises: ArgumentError if the tokens are no count; as `bytes_per_token`.
        """
        return self._bytes(num_tokens, form, [g for g in self._chosen(drafts) if g.window is None])

    def window_bytes(
        self, num_tokens: int | None = None, form: Form = "bfloat16", *, drafts: bool = False
    ) -> int:
        """Return the bytes of the entries in windows and chunks; None: with all windows full.

        Raises: as `growing_bytes`.
        """
        num_tokens = MAX_TOKENS if num_tokens is None else num_tokens
        return self._bytes(num_tokens, form, [g for g in self._chosen(drafts) if g.window is not None])

    def kv_bytes(self, num_tokens: int, form: Form = "bfloat16", *, drafts: bool = False) -> int:
        """Return the bytes of all entries of a request of so many tokens.

        Raises: as `growing_bytes`.
        """
        grown = self.growing_bytes(num_tokens, form, drafts=drafts)
        return grown + self.window_bytes(num_tokens, form, drafts=drafts)

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent parts of one state."""
        return sum(len(group.layers) * group.recurrent_bytes for group in self.states)

    @property
    def conv_bytes(self) -> int:
        """Bytes of the convolution parts of one state."""
        return sum(len(group.layers) * group.conv_bytes for group in self.states)

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of a snapshot: both parts of every recurrent layer, kept at one position."""
        return self.recurrent_bytes + self.conv_bytes

    def snapshot_in_tokens(self, form: Form = "bfloat16") -> Fraction:
        """Return for how many tokens entries would take the bytes of one snapshot.

        Raises: ArgumentError if the model keeps no entries that grow; as `bytes_per_token`.
        """
        per_token = self.bytes_per_token(form)
        if not per_token:
            raise ArgumentError(
                f"{self.name or 'the model'} keeps nothing that grows with its tokens, expected layers of "
                "attention to compare a snapshot with (KV-SIZE-020 snapshot-in-tokens)"
            )
        return Fraction(self.snapshot_bytes) / Fraction(per_token)

    def _chosen(self, drafts: bool) -> tuple[LayerGroup, ...]:
        return (*self.groups, *self.drafts) if drafts else self.groups

    def _bytes(self, num_tokens: int, form: Form, groups: list[LayerGroup]) -> int:
        if check_count("num_tokens", num_tokens, minimum=0) > MAX_TOKENS:
            raise ArgumentError(f"num_tokens = {num_tokens:.6g}, expected at most 2**53")
        taken = [len(g.layers) * g.entries(num_tokens) * Fraction(entry_bytes(g, form)) for g in groups]
        return math.ceil(sum(taken, Fraction(0)))


def entry_bytes(group: LayerGroup, form: Form = "bfloat16") -> int | Fraction:
    """Return the bytes of one entry of one layer, scales included.

    A record holds one vector of its own length: that of latent or compressed layers. The index keys beside
    them are then a record of their own, `indexer_fp8`.
    Raises: FormatError if there is no such form, or it cannot hold the entry.
    """
    found = form_of(form)
    if isinstance(found, Record):
        return _record_of(group, found).bytes
    if group.v_dim:
        return footprints.bytes_per_token(
            found, num_kv_heads=group.num_heads, head_dim=group.k_dim, v_head_dim=group.v_dim
        )
    return _whole(group.num_heads * group.k_dim * footprints.bits_per_value(found, group.k_dim) / 8)


def _record_of(group: LayerGroup, record: Record) -> Record:
    if group.kind == "indexer" and not record.name.startswith("indexer"):
        record = RECORDS["indexer_fp8"]
    held = sum(field.count for field in record.fields if field.name in ("codes", "rope"))
    if group.v_dim or group.num_heads != 1 or held != group.k_dim:
        raise FormatError(
            f"form = {record.name}, a record of one vector of {held} elements, but {group.kind} layers "
            f"store {group.num_heads} x ({group.k_dim} + {group.v_dim}) (KV-SIZE-016 entry-record)"
        )
    return record


def _elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape) if shape else 0


def _whole(x: Fraction) -> int | Fraction:
    return int(x) if x.denominator == 1 else x
