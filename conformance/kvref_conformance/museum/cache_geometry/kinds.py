"""Faults of what a layer is, and of what is refused."""

from typing import Any

from kvref_conformance.museum.cache_geometry.naming import GEOMETRY, HYBRID, sizes
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.geometry import GeometryLists
from kvref_conformance.subjects.lists.layers import Config, Layer


@exhibit(
    as_if="every layer of a hybrid model were counted as one that attends",
    fault="F08 accounting",
    seen_in=("LMCache/LMCache#4278", "LMCache/LMCache#3080"),
    breaks=sizes(1),
    verbs=GEOMETRY,
    features=("recurrent_layers",),
    program=f"{HYBRID}; size 1 1",
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
    features=("recurrent_layers", "latent_layers"),
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
    as_if="a key that a config leaves out were worked out from the others",
    fault="F08 accounting",
    breaks=sizes(23),
    verbs=GEOMETRY,
    features=("class_defaults",),
    program="silent 0 1 1 8; size 1 1",
)
class DefaultsPassedOver(GeometryLists):
    """What the class of a model says is not asked for.

    A plant: a head of 128 channels is sized at the hidden size over the heads, as it is in most families.
    """

    def completed(self, text: Config) -> Config:
        """Add nothing."""
        return text


@exhibit(
    as_if="a key that is null were one that is not there",
    fault="F08 accounting",
    breaks=sizes(23),
    verbs=GEOMETRY,
    features=("class_defaults",),
    program="silent 3 1 2 8; size 1 1",
)
class NullTakenForAbsent(GeometryLists):
    """Null is replaced by what the class says.

    A plant: a config that says null for its window has none, and is given one of 4,096 tokens.
    """

    def completed(self, text: Config) -> Config:
        """Leave null out first."""
        return super().completed({name: value for name, value in text.items() if value is not None})


@exhibit(
    as_if="keys within objects of a config said nothing unless they are known",
    fault="F08 accounting",
    breaks=sizes(13),
    verbs=GEOMETRY,
    features=("recurrent_layers", "latent_layers"),
    program="kimi 8 0 1 8 1 0; odd 7",
)
class InnerKeysPassedOver(GeometryLists):
    """Keys of the config itself are judged, and those of the objects within are not.

    A plant: what a family of models does to its layers stands together, in an object of its own.
    """

    def parts(self, text: Config) -> list[Config]:
        """Look into none."""
        return []


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
