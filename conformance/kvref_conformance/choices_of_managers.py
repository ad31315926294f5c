"""The choices of block managers: which engines differ in what a pool, a table or a prefix cache does.

Realises: KV-CONF-004 named-choices.
"""

from kvref_conformance.choice import Choice

OF_MANAGERS = (
    Choice(
        "null-block",
        "none",
        {"reserved": "block 0 is never handed out: N − 1 of N blocks can be held, and 0 in a table is null"},
    ),
    Choice(
        "free-order",
        "unspecified",
        {
            "fifo": "a freed block keeps its contents for long, so that a late reader goes unnoticed",
            "lifo": "a freed block is written again at once: whoever reads it late reads another's tokens",
        },
    ),
    Choice(
        "full-hit",
        "block_floor",
        {"last_token": "a hit may end inside a block, whose tail is written: it has to be copied first"},
    ),
    Choice(
        "tail-block",
        "not_keyed",
        {"keyed": "a block that is not full has a key, which changes as it fills: an index may hold the old"},
    ),
    Choice(
        "publish-time",
        "computed",
        {
            "scheduled": "a request of the same step hits blocks that nobody has computed yet",
            "finished": "equal requests in flight all compute the same prefix",
        },
    ),
    Choice(
        "eviction-order",
        "lru_tail_first",
        {
            "lru_head_first": "the first block of a prefix goes first, and all behind it is lost with it",
            "lru_node": "a whole node goes at once, so more is lost than is needed",
            "lru_node_renewed": "the part of a node that was not hit stays because its sibling was",
            "all_at_once": "one request without room costs every prefix that nobody holds",
            "unspecified": "which prefix is lost cannot be foreseen: two runs hit differently",
        },
    ),
    Choice(
        "cached-outputs",
        "yes",
        {"no": "the next turn of a conversation computes the last answer again"},
    ),
    Choice(
        "snapshot-saves",
        "interval",
        {
            "chunk_end": "a step that passes many multiples of the interval leaves one snapshot, or none",
            "branch": "what nobody has branched off yet is kept nowhere: the second request hits nothing",
            "unspecified": "which prefix has a snapshot cannot be foreseen: two runs hit differently",
        },
    ),
    Choice(
        "state-pool",
        "own",
        {"shared": "states and blocks are of one pool: a burst of states evicts blocks, and the reverse"},
    ),
    Choice(
        "running-states",
        "one",
        {"several": "a request holds more state slots than it runs in, so fewer requests fit"},
    ),
    Choice(
        "state-eviction-order",
        "lru",
        {
            "unspecified": "which snapshot is lost cannot be foreseen: the one that every request restores "
            "may go first"
        },
    ),
    Choice(
        "steps-ahead",
        "refused",
        {
            "scheduled": "a step starts from a state that is not there yet, and takes the drafts before it "
            "as accepted"
        },
    ),
    Choice(
        "key-scheme",
        "unspecified",
        {
            "kvref": "an index shared with engines of another scheme finds none of these blocks",
            "vllm_sha256_cbor": "an index shared with engines of another scheme finds none of these blocks",
        },
    ),
    Choice(
        "event-copies",
        "once",
        {"each_copy": "a mirror that keeps a set of keys loses a block whose other copy is still there"},
    ),
)
