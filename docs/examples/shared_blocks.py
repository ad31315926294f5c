"""Two answers to one question: blocks that are shared, and the copy that the first write makes."""

from kvref.memory.blocks import BlockPool
from kvref.memory.tables import BlockTables

pool = BlockPool(8)
tables = BlockTables(pool, [4])  # blocks of four slots

tables.add(0)
tables.append(0, 6)  # the question: six tokens
tables.fork(0, 1)  # two answers to it
print("table 0", tables.table(0), " table 1", tables.table(1), " free", pool.num_free)

for request in (0, 1):
    slots, copies, _ = tables.append(request, 1)
    print(f"request {request} writes slot {slots[0][0]},", *(copies or ["in place"]))

tables.free(0)
print("table 1", tables.table(1), " free", pool.num_free)
