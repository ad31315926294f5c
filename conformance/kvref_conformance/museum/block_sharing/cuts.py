"""Faults of tokens that are taken back, and of appends that do not fit."""

from kvref.errors import OutOfBlocksError
from kvref_conformance.museum.block_tables.slots import TABLES
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.tables import Appended, ListTables


@exhibit(
    as_if="a broken last block was not released with the tokens in it",
    fault="F08 accounting",
    seen_in=("sgl-project/sglang#31616",),
    breaks=("KV-BLOCK-026",),
    may_also_break=("KV-BLOCK-003", "KV-BLOCK-004", "KV-BLOCK-021"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 5; truncate 0 4",
)
class TailBlockStranded(ListTables):
    """Rejected tokens are released up to the length that was recorded, which need not be whole blocks.

    The block in which that length ends is in no table any more, and is not free.
    """

    def truncate(self, request: int, num_tokens: int) -> None:
        """Keep the last block of what was there out of what is let go of."""
        self.check_known(request)
        self.check_truncation(request, num_tokens)
        for table, size in zip(self.tables[request], self.block_sizes, strict=True):
            keep = self.num_kept(num_tokens, size)
            self.drop(table[keep : self.lengths[request] // size])
            del table[keep:]
        self.lengths[request] = num_tokens


@exhibit(
    as_if="a cut inside a block lost the whole block",
    fault="F01 boundary",
    breaks=("KV-BLOCK-026",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-021", "KV-BLOCK-032"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 2; truncate 0 1",
)
class CutRoundsDown(ListTables):
    """As many blocks are kept as the remaining tokens fill.

    A plant: the tokens in the block that they do not fill are lost, and the next append fills it from anew.
    """

    def num_kept(self, num_tokens: int, block_size: int) -> int:
        """Round down."""
        return num_tokens // block_size


@exhibit(
    as_if="a request owned its last block once it had been cut back",
    fault="F17 residue",
    breaks=("KV-BLOCK-027",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-021", "KV-BLOCK-032"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 2; fork 0 1; truncate 1 1; append 1 1",
)
class OwnerSinceTheCut(ListTables):
    """Whether the last block is shared is found out at the fork, and forgotten at the first cut.

    A plant: draft tokens are written into a block of one's own, so a request that rejects some is taken to
    own the block. Rejected back into the part that it shares, it does not.
    """

    def truncate(self, request: int, num_tokens: int) -> None:
        """Remember the cut."""
        super().truncate(request, num_tokens)
        self.__dict__.setdefault("cut", set()).add(request)

    def needs_copy(self, request: int, group: int) -> bool:
        """Trust the cut."""
        return super().needs_copy(request, group) and request not in self.__dict__.get("cut", set())


@exhibit(
    as_if="a cut to more tokens than there are made the request longer",
    fault="F20 failure as success",
    breaks=("KV-BLOCK-034",),
    may_also_break=("KV-BLOCK-033",),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; truncate_beyond 0 1",
)
class CutLengthens(ListTables):
    """The length is set to what it is told, whether there were so many tokens or not.

    A plant: accepted drafts are counted twice, and the request is cut back to more than was written. It reads
    what its last block held before.
    """

    def check_truncation(self, request: int, num_tokens: int) -> None:
        """Let every length pass."""


@exhibit(
    as_if="the tokens of a refused append were counted",
    fault="F20 failure as success",
    breaks=("KV-BLOCK-028",),
    may_also_break=("KV-BLOCK-003", "KV-BLOCK-020", "KV-BLOCK-024"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 99; append 0 1",
)
class RefusedTokensCounted(ListTables):
    """The length is raised before there is room for it, and stays when there is none.

    A plant: tables and counts are as before, and the next token goes far beyond the last one.
    """

    def append(self, request: int, num_tokens: int) -> Appended:
        """Count in any case."""
        try:
            return super().append(request, num_tokens)
        except OutOfBlocksError:
            self.lengths[request] += num_tokens
            raise


@exhibit(
    as_if="the copy of a shared block was made before there was room for the rest",
    fault="F20 failure as success",
    breaks=("KV-BLOCK-028",),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; fork 0 1; append 1 99",
)
class CopiedBeforeRefused(ListTables):
    """An append replaces the shared block first, and then finds no room for the rest.

    A plant: the table points to a copy that nobody makes, for a refused append says nothing about copies.
    """

    def append(self, request: int, num_tokens: int) -> Appended:
        """Replace the last block, then ask."""
        self.check_known(request)
        if self.needs_copy(request, 0) and self.pool.free_blocks:
            missing = self.num_missing(request, 0, self.lengths[request] + num_tokens)
            if missing + 1 > len(self.pool.free_blocks):
                self.replace_tail(request, 0)
        return super().append(request, num_tokens)
