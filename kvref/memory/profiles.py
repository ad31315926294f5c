"""How engines differ in reusing prefixes, as data: one record an engine, one field a point where they differ.

`kvref` is the canonical answer. Every other record says what an engine does at the same points, and names the
fields nobody has shown (`unverified`). What a field other than the canonical one can cost:

    identity "hash"          two contents under one digest are taken for one: as safe as the digest
    last_token "none"        a request may find all of its tokens, and then computes nothing to sample from
    publish "scheduled"      a request may count on blocks of a step that is never run
    duplicates "free"        a block may outlive the one before it, if another request computed that first
    release "head_first"     a block may outlive the one before it, and holds memory that nobody can hit
    evict_unit "node"        one block that is needed evicts all the blocks of its node
    split "renews"           what a request did not hit may outlive what others did

Realises: KV-PREFIX-002 hit-leaves-one, KV-PREFIX-003 hit-on-grid, KV-PREFIX-005 hit-computed, KV-PREFIX-024
eviction-order, KV-PREFIX-025 outputs-cached.
For porters: an engine is one of these records; a cache of full blocks needs `kvref` alone.
Source: vLLM 0.32 and 0.33, SGLang 0.5.23, LMCache 0.5.6 (their source); documentation of TensorRT-LLM; the
server of llama.cpp (tools/server/server-context.cpp at 001d906); the Mooncake trace's own counting rule.
"""

from dataclasses import dataclass

from kvref.arrays import check_count, check_flag, check_word
from kvref.errors import ArgumentError, shown
from kvref.memory.namespace import check_text

#: What each named field may say; the first is canonical.
NAMED: dict[str, tuple[str, ...]] = {
    "structure": ("chain", "radix", "slot"),
    "identity": ("tokens", "hash"),
    "last_token": ("block_floor", "token", "none"),
    "tail": ("full_blocks", "keyed"),
    "publish": ("computed", "scheduled", "finished"),
    "duplicates": ("keep", "free", "adopt"),
    "release": ("tail_first", "head_first"),
    "plain": ("front", "back"),
    "evict_unit": ("block", "node", "slot"),
    "split": ("keeps", "renews"),
    "policy": ("lru", "lfu", "fifo", "mru", "filo", "slru", "priority"),
}


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What one engine's prefix cache does where engines differ.

    Raises: ArgumentError if a field is outside its named set.
    """

    name: str
    source: str
    block_size: int = 16
    """Tokens, where the caller names no other size."""
    structure: str = "chain"
    """What finds a prefix: keys that name it (chain), a tree of runs (radix), one request's row (slot)."""
    identity: str = "tokens"
    """What makes two blocks one: their tokens and namespaces compared, or the digest alone."""
    last_token: str = "block_floor"
    """How a full hit leaves a token to compute: its whole block, the token alone, or not at all (none)."""
    tail: str = "full_blocks"
    """Whether the last block of a prompt has a key before it is full."""
    publish: str = "computed"
    """When others may hit a block: once scheduled, once computed, or once its request is finished."""
    duplicates: str = "keep"
    """What a second copy of a published block becomes: published too, its request's alone (free), or
    given up for the first (adopt)."""
    release: str = "tail_first"
    """Which end of a finished request is evicted first."""
    plain: str = "front"
    """Where a free block that holds nothing published joins the queue."""
    evict_unit: str = "block"
    split: str = "keeps"
    """What a hit that ends inside a node of a tree does to the age of the rest of it: nothing, or it is
    accessed too (renews)."""
    policy: str = "lru"
    cached_outputs: bool = True
    """Whether blocks of decoded tokens are published."""
    outputs_wait: bool = False
    """Whether a tree gets them only when their request is finished."""
    null_block: bool = False
    """Whether block 0 is set aside and holds nothing."""
    unverified: tuple[str, ...] = ()
    """Fields that state a guess."""

    def __post_init__(self) -> None:
        for name in ("name", "source"):
            check_text(name, getattr(self, name))
        check_count("block_size", self.block_size)
        for name, allowed in NAMED.items():
            check_word(name, getattr(self, name), allowed)
        for name in ("cached_outputs", "outputs_wait", "null_block"):
            check_flag(name, getattr(self, name))
        if self.publish == "scheduled" and self.duplicates == "adopt":
            raise ArgumentError(
                "duplicates = 'adopt' with publish = 'scheduled', expected another: "
                "a block still to be written cannot stand in for one that holds its contents"
            )
        named = isinstance(self.unverified, tuple) and all(isinstance(n, str) for n in self.unverified)
        if not named or not set(self.unverified) <= self.__dataclass_fields__.keys():
            raise ArgumentError(f"unverified = {shown(self.unverified)}, expected names of fields (a tuple)")


_ENGINES = (
    Profile(name="kvref", source="the canonical answers of the design"),
    Profile(
        name="vllm",
        source="vLLM 0.32.0 and 0.33.0, v1/core: block_pool.py, kv_cache_utils.py, kv_cache_manager.py",
        identity="hash",
        publish="scheduled",
        null_block=True,
    ),
    Profile(
        name="plain-lru",
        source="how hit rates of a trace are counted: every input block, the head of a request touched first",
        block_size=512,
        identity="hash",
        last_token="none",
        tail="keyed",
        duplicates="adopt",
        release="head_first",
        cached_outputs=False,
    ),
    Profile(
        name="sglang",
        source="SGLang 0.5.23, srt/mem_cache: radix_cache.py, evict_policy.py",
        block_size=1,
        structure="radix",
        duplicates="adopt",
        evict_unit="node",
        split="renews",
        outputs_wait=True,
        unverified=("plain",),
    ),
    Profile(
        name="tensorrt-llm",
        source="TensorRT-LLM, docs/source/features/kvcache.md at 0076e939; kv_cache_manager_v2/AGENTS.md",
        block_size=32,
        structure="radix",
        identity="hash",
        last_token="token",
        tail="keyed",
        duplicates="adopt",
        policy="priority",
        unverified=("last_token", "duplicates", "release", "plain"),
    ),
    Profile(
        name="llama.cpp",
        source="llama.cpp, tools/server/server-context.cpp at 001d906",
        block_size=1,
        structure="slot",
        last_token="token",
        publish="finished",
        evict_unit="slot",
        unverified=("duplicates", "release", "plain"),
    ),
    Profile(
        name="lmcache",
        source="LMCache 0.5.6, v1/token_database.py, v1/config.py, integration/vllm/vllm_v1_adapter.py",
        block_size=256,
        identity="hash",
        last_token="token",
        duplicates="free",
        unverified=("plain", "cached_outputs"),
    ),
)
PROFILES: dict[str, Profile] = {profile.name: profile for profile in _ENGINES}


def profile_of(profile: Profile | str) -> Profile:
    """Return a profile, given itself or the name of one of `PROFILES`.

    Raises: ArgumentError.
    """
    if isinstance(profile, Profile):
        return profile
    if not isinstance(profile, str) or profile not in PROFILES:
        raise ArgumentError(f"profile = {shown(profile)}, expected a Profile or one of {', '.join(PROFILES)}")
    return PROFILES[profile]
