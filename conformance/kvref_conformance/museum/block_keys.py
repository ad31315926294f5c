"""Faults of keys: too little in them, too much, and another scheme than the one that is declared."""

from collections.abc import Sequence
from itertools import count
from typing import Any

from kvref.memory.vllm_keys import vllm_block_keys
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.keys import KeyLists
from kvref_conformance.subjects.lists.naming import Content, Name
from kvref_conformance.subjects.reference_prefix import namespace_of

KEYS = ("block_keys",)
SIZES = (4,)


@exhibit(
    as_if="a key named a block's own tokens, and nothing before them",
    fault="F03 cache key",
    breaks=("KV-PREFIX-030",),
    verbs=KEYS,
    block_sizes=SIZES,
    program="keys 1 1 4 1 4",
)
class KeyOfOneBlock(KeyLists):
    """The tokens of a block are digested, and the key before it is not.

    A plant: equal blocks of two prompts have one key, though what they hold was computed behind other tokens.
    """

    def name(self, content: Content, stop: int) -> Name:
        """Name the block alone."""
        return content.texts, content.items(stop - self.block_size, stop)


@exhibit(
    as_if="tokens were written without anything between them",
    fault="F03 cache key",
    breaks=("KV-PREFIX-030",),
    verbs=KEYS,
    block_sizes=SIZES,
    program="tokens 1 2 3 11; tokens 1 2 31 1",
)
class DigitsRunTogether(KeyLists):
    """The text of a block's tokens is digested.

    A plant: 1, 23 and 12, 3 are written alike.
    """

    def key(self, name: Name) -> str:
        """Join."""
        return super().key((name[0], (("".join(str(item[0]) for item in name[1]),),)))


@exhibit(
    as_if="keys depended on the process that makes them",
    fault="F03 cache key",
    breaks=("KV-PREFIX-031",),
    verbs=KEYS,
    block_sizes=SIZES,
)
class KeysOfThisProcess(KeyLists):
    """Keys are hashes that the language seeds anew for each process.

    A plant: within one process all is well. A store, a router or a second worker finds nothing.
    """

    processes = count()

    def __init__(self, block_size: int, hash_bits: int = 0) -> None:
        super().__init__(block_size, hash_bits)
        self.seed = next(self.processes)

    def key(self, name: Name) -> str:
        """Put the seed in."""
        return super().key(((*name[0], str(self.seed)), name[1]))


@exhibit(
    as_if="a block that is not full had a key",
    fault="F01 boundary",
    breaks=("KV-PREFIX-032",),
    verbs=KEYS,
    block_sizes=SIZES,
    program="keys 1 1 1",
)
class PartOfABlockKeyed(KeyLists):
    """The last block has a key, however few tokens are in it.

    A plant: it fills, and the key that was published names something that is not there any more.
    """

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Name the rest too."""
        keys = super().keys(tokens, **given)
        rest = Content(list(tokens), ("", "", ""), {})
        return keys if len(tokens) % self.block_size == 0 else [*keys, self.key(self.name(rest, len(tokens)))]


@exhibit(
    as_if="keys began with a seed of their own",
    fault="F03 cache key",
    breaks=("KV-PREFIX-033",),
    verbs=KEYS,
    block_sizes=SIZES,
    features=("adapter", "adapter_version", "salt", "media"),
    choices={"key-scheme": "vllm_sha256_cbor"},
    program="keys 1 1 4",
)
class KeysOfAnotherSeed(KeyLists):
    """The scheme is the declared one, started from an environment variable.

    A plant: PYTHONHASHSEED is set on one machine for another purpose, and its keys are nobody else's.
    """

    def keys(self, tokens: Sequence[int], **given: Any) -> list[str]:
        """Start from the text 0."""
        keys = vllm_block_keys(list(tokens), self.block_size, namespace_of(given), seed="0")
        return [key.hex() for key in keys]
