"""Faults of sizes: what calculators and planners get wrong about what a model keeps."""

from dataclasses import replace
from typing import Any

from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.lists.layers import Config, Layer, State, Stored

GEOMETRY = ("cache_geometry",)
_HYBRID = "interval 2 2 1 8 1 1 8 8"


def sizes(*numbers: int) -> tuple[str, ...]:
    """Return the requirements on sizes of these numbers."""
    return tuple(f"KV-SIZE-{number:03d}" for number in numbers)


@exhibit(
    as_if="every layer of a hybrid model were counted as one that attends",
    fault="F08 accounting",
    seen_in=("LMCache/LMCache#4278", "LMCache/LMCache#3080"),
    breaks=sizes(1),
    verbs=GEOMETRY,
    features=("recurrent_layers",),
    program=f"{_HYBRID}; size 1 1",
)
class EveryLayerCounted(GeometryLists):
    """What a token takes is the entries of one layer times the number of layers.

    A hybrid model is sized four times too large: 93 layers are counted where 24 attend. A chunk of the cache
    is then reserved, logged and moved at that size.
    """

    def layer(self, text: Config, kind: str, at: int) -> Layer:
        """Give every layer entries."""
        found = super().layer(text, kind, at)
        if kind == "state" and self.attends(text):
            found.stored = self.entries(text, "full", at)
        return found

    def attends(self, text: Config) -> bool:
        """Say whether any layer does."""
        return "num_attention_heads" in text


@exhibit(
    as_if="a window that the config names were that of every layer",
    fault="F08 accounting",
    breaks=sizes(1, 5),
    verbs=GEOMETRY,
    program="gemma 6 1 1 8; size 2 1",
)
class WindowInEveryLayer(GeometryLists):
    """A window without a list of layers is taken for the window of all layers.

    A plant, of what one estimator gives for Gemma 3: a twentieth of the cache that its ten global layers
    keep at 128K tokens. Which layers are global stands in the code of the model alone.
    """

    def each_nth(self, every: int, count: int, other: str) -> list[str]:
        """Let none be full."""
        return [other] * count if other == "window" else super().each_nth(every, count, other)


@exhibit(
    as_if="lists of layers counted from 0",
    fault="F01 boundary",
    breaks=sizes(1),
    verbs=GEOMETRY,
    features=("recurrent_layers",),
    program="kimi 8 0 1 8 1 0; size 1 1",
)
class ListsFromZero(GeometryLists):
    """Lists of layers that count from 1 are read as counting from 0.

    A plant: the last layer is not found, and the first is in no list: 23 of 24 that attend.
    """

    def one_based(self, lists: Config, count: int) -> list[str]:
        """Shift by one."""
        found = ["nothing"] * count
        for name, kind in (("full_attn_layers", "full"), ("kda_layers", "state")):
            for layer in lists[name]:
                if layer < count:
                    found[layer] = kind
        return found


@exhibit(
    as_if="the first layers had the window, and not the last",
    fault="F08 accounting",
    breaks=sizes(1),
    may_also_break=sizes(5),
    verbs=GEOMETRY,
    program="upper 0 1 1 1 8; size 2 1",
)
class LowerLayersSlide(GeometryLists):
    """`max_window_layers` is read as how many layers from the first on have the window.

    A plant, of what one estimator does: the class of the model has the window in the layers from this one on.
    """

    def by_type(self, text: Config, count: int) -> list[str]:
        """Turn it round."""
        found = super().by_type(text, count)
        turned = {"full": "window", "window": "full"}
        return [turned[kind] for kind in found] if text.get("use_sliding_window") else found


@exhibit(
    as_if="another part of the config were read than the decoder's",
    fault="F08 accounting",
    breaks=sizes(2),
    may_also_break=sizes(1, 5),
    verbs=GEOMETRY,
    program="nested 0 1 1 8; size 1 1",
)
class TowerRead(GeometryLists):
    """The first part of a config that has layers is taken, and that is a tower for images.

    A plant: with one such part the right one is found, and nobody looks again.
    """

    def decoder(self, config: Config) -> Config:
        """Prefer the tower."""
        tower = config.get("vision_config")
        return tower if isinstance(tower, dict) else super().decoder(config)


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
    as_if="a state had no convolution part",
    fault="F08 accounting",
    breaks=sizes(7, 8),
    verbs=GEOMETRY,
    features=("recurrent_layers",),
    program="attentionless 1 1 8 1 8; size 1 2",
)
class ConvForgotten(GeometryLists):
    """Of a recurrent layer the matrices alone are counted.

    A plant: 414 MiB stand in many a text for a snapshot of 428.6 MiB, which needs the rest as well.
    """

    def channels(self, state: State) -> int:
        """Count none."""
        return 0


