"""Prepared runs: buffers that are filled again for every run, as a captured graph has them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kvref.arrays import Array
from kvref_conformance.subjects.tiled.rules import Batch, Rules
from kvref_conformance.subjects.tiled.sparse import Sparse

#: The buffers a prepared run reads, by argument name.
Buffers = dict[str, Array]


class Calls(Sparse):
    """Prepare once, run many times."""

    def prepare(
        self, k_cache: Array, v_cache: Array, *, scale: float, **metadata: Array
    ) -> tuple[Buffers, Callable[[Array], Any]]:
        """Return the metadata buffers and a run that reads them: paged attention of what they hold then."""
        buffers = {name: np.array(x) for name, x in metadata.items()}
        rules = Rules(scale=scale)

        def run(q: Array) -> Any:
            lengths = {name: buffers[name] for name in ("query_start_loc", "seq_lens")}
            batch = Batch(q=q, rules=rules, **lengths)
            return self.read_and_attend(batch, k_cache, v_cache, buffers["block_tables"], False, None)

        return buffers, run

    def replay(
        self,
        q: Array,
        k_cache: Array,
        v_cache: Array,
        *,
        block_tables: Array,
        query_start_loc: Array,
        seq_lens: Array,
        scale: float,
        out: Array | None = None,
    ) -> Array:
        """Prepare for run 0, then do every run by changing the values in the buffers."""
        runs = {"block_tables": block_tables, "query_start_loc": query_start_loc, "seq_lens": seq_lens}
        first = {name: x[0] for name, x in runs.items()}
        buffers, run = self.prepare(k_cache, v_cache, scale=scale, **first)
        result = np.zeros((*q.shape[:3], v_cache.shape[3]), q.dtype) if out is None else out
        for i in range(len(q)):
            self.refill(buffers, {name: x[i] for name, x in runs.items()})
            self.keep(result, i, run(self.live_rows(q[i], buffers)))
        return result

    def refill(self, buffers: Buffers, values: Buffers) -> None:
        """Copy this run's metadata into the buffers."""
        for name, x in values.items():
            buffers[name][...] = x

    def live_rows(self, q: Array, buffers: Buffers) -> Array:
        """Return the rows that belong to a request; the rest of a padded batch is nobody's."""
        return q[: int(buffers["query_start_loc"][-1])]

    def keep(self, result: Array, index: int, rows: Array) -> None:
        """Store one run's rows; padded rows are zeros."""
        result[index] = 0
        result[index, : len(rows)] = rows
