"""What one stage of a pipeline keeps: the entries and states of its own run of layers.

Layers are dealt out in runs. Engines differ in who gets those that are left over: in vLLM the stages before
the last one, so that the last has room for what comes behind the layers; in SGLang the last ones. So a stage
is named here by its layers, and `stages_of` is vLLM's way to make them.

A layer that reads what another stores must be on the stage of that other: entries are never sent along.

Realises: KV-SIZE-019 pipeline-stage-layers, KV-SIZE-022 stage-reads-its-own.
For porters: `geometry_of_stage` gives a geometry like any other, so that every sum is the same code.
Source: vLLM 0.33.0, `get_pp_indices`.
"""

from dataclasses import replace

from kvref.arrays import check_count
from kvref.errors import ArgumentError
from kvref.planning.groups import CacheGeometry, LayerGroup


def stages_of(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return how many layers each stage has, as vLLM deals them out.

    Those left over go to the last stage but one, to the one before it, and so on.
    Raises: ArgumentError if there are more stages than layers.

    >>> stages_of(61, 4), stages_of(62, 4), stages_of(63, 4)
    ((15, 15, 16, 15), (15, 16, 16, 15), (16, 16, 16, 15))
    """
    if check_count("num_stages", num_stages) > check_count("num_layers", num_layers):
        raise ArgumentError(
            f"num_stages = {num_stages}, expected at most one for each of {num_layers} layers"
        )
    each, left = divmod(num_layers, num_stages)
    return tuple(each + (num_stages - 1 - left <= stage < num_stages - 1) for stage in range(num_stages))


def geometry_of_stage(geometry: CacheGeometry, first_layer: int, num_layers: int) -> CacheGeometry:
    """Return what the stage with a run of the model's layers keeps; layers keep their numbers.

    Layers that draft are on the last stage.
    Raises: ArgumentError if the run is none of the model's, or a layer of it reads what another stage stores.
    """
    times = geometry.attentions
    first = check_count("first_layer", first_layer, minimum=0) * times
    end = first + check_count("num_layers", num_layers) * times
    if end > geometry.num_layers:
        raise ArgumentError(
            f"first_layer + num_layers = {end // times}, expected at most the {geometry.num_layers // times} "
            "layers of the model (KV-SIZE-019 pipeline-stage-layers)"
        )
    groups = [_within(group, first, end) for group in geometry.groups]
    states = [replace(s, layers=_run(s.layers, first, end)) for s in geometry.states]
    return replace(
        geometry,
        groups=tuple(group for group in groups if group.layers),
        states=tuple(state for state in states if state.layers),
        drafts=geometry.drafts if end == geometry.num_layers else (),
    )


def _within(group: LayerGroup, first: int, end: int) -> LayerGroup:
    read = [(i, j) for i, j in zip(group.readers, group.sources, strict=True) if first <= i < end]
    for reader, source in read:
        if not first <= source < end:
            raise ArgumentError(
                f"layer {reader} reads what layer {source} stores, which is on another stage, expected both "
                f"on the one of layers {first} to {end - 1} (KV-SIZE-022 stage-reads-its-own)"
            )
    return replace(
        group,
        layers=_run(group.layers, first, end),
        readers=tuple(i for i, _ in read),
        sources=tuple(j for _, j in read),
    )


def _run(layers: tuple[int, ...], first: int, end: int) -> tuple[int, ...]:
    return tuple(i for i in layers if first <= i < end)