@exhibit(
    as_if="the convolution part of a state were kept in what entries are kept in",
    fault="F08 accounting",
    breaks=sizes(8),
    verbs=GEOMETRY,
    features=("recurrent_layers",),
    program="attentionless 1 1 8 1 8; size 1 1",
)
class ConvFollowsTheFormat(GeometryLists):
    """With entries of one byte the convolution part is sized at half of what it takes.

    A plant, of what one estimator does: the last inputs of a convolution are activations in every engine.
    """

    def conv(self, state: State, element_bytes: int) -> int:
        """Use the bytes of an element."""
        return self.channels(state) * state.columns * element_bytes


@exhibit(
    as_if="layers that read another's entries stored their own",
    fault="F08 accounting",
    breaks=sizes(9),
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
    features=("compressed_layers",),
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
    features=("indexed_layers",),
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
    features=("indexed_layers",),
    program="indexed 8 0 8 0 1; size 1 1",
)
class IndexKeyInEveryLayer(GeometryLists):
    """Which layers select for themselves is not read.

    A plant: 57 of the 78 layers of a model share what another has selected.
    """

    def index(self, text: Config, at: int) -> list[Stored]:
        """Give every layer one."""
        return super().index({**text, "indexer_types": ["full"] * (at + 1)}, at)


@exhibit(
    as_if="layers that draft were layers of the model",
    fault="F08 accounting",
    breaks=sizes(12),
    verbs=GEOMETRY,
    features=("latent_layers",),
    program="latent 1 8 0; drafts 1; size 1 1",
)
class DraftsCounted(GeometryLists):
    """The layers that a config names for drafting are added to the others.

    A plant: 62 layers are sized where 61 are run unless somebody turns drafting on.
    """

    def num_layers(self, text: Config) -> int:
        """Add them."""
        return super().num_layers(text) + int(text.get("num_nextn_predict_layers") or 0)


@exhibit(
    as_if="a layer of an unknown kind attended to all",
    fault="F08 accounting",
    breaks=sizes(13),
    verbs=GEOMETRY,
    program="types 1 1 8 0; odd 0",
)
class UnknownKindAttends(GeometryLists):
    """What is not known is sized as plain attention.

    A plant: the next model has a kind of layer that nobody has heard of, and its size is a guess that looks
    like all the other answers.
    """

    def word(self, word: Any, words: Any = None) -> str:
        """Guess."""
        try:
            return super().word(word) if words is None else super().word(word, words)
        except ValueError:
            return "full"


@exhibit(
    as_if="keys about the cache that are not known said nothing",
    fault="F08 accounting",
    breaks=sizes(13),
    verbs=GEOMETRY,
    program="llama 1 1 8; odd 4",
)
class UnknownKeysPassedOver(GeometryLists):
    """A config is asked for what the reader knows, and for nothing else.

    A plant: whoever adds a way to keep less adds a key, and every reader goes on with what was right before.
    """

    def refuse_unknown(self, text: Config) -> None:
        """Refuse nothing."""


