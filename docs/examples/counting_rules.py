"""Hit rates of one trace in one cache under seven rules, all of them in use."""

import sys
from pathlib import Path

from kvref.planning.counting import Counting
from kvref.planning.distances import HitCurve
from kvref.planning.traces import Trace

CAPACITIES = (None, 30_000, 10_000, 1_000)
trace = Trace.read(Path(sys.argv[1]), block_size=512)
keyed, head = HitCurve.of(trace), HitCurve.of(trace, Counting(touch="head_first"))
full = HitCurve.of(trace, Counting(tail="full_blocks"))
second_half = HitCurve.of(trace, Counting(warm_up=0.5))

RULES = {
    "of blocks": [keyed.at(c).of_blocks for c in CAPACITIES],
    "of blocks, head first": [head.at(c).of_blocks for c in CAPACITIES],
    "of blocks, full ones only": [full.at(c).of_blocks for c in CAPACITIES],
    "of input tokens": [keyed.at(c).of_input_tokens for c in CAPACITIES],
    "of input and output tokens": [keyed.at(c).of_all_tokens for c in CAPACITIES],
    "of input tokens, second half": [second_half.at(c).of_input_tokens for c in CAPACITIES],
    "mean of requests": [keyed.at(c).mean_of_requests for c in CAPACITIES],
}
print(f"{'hits as a share':<28}" + "".join(f"{c or 'no eviction':>12}" for c in CAPACITIES))
for rule, shares in RULES.items():
    print(f"{rule:<28}" + "".join(f"{share:>12.4f}" for share in shares))
