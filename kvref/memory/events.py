"""The events of a history and their fields, as data: what a line may say.

Every field has one kind wherever it stands (`kvref.memory.fields`). `FIELDS` says what a field means,
`EVENTS` which fields an event has. The chapter on memory has both tables, in the same words.

Realises: KV-BLOCK-042 history-wellformed.
For porters: a writer of histories needs the names alone; a reader tests before it acts.
Source: the operations of vLLM's and SGLang's block managers, reduced to what decides who owns which slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Fields:
    """The fields of one event; those in `parallel` have one item for each of the first."""

    required: tuple[str, ...]
    optional: tuple[str, ...]
    summary: str
    parallel: tuple[str, ...] = ()


#: Field -> its kind and what it says.
FIELDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "schema": ("schema", "names this format"),
        "num_blocks": ("size", "blocks of the pool; ids are 0 to num_blocks - 1"),
        "block_size": ("size", "tokens of a block"),
        "block_sizes": ("sizes", "tokens of a block for each group, instead of block_size"),
        "windows": (
            "windows",
            "for each group, how many tokens a token attends to, its own counted; null: all",
        ),
        "null_block": ("flag", "whether block 0 is set aside; false if left out"),
        "publish": ("publish", "when blocks become findable; computed if left out"),
        "ahead": ("count", "tokens that a step may compute before the history names them; 0 if left out"),
        "max_wait": ("size", "steps a request may wait while others compute; not held if left out"),
        "tiers": ("tiers", "for each tier, how many blocks it holds"),
        "writer": ("text", "who wrote the history"),
        "request": ("name", "a request"),
        "parent": ("name", "the request that is forked"),
        "requests": ("names", "the requests of a batch"),
        "tokens": ("tokens", "token ids, in order; one a request where there are requests"),
        "model": ("text", "model and revision; empty if left out"),
        "adapter": ("text", "the adapter's name; empty if left out"),
        "adapter_version": ("text", "its version; empty if left out"),
        "salt": ("text", "the tenant's salt; empty if left out"),
        "spans": ("spans", "rows of other content that stand in place of tokens; none if left out"),
        "count": ("count", "tokens, or slots of one block; never blocks"),
        "counts": ("counts", "tokens, one number a request; 1 each if left out"),
        "start": ("count", "the position of the first token; 0 where it may be left out"),
        "starts": ("counts", "the positions of the first tokens, one a request"),
        "blocks": ("ids", "block ids, in the order of the table"),
        "slots": ("ids", "slots, block id x block size + offset, one a token"),
        "group": ("count", "the group of a table; 0 if left out"),
        "index": ("count", "the first entry of a table that changes, counted in blocks"),
        "source": ("count", "the block that is copied"),
        "target": ("count", "the block that is written"),
        "snapshot": ("name", "a place for one recurrent state"),
        "snapshots": ("names", "places for recurrent states"),
        "tier": ("text", "the name of a tier"),
        "keys": ("names", "places in a tier, one a block"),
        "step": ("name", "a step of the engine"),
        "transfer": ("name", "a transfer of blocks"),
        "kind": ("transfer", "which way a transfer goes"),
        "failed": ("flag", "whether a transfer failed; false if left out"),
        "num_free": ("count", "blocks the engine counts as free, cached ones included"),
    }
)

_SPACE = ("model", "adapter", "adapter_version", "salt", "spans")

#: Event -> its fields and what it says.
EVENTS: Mapping[str, Fields] = MappingProxyType(
    {
        "open": Fields(
            ("schema", "num_blocks"),
            (
                "block_size",
                "block_sizes",
                "windows",
                "null_block",
                "publish",
                "ahead",
                "max_wait",
                "tiers",
                "writer",
            ),
            "the first line: a pool of blocks, all free",
        ),
        "request": Fields(("request", "tokens"), _SPACE, "a request arrives with its prompt and namespace"),
        "tokens": Fields(
            ("request", "tokens"), (), "tokens join a request: decoded, drafted, or more of its prompt"
        ),
        "decode": Fields(("requests", "tokens"), (), "one token joins each request", ("requests", "tokens")),
        "truncate": Fields(
            ("request", "count"), (), "a request keeps its first tokens: drafts were rejected"
        ),
        "fork": Fields(
            ("request", "parent"), (), "a request begins with the tokens and all blocks of another"
        ),
        "preempt": Fields(
            ("request",), (), "a request goes back to waiting; what it computed counts no more"
        ),
        "finish": Fields(
            ("request",), (), "a request has all its tokens; it keeps its blocks until they are freed"
        ),
        "abort": Fields(
            ("request",), (), "a request ends before that; it keeps its blocks until they are freed"
        ),
        "allocate": Fields(("request", "blocks"), ("group",), "free blocks join the end of a table"),
        "free": Fields(("request",), ("blocks",), "a request lets go of blocks: those named, or all it has"),
        "pin": Fields(("blocks",), (), "blocks are kept from being free, whoever lets go of them"),
        "unpin": Fields(("blocks",), (), "one pin of each block is taken back"),
        "copy": Fields(
            ("source", "target", "count"),
            ("request", "group"),
            "the first slots of a block are copied; in the request's table the target replaces the source",
        ),
        "replace": Fields(
            ("request", "index", "blocks"),
            ("group",),
            "entries of a table become other blocks; the old are let go",
        ),
        "compute": Fields(
            ("requests", "starts"),
            ("counts", "step"),
            "a step writes tokens of each request, then reads all that they attend to",
            ("requests", "starts", "counts"),
        ),
        "write": Fields(
            ("request", "start", "count"),
            ("blocks", "slots", "group", "step"),
            "tokens are computed and written; into the blocks or slots that are named, if not by the table",
        ),
        "read": Fields(
            ("request", "start", "count"),
            ("blocks", "group"),
            "tokens are read by attention; from the blocks that are named, if not by the table",
        ),
        "publish": Fields(
            ("blocks",), ("request", "count", "group"), "blocks can be found by others from now on"
        ),
        "evict": Fields((), ("blocks", "snapshots"), "blocks and states can no longer be found"),
        "hit": Fields(
            ("request", "count", "blocks"),
            ("start", "group"),
            "published blocks join a table and count as computed",
        ),
        "reset": Fields((), (), "nothing that was published can be found any more"),
        "discard": Fields(
            (), ("blocks",), "what blocks hold is lost: zeroed, or all of the pool put to sleep"
        ),
        "snapshot": Fields(("request", "snapshot", "count"), (), "the state after the first tokens is kept"),
        "restore": Fields(
            ("request", "snapshot"), (), "a state that was kept becomes the state of a request"
        ),
        "store": Fields(("tier", "keys", "blocks"), (), "what blocks hold is kept in a tier"),
        "load": Fields(
            ("tier", "keys", "blocks"),
            ("request", "count"),
            "blocks hold what was stored; the request's first tokens count as computed",
        ),
        "drop": Fields(("tier", "keys"), (), "places of a tier are given up"),
        "begin": Fields(
            (),
            ("step", "transfer", "kind", "request", "start", "count", "blocks"),
            "a step begins, or a transfer of blocks, of a request's tokens where they are named",
        ),
        "end": Fields((), ("step", "transfer", "failed", "num_free"), "a step ends, or a transfer"),
        "close": Fields((), ("num_free",), "the last line: whatever nobody needs has been let go"),
    }
)
