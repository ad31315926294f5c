"""Is the harness broken, or the implementation? A first look before any verdict.

`smoke` says hello, asks for a verb nobody has, and makes one smallest call of each claimed verb and one small
conversation with each manager; of the answers only the delivery is judged. `check_transcript` holds every
line of the wire to the protocol.

Source: Bowtie's smoke command, which keeps the two kinds of fault apart.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kvref.arrays import Array, dtype_of
from kvref_conformance.claims import ClaimError, Claims
from kvref_conformance.contracts import FORMATTED, RECURRENT, VERBS, Answer, Call, Failed, OutputSpec, Scalar
from kvref_conformance.host import Host
from kvref_conformance.host.found import misnamed_in
from kvref_conformance.host.messages import OPS, check_reply, read_call
from kvref_conformance.host.session_messages import SESSION_OPS, read_session
from kvref_conformance.host.smoke_managers import try_manager
from kvref_conformance.host.wire import Message, ProtocolError, decode
from kvref_conformance.managers import MANAGERS, offering, operations_of
from kvref_conformance.probes.format_specimens import formatted_call
from kvref_conformance.probes.scan_specimens import smallest_scan

Blame = Literal["ok", "harness", "implementation"]
NO_VERB = "no_such_verb"
_ROPE_DIM = 64
_SCALARS: dict[str, Scalar] = {"scale": 0.5, "top_k": 1, "base": 10000.0, "source": "nhd", "target": "hnd"}
_INTEGERS = {
    "query_start_loc": np.array([0, 1], np.int32),
    "seq_lens": np.array([1], np.int32),
    "block_tables": np.array([[1]], np.int32),
    "positions": np.array([0], np.int32),
}


@dataclass(frozen=True)
class Step:
    """One thing that was tried, who is to blame if it failed, and what happened."""

    name: str
    blame: Blame
    detail: str

    def __str__(self) -> str:
        verdict = "ok" if self.blame == "ok" else f"{self.blame} at fault"
        return f"{self.name:<28} {verdict:<24} {self.detail}".rstrip()


def smoke(host: Host) -> list[Step]:
    """Try a host out and return one step a line; it stops after a hello that fails."""
    try:
        hello = host.hello()
        claims = Claims.from_dict(hello.claims)
    except Failed as failure:
        blame: Blame = "implementation" if failure.kind == "error" else "harness"
        return [Step("hello", blame, _one_line(failure))]
    except ClaimError as error:
        return [Step("hello", "harness", f"claims cannot be read: {error}")]
    known = {*VERBS, *(name for manager in MANAGERS for name in offering(manager))}
    unknown = [name for name in hello.verbs if name not in known]
    if unknown:
        what = f"verbs among {', '.join(VERBS)}, or managers and their operations among {', '.join(MANAGERS)}"
        return [Step("hello", "harness", f"offers {unknown[0]!r}, expected {what}")]
    named = f"{hello.name} {hello.version}".strip()
    steps = [Step("hello", "ok", f"{named}, offers {_offered(hello.verbs)}")]
    steps += [Step("hello", "implementation", line) for line in misnamed_in(hello)]
    steps.append(_unknown_verb(host))
    for verb in hello.verbs:
        if verb in VERBS:
            steps.append(_try(host, smallest_call(verb, claims)))
        elif verb in MANAGERS:
            steps += _try_manager(host, verb, operations_of(verb, hello.verbs), claims)
    return steps


def smallest_call(verb: str, claims: Claims) -> Call:
    """Return a call of a verb with one request of one token, one head, and nothing optional.

    A call that names a format has as many tokens as its groups need.
    """
    if verb in FORMATTED:
        return formatted_call(verb, claims)
    if verb in RECURRENT:
        return smallest_scan(verb, claims)
    head_dim, block_size = claims.head_dims[0], claims.block_sizes[0]
    if verb == "mla_attention":
        head_dim = claims.latent_dims[0] + _ROPE_DIM
    axes = {"head_dim": head_dim, "v_head_dim": head_dim, "num_blocks": 2, "block_size": block_size}
    tensors: dict[str, Array] = {}
    params: dict[str, Scalar] = {}
    for argument in VERBS[verb].arguments:
        if argument.feature is not None:
            continue
        if not argument.shape:
            special: dict[str, Scalar] = {"latent_dim": claims.latent_dims[0], "rotary_dim": head_dim}
            special["style"] = claims.rope_styles[0]
            params[argument.name] = special.get(argument.name, _SCALARS.get(argument.name, 1))
        elif argument.name in _INTEGERS:
            leading = (1,) if argument.shape[0] == "num_runs" else ()
            tensors[argument.name] = _INTEGERS[argument.name].reshape(
                *leading, *_INTEGERS[argument.name].shape
            )
        elif argument.name in ("slots", "slot_mapping"):
            slots = np.full((1, 1), block_size, np.int32)  # the first slot of the second block
            tensors[argument.name] = slots if argument.name == "slots" else slots[0].astype(np.int64)
        else:
            shape = (
                (2, block_size, 1, head_dim) if "..." in argument.shape else _extents(argument.shape, axes)
            )
            dtype = "float32" if argument.name.startswith("lse") else claims.dtypes[0]
            tensors[argument.name] = np.full(shape, 0.25, dtype_of(dtype))
    in_place = tuple(argument.name for argument in VERBS[verb].arguments if argument.in_place)
    return Call(verb, tensors, params, _outputs(verb, tensors, params, claims.dtypes[0]), in_place)


def check_transcript(lines: Iterable[tuple[str, bytes]]) -> list[str]:
    """Return what is wrong with a transcript of ("->" or "<-", line), one sentence a fault.

    A `ProcessHost` records one through its `trace`.
    """
    faults = []
    request: Message | None = None
    for number, (direction, line) in enumerate(lines, 1):
        try:
            if not line.endswith(b"\n"):
                raise ProtocolError("a line has no newline at its end")
            message = decode(line)
            if direction == "->":
                if request is not None:
                    raise ProtocolError(
                        f"request {message.get('id')!r} before the reply to {request['id']!r}"
                    )
                request = _check_request(message)
            elif request is None:
                raise ProtocolError("a reply without a request")
            else:
                asked, request = request, None
                check_reply(message, asked)
        except ProtocolError as error:
            faults.append(f"line {number}: {error}")
    return faults


def _check_request(message: Message) -> Message:
    if message.get("op") not in OPS or not isinstance(message.get("id"), str):
        raise ProtocolError(f"op = {message.get('op')!r}, expected one of {', '.join(OPS)}, and an id")
    if message["op"] == "call":
        read_call(message)
    elif message["op"] in SESSION_OPS:
        read_session(message)
    return message


def _unknown_verb(host: Host) -> Step:
    try:
        host.call(Call(NO_VERB, {}))
    except Failed as failure:
        fine = failure.kind == "unsupported"
        return Step("a verb nobody has", "ok" if fine else "harness", _one_line(failure))
    return Step("a verb nobody has", "harness", "answered ok, expected unsupported")


def _try(host: Host, call: Call) -> Step:
    try:
        answer = host.call(call)
    except Failed as failure:
        return Step(
            call.verb, "harness" if failure.kind == "protocol" else "implementation", _one_line(failure)
        )
    faults = _delivery_faults(answer)
    return Step(call.verb, "implementation" if faults else "ok", "; ".join(faults))


def _offered(names: tuple[str, ...]) -> str:
    """Spell what a subject offers: a manager's operations stand in parentheses after it."""
    spelled = []
    for name in names:
        operations = operations_of(name, names) if name in MANAGERS else ()
        spelled += [f"{name} ({', '.join(operations)})" if operations else name] if "." not in name else []
    return ", ".join(spelled)


