"""Speculative decoding on a recurrent state: where the next step starts if one of three drafts stays."""

from kvref.memory.snapshot_cache import SnapshotCache

cache = SnapshotCache(num_blocks=64, num_states=8, block_size=4, snapshot_interval=16)
cache.admit(0, list(range(100, 110)))
cache.commit(0)

step = cache.extend(0, [50, 51, 52, 53], num_drafts=3)  # one sampled token, three drafts
print(f"the step runs from token 10 to 14 in state slot {step.state}")
print(
    "it keeps the state after",
    *(f"{p} tokens in slot {s}" for p, s in zip(*step[3:], strict=True)),
    sep="\n  ",
)
cache.commit(0, num_accepted=1)

step = cache.extend(0, [60])
print(f"one draft stays: token {len(cache.slots(0)) - 1} starts from the state in slot {step.source}")
