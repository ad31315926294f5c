"""Faults of states, of ranks, and of the blocks and snapshots of hybrids."""

from dataclasses import replace

from kvref_conformance.museum.cache_geometry.naming import GEOMETRY, HYBRID, sizes
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.lists.layers import State, Stored


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
    program=f"{HYBRID}; joint 1 1 1",
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
    program=f"{HYBRID}; joint 1 1 16",
)
class BlockRoundedDown(GeometryLists):
    """The block size is the multiple below the state's bytes.

    A plant: the last bytes of a state have no place.
    """

    def rounded(self, state: int, entry: int, multiple: int) -> int:
        """Round down."""
        return max(multiple, multiple * (state // (multiple * entry)))


@exhibit(
    as_if="a snapshot were the recurrent parts of a state alone",
    fault="F08 accounting",
    breaks=sizes(20),
    verbs=GEOMETRY,
    features=("snapshot_sizes", "recurrent_layers"),
    program=f"{HYBRID}; snapshot 1",
)
class SnapshotWithoutConv(GeometryLists):
    """The size of a snapshot leaves the convolution parts out.

    A plant: what is saved without them cannot be restored.
    """

    def snapshot_of(self, found: dict[str, int]) -> int:
        """Leave them out."""
        return found["recurrent_bytes"]
