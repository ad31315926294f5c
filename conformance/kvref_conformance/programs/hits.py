"""What a prefix cache says is cached, held to what it may hit and to what it must."""

from typing import TYPE_CHECKING

from kvref_conformance.programs.prompts import Prompt

if TYPE_CHECKING:
    from kvref_conformance.programs.watched_cache import WatchedCache


def judge_hit(cache: "WatchedCache", said: str, prompt: Prompt, hit: int, slots: list[int]) -> None:
    """Hold the length of a hit, and what lies in every slot of it, to the requirements."""
    _judge_length(cache, said, prompt, hit)
    wrong: set[str] = set()
    for at, slot in enumerate(slots[: len(prompt.tokens)]):
        blamed = cache.cells.blame(slot, prompt, at)
        if blamed is not None and blamed[0] not in wrong:
            wrong.add(blamed[0])
            also = ["KV-PREFIX-020"] if cache.is_twice(prompt, at) else []
            if prompt.labels[at] in cache.told.never:
                also.append("KV-PREFIX-019")
            where = f"position {at} (block {cache.block(slot)}, slot {slot % cache.block_size})"
            cache.log.breach(f"{said}: {where} holds {blamed[1]}", blamed[0], *also)
    if not wrong:
        _judge_published(cache, said, prompt, hit)
        _judge_shortfall(cache, said, prompt, hit)


def copied_tail(cache: "WatchedCache", request: int, prompt: Prompt, hit: int, slots: list[int]) -> bool:
    """Take the last block of a hit that ends inside it for a copy, if the choices allow one; say whether.

    The subject copies what others wrote into a block of the request's own; where others wrote it, the cells
    still know. What is copied is not judged, but it must be there.
    """
    start = hit - hit % cache.block_size
    tail = slots[start:hit]
    declared = cache.ledger.full_hit == "last_token" or cache.claims.choice("tail-block") == "keyed"
    own = {cache.block(slot) for slot in tail}
    if not declared or not 0 < hit < len(prompt.tokens) or not tail or own & cache.held():
        return False
    if not cache.cells.is_written(prompt.labels[hit - 1]):
        return False
    cache.give_out(own)
    for at, slot in enumerate(tail, start):
        cache.write(slot, prompt, at, request, written=True)
    return True


def _judge_length(cache: "WatchedCache", said: str, prompt: Prompt, hit: int) -> None:
    count, size = len(prompt.tokens), cache.block_size
    if not 0 <= hit < count:
        cache.log.breach(f"{said} of {count}, expected at most {count - 1}", "KV-PREFIX-002")
    whole = cache.ledger.full_hit == "last_token" and count % size == 0 and hit == count - 1
    if hit % size and not whole and cache.claims.choice("tail-block") == "not_keyed":
        cache.log.breach(f"{said}, expected a multiple of {size}", "KV-PREFIX-003")


def _judge_published(cache: "WatchedCache", said: str, prompt: Prompt, hit: int) -> None:
    """Hold a hit of right contents to what is declared to be published."""
    whole = hit - hit % cache.block_size
    published, allowed = cache.ledger.published(prompt), cache.ledger.allowed(prompt)
    if whole > published:
        when = cache.claims.choice("publish-time")
        cache.log.breach(f"{said}, of which {published} are published: {when} is declared", "KV-PREFIX-005")
    elif whole > allowed:
        cache.log.breach(f"{said}, of which {allowed} were a prompt: outputs are not cached", "KV-PREFIX-025")


def _judge_shortfall(cache: "WatchedCache", said: str, prompt: Prompt, hit: int) -> None:
    due = cache.ledger.due(prompt)
    if due % cache.block_size and cache.needed(prompt) > cache.free:
        due -= due % cache.block_size  # there is no block to copy the last one into
    if hit >= due:
        return
    without = cache.ledger.due(prompt, outputs=False)
    if cache.told.refused_reset:
        requirement, why = "KV-PREFIX-015", "a reset was refused"
    elif cache.told.refused_admission:
        requirement, why = "KV-PREFIX-019", "an admission was refused"
    elif without <= hit:
        requirement, why = "KV-PREFIX-025", "the rest was decoded"
    elif not prompt.given.is_plain:
        requirement, why = "KV-PREFIX-014", "its namespace has been seen"
    else:
        requirement, why = "KV-PREFIX-006", "nothing has been evicted"
    cache.log.breach(f"{said}, expected {due}: {why}", requirement)
