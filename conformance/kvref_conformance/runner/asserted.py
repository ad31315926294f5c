"""The diagnosis for `kvref.testing`: a wrong answer that came from somebody's own test, not from a check."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kvref.arrays import Array, dtype_name
from kvref.attention.arithmetic import Arithmetic
from kvref_conformance.claims import FEATURES, Claims
from kvref_conformance.contracts import Answer, Call, OutputSpec

#: Elements of the largest input on which the museum's faults are tried.
LARGEST = 2**23


def known_faults(
    verb: str,
    given: Mapping[str, Any],
    answer: Mapping[str, Array],
    arithmetic: Arithmetic,
) -> list[str]:
    """Return the sentences of the museum's faults that give this answer; none for an input too large to try.

    `given` holds tensors and scalars by argument name. An answer under the name of an input is that input
    after the call.
    """
    from kvref_conformance.museum.diagnose import diagnose

    tensors = {name: np.asarray(x) for name, x in given.items() if np.ndim(x)}
    if sum(x.size for x in tensors.values()) > LARGEST:
        return []
    params = {name: x for name, x in given.items() if not np.ndim(x) and x is not None}
    if "lse" in answer and verb != "merge_attention_states":
        params["return_lse"] = True
    in_place = tuple(name for name in answer if name in tensors)
    outputs = {n: OutputSpec(dtype_name(x), x.shape) for n, x in answer.items() if n not in in_place}
    claims = Claims(arithmetic=arithmetic, features=tuple(FEATURES))
    call = Call(verb, tensors, params, outputs, in_place)
    return [match.sentence for match in diagnose(call, Answer(dict(answer)), claims=claims)]
