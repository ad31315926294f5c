"""How engines differ in keeping recurrent states, as data: one record an engine, one field a point.

`kvref` is the canonical answer. What a field other than the canonical one can cost:

    saves "chunk_end"    a step that passes many multiples leaves one snapshot, or none if it ends between
    saves "branch"       what nobody has branched off yet is kept nowhere: the second request hits nothing
    junctions False      requests that share a prefix share only its last multiple of the interval
    finish "donates"     the last state of a request needs a state slot that another could have had

Realises: KV-SNAP-013 junction-snapshot, KV-SNAP-014 longest-joint-hit.
For porters: an engine is one of these records; whatever it says, the laws of the chapter hold.
Source: vLLM's mamba_cache_mode, SGLang's branching positions and TensorRT-LLM's branch snapshots, LMCache's
recipe for Kimi K3. vLLM's and SGLang's own structures are `kvref.memory.snapshot_align` and
`kvref.memory.snapshot_tree`.
"""

from dataclasses import dataclass

from kvref.arrays import check_count, check_flag, check_word
from kvref.errors import ArgumentError, shown
from kvref.memory.namespace import check_text

#: What each named field may say; the first is canonical.
SNAPSHOT_NAMED: dict[str, tuple[str, ...]] = {
    "saves": ("interval", "chunk_end", "branch"),
    "finish": ("frees", "donates"),
}


@dataclass(frozen=True, kw_only=True)
class SnapshotProfile:
    """When an engine keeps a state, and what becomes of the last one.

    Raises: ArgumentError if a field is outside its named set.
    """

    name: str
    source: str
    block_size: int | None = 16
    """Tokens, where the caller names no other size; None where the caller has to."""
    interval: int | None = None
    """Tokens between snapshots, where the caller names no other; None for one a block."""
    saves: str = "interval"
    """Every multiple of the interval that a step passes, the end of a step that lies on one (chunk_end), or
    none but junctions (branch)."""
    junctions: bool = True
    """Whether a request whose hit is longer in the blocks than in the states saves where the blocks end."""
    finish: str = "frees"
    """What becomes of the state after the last token, where that lies on the block grid."""

    def __post_init__(self) -> None:
        for name in ("name", "source"):
            check_text(name, getattr(self, name))
        for name in ("block_size", "interval"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        for name, allowed in SNAPSHOT_NAMED.items():
            check_word(name, getattr(self, name), allowed)
        check_flag("junctions", self.junctions)


_ENGINES = (
    SnapshotProfile(name="kvref", source="the canonical answers of the design"),
    SnapshotProfile(
        name="lmcache-k3",
        source="LMCache, docs/source/recipes/kimi_k3.rst: a state is an opaque block, one a chunk of tokens, "
        "which is a multiple of the tokens of a block in every group",
        block_size=None,
        saves="chunk_end",
        junctions=False,
    ),
    SnapshotProfile(
        name="tensorrt-llm",
        source="TensorRT-LLM, mamba_state_config: periodic snapshots and branch snapshots",
        block_size=32,
        saves="branch",
    ),
)
SNAPSHOT_PROFILES: dict[str, SnapshotProfile] = {profile.name: profile for profile in _ENGINES}


def snapshot_profile_of(profile: SnapshotProfile | str) -> SnapshotProfile:
    """Return a profile, given itself or the name of one of `SNAPSHOT_PROFILES`.

    Raises: ArgumentError.
    """
    if isinstance(profile, SnapshotProfile):
        return profile
    if not isinstance(profile, str) or profile not in SNAPSHOT_PROFILES:
        names = ", ".join(SNAPSHOT_PROFILES)
        raise ArgumentError(f"profile = {shown(profile)}, expected a SnapshotProfile or one of {names}")
    return SNAPSHOT_PROFILES[profile]
