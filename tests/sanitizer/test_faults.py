"""Each fault in its smallest form is named, and the same history without it is clean."""

from typing import Any

import pytest
from histories import (
    PROMPT,
    allocate,
    arrive,
    cached,
    compute,
    decode,
    found,
    free,
    hit,
    judge,
    only,
    opened,
    publish,
    say,
)

from kvref.memory.history import Event

LIVE = [arrive(1), allocate(1, 0, 1, 2), compute((1, 0, 10))]
SECOND = [arrive(2, [1, 2, 3]), allocate(2, 5), compute((2, 0, 3))]


def image(digest: str, offset: int, length: int, kind: str = "media") -> dict[str, Any]:
    """A span."""
    return {"kind": kind, "digest": digest, "offset": offset, "length": length}


def moved(request: int, first: int, second: int) -> list[Event]:
    """A fork of request 1 that writes into a copy of its tail."""
    return [
        say("fork", request=request, parent=1),
        say("copy", source=2, target=first, count=second, request=request),
        decode((request, 7), (1, 8)),
        compute((request, 10, 1), (1, 10, 1)),
    ]


#: Name -> events, and the requirement they break with the words that say who; none if they are clean.
CASES: dict[str, tuple[list[Event], str, str]] = {
    "block twice in one call": (
        [arrive(1), allocate(1, 3, 3)],
        "KV-BLOCK-001",
        "request 1 is given block 3, twice",
    ),
    "block of another": (
        [*LIVE, arrive(2), allocate(2, 4, 1)],
        "KV-BLOCK-001",
        "request 2 is given block 1, which request 1 still holds",
    ),
    "block of another, let go": ([*LIVE, free(1), arrive(2), allocate(2, 4, 1)], "", ""),
    "block of two": (
        [*LIVE, say("fork", request=2, parent=1), arrive(3), allocate(3, 2)],
        "KV-BLOCK-001",
        "which request 1 and request 2 still hold",
    ),
    "block whose other holder let go": (
        [*LIVE, say("fork", request=2, parent=1), free(2), arrive(3), allocate(3, 2)],
        "KV-BLOCK-005",
        "request 3 is given block 2, which request 1 still holds",
    ),
    "held block evicted": (
        [*cached(), arrive(2), hit(2, 8, 0, 1), say("evict", blocks=[1]), arrive(3), allocate(3, 1)],
        "KV-PREFIX-016",
        "request 3 is given block 1, which request 2 still holds",
    ),
    "pinned block": (
        [*cached(), say("pin", blocks=[0]), arrive(3), allocate(3, 0)],
        "KV-BLOCK-012",
        "request 3 is given block 0, which is pinned",
    ),
    "unpinned block": (
        [*cached(), say("pin", blocks=[0]), say("unpin", blocks=[0]), arrive(3), allocate(3, 0)],
        "",
        "",
    ),
    "unpinned twice": (
        [*cached(), say("pin", blocks=[0]), say("unpin", blocks=[0]), say("unpin", blocks=[0])],
        "KV-BLOCK-012",
        "block 0 is unpinned more often than pinned",
    ),
    "pin left": (
        [*cached(), say("pin", blocks=[0]), say("close")],
        "KV-BLOCK-044",
        "block 0 is still pinned",
    ),
    "block past the pool": (
        [arrive(1), allocate(1, 8)],
        "KV-BLOCK-007",
        "allocate of request 1 names block 8",
    ),
    "no block": ([arrive(1), allocate(1, -1)], "KV-BLOCK-007", "allocate of request 1 names block -1"),
    "null block": (
        [opened(null_block=True), arrive(1), allocate(1, 0)],
        "KV-BLOCK-008",
        "allocate of request 1 names block 0, the null block",
    ),
    "freed twice": (
        [*LIVE, free(1), free(1, 1)],
        "KV-BLOCK-006",
        "request 1 lets go of block 1, which nobody holds",
    ),
    "freed twice after the end": (
        [*LIVE, say("finish", request=1), free(1), free(1, 1)],
        "KV-BLOCK-006",
        "request 1 lets go of block 1 again: it holds none",
    ),
    "lets go of all, which is nothing": (
        [arrive(1), say("abort", request=1), free(1), *cached(2), free(2), arrive(3), free(3), free(3)],
        "",
        "",
    ),
    "named twice in a free": ([*LIVE, free(1, 2, 2)], "KV-BLOCK-006", "block 2, which nobody holds"),
    "freed by another": ([*LIVE, *SECOND, free(2, 1)], "KV-BLOCK-006", "block 1, which request 1 holds"),
    "freed in part, then the rest": ([*LIVE, free(1, 2), free(1)], "", ""),
    "free of a stranger": ([free(9)], "KV-BLOCK-033", "free of request 9, which has not begun"),
    "begins twice": ([*LIVE, arrive(1)], "KV-BLOCK-033", "request 1 begins, but it is there already"),
    "begins again after its end": ([*cached(), *cached()], "", ""),
    "computes after its end": (
        [*LIVE, say("finish", request=1), compute((1, 10, 1))],
        "KV-BLOCK-033",
        "a computation of request 1, which had ended",
    ),
    "computes after its blocks are gone": (
        [*LIVE, decode((1, 5)), free(1), compute((1, 10, 1))],
        "KV-BLOCK-043",
        "request 1 computes position 10, and has let go of its blocks",
    ),
    "computes past its table": (
        [arrive(1), allocate(1, 0, 1), compute((1, 0, 10))],
        "KV-BLOCK-020",
        "request 1 computes position 8, but its table has 2 blocks of 4",
    ),
    "reads past its table": (
        [*LIVE, say("read", request=1, start=12, count=1)],
        "KV-BLOCK-020",
        "request 1 reads position 12, but its table has 3 blocks of 4",
    ),
    "reads what was never written": (
        [*LIVE, say("read", request=1, start=0, count=11)],
        "KV-BLOCK-021",
        "request 1 reads position 10 in slot 2 of block 2, which was never written",
    ),
    "reads what was there before": (
        [*LIVE, free(1), arrive(2), allocate(2, 3, 2), say("read", request=2, start=4, count=1)],
        "KV-BLOCK-021",
        "block 2, which still holds what request 1 wrote there before",
    ),
    "reads by another's table": (
        [*LIVE, *SECOND, say("read", request=2, start=0, count=3, blocks=[0])],
        "KV-BLOCK-021",
        "request 2 reads position 0 in slot 0 of block 0, which holds a prefix of request 1",
    ),
    "reads a block that it let go of": (
        [*LIVE, publish(0, 1), free(1, 0), say("read", request=1, start=0, count=4, blocks=[0])],
        "KV-BLOCK-043",
        "request 1 reads block 0, which it does not hold",
    ),
    "reads by its own table": ([*LIVE, say("read", request=1, start=3, count=5, blocks=[0, 1])], "", ""),
    "writes into a shared block": (
        [*LIVE, say("fork", request=2, parent=1), decode((2, 5)), compute((2, 10, 1))],
        "KV-BLOCK-022",
        "request 2 writes into block 2, held by request 1 and request 2",
    ),
    "writes into a copy": ([*LIVE, *moved(2, 6, 2)], "", ""),
    "copies too little": (
        [*LIVE, *moved(2, 6, 1)],
        "KV-BLOCK-021",
        "request 2 reads position 9 in slot 1 of block 6, which was never written",
    ),
    "copies into a held block": (
        [
            *LIVE,
            *SECOND,
            say("fork", request=3, parent=1),
            say("copy", source=2, target=5, count=2, request=3),
        ],
        "KV-BLOCK-001",
        "request 3 is given block 5, which request 2 still holds",
    ),
    "copies what is not its own": (
        [*LIVE, *SECOND, say("copy", source=2, target=6, count=2, request=2)],
        "KV-BLOCK-042",
        "block 2 is not in the table of request 2",
    ),
    "copies a free block": (
        [*LIVE, *SECOND, free(1), say("copy", source=2, target=5, count=2)],
        "KV-BLOCK-043",
        "block 2 is copied, but nobody holds it",
    ),
    "copies into a free block": (
        [*LIVE, say("copy", source=2, target=5, count=2)],
        "KV-BLOCK-043",
        "block 2 is copied into block 5, which nobody holds",
    ),
    "writes where a kernel was told": (
        [arrive(1), allocate(1, 5, 2, 3), say("write", request=1, start=0, count=6, slots=[[20, 4], 8, 9])],
        "",
        "",
    ),
    "writes into another's slots": (
        [*LIVE, *SECOND, decode((2, 5)), say("write", request=2, start=3, count=1, slots=[3])],
        "KV-BLOCK-022",
        "request 2 writes position 3 into slot 3 of block 0, held by request 1",
    ),
    "writes into nobody's slots": (
        [*SECOND, decode((2, 5)), say("write", request=2, start=3, count=1, blocks=[6])],
        "KV-BLOCK-043",
        "request 2 writes position 3 into slot 27 of block 6, which nobody holds",
    ),
    "writes into a published block": (
        [*LIVE, publish(0, 1), say("truncate", request=1, count=6), decode((1, 9)), compute((1, 6, 1))],
        "KV-BLOCK-045",
        "request 1 writes into block 1, which is published",
    ),
    "is cut back and goes on": (
        [*LIVE, say("truncate", request=1, count=9), decode((1, 9)), compute((1, 9, 1))],
        "",
        "",
    ),
    "is cut back and reads what it had": (
        [
            *LIVE,
            say("truncate", request=1, count=9),
            decode((1, 9)),
            say("read", request=1, start=0, count=10),
        ],
        "KV-BLOCK-021",
        "request 1 reads position 9 in slot 1 of block 2, which was never written",
    ),
    "is cut to more than it has": (
        [*LIVE, say("truncate", request=1, count=11)],
        "KV-BLOCK-034",
        "request 1 is cut to 11 tokens, but it has 10",
    ),
    "computes a token twice": (
        [*LIVE, compute((1, 9, 1))],
        "KV-BLOCK-040",
        "request 1 computes position 9 again: 10 positions are computed",
    ),
    "ends too early": (
        [arrive(1), allocate(1, 0, 1, 2), compute((1, 0, 8)), say("finish", request=1)],
        "KV-BLOCK-040",
        "request 1 finishes with 10 tokens, of which 8 are computed",
    ),
    "ends with its last token uncomputed": ([*LIVE, decode((1, 5)), say("finish", request=1)], "", ""),
    "computes tokens it has not": (
        [*LIVE, compute((1, 10, 1))],
        "KV-BLOCK-042",
        "request 1 computes positions up to 10, but it has 10 tokens",
    ),
    "computes ahead as it said": (
        [opened(ahead=1), *LIVE, compute((1, 10, 1)), decode((1, 5)), compute((1, 11, 1)), decode((1, 6))],
        "",
        "",
    ),
    "hit of another prefix": (
        [*cached(), arrive(2, [1, *PROMPT[1:]]), hit(2, 4, 0)],
        "KV-PREFIX-001",
        "request 2 hits position 0 in slot 0 of block 0, which holds a prefix of request 1",
    ),
    "hit of the end without the beginning": (
        [*cached(), arrive(2, [1, *PROMPT[1:]]), allocate(2, 4), compute((2, 0, 4)), hit(2, 4, 1, start=4)],
        "KV-PREFIX-001",
        "request 2 hits position 4 in slot 0 of block 1",
    ),
    "hit in another order": (
        [*cached(), arrive(2), hit(2, 8, 1, 0)],
        "KV-PREFIX-001",
        "request 2 hits position 0 in slot 0 of block 1, which holds position 4 of request 1",
    ),
    "hit": ([*cached(), arrive(2), hit(2, 8, 0, 1), allocate(2, 5), compute((2, 8, 2))], "", ""),
    "hit of a part of a block": (
        [
            *cached(),
            arrive(2, [*PROMPT[:6], 9, 9]),
            hit(2, 6, 0, 1),
            say("copy", source=1, target=4, count=2, request=2),
        ],
        "",
        "",
    ),
    "hit of all": (
        [*cached(), arrive(2, PROMPT[:8]), hit(2, 8, 0, 1)],
        "KV-PREFIX-002",
        "request 2 hits 8 tokens of its 8, and has none left to compute",
    ),
    "hit across adapters": (
        [*cached(adapter="a"), arrive(2, adapter="b"), hit(2, 4, 0)],
        "KV-PREFIX-007",
        "the same tokens under adapter 'a' instead of 'b'",
    ),
    "hit across versions": (
        [*cached(adapter="a", adapter_version="1"), arrive(2, adapter="a"), hit(2, 4, 0)],
        "KV-PREFIX-008",
        "the same tokens under adapter_version '1' instead of ''",
    ),
    "hit across salts": (
        [*cached(salt="s"), arrive(2), hit(2, 4, 0)],
        "KV-PREFIX-009",
        "the same tokens under salt 's' instead of ''",
    ),
    "hit across models": (
        [*cached(model="m"), arrive(2), hit(2, 4, 0)],
        "KV-PREFIX-001",
        "the same tokens under model 'm' instead of ''",
    ),
    "hit of other tokens across salts": (
        [*cached(salt="s"), arrive(2, [1] * 10), hit(2, 4, 0)],
        "KV-PREFIX-001",
        "which holds a prefix of request 1",
    ),
    "hit across images": (
        [*cached(spans=[image("cat", 1, 3)]), arrive(2, spans=[image("dog", 1, 3)]), hit(2, 4, 0)],
        "KV-PREFIX-010",
        "a row of media 'cat' instead of a row of media 'dog'",
    ),
    "hit of an image for text": (
        [*cached(spans=[image("cat", 1, 3)]), arrive(2), hit(2, 4, 0)],
        "KV-PREFIX-010",
        "a row of media 'cat' instead of a token",
    ),
    "hit of an image elsewhere": (
        [*cached(spans=[image("cat", 1, 3)]), arrive(2, spans=[image("cat", 0, 3)]), hit(2, 4, 0)],
        "KV-PREFIX-011",
        "a token instead of a row of media 'cat'",
    ),
    "hit across embeddings": (
        [
            *cached(spans=[image("x", 0, 4, "embeddings")]),
            arrive(2, spans=[image("y", 0, 4, "embeddings")]),
            hit(2, 4, 0),
        ],
        "KV-PREFIX-012",
        "a row of embeddings 'x' instead of a row of embeddings 'y'",
    ),
    "hit of other tokens across images": (
        [*cached(spans=[image("cat", 3, 1)]), arrive(2, [1] * 10, spans=[image("dog", 3, 1)]), hit(2, 4, 0)],
        "KV-PREFIX-001",
        "which holds a prefix of request 1",
    ),
    "hit of the same image": (
        [*cached(spans=[image("cat", 1, 3)]), arrive(2, spans=[image("cat", 1, 3)]), hit(2, 8, 0, 1)],
        "",
        "",
    ),
    "hit of what is not computed": (
        [arrive(1), allocate(1, 0, 1, 2), arrive(2), hit(2, 4, 0)],
        "KV-PREFIX-005",
        "request 2 hits position 0 in slot 0 of block 0, which was never written",
    ),
    "hit of what is scheduled": (
        [
            opened(publish="scheduled"),
            arrive(1),
            allocate(1, 0, 1, 2),
            publish(0, 1),
            arrive(2),
            hit(2, 8, 0, 1),
            allocate(2, 5),
            compute((1, 0, 10), (2, 8, 2)),
        ],
        "",
        "",
    ),
    "hit of what was scheduled and never computed": (
        [
            opened(publish="scheduled"),
            arrive(1),
            allocate(1, 0, 1, 2),
            publish(0, 1),
            arrive(2),
            hit(2, 8, 0, 1),
            allocate(2, 5),
            compute((2, 8, 2)),
        ],
        "KV-BLOCK-021",
        "request 2 reads position 0 in slot 0 of block 0, which was never written",
    ),
    "hit after a reset": (
        [*cached(), say("reset"), arrive(2), hit(2, 4, 0)],
        "KV-PREFIX-015",
        "request 2 hits block 0, which was forgotten by a reset and not published since",
    ),
    "hit after an eviction": (
        [*cached(), say("evict", blocks=[0]), arrive(2), hit(2, 4, 0)],
        "KV-PREFIX-017",
        "request 2 hits block 0, which was evicted and not published since",
    ),
    "hit of what nobody published": (
        [*cached(), arrive(2), hit(2, 9, 0, 1, 2)],
        "KV-BLOCK-043",
        "request 2 hits block 2, which nobody holds and nobody has published",
    ),
    "hit while blocks from before are held": (
        [*LIVE, publish(0, 1), say("preempt", request=1), hit(1, 8, 0, 1)],
        "KV-BLOCK-044",
        "request 1 still holds block 0, 1, 2 from before it was preempted",
    ),
    "hit after preemption": (
        [
            *LIVE,
            publish(0, 1),
            free(1),
            say("preempt", request=1),
            hit(1, 8, 0, 1),
            allocate(1, 7),
            compute((1, 8, 2)),
        ],
        "",
        "",
    ),
    "hit behind a gap": (
        [*cached(), arrive(2), hit(2, 4, 1, start=4)],
        "KV-BLOCK-042",
        "request 2 hits blocks for entry 1 of its table, which has 0 blocks",
    ),
    "hit of what is computed": (
        [*cached(), arrive(2), allocate(2, 3), compute((2, 0, 3)), hit(2, 4, 1, start=4)],
        "KV-BLOCK-040",
        "request 2 hits positions 4 to 7, but 3 are computed",
    ),
    "evicted twice": (
        [*cached(), say("evict", blocks=[0, 0])],
        "KV-PREFIX-042",
        "block 0 is evicted, but it is not published",
    ),
    "published after it was let go": (
        [*LIVE, free(1), publish(0)],
        "KV-BLOCK-043",
        "block 0 is published, but nobody holds it",
    ),
    "published before it is full": (
        [*LIVE, publish(0, 1, 2)],
        "KV-PREFIX-005",
        "block 2 is published with 4 tokens, one of them in slot 2, which was never written",
    ),
    "published as far as it is": (
        [*LIVE, publish(0, 1, 2, count=10), decode((1, 5)), compute((1, 10, 1))],
        "",
        "",
    ),
    "takes a block that nobody has": (
        [*LIVE, say("replace", request=1, index=0, blocks=[7])],
        "KV-BLOCK-043",
        "request 1 takes block 7, which nobody holds and nobody can find",
    ),
    "takes the block of another prefix": (
        [*LIVE, *SECOND, say("replace", request=1, index=0, blocks=[5]), decode((1, 4)), compute((1, 10, 1))],
        "KV-BLOCK-021",
        "request 1 reads position 0 in slot 0 of block 5, which holds a prefix of request 2",
    ),
    "takes an equal block for its own": (
        [
            *cached(),
            arrive(2),
            allocate(2, 3, 4, 5),
            compute((2, 0, 10)),
            say("replace", request=2, index=0, blocks=[0, 1]),
            decode((2, 4)),
            compute((2, 10, 1)),
        ],
        "",
        "",
    ),
    "given while a step runs": (
        [
            *LIVE,
            say("begin", step=1),
            decode((1, 4)),
            compute((1, 10, 1)),
            free(1),
            arrive(2),
            allocate(2, 2),
        ],
        "KV-BLOCK-011",
        "request 2 is given block 2, but step 1, which may still use it, has not ended",
    ),
    "given while the step of one who shared it runs": (
        [
            *LIVE,
            say("fork", request=2, parent=1),
            say("copy", source=2, target=5, count=2, request=1),
            decode((1, 4)),
            say("begin", step=1),
            compute((1, 10, 1)),
            free(1),
            free(2),
            arrive(3),
            allocate(3, 0),
        ],
        "KV-BLOCK-011",
        "request 3 is given block 0, but step 1, which may still use it, has not ended",
    ),
    "given after the step": (
        [
            *LIVE,
            say("begin", step=1),
            decode((1, 4)),
            compute((1, 10, 1)),
            free(1),
            say("end", step=1),
            arrive(2),
            allocate(2, 2),
        ],
        "",
        "",
    ),
    "arrives while it is read": (
        [
            arrive(1),
            allocate(1, 0, 1, 2),
            say("begin", transfer="t", kind="receive", request=1, count=9, blocks=[0, 1, 2]),
            say("read", request=1, start=0, count=1),
        ],
        "KV-BLOCK-021",
        "request 1 reads position 0 in slot 0 of block 0, which transfer t has not delivered",
    ),
    "arrives and is read": (
        [
            arrive(1),
            allocate(1, 0, 1, 2),
            say("begin", transfer="t", kind="receive", request=1, count=9, blocks=[0, 1, 2]),
            say("end", transfer="t"),
            compute((1, 9, 1)),
        ],
        "",
        "",
    ),
    "delivers more than was asked for": (
        [
            arrive(1),
            allocate(1, 0, 1, 2),
            say("begin", transfer="t", kind="receive", request=1, count=12, blocks=[0, 1, 2]),
            say("end", transfer="t"),
        ],
        "KV-BLOCK-042",
        "transfer t delivers positions up to 11 of request 1, but it has 10 tokens",
    ),
    "loads more than it has": (
        [
            *LIVE,
            say("store", tier="host", keys=["a"], blocks=[0]),
            arrive(2, [*PROMPT[:4]]),
            allocate(2, 5),
            say("load", tier="host", keys=["a"], blocks=[5], request=2, count=5),
        ],
        "KV-BLOCK-042",
        "a load from host brings positions up to 4 of request 2, but it has 4 tokens",
    ),
    "received into a published block": (
        [*LIVE, publish(0), say("begin", transfer="t", kind="receive", request=1, count=4, blocks=[0])],
        "KV-BLOCK-045",
        "transfer t is received into block 0, which is published",
    ),
    "transfer of a free block": (
        [*LIVE, free(1), say("begin", transfer="t", kind="send", blocks=[0])],
        "KV-BLOCK-043",
        "transfer t begins with block 0, which nobody holds",
    ),
    "ends without a beginning": ([say("end", step=3)], "KV-BLOCK-042", "step 3 ends, but it has not begun"),
    "begins twice in flight": (
        [say("begin", step=3), say("begin", step=3)],
        "KV-BLOCK-042",
        "step 3 begins twice",
    ),
    "transfer never ends": (
        [*cached(), say("begin", transfer="t", kind="send", blocks=[0]), say("close")],
        "KV-BLOCK-044",
        "transfer t has not ended, and 1 blocks wait for it",
    ),
    "blocks kept after the end": (
        [*LIVE, say("finish", request=1), say("close")],
        "KV-BLOCK-044",
        "request 1 finished and still holds 3 blocks: 0, 1, 2",
    ),
    "blocks of a live request at the close": ([*LIVE, say("close", num_free=5)], "", ""),
    "one block too few": (
        [*LIVE, say("begin", step=1), say("end", step=1, num_free=4)],
        "KV-BLOCK-004",
        "4 blocks count as free, but 5 of 8 are held by nobody",
    ),
    "cached blocks are free": ([*cached(), say("close", num_free=8)], "", ""),
    "count with blocks that wait": (
        [
            *LIVE,
            say("begin", step=1),
            say("begin", step=2),
            decode((1, 4)),
            compute((1, 10, 1)),
            free(1),
            say("end", step=1, num_free=5),
        ],
        "",
        "",
    ),
    "count with blocks that wait no longer": (
        [
            *LIVE,
            say("begin", step=1),
            decode((1, 4)),
            compute((1, 10, 1)),
            free(1),
            say("begin", step=2),
            say("end", step=2, num_free=5),
        ],
        "KV-BLOCK-004",
        "5 blocks count as free, but 8 of 8 are held by nobody",
    ),
    "steps end in another order": (
        [say("begin", step=1), say("begin", step=2), say("end", step=2), say("end", step=1)],
        "KV-BLOCK-042",
        "step 1 ends, but it has not begun, or one that began later has ended",
    ),
    "stored and loaded": (
        [
            *LIVE,
            say("store", tier="host", keys=["a", "b"], blocks=[0, 1]),
            say("finish", request=1),
            free(1),
            arrive(2),
            allocate(2, 7, 6, 5),
            say("load", tier="host", keys=["a", "b"], blocks=[7, 6], request=2, count=8),
            compute((2, 8, 2)),
        ],
        "",
        "",
    ),
    "loaded once more after its block was handed out": (
        [
            *LIVE,
            say("store", tier="host", keys=["a"], blocks=[0]),
            arrive(2),
            allocate(2, 7, 6, 5),
            say("load", tier="host", keys=["a"], blocks=[7], request=2, count=4),
            compute((2, 4, 6)),
            free(2),
            arrive(3),
            allocate(3, 7, 6, 5),
            say("load", tier="host", keys=["a"], blocks=[7], request=3, count=4),
            compute((3, 4, 6)),
        ],
        "",
        "",
    ),
    "loaded in the wrong order": (
        [
            *LIVE,
            say("store", tier="host", keys=["a", "b"], blocks=[0, 1]),
            arrive(2),
            allocate(2, 7, 6, 5),
            say("load", tier="host", keys=["b", "a"], blocks=[7, 6], request=2, count=8),
        ],
        "KV-PREFIX-001",
        "request 2 loads position 0 into slot 0 of block 7, which holds position 4 of request 1",
    ),
    "loaded after a drop": (
        [
            *LIVE,
            say("store", tier="host", keys=["a"], blocks=[0]),
            say("drop", tier="host", keys=["a"]),
            *SECOND,
            say("load", tier="host", keys=["a"], blocks=[5]),
        ],
        "KV-PREFIX-017",
        "host a is loaded, which is not stored",
    ),
    "dropped twice": (
        [*LIVE, say("store", tier="host", keys=["a"], blocks=[0]), say("drop", tier="host", keys=["a", "a"])],
        "KV-PREFIX-042",
        "host a is dropped, but it is not stored",
    ),
    "loaded into a free block": (
        [
            *LIVE,
            say("store", tier="host", keys=["a"], blocks=[0]),
            say("load", tier="host", keys=["a"], blocks=[7]),
        ],
        "KV-BLOCK-043",
        "host a is loaded into block 7, which nobody holds",
    ),
    "loaded into a published block": (
        [
            *LIVE,
            publish(0),
            say("store", tier="host", keys=["a"], blocks=[0]),
            say("load", tier="host", keys=["a"], blocks=[0]),
        ],
        "KV-BLOCK-045",
        "host a is loaded into block 0, which is published",
    ),
    "loaded before it was computed": (
        [
            arrive(1),
            allocate(1, 0, 1, 2),
            say("store", tier="host", keys=["a"], blocks=[0]),
            arrive(2),
            allocate(2, 5, 6, 7),
            say("load", tier="host", keys=["a"], blocks=[5], request=2, count=4),
        ],
        "KV-PREFIX-005",
        "request 2 loads position 0 into slot 0 of block 5, which was never written",
    ),
    "tier over its capacity": (
        [opened(tiers={"host": 1}), *LIVE, say("store", tier="host", keys=["a", "b"], blocks=[0, 1])],
        "KV-BLOCK-004",
        "tier host holds 2 blocks, but it has 1 places",
    ),
    "state of another prefix": (
        [
            *LIVE,
            say("snapshot", request=1, snapshot=0, count=8),
            arrive(2, [1] * 10),
            say("restore", request=2, snapshot=0),
        ],
        "KV-PREFIX-001",
        "request 2 restores snapshot 0, the state of another prefix",
    ),
    "state of fewer tokens than were hit": (
        [
            *LIVE,
            publish(0, 1),
            say("snapshot", request=1, snapshot=0, count=4),
            arrive(2),
            hit(2, 8, 0, 1),
            say("restore", request=2, snapshot=0),
        ],
        "KV-BLOCK-040",
        "request 2 restores a state after 4 tokens, but 8 of its tokens count as computed",
    ),
    "state of as many": (
        [
            *LIVE,
            publish(0, 1),
            say("snapshot", request=1, snapshot=0, count=8),
            arrive(2),
            hit(2, 8, 0, 1),
            say("restore", request=2, snapshot=0),
        ],
        "",
        "",
    ),
    "state that is gone": (
        [
            *LIVE,
            say("snapshot", request=1, snapshot=0, count=8),
            say("evict", snapshots=[0]),
            arrive(2),
            say("restore", request=2, snapshot=0),
        ],
        "KV-PREFIX-017",
        "request 2 restores snapshot 0, which is not kept",
    ),
    "state that was never there": (
        [say("evict", snapshots=[0])],
        "KV-PREFIX-042",
        "snapshot 0 is evicted, but there is none",
    ),
    "state of tokens not computed": (
        [*LIVE, say("tokens", request=1, tokens=[1]), say("snapshot", request=1, snapshot=0, count=11)],
        "KV-PREFIX-005",
        "snapshot 0 is the state of request 1 after 11 tokens, but 10 are computed",
    ),
    "reads a hole": (
        [
            opened(windows=[4]),
            *cached(),
            arrive(2),
            hit(2, 8, -1, 1),
            allocate(2, 4),
            compute((2, 8, 2)),
            say("read", request=2, start=0, count=1),
        ],
        "KV-BLOCK-020",
        "request 2 reads position 0, but entry 0 of its table is none",
    ),
    "reads below its window": (
        [opened(windows=[4]), *LIVE, free(1, 0), decode((1, 5)), compute((1, 10, 1))],
        "",
        "",
    ),
    "reads what it pruned": (
        [opened(windows=[8]), *LIVE, free(1, 0), decode((1, 5)), compute((1, 10, 1))],
        "KV-BLOCK-043",
        "request 1 reads position 3, in block 0, which it let go of",
    ),
    "computes behind a hole": (
        [*cached(), arrive(2), hit(2, 8, -1, 1), allocate(2, 4), compute((2, 8, 2))],
        "KV-BLOCK-020",
        "request 2 reads position 0, but entry 0 of its table is none",
    ),
    "window reaches into a hole": (
        [opened(windows=[6]), *cached(), arrive(2), hit(2, 8, -1, 1), allocate(2, 4), compute((2, 8, 2))],
        "KV-BLOCK-020",
        "request 2 reads position 3, but entry 0 of its table is none",
    ),
    "pruned by drafts that were rejected": (
        [
            opened(windows=[4]),
            *LIVE,
            say("tokens", request=1, tokens=[1, 2]),
            compute((1, 10, 2)),
            free(1, 0, 1),
            say("truncate", request=1, count=10),
            decode((1, 3)),
            compute((1, 10, 1)),
        ],
        "KV-BLOCK-043",
        "request 1 reads position 7, in block 1, which it let go of",
    ),
    "hit of two parts, the first not computed": (
        [
            opened(publish="scheduled"),
            *cached(),
            arrive(3, [1] * 10),
            allocate(3, 5),
            publish(5),
            arrive(2),
            hit(2, 4, 5),
            hit(2, 4, 1, start=4),
            allocate(2, 4),
            compute((2, 8, 2)),
        ],
        "KV-BLOCK-021",
        "request 2 reads position 0 in slot 0 of block 5, which was never written",
    ),
    "hit before it is published": (
        [*LIVE, arrive(2), hit(2, 8, 0, 1)],
        "KV-PREFIX-005",
        "request 2 hits block 0, which nobody has published",
    ),
    "hit beyond what is published": (
        [*LIVE, publish(0, 1, 2, count=9), arrive(2, [*PROMPT, 1]), hit(2, 10, 0, 1, 2)],
        "KV-PREFIX-005",
        "request 2 hits block 2, which is published up to slot 0",
    ),
    "published by another": (
        [*LIVE, *SECOND, publish(0, request=2)],
        "KV-BLOCK-043",
        "block 0 is published by request 2, which does not hold it",
    ),
    "published by a stranger": (
        [*LIVE, publish(0, request=9)],
        "KV-BLOCK-043",
        "block 0 is published by request 9, which does not hold it",
    ),
    "published again by another": (
        [*LIVE, *SECOND, publish(0, request=1), publish(0, request=2)],
        "KV-BLOCK-043",
        "block 0 is published by request 2, which does not hold it",
    ),
    "published again after the end": ([*cached(), publish(0, 1, request=1)], "", ""),
    "published from before a reset": (
        [*LIVE, say("reset"), publish(0, 1, request=1)],
        "KV-PREFIX-015",
        "block 0 is published with what request 1 wrote before everything was reset",
    ),
    "loaded after a reset and published": (
        [
            *LIVE,
            say("store", tier="host", keys=["a"], blocks=[0]),
            say("reset"),
            arrive(2),
            allocate(2, 5),
            say("load", tier="host", keys=["a"], blocks=[5], request=2, count=4),
            publish(5),
        ],
        "",
        "",
    ),
    "stored after it was let go": (
        [*LIVE, free(1), say("store", tier="host", keys=["a"], blocks=[0])],
        "KV-BLOCK-043",
        "block 0 is stored, but nobody holds it",
    ),
    "stored as it is evicted, and loaded": (
        [
            *cached(),
            say("evict", blocks=[0]),
            say("store", tier="host", keys=["a"], blocks=[0]),
            arrive(3, [9] * 4),
            allocate(3, 0),
            compute((3, 0, 4)),
            arrive(2),
            allocate(2, 5, 6, 7),
            say("load", tier="host", keys=["a"], blocks=[5], request=2, count=4),
            compute((2, 4, 6)),
        ],
        "",
        "",
    ),
    "received for one that has ended": (
        [
            *LIVE,
            say("abort", request=1),
            say("begin", transfer="t", kind="receive", request=1, count=4, blocks=[0]),
        ],
        "KV-BLOCK-033",
        "a transfer of request 1, which had ended",
    ),
    "sends another's block": (
        [
            *LIVE,
            *SECOND,
            say("begin", transfer="t", kind="send", request=1, count=8, blocks=[0, 5]),
        ],
        "KV-BLOCK-021",
        "transfer t sends position 4 of request 1 from slot 0 of block 5, which holds position 0",
    ),
    "sends what is computed meanwhile": (
        [
            arrive(1),
            allocate(1, 0, 1, 2),
            say("begin", transfer="t", kind="send", request=1, count=10, blocks=[0, 1, 2]),
            compute((1, 0, 10)),
            say("end", transfer="t"),
        ],
        "",
        "",
    ),
    "goes on without a recurrent state": (
        [
            *LIVE,
            publish(0, 1),
            say("snapshot", request=1, snapshot=0, count=8),
            arrive(2),
            hit(2, 8, 0, 1),
            allocate(2, 5),
            compute((2, 8, 2)),
        ],
        "KV-BLOCK-040",
        "request 2 computes position 8 without the recurrent state of the tokens it hit",
    ),
    "goes on with a state and a hit": (
        [
            *LIVE,
            publish(0, 1),
            say("snapshot", request=1, snapshot=0, count=8),
            arrive(2),
            say("restore", request=2, snapshot=0),
            hit(2, 8, 0, 1),
            allocate(2, 5),
            compute((2, 8, 2)),
        ],
        "",
        "",
    ),
    "a state alone": (
        [
            *LIVE,
            say("snapshot", request=1, snapshot=0, count=8),
            arrive(2),
            allocate(2, 4, 5, 6),
            say("restore", request=2, snapshot=0),
            compute((2, 8, 2)),
        ],
        "KV-BLOCK-021",
        "request 2 reads position 0 in slot 0 of block 4, which was never written",
    ),
    "told fewer slots than tokens": (
        [arrive(1, [1, 2, 3]), allocate(1, 0), say("write", request=1, start=0, count=3, slots=[0, 1])],
        "KV-BLOCK-020",
        "request 1 writes 3 tokens, but 2 slots are told",
    ),
    "told more slots than tokens": (
        [arrive(1, [1, 2, 3]), allocate(1, 0), say("write", request=1, start=0, count=3, slots=[[0, 4]])],
        "KV-BLOCK-020",
        "request 1 writes 3 tokens, but 4 slots are told",
    ),
    "told fewer blocks than it reads": (
        [*LIVE, say("read", request=1, start=0, count=10, blocks=[0, 1])],
        "KV-BLOCK-020",
        "request 1 reads positions 0 to 9, in 3 blocks of 4, but 2 are told",
    ),
    "told slots of a block past the pool": (
        [*SECOND, decode((2, 1)), say("write", request=2, start=3, count=1, slots=[50])],
        "KV-BLOCK-007",
        "write of request 2 names block 12, but the pool has blocks 0 to 7",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named_and_nothing_else(name: str) -> None:
    """One finding, at the last event, with the requirement and who did it."""
    events, rule, words = CASES[name]
    if not rule:
        assert judge(*events).findings == ()
        return
    finding = only(*events)
    assert (finding.requirement, words) == (rule, words if words in finding.message else finding.message)
    assert finding.line == len(events) + (events[0]["event"] != "open")
    assert finding.slug in finding.told()


def test_a_fault_is_told_once() -> None:
    """A request that goes on with a wrong block is not told of it at every step."""
    events = [*LIVE, *SECOND, say("replace", request=1, index=0, blocks=[5])]
    for position in range(10, 12):
        events += [decode((1, position)), compute((1, position, 1))]
    assert found(*events) == [("KV-BLOCK-021", 10)]


def test_two_who_believe_that_a_block_is_theirs() -> None:
    """The hand-out is told, and the first wrong read of each, but not every write."""
    events = [*LIVE, arrive(2, [5] * 9), allocate(2, 0, 4, 6), compute((2, 0, 9))]
    for position in range(10, 12):
        events += [decode((1, position)), compute((1, position, 1))]
    assert found(*events) == [("KV-BLOCK-001", 6), ("KV-BLOCK-021", 9)]


def test_a_block_of_its_own_is_given_to_a_request() -> None:
    """Its first entry is read again, and holds nothing any more."""
    events = [
        *LIVE,
        allocate(1, 0),
        decode((1, 5)),
        compute((1, 10, 1)),
        say("read", request=1, start=0, count=1),
    ]
    assert found(*events) == [("KV-BLOCK-001", 5), ("KV-BLOCK-021", 7), ("KV-BLOCK-021", 8)]


def test_groups_have_tables_of_their_own() -> None:
    """A step writes every group, and a fault in one of them is seen."""
    first = opened(block_size=None, block_sizes=[4, 2], windows=[None, 4], num_blocks=16)
    events = [
        first,
        arrive(1, PROMPT[:6]),
        allocate(1, 0, 1),
        allocate(1, 8, 9, 10, group=1),
        compute((1, 0, 6)),
    ]
    assert found(*events) == []
    assert found(*events, decode((1, 1)), free(1, 8), compute((1, 6, 1))) == [("KV-BLOCK-020", 8)]
    more = [allocate(1, 11, group=1), decode((1, 1))]
    assert found(*events, *more, free(1, 8), compute((1, 6, 1))) == []
    assert found(*events, *more, free(1, 9), compute((1, 6, 1))) == [("KV-BLOCK-043", 9)]
    assert only(first, arrive(1), allocate(1, 0), allocate(1, 0, group=1)).requirement == "KV-BLOCK-001"


TWO_GROUPS = [
    opened(block_size=None, block_sizes=[4, 2], windows=[None, 4], num_blocks=16, null_block=True),
    arrive(1),
    allocate(1, 1, 2, 3),
    allocate(1, 6, 7, 8, 9, 10, group=1),
]


def test_a_hit_of_one_group_says_nothing_of_another() -> None:
    """A group whose blocks were not hit is read like any other."""
    events = [*TWO_GROUPS, compute((1, 0, 10)), publish(1, 2, request=1), publish(8, 9, request=1, group=1)]
    events += [say("finish", request=1), free(1), arrive(2, [*PROMPT[:8], 1, 2])]
    first, second = hit(2, 8, 1, 2), hit(2, 8, 0, -1, 8, 9, group=1)  # block 0 is null
    more = [allocate(2, 3), allocate(2, 10, group=1), compute((2, 8, 2))]
    assert found(*events, first, second, *more) == []
    assert found(*events, second, first, *more) == []
    more[1] = allocate(2, 11, 12, 13, 14, 10, group=1)
    finding = only(*events, first, *more)
    assert (finding.requirement, finding.line) == ("KV-BLOCK-021", 14)
    assert "request 2 reads position 5 in slot 1 of block 13, which was never written" in finding.message


@pytest.mark.parametrize(
    "blocks", [[1, 2, 3, 6, 7, 8, 9, 10], [6, 1, 7, 2, 8, 3, 9, 10], [1, 2, 3, 8, 9, 10], [1, 2, 3, 9, 8, 10]]
)
def test_a_transfer_fills_every_group(blocks: list[int]) -> None:
    """By the size of its blocks; of a window its last blocks will do, in any order."""
    begin = say("begin", transfer="t", kind="receive", request=1, count=9, blocks=blocks)
    assert found(*TWO_GROUPS, begin, say("end", transfer="t"), compute((1, 9, 1))) == []


def test_a_transfer_in_the_wrong_order() -> None:
    """Blocks of a group without a window follow the tokens."""
    begin = say("begin", transfer="t", kind="receive", request=1, count=9, blocks=[2, 1, 3, 8, 9, 10])
    finding = only(*TWO_GROUPS, begin, say("end", transfer="t"), compute((1, 9, 1)))
    assert finding.requirement == "KV-BLOCK-021"
    assert "request 1 reads position 0 in slot 0 of block 1, which holds position 4" in finding.message


def test_many_blocks_are_freed_by_name() -> None:
    """In any order, and a block that is named once too often is still found."""
    many = list(range(40_000))
    events = [opened(num_blocks=len(many)), arrive(1), allocate(1, *many)]
    events += [free(1, *reversed(many), 7), say("close", num_free=len(many))]
    assert found(*events) == [("KV-BLOCK-006", 4)]


def test_starvation_is_told_at_the_first_step_past_the_limit() -> None:
    """Once, with the number of steps, whoever sets the limit."""
    events = [arrive(1, [1] * 30), arrive(2), allocate(1, *range(8))]
    events += [compute((1, at, 1)) for at in range(6)]
    assert found(opened(max_wait=4), *events) == [("KV-BLOCK-041", 9)]
    assert found(*events, max_wait=4) == [("KV-BLOCK-041", 9)]
    assert found(opened(max_wait=1), *events, max_wait=5) == [("KV-BLOCK-041", 10)]
    assert found(opened(max_wait=6), *events) == []
    assert found(*events) == []


def test_steps_in_which_nothing_is_computed_starve_nobody() -> None:
    """A server that has nothing to do may take its time."""
    idle = [event for step in range(9) for event in (say("begin", step=step), say("end", step=step))]
    assert found(opened(max_wait=2), arrive(1), *idle) == []


def test_as_many_findings_as_asked_for() -> None:
    """A broken engine does not fill the memory with complaints."""
    report = judge(arrive(1), *[free(9) for _ in range(500)], max_findings=7)
    assert (len(report.findings), report.complete, report.events) == (7, False, 9)
