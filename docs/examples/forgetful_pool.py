"""The same pool with one fault that happened: a second holder is not counted."""

import my_pool


class Pool(my_pool.Pool):
    def touch(self, blocks):
        self.check_held(set(blocks))


class Subject(my_pool.Subject):
    block_allocator = Pool
