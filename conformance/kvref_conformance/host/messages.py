"""`kvref-wire/1`, the messages: hello, call, bye, and their replies.

The suite writes one request to the program's stdin, the program writes one reply to its stdout; one request
is in flight at a time. A call names its tensors under `inputs` and `outputs`, its scalars under `params`; for
a tensor `q` the keys are `q` (a file), `q.dtype`, `q.shape`, and where needed `q.offset` (bytes) and
`q.strides` (elements). A reply echoes the id and has one outcome: ok, refused, unsupported or error.
Messages that hold state, `open`, `apply` and `close`, stand in `session_messages`.

Realises: KV-CONF-010 wire-messages, KV-CONF-012 one-outcome.
For porters: answer `hello` and one verb; answer `unsupported` to the rest.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvref_conformance.host.session_messages import SESSION_OPS, allowed_in_reply
from kvref_conformance.host.wire import (
    Message,
    ProtocolError,
    Scalar,
    get_scalar,
    integers,
    is_name,
    join,
    names,
    put_scalar,
    text,
)

WIRE = "kvref-wire/1"
OPS = ("hello", "call", *SESSION_OPS, "bye")
OUTCOMES = ("ok", "refused", "unsupported", "error")
MAX_RANK = 8
MAX_BYTES = 2**42
"""Reach of one tensor in its file, in bytes: sparse caches reach far, no honest one further."""

#: Bytes of one element, by the dtype names of `kvref.arrays.DTYPES`.
ITEM_SIZES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "uint8": 1,
    "bool": 1,
}

_TAKEN = ("id", "op", "wire", "scratch", "verb", "inputs", "outputs", "in_place", "params", *OUTCOMES)


@dataclass(frozen=True)
class TensorRef:
    """Where a tensor lies: a file, and how to walk it."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    """Elements from one index to the next along each axis; None for C order."""
    offset: int = 0
    """Bytes from the start of the file to element [0, 0, …]."""

    @property
    def end(self) -> int:
        """Bytes from the start of the file to the end of the last element."""
        if self.strides is None or 0 in self.shape:
            return self.offset + math.prod(self.shape) * ITEM_SIZES[self.dtype]
        last = sum((size - 1) * step for size, step in zip(self.shape, self.steps, strict=True))
        return self.offset + (last + 1) * ITEM_SIZES[self.dtype]

    @property
    def steps(self) -> tuple[int, ...]:
        """Strides in elements, those of C order spelled out."""
        if self.strides is not None:
            return self.strides
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))


@dataclass(frozen=True)
class CallRequest:
    """A `call` message, read."""

    id: str
    verb: str
    inputs: Mapping[str, TensorRef]
    """Inputs by argument name, in-place tensors included."""
    outputs: Mapping[str, TensorRef]
    in_place: tuple[str, ...]
    params: Mapping[str, Scalar]


def call_message(request: CallRequest) -> Message:
    """Return the message of a call.

    Raises: ProtocolError if a name is taken by the protocol, used twice, or a parameter cannot be told apart.
    """
    message: Message = {"id": request.id, "op": "call", "verb": request.verb}
    message["inputs"] = ",".join(request.inputs)
    message["outputs"] = ",".join(request.outputs)
    message["in_place"] = ",".join(request.in_place)
    message["params"] = ",".join(request.params)
    for name in (*request.inputs, *request.outputs, *request.params):
        if name in _TAKEN or not is_name(name) or name in message:
            raise ProtocolError(f"{name!r} cannot name an argument, expected a free identifier used once")
        message[name] = ""
    for name, ref in (*request.inputs.items(), *request.outputs.items()):
        message[name] = ref.path
        message[f"{name}.dtype"] = ref.dtype
        message[f"{name}.shape"] = join(ref.shape)
        if ref.offset:
            message[f"{name}.offset"] = ref.offset
        if ref.strides is not None:
            message[f"{name}.strides"] = join(ref.strides)
    for name, value in request.params.items():
        message[name] = put_scalar(name, value)
    return message


def read_call(message: Message) -> CallRequest:
    """Return what a `call` message says, every key accounted for.

    Raises: ProtocolError naming the key, what was found and what was expected.
    """
    inputs = {name: read_ref(message, name) for name in names(message, "inputs")}
    outputs = {name: read_ref(message, name) for name in names(message, "outputs")}
    params: dict[str, Scalar] = {name: get_scalar(message, name) for name in names(message, "params")}
    in_place = names(message, "in_place")
    for name in in_place:
        if name not in inputs:
            raise ProtocolError(f"in_place names {name!r}, expected one of inputs = {','.join(inputs)!r}")
    known = {"id", "op", "verb", "inputs", "outputs", "in_place", "params", *params}
    known |= {
        name + end for name in (*inputs, *outputs) for end in ("", ".dtype", ".shape", ".offset", ".strides")
    }
    unknown = sorted(set(message) - known)
    if unknown:
        raise ProtocolError(f"unknown key {unknown[0]!r} in a call")
    return CallRequest(text(message, "id"), text(message, "verb"), inputs, outputs, in_place, params)


def read_ref(message: Message, name: str) -> TensorRef:
    """Return where the tensor `name` of a message lies, its size checked before anything is allocated.

    Raises: ProtocolError.
    """
    path, dtype = text(message, name), text(message, f"{name}.dtype")
    if not path or "\0" in path:
        raise ProtocolError(f"{name} = {path!r}, expected the path of a file")
    if dtype not in ITEM_SIZES:
        raise ProtocolError(f"{name}.dtype = {dtype!r}, expected one of {', '.join(ITEM_SIZES)}")
    shape = integers(message, f"{name}.shape")
    strides = integers(message, f"{name}.strides") if f"{name}.strides" in message else None
    offset = message.get(f"{name}.offset", 0)
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0 or offset % ITEM_SIZES[dtype]:
        raise ProtocolError(f"{name}.offset = {offset!r}, expected a multiple of {ITEM_SIZES[dtype]} bytes")
    if strides is not None and len(strides) != len(shape):
        raise ProtocolError(f"{name}.strides has {len(strides)} axes, expected {len(shape)}")
    ref = TensorRef(path, dtype, shape, strides, offset)
    if len(shape) > MAX_RANK or max(ref.end, math.prod(shape)) > MAX_BYTES:
        raise ProtocolError(f"{name}.shape = {list(shape)} is too large, expected {MAX_BYTES} bytes at most")
    return ref


def check_reply(message: Message, request: Message) -> str:
    """Check a reply against its request and return its outcome: ok, refused, unsupported or error.

    Raises: ProtocolError.
    """
    if message.get("id") != request["id"]:
        raise ProtocolError(f"a reply has id {message.get('id')!r}, expected {request['id']!r}")
    outcomes = [outcome for outcome in OUTCOMES if outcome in message]
    if len(outcomes) != 1:
        raise ProtocolError(
            f"a reply has {' and '.join(outcomes) or 'no outcome'}, expected one of {', '.join(OUTCOMES)}"
        )
    known = {"id", outcomes[0]}
    if outcomes[0] != "ok":
        text(message, outcomes[0])
        known |= {"trace"}
    elif message["ok"] is not True:
        raise ProtocolError(f"ok = {message['ok']!r}, expected true")
    elif request["op"] == "hello":
        known |= {"wire", "name", "version", "verbs", "claims", "claims_file"}
        known |= {key for key in message if key.startswith("env.")}
        _check_hello(message)
    elif request["op"] == "call":
        known |= {name + end for name in names(request, "outputs") for end in (".shape", ".dtype")}
    elif request["op"] in SESSION_OPS:
        known |= allowed_in_reply(request)
    unknown = sorted(set(message) - known)
    if unknown:
        raise ProtocolError(f"unknown key {unknown[0]!r} in the reply to {request['op']}")
    if request["op"] != "apply":  # what an operation gives may be a number
        for key in set(message) & known - {"ok", "id"}:
            text(message, key)
    return outcomes[0]


def _check_hello(message: Message) -> None:
    if text(message, "wire") != WIRE:
        raise ProtocolError(f"wire = {message['wire']!r}, expected {WIRE!r}")
    if not text(message, "name"):
        raise ProtocolError("name is empty, expected the name of the implementation")
    text(message, "version")
    if not names(message, "verbs", dotted=True):
        raise ProtocolError("verbs is empty, expected at least one verb")
    if "claims" in message and "claims_file" in message:
        raise ProtocolError("a hello has claims and claims_file, expected one of them at most")
