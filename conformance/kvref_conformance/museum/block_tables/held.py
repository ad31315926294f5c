"""Faults of what a request holds: too many blocks, blocks that stay when it ends, requests nobody knows."""

from kvref_conformance.museum.block_tables.slots import TABLES
from kvref_conformance.museum.exhibit import exhibit
from kvref_conformance.subjects.lists.tables import Appended, ListTables


@exhibit(
    as_if="blocks that were pruned were freed again with their request",
    fault="F07 ownership",
    seen_in=("vllm-project/vllm#42571",),
    breaks=("KV-BLOCK-029",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-021", "KV-BLOCK-023"),
    verbs=TABLES,
    block_sizes=(4,),
    features=("pruning",),
    program="add 0; append 0 8; prune 0; free 0",
)
class PrunedFreedAgain(ListTables):
    """Two parts of an engine free the blocks that have left a window.

    One prunes the table. The other has kept a list of what the request was given, and frees all of it when
    the request ends. By then the pruned blocks are another's.
    """

    def prune(self, request: int) -> None:
        """Keep the list."""
        before = [list(table) for table in self.tables.get(request, [])]
        super().prune(request)
        kept = self.__dict__.setdefault("pruned", {}).setdefault(request, [])
        for old, new in zip(before, self.tables[request], strict=True):
            kept += [was for was, now in zip(old, new, strict=True) if was != now]

    def free(self, request: int) -> None:
        """Free what is on the list."""
        super().free(request)
        self.drop(self.__dict__.get("pruned", {}).pop(request, []))


@exhibit(
    as_if="a request shorter than a block was never freed",
    fault="F08 accounting",
    seen_in=("vllm-project/vllm#18591",),
    breaks=("KV-BLOCK-029",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-032", "KV-BLOCK-033"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; free 0",
)
class ShortRequestsLeak(ListTables):
    """A request without a whole block has nothing to send, so nobody says that it has been sent.

    The sender keeps its blocks until it is told, and is told about whole blocks only.
    """

    def free(self, request: int) -> None:
        """Forget short requests without letting go."""
        self.check_known(request)
        if 0 < self.lengths[request] < min(self.block_sizes):
            self.forget(request)
        else:
            super().free(request)


@exhibit(
    as_if="tokens of a step in flight were counted when the window was pruned",
    fault="F05 still in flight",
    seen_in=("vllm-project/vllm-ascend#13501",),
    breaks=("KV-BLOCK-030",),
    may_also_break=("KV-BLOCK-004", "KV-BLOCK-021"),
    verbs=TABLES,
    block_sizes=(4,),
    features=("pruning",),
    program="add 0; append 0 4; prune 0",
)
class PrunedByScheduled(ListTables):
    """A window is pruned by the tokens that are scheduled and not by those that are processed.

    The next tokens still attend to what has been freed. Here a block of tokens is scheduled ahead.
    """

    def num_prunable(self, request: int, group: int) -> int:
        """Count a block of tokens too many."""
        size = self.block_sizes[group]
        return self.first_attended(self.lengths[request] + size, group) // size


@exhibit(
    as_if="the window were one block longer when it is pruned",
    fault="F01 boundary",
    breaks=("KV-BLOCK-030",),
    may_also_break=("KV-BLOCK-004",),
    verbs=TABLES,
    block_sizes=(4,),
    features=("pruning",),
    program="add 0; append 0 8; prune 0",
)
class PruningStopsShort(ListTables):
    """The last block that could go is kept.

    A plant: rounding is done on the safe side twice. Every request holds a block that nobody will read.
    """

    def num_prunable(self, request: int, group: int) -> int:
        """Keep one more."""
        return max(0, super().num_prunable(request, group) - 1)


@exhibit(
    as_if="the first group kept its blocks when the second had none left",
    fault="F20 failure as success",
    breaks=("KV-BLOCK-028", "KV-BLOCK-031"),
    verbs=TABLES,
    block_sizes=(4, 2),
    features=("groups",),
    program="add 0; append 0 9",
)
class GroupsOneByOne(ListTables):
    """Each group takes its blocks for itself, and the one that finds none raises.

    A plant: with one group, the append is all or nothing.
    """

    def append(self, request: int, num_tokens: int) -> Appended:
        """Let each group ask for its own room."""
        self.check_known(request)
        stop = self.lengths[request] + num_tokens
        for group in range(len(self.block_sizes)):
            if not self.needs_copy(request, group):
                self.pool.check_room(self.num_missing(request, group, stop))
                self.grow(request, group, stop)
        return super().append(request, num_tokens)


@exhibit(
    as_if="a request held the block of its next token already",
    fault="F01 boundary",
    breaks=("KV-BLOCK-032",),
    may_also_break=(
        "KV-BLOCK-003",
        "KV-BLOCK-004",
        "KV-BLOCK-009",
        "KV-BLOCK-021",
        "KV-BLOCK-028",
        "KV-BLOCK-033",
    ),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 4",
)
class OneBlockAhead(ListTables):
    """Whole blocks are counted, and one is added for the rest, also where there is none.

    A plant: a request of exactly one block holds two. With short requests a pool serves half as many.
    """

    def num_missing(self, request: int, group: int, num_tokens: int) -> int:
        """Round up what needs no rounding."""
        return num_tokens // self.block_sizes[group] + 1 - len(self.tables[request][group])


@exhibit(
    as_if="each chunk of a prompt was given blocks for the whole prompt",
    fault="F17 residue",
    seen_in=("sgl-project/sglang#36855",),
    breaks=("KV-BLOCK-032",),
    may_also_break=("KV-BLOCK-003", "KV-BLOCK-004", "KV-BLOCK-028"),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; append 0 1; append 0 1",
)
class WholePromptEachChunk(ListTables):
    """A request that is not inserted into the tree begins from 0 in each chunk, and keeps what it has.

    A long prompt takes the pool several times over, until the engine is killed.
    """

    def num_missing(self, request: int, group: int, num_tokens: int) -> int:
        """Count from the first token."""
        size = self.block_sizes[group]
        return (num_tokens + size - 1) // size


@exhibit(
    as_if="adding a request again began it anew",
    fault="F20 failure as success",
    breaks=("KV-BLOCK-033",),
    verbs=TABLES,
    block_sizes=(4,),
    program="add 0; add_again 0",
)
class AddedAgain(ListTables):
    """A request that is there already is begun again.

    A plant: two requests with one id, after a counter has wrapped or a client has chosen it. The first one's
    blocks are in no table and are never freed.
    """

    def add(self, request: int) -> None:
        """Begin whatever is asked."""
        self.tables[request] = [[] for _ in self.block_sizes]
        self.lengths[request] = 0


@exhibit(
    as_if="freeing a request that is not there did nothing",
    fault="F20 failure as success",
    breaks=("KV-BLOCK-033",),
    verbs=TABLES,
    block_sizes=(4,),
    program="free_unknown 0",
)
class StrangersFreed(ListTables):
    """A request that is not there is freed without a word.

    A plant: a wrong id frees nothing and says so to nobody, and the right one leaks.
    """

    def free(self, request: int) -> None:
        """Pass over strangers."""
        if request in self.tables:
            super().free(request)
