"""What a made-up model keeps of a request: written down by hand beside its config, and never read out of it.

A family (`models_of_attention`, `models_of_states`) writes a config in the keys of a real one and says what
its layers store. So the right answer to a config is known without anybody's rules for reading configs, and
the subject, the reference and the built-in reader are held to the same one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Any

#: Bytes of the number that a state or an activation is kept in.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

Config = dict[str, Any]
#: Stands for null where None leaves a key out.
NULL = object()


@dataclass(frozen=True)
class Entries:
    """Layers that each store one entry for so many tokens."""

    layers: tuple[int, ...]
    """Which layers, from 0."""
    elements: int
    """Elements of an entry of one layer."""
    tokens: int = 1
    """Tokens that share an entry."""
    window: int = 0
    """How many of the last tokens are kept; 0: all."""
    heads: int = 0
    """KV heads that ranks share out between them; 0: one vector, which every rank needs whole."""

    def stored(self, num_tokens: int) -> int:
        """Return how many elements one request of so many tokens has."""
        held = min(num_tokens, self.window) if self.window else num_tokens
        return len(self.layers) * self.elements * -(-held // self.tokens)

    def rate(self, element_bytes: int) -> Fraction:
        """Return how many bytes one more token adds in the long run."""
        return Fraction(len(self.layers) * self.elements * element_bytes, self.tokens)

    def shares(self, ranks: int) -> bool:
        """Say whether so many ranks can store these entries: each some heads, or some ranks each head."""
        return not self.heads or self.heads % ranks == 0 or ranks % self.heads == 0

    def share(self, ranks: int) -> "Entries":
        """Return what one of so many ranks stores: its part of the heads, and at least one."""
        if not self.heads:
            return self
        return replace(self, elements=self.elements // self.heads * max(1, self.heads // ranks))


@dataclass(frozen=True)
class States:
    """Recurrent layers, each with a state of its own."""

    layers: tuple[int, ...]
    heads: int
    """Heads, or channels, of the recurrent part, which ranks share out between them."""
    head_elements: int
    conv: tuple[tuple[int, int], ...] = ()
    """Channels of the convolution by what they belong to: how many there are, and channels of each."""
    copied: bool = False
    """Whether each rank has a copy of what there is one of: the group that all heads of Mamba-2 share."""
    columns: int = 3
    """Inputs that are kept of each channel: one fewer than the convolution is wide."""
    dtype: str = "float32"
    conv_dtype: str = "bfloat16"

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of the recurrent parts."""
        return len(self.layers) * self.heads * self.head_elements * BYTES[self.dtype]

    @property
    def conv_bytes(self) -> int:
        """Bytes of the convolution parts."""
        channels = sum(units * width for units, width in self.conv)
        return len(self.layers) * channels * self.columns * BYTES[self.conv_dtype]

    def shares(self, ranks: int) -> bool:
        """Say whether so many ranks can share these states out."""
        whole = all(units % ranks == 0 or (self.copied and units == 1) for units, _ in self.conv)
        return self.heads % ranks == 0 and whole

    def share(self, ranks: int) -> "States":
        """Return what one of so many ranks keeps."""
        conv = tuple((max(1, units // ranks), width) for units, width in self.conv)
        return replace(self, heads=self.heads // ranks, conv=conv)


@dataclass(frozen=True)
class Model:
    """A config, and what its layers keep."""

    config: Config
    entries: tuple[Entries, ...] = ()
    states: tuple[States, ...] = ()
    rule: str = "KV-SIZE-001"
    """The requirement that an answer breaches whose growing part is wrong."""
    window_rule: str = "KV-SIZE-005"
    """The same of its windows."""
    reads: tuple[tuple[int, int], ...] = ()
    """Layers that store nothing, each with the layer whose entries it reads."""
    where: tuple[str, ...] = ()
    """The keys that lead to the part of the config that describes the decoder."""

    @property
    def text(self) -> Config:
        """The part of the config that describes the decoder."""
        part = self.config
        for key in self.where:
            part = part[key]
        return part

    def altered(self, **keys: Any) -> "Model":
        """Return the model with keys of that part set, left out where the value is None, or null for NULL."""

        def put(part: Config, where: tuple[str, ...]) -> Config:
            if where:
                return {**part, where[0]: put(part[where[0]], where[1:])}
            changed = {
                name: value
                for name, value in {**part, **keys}.items()
                if name not in keys or value is not None
            }
            return {name: None if value is NULL else value for name, value in changed.items()}

        return replace(self, config=put(self.config, self.where))

    def sizes(self, num_tokens: int, element_bytes: int) -> dict[str, int]:
        """Return the right answer for one request."""
        growing = [one for one in self.entries if not one.window]
        windows = [one for one in self.entries if one.window]
        return {
            "bytes_per_token": ceil(sum(one.rate(element_bytes) for one in growing)),
            "growing_bytes": element_bytes * sum(one.stored(num_tokens) for one in growing),
            "window_bytes": element_bytes * sum(one.stored(num_tokens) for one in windows),
            "recurrent_bytes": sum(one.recurrent_bytes for one in self.states),
            "conv_bytes": sum(one.conv_bytes for one in self.states),
        }

    def snapshot(self, element_bytes: int) -> dict[str, int] | None:
        """Return the bytes of a snapshot, and how many tokens take as many; None where there is none."""
        rate = sum(one.rate(element_bytes) for one in self.entries if not one.window)
        held = sum(one.recurrent_bytes + one.conv_bytes for one in self.states)
        return {"snapshot_bytes": held, "num_tokens": ceil(held / rate)} if held and rate else None

    def joint_block(self, element_bytes: int, multiple: int) -> dict[str, int] | None:
        """Return the block size at which a block of one layer's entries holds one layer's state.

        None unless the layers that attend are all alike, and so are those that are recurrent.
        """
        if len(self.entries) != 1 or len(self.states) != 1 or self.entries[0].window:
            return None
        (one,), (state,) = self.entries, self.states
        held = (state.recurrent_bytes + state.conv_bytes) // len(state.layers)
        return {"block_size": multiple * -(-held // (multiple * one.elements * element_bytes))}

    @property
    def num_layers(self) -> int:
        """How many layers the model has."""
        listed = self.text.get("layers_block_type") or ()
        return int(self.text.get("num_hidden_layers") or len(listed))

    def stage(self, first: int, count: int) -> "Model | None":
        """Return what a stage of so many layers keeps; None where one of them reads another stage's."""
        own = range(first, first + count)
        if any(reader in own and source not in own for reader, source in self.reads):
            return None
        entries = [replace(e, layers=tuple(i for i in e.layers if i in own)) for e in self.entries]
        states = [replace(s, layers=tuple(i for i in s.layers if i in own)) for s in self.states]
        return replace(
            self,
            entries=tuple(one for one in entries if one.layers),
            states=tuple(one for one in states if one.layers),
        )

    def share(self, ranks: int) -> "Model | None":
        """Return what one of so many ranks keeps; None where they cannot share it out."""
        whole = all(one.shares(ranks) for one in self.entries)
        if not whole or not all(one.shares(ranks) for one in self.states):
            return None
        return replace(
            self,
            entries=tuple(one.share(ranks) for one in self.entries),
            states=tuple(one.share(ranks) for one in self.states),
        )


def places(kinds: Sequence[int], kind: int) -> tuple[int, ...]:
    """Return the layers of one kind, from 0."""
    return tuple(layer for layer, own in enumerate(kinds) if own == kind)
