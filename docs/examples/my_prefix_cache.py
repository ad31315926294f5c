"""A prefix cache over blocks, as small as one can be, and the subject that offers it to the suite."""

from collections import OrderedDict
from dataclasses import dataclass, field

from kvref.errors import ArgumentError, OutOfBlocksError, UnknownRequestError
from kvref_conformance.claims import Claims


@dataclass
class Request:
    tokens: list
    blocks: list = field(default_factory=list)
    num_scheduled: int = 0
    num_computed: int = 0


class PrefixCache:
    def __init__(self, num_blocks, block_size):
        self.num_blocks, self.block_size = num_blocks, block_size
        self.idle = OrderedDict.fromkeys(range(num_blocks))  # held by nobody; the first is taken next
        self.holders = [0] * num_blocks
        self.block_of = {}  # all tokens up to the end of a block -> the block
        self.prefix_of = {}  # the other way round
        self.requests = {}

    def admit(self, request, tokens, max_new_tokens):
        if request in self.requests:
            raise UnknownRequestError(f"request {request} is there already")
        if not tokens or min(tokens) < 0 or self.blocks_for(len(tokens)) > self.num_blocks:
            raise ArgumentError(f"{len(tokens)} tokens, expected some that are >= 0 and fit the pool")
        hit = []
        for end in range(self.block_size, len(tokens), self.block_size):  # leaves a token to compute
            if tuple(tokens[:end]) not in self.block_of:
                break
            hit.append(self.block_of[tuple(tokens[:end])])
        num_cached_tokens = len(hit) * self.block_size
        state = Request(list(tokens), [], num_cached_tokens, num_cached_tokens)
        self.schedule(state, hit, max_new_tokens)
        self.requests[request] = state
        return num_cached_tokens, self.slots(request)

    def extend(self, request, tokens, max_new_tokens):
        state = self.known(request)
        if tokens and min(tokens) < 0:
            raise ArgumentError("a token is negative")
        before = state.num_scheduled
        state.tokens += tokens
        try:
            self.schedule(state, [], max_new_tokens)
        except (ArgumentError, OutOfBlocksError):
            del state.tokens[len(state.tokens) - len(tokens) :]
            raise
        return self.slots(request)[before:]

    def schedule(self, state, hit, max_new_tokens):
        if max_new_tokens < 0:
            raise ArgumentError(f"max_new_tokens = {max_new_tokens}, expected >= 0")
        end = min(state.num_scheduled + max_new_tokens, len(state.tokens))
        num_new = self.blocks_for(end) - len(state.blocks) - len(hit)
        if num_new > len(self.idle) - sum(block in self.idle for block in hit):
            raise OutOfBlocksError(f"{num_new} blocks are needed, fewer are free")
        for block in hit:
            self.idle.pop(block, None)
        new = [self.idle.popitem(last=False)[0] for _ in range(num_new)]
        for block in new:
            self.block_of.pop(self.prefix_of.pop(block, None), None)  # evicted
        for block in hit + new:
            self.holders[block] += 1
        state.blocks += hit + new
        state.num_scheduled = end

    def commit(self, request):
        state = self.known(request)
        state.num_computed = state.num_scheduled
        for i in range(state.num_computed // self.block_size):
            prefix, block = tuple(state.tokens[: (i + 1) * self.block_size]), state.blocks[i]
            if prefix not in self.block_of:
                self.block_of[prefix], self.prefix_of[block] = block, prefix

    def finish(self, request):
        self.known(request)
        for block in reversed(self.requests.pop(request).blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.idle[block] = None
                self.idle.move_to_end(block, last=block in self.prefix_of)

    abort = finish  # what was not computed has no prefix yet

    def slots(self, request):
        state = self.known(request)
        whole = [block * self.block_size + i for block in state.blocks for i in range(self.block_size)]
        return whole[: state.num_scheduled]

    def num_free(self):
        return len(self.idle)

    def reset(self):
        if self.requests:
            raise ArgumentError(f"{len(self.requests)} requests hold blocks")
        self.block_of.clear()
        self.prefix_of.clear()

    def known(self, request):
        if request not in self.requests:
            raise UnknownRequestError(f"request {request} is not there")
        return self.requests[request]

    def blocks_for(self, num_tokens):
        return -(-num_tokens // self.block_size)


class Subject:
    claims = Claims(name="my_prefix_cache", block_sizes=(4, 16))
    prefix_cache = PrefixCache