@exhibit(
    as_if="ranks shared out a vector that each of them needs whole",
    fault="F08 accounting",
    breaks=sizes(14),
    verbs=GEOMETRY,
    features=("tensor_parallel", "latent_layers"),
    program="latent 1 8 0; ranks 2 1 1",
)
class LatentSharedOut(GeometryLists):
    """What a model keeps is divided by the number of ranks.

    A plant: a latent vector has no heads to be shared out, and eight ranks keep eight copies.
    """

    def share(self, one: Stored, ranks: int) -> Stored:
        """Divide."""
        return super().share(one, ranks) if one.heads else replace(one, elements=one.elements // ranks)


@exhibit(
    as_if="more ranks than heads had less than a head each",
    fault="F08 accounting",
    breaks=sizes(14),
    verbs=GEOMETRY,
    features=("tensor_parallel",),
    program="llama 1 1 8; ranks 2 1 1",
)
class LessThanAHead(GeometryLists):
    """The elements of an entry are divided by the number of ranks, however few heads there are.

    A plant: from the number of heads on another rank is another copy.
    """

    def share(self, one: Stored, ranks: int) -> Stored:
        """Divide."""
        return replace(one, elements=one.elements // ranks) if one.heads else one


@exhibit(
    as_if="the block of a hybrid model held the recurrent part of a state alone",
    fault="F08 accounting",
    breaks=sizes(15),
    verbs=GEOMETRY,
    features=("hybrid_blocks", "recurrent_layers"),
    program=f"{_HYBRID}; joint 1 1 1",
)
class BlockWithoutConv(GeometryLists):
    """The convolution part is left out where the block size is worked out.

    A plant: the block is a few tokens too short, and a state does not go into it.
    """

    def hybrid_block(self, config: str, element_bytes: int, tensor_parallel: int, multiple: int) -> int:
        """Leave it out."""
        layers = self.layers(config)
        stored = [self.share(one, tensor_parallel) for layer in layers for one in layer.stored]
        states = [self.share_of(layer.state, tensor_parallel) for layer in layers if layer.state]
        held = max(self.recurrent(one) for one in states)
        return self.rounded(held, min(one.elements for one in stored) * element_bytes, multiple)


@exhibit(
    as_if="the block of a hybrid model were rounded down",
    fault="F01 boundary",
    breaks=sizes(15),
    verbs=GEOMETRY,
    features=("hybrid_blocks", "recurrent_layers"),
    program=f"{_HYBRID}; joint 1 1 16",
)
class BlockRoundedDown(GeometryLists):
    """The block size is the multiple below the state's bytes.

    A plant: the last bytes of a state have no place.
    """

    def rounded(self, state: int, entry: int, multiple: int) -> int:
        """Round down."""
        return max(multiple, multiple * (state // (multiple * entry)))


@exhibit(
    as_if="whatever stands in a config were a number",
    fault="F08 accounting",
    breaks=sizes(17),
    may_also_break=sizes(13),
    verbs=GEOMETRY,
    program="llama 1 1 8; absurd 5",
)
class AnyNumberTaken(GeometryLists):
    """Values are converted, and used as they come.

    A plant: a model of minus three layers frees memory.
    """

    def number(self, text: Config, *names: str, least: int = 1) -> int:
        """Convert."""
        for name in names:
            try:
                return int(text.get(name))  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                continue
        return super().number(text, *names, least=least)

    def kinds(self, text: Config) -> list[str]:
        """Count the layers without a look at them."""
        count = self.num_layers(text)
        found = self.listed(text, count) if count > 0 else []
        return found or self.ruled(text, min(count, 4096))


@exhibit(
    as_if="a snapshot were the recurrent parts of a state alone",
    fault="F08 accounting",
    breaks=sizes(20),
    verbs=GEOMETRY,
    features=("snapshot_sizes", "recurrent_layers"),
    program=f"{_HYBRID}; snapshot 1",
)
class SnapshotWithoutConv(GeometryLists):
    """The size of a snapshot leaves the convolution parts out.

    A plant: what is saved without them cannot be restored.
    """

    def snapshot_of(self, found: dict[str, int]) -> int:
        """Leave them out."""
        return found["recurrent_bytes"]


@exhibit(
    as_if="layers without attention stored entries",
    fault="F08 accounting",
    breaks=sizes(21),
    verbs=GEOMETRY,
    features=("skipped_layers",),
    program="skipped 1 8 0 1; size 1 1",
)
class SkippedLayersCounted(GeometryLists):
    """Blocks that a search has left without attention are counted like the others.

    A plant: 80 layers are sized where 49 attend.
    """

    def left_out(self, block: Config) -> bool:
        """Leave none out."""
        return False

    def heads(self, text: Config, kind: str) -> int:
        """Take the first block that says how many."""
        if "block_configs" not in text:
            return super().heads(text, kind)
        groups = [b["attention"].get("n_heads_in_group") for b in text["block_configs"]]
        return self.number(text, "num_attention_heads") // int(next(n for n in groups if n))
