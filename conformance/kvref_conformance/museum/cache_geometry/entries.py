"""Faults of how large entries are, and how many there are."""

from dataclasses import replace

from kvref_conformance.museum.cache_geometry.naming import GEOMETRY, sizes
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.lists.layers import Config, Layer, Stored


@exhibit(
    as_if="a head were hidden_size / num_attention_heads wide, whatever head_dim says",
    fault="F08 accounting",
    breaks=sizes(3),
    may_also_break=sizes(1, 2, 5, 17),
    verbs=GEOMETRY,
    program="llama 1 1 8; size 1 1",
)
class HeadDimDivided(GeometryLists):
    """The width of a head is worked out from hidden_size though the config says it.

    A plant: in many families it comes to the same.
    """

    def widths(self, text: Config, kind: str) -> tuple[int, int]:
        """Divide."""
        width = self.divided(text)
        return width, width


@exhibit(
    as_if="values were as wide as keys",
    fault="F08 accounting",
    breaks=sizes(3),
    verbs=GEOMETRY,
    features=("uneven_layers",),
    program="uneven 1 1 8 9 0; size 1 1",
)
class ValuesAsWideAsKeys(GeometryLists):
    """An entry is sized as two keys.

    A plant: a model whose keys are half as wide again as its values is sized a fifth too large.
    """

    def widths(self, text: Config, kind: str) -> tuple[int, int]:
        """Take the key twice."""
        k_dim, _ = super().widths(text, kind)
        return k_dim, k_dim


@exhibit(
    as_if="latent attention stored a key and a value a head",
    fault="F08 accounting",
    breaks=sizes(4),
    may_also_break=sizes(12),
    verbs=GEOMETRY,
    features=("latent_layers",),
    program="latent 1 8 0; size 1 1",
)
class HeadsInsteadOfLatent(GeometryLists):
    """The heads and the head_dim of a config are multiplied though the model keeps one latent vector.

    A plant: configs of such models name heads, and a head_dim that is none of the widths kept.
    """

    def latent(self, text: Config) -> Stored:
        """Multiply."""
        heads = self.number(text, "num_key_value_heads")
        return Stored(2 * heads * self.number(text, "head_dim", "qk_nope_head_dim"))


@exhibit(
    as_if="layers with a window kept every token",
    fault="F08 accounting",
    breaks=sizes(5),
    verbs=GEOMETRY,
    program="types 1 1 8 0 1; size 2 1",
)
class WindowGrows(GeometryLists):
    """A window bounds what is attended to, and not what is kept.

    A plant: twelve layers of a window of 128 tokens are sized as if they kept 131,072.
    """

    def kept(self, one: Stored, num_tokens: int) -> int:
        """Keep all."""
        return num_tokens


@exhibit(
    as_if="layers with a window kept nothing",
    fault="F08 accounting",
    seen_in=("alvarobartt/hf-mem#60",),
    breaks=sizes(5),
    verbs=GEOMETRY,
    program="types 1 1 8 0 1; size 1 1",
)
class WindowsDropped(GeometryLists):
    """Only layers that attend to all are added up.

    A model half of whose layers have a window is sized at less than half of what its engine logs.
    """

    def kept(self, one: Stored, num_tokens: int) -> int:
        """Keep nothing in a window."""
        return num_tokens if one.window is None else 0


@exhibit(
    as_if="layers that attend within a chunk kept every token",
    fault="F08 accounting",
    breaks=sizes(6),
    verbs=GEOMETRY,
    features=("chunked_layers",),
    program="chunks 1 1 1 8; size 2 1",
)
class ChunksGrow(GeometryLists):
    """The length of a chunk is not read.

    A plant: three quarters of the layers are sized without an end.
    """

    def window(self, text: Config, kind: str) -> int | None:
        """Know windows alone."""
        return None if kind == "chunk" else super().window(text, kind)


@exhibit(
    as_if="layers that read another's entries stored their own",
    fault="F08 accounting",
    breaks=sizes(9),
    may_also_break=sizes(22),
    verbs=GEOMETRY,
    features=("uneven_layers",),
    program="globally 1 1 1 8 0 1 1; size 1 1",
)
class ReadersCounted(GeometryLists):
    """`num_kv_shared_layers` is not read.

    A plant: more than half of the layers of a small model are counted that store nothing.
    """

    def without_readers(self, text: Config, layers: list[Layer]) -> list[Layer]:
        """Keep them."""
        return layers


@exhibit(
    as_if="tokens that do not fill an entry took none",
    fault="F01 boundary",
    breaks=sizes(10),
    may_also_break=sizes(12),
    verbs=GEOMETRY,
    features=("compressed_layers", "indexed_layers"),
    program="compressed 64 1 8 4; size 1 1",
)
class PartialEntryDropped(GeometryLists):
    """Entries of several tokens are counted by whole ones.

    A plant: the last tokens of a request are in an entry as well, though it is not complete.
    """

    def entries_of(self, num_tokens: int, tokens: int) -> int:
        """Round down."""
        return num_tokens // tokens


@exhibit(
    as_if="an indexer had a key for each of its heads",
    fault="F08 accounting",
    breaks=sizes(11),
    verbs=GEOMETRY,
    features=("indexed_layers", "latent_layers"),
    program="selecting 1 8 0 8; size 1 1",
)
class IndexKeyForEachHead(GeometryLists):
    """The key of an indexer is multiplied by the heads that ask for it.

    A plant, of what one estimator does: heads of an indexer are of queries, and one key serves them all.
    """

    def index(self, text: Config, at: int) -> list[Stored]:
        """Multiply."""
        return [replace(one, elements=4 * one.elements) for one in super().index(text, at)]


@exhibit(
    as_if="layers that share a selection kept a key of their own",
    fault="F08 accounting",
    breaks=sizes(11),
    verbs=GEOMETRY,
    features=("indexed_layers", "latent_layers"),
    program="indexed 8 0 8 0 1; size 1 1",
)
class IndexKeyInEveryLayer(GeometryLists):
    """Which layers select for themselves is not read.

    A plant: 57 of the 78 layers of a model share what another has selected.
    """

    def index(self, text: Config, at: int) -> list[Stored]:
        """Give every layer one."""
        return super().index({**text, "indexer_types": ["full"] * (at + 1)}, at)
