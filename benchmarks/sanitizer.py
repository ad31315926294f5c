"""Speed of the sanitizer: events a second, and its time as a multiple of parsing the same lines.

    python benchmarks/sanitizer.py            # a million events; prints the table of benchmarks/README.md
    python benchmarks/sanitizer.py --smoke    # a few thousand: does it run?

The histories come from a small engine over the reference's prefix cache (`histories.py`), 8 or 16 requests a
step. The peer is the parser alone, on the same bytes in the same process: no checker of JSON lines can be
faster. An event is one line. A line of a step covers all of its requests: rows count each of them.
Times are those of the process, so that others on the machine weigh less.
"""

import argparse
import platform
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from histories import Engine  # beside this file

from kvref.sanitizer.lines import fastest, standard
from kvref.sanitizer.recorder import Recorder
from kvref.sanitizer.sanitizer import sanitize

NUM_BLOCKS, BLOCK_SIZE = 400, 16


def logged(path: Path, num_events: int, batch: int) -> None:
    """Write a clean history of about that many events."""
    with Recorder(path, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE) as log:
        rng = random.Random(0)
        engine = Engine(log, rng, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE, batch=batch)
        engine.serve(num_events)
        log.close(num_free=NUM_BLOCKS)


def main() -> None:
    """Print the mix and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="a few thousand events")
    parser.add_argument("--events", type=int, default=1_000_000, help="how many events a history has")
    given = parser.parse_args()
    events = 3000 if given.smoke else given.events
    quick = fastest()
    parsers = {"json": standard} | ({"orjson": quick} if quick is not standard else {})
    print(f"Python {platform.python_version()}, parsers: {', '.join(parsers)}")
    print("\n| requests a step | parser | events | bytes | events/s | rows/s | parsing alone | times |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    mixes: dict[int, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for batch in (8, 16):
            path = Path(folder) / f"{batch}.jsonl"
            logged(path, events, batch)
            mix, rows = mixes.setdefault(batch, Counter()), 0
            with path.open("rb") as file:
                for said in map(standard, file):
                    mix[said["event"]] += 1
                    rows += len(said.get("requests", "1"))
            count = mix.total()
            for name, loads in parsers.items():
                start = time.process_time()
                with path.open("rb") as file:
                    for line in file:
                        loads(line)
                parsed = time.process_time() - start
                start = time.process_time()
                report = sanitize(path, loads=loads)
                taken = time.process_time() - start
                assert report.events == count
                assert not report.findings
                speeds = [f"{n:,.0f}" for n in (count / taken, rows / taken, count / parsed)]
                size = f"{count:,} | {path.stat().st_size:,}"
                print(f"| {batch} | {name} | {size} | {' | '.join(speeds)} | {taken / parsed:.1f} |")
    for batch, mix in mixes.items():
        shares = [f"{n / mix.total():.1%} {kind}" for kind, n in mix.most_common() if n > mix.total() / 1000]
        print(f"\n{batch} a step: {', '.join(shares)}")


if __name__ == "__main__":
    main()
