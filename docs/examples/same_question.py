"""The same question from three users: what each of them hits, and what their namespaces keep apart."""

from kvref.memory.namespace import Namespace
from kvref.memory.prefix_cache import PrefixCache
from kvref.memory.radix_cache import RadixCache

question = list(range(100, 110))  # ten tokens, in blocks of four

for cache in (PrefixCache(16, block_size=4), RadixCache(16, block_size=4)):
    print(type(cache).__name__)
    for request, namespace in enumerate((Namespace(), Namespace(), Namespace(salt="tenant b"))):
        given = cache.admit(request, question, namespace=namespace)
        print(f"  request {request} hits {given.num_cached_tokens} tokens, slots {given.slots}")
        cache.commit(request)  # the step has run: what was scheduled is computed
    for request in range(3):
        cache.finish(request)
    print(f"  {cache.num_free} of 16 blocks can be had, and the question is still there:", end=" ")
    print(cache.admit(3, [*question, 7, 8]).num_cached_tokens, "tokens hit")
