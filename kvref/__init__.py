"""The executable specification of the LLM KV cache.

A cache slot holds a function of the token prefix. Every module here is that one law seen from one side:
`kvref.attention` reads slots, `kvref.memory` says who holds them, `kvref.storage` where their bytes lie.
`kvref.sanitizer` replays a log and says whose data was read. `kvref.testing` holds other people's kernels
to the same answers.
"""

__version__ = "0.1.0"
