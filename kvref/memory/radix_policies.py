"""Which leaf of a radix tree goes first: one record a policy, its key a function of what a node remembers.

Of all leaves that nobody holds, the one with the smallest key is evicted, and its parent is the next leaf
once its last child is gone. A node remembers four things:

    last_access    the last walk whose path it was on; the lower half of a split is on it in SGLang alone
    created        when it came to be; the upper half of a split is new, the lower keeps its age
    uses           how many requests put a path through it into the tree; both halves of a split keep it
    priority       the largest of the requests that put a path through it

Every walk and every new node has a number of its own, so `last_access` and `created` never tie between two
leaves, and no key does.

Realises: KV-PREFIX-024 eviction-order.
For porters: `lru` is enough for most; the others differ in one line each.
Source: SGLang 0.5.23, evict_policy.py (all but its tail-optimised LRU); TensorRT-LLM's priorities of 0 to
100, 35 unless told (docs/source/features/kvcache.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvref.errors import ArgumentError, shown

#: The priority of a request that names none.
DEFAULT_PRIORITY = 35
#: How many requests must use a node before `slru` protects it from those used less.
PROTECTED_USES = 2


class Remembered(Protocol):
    """What a node remembers of its past."""

    last_access: int
    created: int
    uses: int
    priority: int


Key = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Policy:
    """An order of eviction: the leaf with the smallest key goes first."""

    name: str
    key: Callable[[Remembered], Key]
    summary: str


_EVERY = (
    Policy(name="lru", key=lambda node: (node.last_access,), summary="used longest ago"),
    Policy(name="lfu", key=lambda node: (node.uses, node.last_access), summary="used least, longest ago"),
    Policy(name="fifo", key=lambda node: (node.created,), summary="oldest"),
    Policy(name="mru", key=lambda node: (-node.last_access,), summary="used last"),
    Policy(name="filo", key=lambda node: (-node.created,), summary="youngest"),
    Policy(
        name="slru",
        key=lambda node: (int(node.uses >= PROTECTED_USES), node.last_access),
        summary="used once before used more often, each longest ago first",
    ),
    Policy(
        name="priority",
        key=lambda node: (node.priority, node.last_access),
        summary="lowest priority, then longest ago",
    ),
)
POLICIES: dict[str, Policy] = {policy.name: policy for policy in _EVERY}


def policy_of(policy: Policy | str) -> Policy:
    """Return a policy, given itself or the name of one of `POLICIES`.

    Raises: ArgumentError.
    """
    if isinstance(policy, Policy):
        return policy
    if not isinstance(policy, str) or policy not in POLICIES:
        raise ArgumentError(f"policy = {shown(policy)}, expected a Policy or one of {', '.join(POLICIES)}")
    return POLICIES[policy]
