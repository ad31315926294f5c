"""Faults of namespaces: what a key leaves out, cuts short, or writes so that two become one."""

from collections.abc import Hashable, Sequence
from typing import Any

from kvref.errors import ArgumentError
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.museum.prefix_hits import CACHE, SIZES
from kvref_conformance.subjects.lists.naming import Item, Name
from kvref_conformance.subjects.lists.prefix import PrefixLists

EVERY = ("adapter", "adapter_version", "salt", "media", "embeddings")
#: What breaks where nothing but tokens is looked at.
APART = tuple(f"KV-PREFIX-{number:03d}" for number in range(7, 14))


def rows_of(items: Sequence[Item], kind: str) -> list[tuple[str, int]]:
    """Return digest and position of every row of one kind."""
    return [(item[2], at) for at, item in enumerate(items) if len(item) > 1 and item[1] == kind]


def without(items: Sequence[Item], kind: str) -> list[Item]:
    """Return items with nothing in place of tokens that is of one kind."""
    return [item[:1] if len(item) > 1 and item[1] == kind else item for item in items]


@exhibit(
    as_if="keys were made of tokens alone",
    fault="F03 cache key",
    seen_in=("vllm-project/vllm#54342",),
    breaks=APART,
    may_also_break=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="salt 1 1; admit 1 1 4; commit 1; admit 2 1 5",
)
class KeyOfTokensAlone(PrefixLists):
    """A connector digests the token ids of a block and the key before it, and nothing else.

    Adapter, image and salt are lost on the way to the store that all requests share.
    """

    def key(self, name: Name) -> Hashable:
        """Drop all but tokens."""
        return tuple(item[0] for item in name[1])


