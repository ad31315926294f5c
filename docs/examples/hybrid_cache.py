"""Three questions to a hybrid model: blocks are hit in pieces, a state whole or not at all."""

from kvref.memory.snapshot_cache import SnapshotCache

cache = SnapshotCache(num_blocks=64, num_states=8, block_size=4, snapshot_interval=16)
document = list(range(100, 126))  # 26 tokens: six blocks and a half, one snapshot, after 16

for request, question in enumerate(([1, 2, 3], [7, 8, 9], [4, 5, 6])):
    step = cache.admit(request, document + question)
    saved = dict(zip(step.save_positions, step.save_states, strict=True))
    start = f"the state in slot {step.source}" if step.source >= 0 else "zeros"
    print(f"request {request} hits {step.num_cached_tokens} tokens and starts from {start}")
    print(f"  it runs in state slot {step.state} and saves, position: slot, {saved}")
    cache.commit(request)  # the step has run: blocks and states can be hit
    cache.finish(request)
print(f"{cache.num_free} of 64 blocks and {cache.num_free_states} of 8 state slots can be had")
