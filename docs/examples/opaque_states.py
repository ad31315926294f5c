"""Kimi K3 on eight ranks: the block that holds a state, and the chunk of a cache that keeps opaque blocks."""

from math import lcm

from kvref.planning.catalog import geometry_by_name
from kvref.planning.ranks import geometry_of_rank, hybrid_block_size

rank = geometry_of_rank(geometry_by_name("Kimi-K3"), tensor_parallel=8)
state = rank.states[0].recurrent_bytes + rank.states[0].conv_bytes
print(f"one layer's state takes {state} bytes on each rank")

for platform, form, covered in (("B300", "bfloat16", 1), ("MI355X", "fp8_e4m3", 2)):
    attention = hybrid_block_size(rank, form, multiple=128)  # latent attention: multiples of 128
    states = covered * attention  # how many blocks of attention a block of states covers, by the engine's log
    print(f"{platform}, {form}: a block of attention has {attention} tokens, one of states {states},")
    print(f"  so a chunk is a multiple of {lcm(attention, states)}")