@exhibit(
    as_if="two versions of an adapter were one",
    fault="F03 cache key",
    seen_in=("vllm-project/vllm#30931",),
    breaks=("KV-PREFIX-008",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="adapter 1 1; version 1 1; admit 1 1 4; commit 1; adapter 2 1; admit 2 1 5",
)
class AdapterKnownByItsName(PrefixLists):
    """The key holds the name of an adapter, which two sets of weights may have.

    Adapters are loaded and replaced while a server runs, and the name stays.
    """

    def key(self, name: Name) -> Hashable:
        """Drop the version."""
        adapter, _, salt = name[0]
        return adapter, salt, name[1]


@exhibit(
    as_if="the key said nothing of images",
    fault="F03 cache key",
    seen_in=("LMCache/LMCache#4183", "ROCm/ATOM#1358"),
    breaks=("KV-PREFIX-010", "KV-PREFIX-011"),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="image 1 1 0 1; admit 1 0 4; commit 1; admit 2 0 5",
)
class ImagesNotInTheKey(PrefixLists):
    """All rows of all images have one placeholder for a token, and tokens are what is digested.

    One mode of an engine puts the digests of images into its keys and another does not; a second engine has
    none. The second image of a conversation is answered with the first.
    """

    def key(self, name: Name) -> Hashable:
        """Drop images."""
        return name[0], tuple(without(name[1], "media"))


@exhibit(
    as_if="images were told apart by the last 16 bits of their digests",
    fault="F03 cache key",
    seen_in=("sgl-project/sglang#2151", "LMCache/LMCache#4783"),
    breaks=("KV-PREFIX-010",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="image 1 1 0 1; admit 1 0 4; commit 1; image 2 101 0 1; admit 2 0 5",
)
class DigestCutShort(PrefixLists):
    """The digest of an image stands in for its tokens, and is cut to fit a token.

    One engine takes it modulo the size of the vocabulary, another its last four digits for every row.
    Images that collide can be made on purpose.
    """

    def key(self, name: Name) -> Hashable:
        """Keep four digits."""
        items = [
            (*item[:2], item[2][-4:], *item[3:]) if item[1:2] == ("media",) else item for item in name[1]
        ]
        return name[0], tuple(items)


@exhibit(
    as_if="images counted in their order, and not in their places",
    fault="F03 cache key",
    seen_in=("vllm-project/vllm#36708",),
    breaks=("KV-PREFIX-011",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="image 1 1 0 1; admit 1 0 4; commit 1; image 2 1 1 1; admit 2 0 5",
)
class ImagesWithoutPlaces(PrefixLists):
    """The key of a block lists the images that lie in it, and not where.

    Token ids were said to fix the rest. Between two images side by side every token is the same placeholder,
    and where the first one ends is lost.
    """

    def key(self, name: Name) -> Hashable:
        """List the digests of each block."""
        texts, items = name
        blocks = []
        for start in range(0, len(items), self.block_size):
            rows = rows_of(items[start : start + self.block_size], "media")
            blocks.append(tuple(dict.fromkeys(digest for digest, _ in rows)))
        return texts, tuple(without(items, "media")), tuple(blocks)


@exhibit(
    as_if="the key said where embeddings stand, and not which",
    fault="F03 cache key",
    seen_in=("InternLM/lmdeploy#4933",),
    breaks=("KV-PREFIX-012",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="embed 1 1 0 1; admit 1 1 4; commit 1; embed 2 2 0 1; admit 2 1 5",
)
class EmbeddingsKnownByPlace(PrefixLists):
    """The key holds the range of positions that embeddings are given for.

    Their values are tensors, which are awkward to digest, so two requests with other values are one.
    """

    def key(self, name: Name) -> Hashable:
        """Drop digest and row."""
        items = [item if item[1:2] != ("embeddings",) else item[:2] for item in name[1]]
        return name[0], tuple(items)


@exhibit(
    as_if="the key said which embeddings are given, and not for which tokens",
    fault="F03 cache key",
    seen_in=("vllm-project/vllm#56655",),
    breaks=("KV-PREFIX-012",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="embed 1 1 0 1; admit 1 0 4; commit 1; embed 2 1 1 1; admit 2 0 5",
)
class EmbeddingsWithoutTheirMask(PrefixLists):
    """A mask chooses, row by row, between the token and the embedding, and is no part of the key.

    Token ids and the tensor of embeddings are both digested. Two requests that differ in the mask alone are
    one.
    """

    def key(self, name: Name) -> Hashable:
        """Keep the digests in order, apart from the tokens."""
        texts, items = name
        digests = tuple(digest for digest, _ in rows_of(items, "embeddings"))
        return texts, tuple(without(items, "embeddings")), digests


@exhibit(
    as_if="adapter, version and salt were written one behind the other",
    fault="F03 cache key",
    breaks=("KV-PREFIX-013",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="adapter 1 1; admit 1 1 4; commit 1; salt 2 1; admit 2 1 5",
)
class FieldsRunTogether(PrefixLists):
    """A namespace is the text of its fields, joined without a separator.

    A plant, and what an engine once did with an adapter's id and an extra key: whoever chooses one field can
    spell another's.
    """

    def key(self, name: Name) -> Hashable:
        """Join."""
        return "".join(name[0]), name[1]


@exhibit(
    as_if="an empty salt were a salt",
    fault="F03 cache key",
    breaks=("KV-PREFIX-014",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="admit 1 1 4; commit 1; salt 2 0; admit 2 1 5",
)
class EmptySaltIsASalt(PrefixLists):
    """A salt that is given counts, whatever it says.

    A plant: a client library that always sends the field shares nothing with those that leave it out.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Replace an empty salt by something."""
        if given.get("salt") == "":
            given["salt"] = "\0"
        return super().admit(request, tokens, max_new_tokens, **given)


@exhibit(
    as_if="a salt stood in the key of the first block alone, and later keys were made of tokens",
    fault="F03 cache key",
    breaks=("KV-PREFIX-009",),
    may_also_break=("KV-PREFIX-024",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="salt 1 1; admit 1 1 8; commit 1; admit 2 1 4; commit 2; admit 3 1 9",
)
class SaltInTheFirstKeyAlone(PrefixLists):
    """A key covers all tokens before it, and the salt is added to the first.

    A plant: a second tenant misses the first block, computes it, and from then on hits what lies behind it.
    """

    def key(self, name: Name) -> Hashable:
        """Drop the salt of later blocks."""
        (adapter, version, salt), items = name
        return adapter, version, salt if len(items) <= self.block_size else "", items


@exhibit(
    as_if="an admission with a salt were always refused",
    fault="F22 no progress",
    breaks=("KV-PREFIX-018",),
    verbs=CACHE,
    block_sizes=SIZES,
    features=EVERY,
    program="salt 1 1; admit 1 1 1",
)
class SaltRefused(PrefixLists):
    """Salts are claimed, and the request that has one is refused.

    A plant: nothing leaks from a tenant who is never served.
    """

    def admit(self, request: int, tokens: Sequence[int], max_new_tokens: int, **given: Any) -> Any:
        """Refuse a salt."""
        if given.get("salt"):
            raise ArgumentError("salt is given, expected none")
        return super().admit(request, tokens, max_new_tokens, **given)
