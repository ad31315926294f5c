"""A naive geometry of a cache: the bytes of each layer in a list, added up."""

from fractions import Fraction
from math import ceil, gcd

from kvref.errors import KVError
from kvref_conformance.subjects.lists.layers import Layer, LayerReader, State, Stored

#: Bytes of what a state is kept in.
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class GeometryLists(LayerReader):
    """What a request takes, by the config of a model; it keeps nothing between two questions."""

    def size(
        self,
        config: str,
        num_tokens: int,
        element_bytes: int,
        tensor_parallel: int = 1,
        dp_attention: int = 1,
        first_layer: int = 0,
        num_layers: int | None = None,
    ) -> dict[str, int]:
        """Return the bytes of one request, of one rank where there are several. Raises: KVError."""
        layers = self.layers(config)
        if num_layers is not None:
            layers = self.stage(layers, first_layer, num_layers)
        ranks = self.ranks_of_group(tensor_parallel, dp_attention)
        stored = [self.share(one, ranks) for layer in layers for one in layer.stored]
        states = [self.share_of(layer.state, ranks) for layer in layers if layer.state]
        growing = [one for one in stored if one.window is None]
        windows = [one for one in stored if one.window is not None]
        return {
            "bytes_per_token": ceil(sum(self.rate(one, element_bytes) for one in growing)),
            "growing_bytes": element_bytes * sum(self.held(one, num_tokens) for one in growing),
            "window_bytes": element_bytes * sum(self.held(one, num_tokens) for one in windows),
            "recurrent_bytes": sum(self.recurrent(state) for state in states),
            "conv_bytes": sum(self.conv(state, element_bytes) for state in states),
        }

    def ranks_of_group(self, ranks: int, groups: int) -> int:
        """Return how many ranks share out the heads of one request. Raises: KVError."""
        if ranks % groups:
            raise KVError(f"{groups} groups cannot share out {ranks} ranks")
        return ranks // groups

    def stage(self, layers: list[Layer], first: int, count: int) -> list[Layer]:
        """Return the layers of a stage. Raises: KVError if one of them reads what another stage's stores."""
        if first + count > len(layers):
            raise KVError(f"there are no layers {first} to {first + count - 1}")
        for layer in layers[first : first + count]:
            self.refuse_foreign(layer.reads, first, count)
        return layers[first : first + count]

    def refuse_foreign(self, source: int | None, first: int, count: int) -> None:
        """Refuse a layer that reads what is stored on another stage. Raises: KVError."""
        if source is not None and not first <= source < first + count:
            raise KVError(f"layer {source} stores on another stage what a layer here reads")

    def snapshot(self, config: str, element_bytes: int) -> tuple[int, int]:
        """Return the bytes of a snapshot, and how many tokens take as many. Raises: KVError."""
        found = self.size(config, 1, element_bytes)
        held, rate = self.snapshot_of(found), self.growth(config, element_bytes)
        if not rate:
            raise KVError("nothing grows in this model, expected layers that attend")
        return held, ceil(held / rate)

    def growth(self, config: str, element_bytes: int) -> Fraction:
        """Return what one more token adds in the long run."""
        stored = [one for layer in self.layers(config) for one in layer.stored if one.window is None]
        return sum((self.rate(one, element_bytes) for one in stored), Fraction(0))

    def snapshot_of(self, found: dict[str, int]) -> int:
        """Return what belongs to a snapshot: both parts of every state."""
        return found["recurrent_bytes"] + found["conv_bytes"]

    def hybrid_block(self, config: str, element_bytes: int, tensor_parallel: int, multiple: int) -> int:
        """Return the block size at which a block of entries holds a state. Raises: KVError."""
        layers = self.layers(config)
        stored = [self.share(one, tensor_parallel) for layer in layers for one in layer.stored]
        states = [self.share_of(layer.state, tensor_parallel) for layer in layers if layer.state]
        if not stored or not states:
            raise KVError("only a model that attends and is recurrent has such a block")
        state = max(self.recurrent(one) + self.conv(one, element_bytes) for one in states)
        return self.rounded(state, min(one.elements for one in stored) * element_bytes, multiple)

    def rounded(self, state: int, entry: int, multiple: int) -> int:
        """Return the smallest multiple of so many tokens whose entries take the bytes of a state."""
        return multiple * -(-state // (multiple * entry))

    def held(self, one: Stored, num_tokens: int) -> int:
        """Return how many elements one layer has of so many tokens."""
        return one.elements * self.entries_of(self.kept(one, num_tokens), one.tokens)

    def kept(self, one: Stored, num_tokens: int) -> int:
        """Return how many tokens a layer keeps."""
        return num_tokens if one.window is None else min(num_tokens, one.window)

    def entries_of(self, num_tokens: int, tokens: int) -> int:
        """Return how many entries so many tokens take; those that fill none take one too."""
        return -(-num_tokens // tokens)

    def rate(self, one: Stored, element_bytes: int) -> Fraction:
        """Return how many bytes one more token adds in the long run."""
        return Fraction(one.elements * element_bytes, one.tokens)

    def recurrent(self, state: State) -> int:
        """Return the bytes of the recurrent part."""
        return state.heads * state.head_elements * BYTES[state.dtype]

    def conv(self, state: State, element_bytes: int) -> int:
        """Return the bytes of the convolution part, whatever the entries are kept in."""
        return self.channels(state) * state.columns * BYTES[state.conv_dtype]

    def channels(self, state: State) -> int:
        """Return how many channels the convolution runs over."""
        return sum(units * width for units, width in state.conv)

    def share(self, one: Stored, ranks: int) -> Stored:
        """Return what one of so many ranks stores: some of the heads, or one of them. Raises: KVError."""
        if not one.heads or ranks == 1:
            return one
        heads = gcd(one.heads, ranks)
        if heads not in (ranks, one.heads):
            raise KVError(f"{ranks} ranks cannot share out {one.heads} heads")
        return Stored(one.elements // heads, one.tokens, one.window, one.heads // heads)

    def share_of(self, state: State, ranks: int) -> State:
        """Return what one of so many ranks keeps of a state. Raises: KVError."""
        units = [state.heads, *(count for count, _ in state.conv)]
        if any(count % ranks and not (state.copied and count == 1) for count in units):
            raise KVError(f"{ranks} ranks cannot share out {units}")
        conv = [(max(1, count // ranks), width) for count, width in state.conv]
        return State(
            state.heads // ranks,
            state.head_elements,
            conv,
            state.columns,
            state.dtype,
            state.conv_dtype,
            state.copied,
        )
