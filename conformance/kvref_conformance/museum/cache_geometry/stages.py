"""Faults of ranks that share out requests, and of stages that share out layers."""

from kvref_conformance.museum.cache_geometry.naming import GEOMETRY, sizes
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.lists.layers import Layer


@exhibit(
    as_if="all ranks shared out the heads of a request, though groups of them have requests of their own",
    fault="F08 accounting",
    breaks=sizes(18),
    verbs=GEOMETRY,
    features=("tensor_parallel", "dp_attention"),
    program="llama 1 2 8; grouped 2 2 1 1",
)
class GroupsOverlooked(GeometryLists):
    """The number of groups is not read.

    A plant: a rank of eight that has whole heads for its own requests is sized at an eighth of them.
    """

    def ranks_of_group(self, ranks: int, groups: int) -> int:
        """Take all ranks."""
        return ranks


@exhibit(
    as_if="a stage had the first layer of the next one, too",
    fault="F01 boundary",
    breaks=sizes(19),
    may_also_break=sizes(22),
    verbs=GEOMETRY,
    features=("pipeline_parallel",),
    program="llama 2 1 8; stage 0 1 1 1",
)
class StageWithOneMore(GeometryLists):
    """The run of layers of a stage is read as one that includes its end.

    A plant: every stage but the last is sized at one layer too many.
    """

    def stage(self, layers: list[Layer], first: int, count: int) -> list[Layer]:
        """Include the end."""
        super().stage(layers, first, count)
        return layers[first : first + count + 1]


@exhibit(
    as_if="a layer could read what a layer of another stage stores",
    fault="F08 accounting",
    breaks=sizes(22),
    verbs=GEOMETRY,
    features=("pipeline_parallel", "uneven_layers"),
    program="globally 1 1 1 8 0 1 1; stage 2 1 1 1",
)
class ForeignReadPassedOver(GeometryLists):
    """Which layers share is not looked at where a model is divided into stages.

    A plant: the stage of the layers that share is sized at nothing, and has nothing to read.
    """

    def refuse_foreign(self, source: int | None, first: int, count: int) -> None:
        """Refuse nothing."""
