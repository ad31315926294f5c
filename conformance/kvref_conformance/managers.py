"""What a stateful subject may offer: the managers, what opens one, and the operations on it.

A subject offers a manager by having an attribute of its name: a class, or a function, that is called with the
arguments of `opens` by name and gives an object. The methods of that object are the operations it offers.
An operation takes its required arguments by position, in this order, and the optional ones by name, and only
where their feature is claimed. It gives its one answer as it is, several as a tuple in this order, as a
mapping, or as an object with attributes of these names; an operation that gives nothing returns None.

Realises: KV-CONF-001 presence-is-claim, KV-CONF-002 optional-arguments, KV-CONF-033 operations-are-claims.
For porters: one operation is enough to begin; each check says which it needs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from kvref_conformance.contracts import VERBS

Kind = Literal["int", "ints", "text", "texts"]
Value = int | str | list[int] | list[str]

#: Entries of one list, and characters of all texts of one list together: what a line of the wire holds.
MAX_LIST = 4096
MAX_TEXTS = 48 * 1024
#: The smallest block id, slot or count is -1, which is null; the largest of any number is below this.
MAX_NUMBER = 2**53


@dataclass(frozen=True)
class Parameter:
    """One thing that goes into an operation or comes out of it."""

    name: str
    kind: Kind
    feature: str | None = None
    """The feature whose claim makes this argument possible; None if it is always passed."""

    def __str__(self) -> str:
        spelled = f"{self.name}: {self.kind}"
        return f"[{spelled}]" if self.feature else spelled


@dataclass(frozen=True)
class Operation:
    """One method of a manager."""

    name: str
    arguments: tuple[Parameter, ...]
    returns: tuple[Parameter, ...]
    summary: str
    feature: str | None = None
    """The feature that a subject claims if it offers this operation; None if none is needed."""


@dataclass(frozen=True)
class Manager:
    """One contract that holds state."""

    name: str
    opens: tuple[Parameter, ...]
    operations: Mapping[str, Operation]
    summary: str


def _parameters(text: str) -> tuple[Parameter, ...]:
    """Parse `name:kind` words; `name:kind:feature` is optional."""
    found = []
    for word in text.split():
        name, kind, feature = (word + ":").split(":")[:3]
        found.append(Parameter(name, kind, feature or None))  # type: ignore[arg-type]  # a literal below
    return tuple(found)


def _operation(name: str, takes: str, gives: str, summary: str, feature: str | None = None) -> Operation:
    return Operation(name, _parameters(takes), _parameters(gives), summary, feature)


def _manager(name: str, opens: str, summary: str, *operations: Operation) -> Manager:
    return Manager(name, _parameters(opens), {operation.name: operation for operation in operations}, summary)


#: Everything but tokens that the contents of a block depend on.
_NAMESPACE = (
    "adapter:text:adapter adapter_version:text:adapter_version salt:text:salt "
    "media_digests:texts:media media_offsets:ints:media media_lengths:ints:media "
    "embeddings_digests:texts:embeddings embeddings_offsets:ints:embeddings "
    "embeddings_lengths:ints:embeddings"
)
_COPIES = "copy_sources:ints copy_targets:ints copy_counts:ints copy_groups:ints"
#: Where the tokens of a step lie; which state slot it starts from (-1: from zeros), in which it leaves its
#: final state, and after how many tokens of the request the running state is copied into which others.
_STEP = "slots:ints source:int state:int save_positions:ints save_states:ints"
_FREE = _operation(
    "num_free", "", "num_free_blocks:int", "how many blocks could be handed out, evicting what nobody holds"
)

MANAGERS: dict[str, Manager] = {
    manager.name: manager
    for manager in (
        _manager(
            "block_allocator",
            "num_blocks:int",
            "who holds which block of a pool",
            _operation("allocate", "num_blocks:int", "blocks:ints", "hand out that many blocks"),
            _operation("free", "blocks:ints", "", "let go of each block once"),
            _operation("touch", "blocks:ints", "", "hold blocks that have a holder once more"),
            _operation("pin", "blocks:ints", "", "keep held blocks, also when their holders let go", "pin"),
            _operation("unpin", "blocks:ints", "", "take back one pin of each block", "pin"),
            _operation("begin_step", "", "step:int", "a step begins that may write any held block", "steps"),
            _operation("end_step", "step:int", "", "this step, and each before it, writes no more", "steps"),
            _FREE,
        ),
        _manager(
            "block_tables",
            "num_blocks:int block_sizes:ints windows:ints:pruning",
            "where the tokens of each request lie, in one or more groups of layers",
            _operation("add", "request:int", "", "begin a request without tokens"),
            _operation(
                "append",
                "request:int num_tokens:int",
                f"slots:ints {_COPIES}",
                "add tokens; say where they lie, and which blocks are copied before they are written",
            ),
            _operation("fork", "parent:int child:int", "", "begin a request with all tokens of another"),
            _operation("truncate", "request:int num_tokens:int", "", "keep only the first tokens"),
            _operation("prune", "request:int", "", "let go of blocks wholly below the window", "pruning"),
            _operation("free", "request:int", "", "end a request"),
            _operation(
                "block_table", "request:int group:int", "blocks:ints", "the blocks of a request, -1 is null"
            ),
            _FREE,
        ),
        _manager(
            "prefix_cache",
            "num_blocks:int block_size:int hash_bits:int:weak_hash",
            "which tokens of a request are computed already",
            _operation(
                "admit",
                f"request:int tokens:ints max_new_tokens:int {_NAMESPACE}",
                "num_cached_tokens:int slots:ints",
                "begin a request of one token or more, none negative, and schedule them; say what is cached, "
                "and where all of it lies",
            ),
            _operation(
                "extend",
                "request:int tokens:ints max_new_tokens:int",
                "slots:ints",
                "add decoded tokens and schedule more; say where those scheduled now lie",
            ),
            _operation("commit", "request:int", "", "what is scheduled is computed now"),
            _operation(
                "slots", "request:int", "slots:ints", "the slots of all scheduled tokens, as they are now"
            ),
            _operation("finish", "request:int", "", "end a request; what it computed may be hit"),
            _operation(
                "abort", "request:int", "", "end a request, dropping what was scheduled and not computed"
            ),
            _FREE,
            _operation("reset", "", "", "forget everything; refused while a request holds blocks"),
            _operation(
                "take_events", "", "events:text", "what was stored and removed, as JSON text", "events"
            ),
        ),
        _manager(
            "snapshot_cache",
            "num_blocks:int block_size:int num_states:int snapshot_interval:int window:int:window",
            "which tokens are computed already in a model that also keeps recurrent states",
            _operation(
                "admit",
                f"request:int tokens:ints max_new_tokens:int {_NAMESPACE}",
                f"num_cached_tokens:int {_STEP}",
                "begin a request, as of a prefix cache, and schedule its first step; say what is cached, and "
                "where states are read, kept and saved",
            ),
            _operation(
                "extend",
                "request:int tokens:ints max_new_tokens:int num_drafts:int:drafts",
                _STEP,
                "add decoded tokens, the last `num_drafts` of which may be rejected; schedule the next step",
            ),
            _operation(
                "commit",
                "request:int num_accepted:int:drafts",
                "",
                "the step is computed now; of its drafts the first `num_accepted` stay",
            ),
            _operation(
                "slots", "request:int", "slots:ints", "the slots of all scheduled tokens, as they are now"
            ),
            _operation("finish", "request:int", "", "end a request; what it computed may be hit"),
            _operation("abort", "request:int", "", "end a request, dropping the step in flight"),
            _FREE,
            _operation(
                "num_free_states",
                "",
                "num_free_states:int",
                "how many state slots could be handed out, evicting snapshots that nobody restores",
            ),
            _operation("reset", "", "", "forget everything; refused while a request is there"),
        ),
        _manager(
            "block_keys",
            "block_size:int hash_bits:int:weak_hash",
            "the name of a block's contents, the same in every process",
            _operation(
                "keys",
                f"tokens:ints {_NAMESPACE}",
                "keys:texts",
                "one key for each full block, in hexadecimal",
            ),
        ),
        _manager(
            "block_index",
            "block_size:int",
            "which worker holds which block",
            _operation(
                "store",
                "worker:int parent:text keys:texts",
                "",
                "a worker holds blocks after `parent`, empty at the root",
            ),
            _operation("remove", "worker:int keys:texts", "", "a worker no longer holds these blocks"),
            _operation("clear", "worker:int", "", "a worker holds no block"),
            _operation(
                "match",
                "keys:texts",
                "workers:ints num_blocks:ints",
                "how many blocks from the first on each worker holds",
            ),
        ),
        _manager(
            "cache_geometry",
            "",
            "how many bytes a model keeps of a request, by its config",
            _operation(
                "size",
                "config:text num_tokens:int element_bytes:int tensor_parallel:int:tensor_parallel "
                "dp_attention:int:dp_attention first_layer:int:pipeline_parallel "
                "num_layers:int:pipeline_parallel",
                "bytes_per_token:int growing_bytes:int window_bytes:int recurrent_bytes:int conv_bytes:int",
                "the bytes of one request, of one rank where several share out heads, requests or layers",
            ),
            _operation(
                "snapshot",
                "config:text element_bytes:int",
                "snapshot_bytes:int num_tokens:int",
                "the bytes of a snapshot, and how many tokens take as many",
                "snapshot_sizes",
            ),
            _operation(
                "hybrid_block",
                "config:text element_bytes:int tensor_parallel:int multiple:int",
                "block_size:int",
                "the smallest block, a multiple of so many tokens, whose entries of one layer hold a state",
                "hybrid_blocks",
            ),
        ),
    )
}


#: What a verdict is given for: each verb, and each manager.
AREAS = (*VERBS, *MANAGERS)


def operations_of(manager: str, offered: Iterable[str]) -> tuple[str, ...]:
    """Return the operations of a manager among names such as `prefix_cache.admit`, in contract order."""
    names = set(offered)
    return tuple(name for name in MANAGERS[manager].operations if f"{manager}.{name}" in names)


def offering(manager: str, operations: Iterable[str] | None = None) -> tuple[str, ...]:
    """Return how a subject says that it offers a manager: its name, and one dotted name an operation.

    None: every operation.
    """
    names = MANAGERS[manager].operations if operations is None else operations
    return (manager, *(f"{manager}.{name}" for name in names))
