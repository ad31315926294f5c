"""A correct program with state, in plain Python: an allocator whose blocks never come back, in each session.

What it does wrong is asked for by the number of blocks: each number from 90 on is a fault.
"""

import json
import os
import sys
import time
from typing import Any

Message = dict[str, Any]
#: Number of blocks -> what is said in place of blocks.
ODD: dict[int, Message] = {
    90: {},
    91: {"blocks": 3},
    92: {"blocks": "1,x"},
    93: {"blocks": "1,2", "extra": 1},
    94: {"blocks": "1,", "misfit": "blocks[1] is missing"},
    95: {"blocks": "99999999999999999"},
    96: {"blocks": True},
}


def say(request: Message, **fields: Any) -> None:
    """Write one reply and flush it."""
    sys.stdout.write(json.dumps({"id": request["id"], **({"ok": True} | fields)}) + "\n")
    sys.stdout.flush()


def refuse(request: Message, text: str) -> None:
    """Write a refusal."""
    sys.stdout.write(json.dumps({"id": request["id"], "refused": text}) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Serve until bye."""
    states: dict[str, list[int]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        op = request["op"]
        if op == "hello":
            verbs = "block_allocator,block_allocator.allocate,block_allocator.num_free"
            say(request, wire="kvref-wire/1", name="stateful", version="1", verbs=verbs)
        elif op == "open":
            states[request["session"]] = list(range(request["num_blocks"]))
            say(request)
        elif op == "close":
            del states[request["session"]]
            say(request)
        elif op == "apply" and request["verb"] == "block_allocator.num_free":
            say(request, num_free_blocks=len(states[request["session"]]))
        elif op == "apply":
            allocate(request, states[request["session"]])
        else:
            say(request)
            return


def allocate(request: Message, free: list[int]) -> None:
    """Hand out blocks, or do wrong."""
    count = request["num_blocks"]
    if count in ODD:
        say(request, **ODD[count])
    elif count == 97:
        sys.stdout.write("[info] defragmenting\n")
        sys.stdout.flush()
    elif count == 98:
        time.sleep(60)
    elif count == 99:
        os._exit(3)
    elif count > len(free):
        refuse(request, "out of blocks")
    else:
        say(request, blocks=",".join(str(free.pop(0)) for _ in range(count)))


main()
