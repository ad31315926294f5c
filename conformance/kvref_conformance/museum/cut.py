"""One request out of a batch: a smaller call for the same fault.

Faults that lie between requests do not survive the cut; a large call is cut all the same, for most faults do
not lie there, and trying them on everything would take minutes.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kvref.arrays import Array
from kvref_conformance.contracts import Call

#: Verbs whose requests can be taken apart.
CUT = ("attention", "paged_attention", "quantized_paged_attention")


def worst_request(call: Call, observed: Array, right: Array) -> int:
    """Return the request whose rows `[num_tokens, ...]` are furthest from the right ones; NaN is furthest."""
    with np.errstate(invalid="ignore"):
        error = np.abs(observed - right).reshape(len(right), -1).max(axis=1, initial=0.0)
    token = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
    return int(np.searchsorted(call.tensors["query_start_loc"], token, side="right") - 1)


def cut_to(call: Call, observed: Mapping[str, Array], request: int) -> tuple[Call, dict[str, Array]]:
    """Return the call and the answer of one request alone."""
    t = call.tensors
    rows = slice(*(int(i) for i in t["query_start_loc"][request : request + 2]))
    lens = t["seq_lens"].astype(np.int64)
    context = slice(int(lens[:request].sum()), int(lens[: request + 1].sum()))
    pairs = np.diff(t["query_start_loc"]).astype(np.int64) * lens
    mask = slice(int(pairs[:request].sum()), int(pairs[: request + 1].sum()))
    alone = slice(request, request + 1)
    parts = {"q": rows, "k": context, "v": context, "span_ids": context, "mask": mask}
    parts |= {"block_tables": alone, "seq_lens": alone}
    tensors = {name: x[parts[name]] if name in parts else x for name, x in t.items()}
    tensors["query_start_loc"] = np.array([0, rows.stop - rows.start], t["query_start_loc"].dtype)
    outputs = {
        name: replace(spec, shape=(rows.stop - rows.start, *spec.shape[1:]))
        for name, spec in call.outputs.items()
    }
    return replace(call, tensors=tensors, outputs=outputs), {n: x[rows] for n, x in observed.items()}
