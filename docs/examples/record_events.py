"""Record the KV-cache events of a vLLM or SGLang server, for `kvref sanitize --kv-events`.

    python record_events.py tcp://localhost:5557 > events.msgpack
    python record_events.py tcp://localhost:5557 tcp://localhost:5558 > events.msgpack

The first address is where the server publishes. The second is where it replays what came before this program
was started. Needs pyzmq.
"""

import sys
from collections.abc import Iterator

import zmq

END = (-1).to_bytes(8, "big", signed=True)


def numbered(seq: bytes, payload: bytes) -> bytes:
    """Return a batch as it came, in a msgpack map with its number: {"seq": …, "batch": …}."""
    return b"\x82\xa3seq\xcf" + seq + b"\xa5batch" + payload


def received(publishes: str, replays: str = "") -> Iterator[tuple[bytes, bytes]]:
    """Yield number and payload of each batch: what is replayed first, if it is asked for, then for ever."""
    context = zmq.Context()
    live = context.socket(zmq.SUB)
    live.connect(publishes)
    live.setsockopt(zmq.SUBSCRIBE, b"")
    if replays:
        before = context.socket(zmq.DEALER)
        before.connect(replays)
        before.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            *_, seq, payload = before.recv_multipart()
            if seq == END:
                break
            yield seq, payload
    while True:
        _topic, seq, payload = live.recv_multipart()
        yield seq, payload


if __name__ == "__main__":
    for seq, payload in received(*sys.argv[1:]):
        sys.stdout.buffer.write(numbered(seq, payload))
        sys.stdout.buffer.flush()