def _try_manager(host: Host, manager: str, operations: tuple[str, ...], claims: Claims) -> list[Step]:
    if not operations:
        return [Step(manager, "harness", "offered without any of its operations")]
    steps = []
    for name, failure in try_manager(host, manager, operations, claims):
        at_fault: Blame = "harness" if failure and failure.kind == "protocol" else "implementation"
        steps.append(Step(name, at_fault, _one_line(failure)) if failure else Step(name, "ok", ""))
    return steps


def _delivery_faults(answer: Answer) -> list[str]:
    faults = [f"{name}: {count} elements never written" for name, count in answer.unwritten.items()]
    faults += [f"{name}: written past its end" for name in answer.overrun]
    return faults + [f"{name}: an input was changed" for name in answer.mutated]


def _outputs(
    verb: str, tensors: Mapping[str, Array], params: Mapping[str, Scalar], dtype: str
) -> dict[str, OutputSpec]:
    first = next(iter(tensors.values()))
    if verb == "write_kv":
        return {}
    if verb == "select_topk":
        return {"positions": OutputSpec("int32", (1, 1))}
    if verb == "merge_attention_states":
        return {"out": OutputSpec(dtype, first.shape), "lse": OutputSpec("float32", first.shape[:-1])}
    shape = first.shape
    if verb == "mla_attention":
        shape = (*shape[:-1], int(params["latent_dim"]))
    if verb == "convert_layout":
        shape = (shape[0], shape[2], shape[1], shape[3])
    return {"out": OutputSpec(dtype, shape)}


def _extents(axes: tuple[str, ...], known: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(known.get(axis, 1) for axis in axes)


def _one_line(failure: Failed) -> str:
    return f"{failure.kind}: {failure.detail.splitlines()[0] if failure.detail else ''}"
