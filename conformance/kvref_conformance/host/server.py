"""The subject's end of the wire, for Python: reads requests, calls the subject, writes replies.

Runs in the subject's interpreter. Tensor files are mapped, not copied, and stay mapped while their file is
the same, so that one name at one size keeps one address from call to call.
"""

import json
import mmap
import os
from typing import Any, BinaryIO

import numpy as np

from kvref.arrays import Array
from kvref_conformance.host.managed import MisfitError, apply, open_manager
from kvref_conformance.host.messages import WIRE, TensorRef, read_call
from kvref_conformance.host.pipe import LOADING
from kvref_conformance.host.session_messages import MISFIT, SESSION_OPS, given_fields, read_session
from kvref_conformance.host.subject import describe, failure_of, load_subject, run, session_failure
from kvref_conformance.host.tensors import view
from kvref_conformance.host.wire import MAX_LINE, Message, ProtocolError, Value, decode, encode, join, text

LONGEST_TEXT = 4000
"""Characters of an error or its frames that are sent; keeps a reply far below the length of a line."""


class Server:
    """Serves one subject over one pair of streams."""

    def __init__(self, requests: BinaryIO, replies: BinaryIO, where: str) -> None:
        self._requests = requests
        self._replies = replies
        self._where = where
        self._subject: Any = None
        self._sessions: dict[str, Any] = {}
        self._maps: dict[str, tuple[tuple[int, int, int], Array]] = {}

    def serve(self) -> None:
        """Answer requests until `bye` or the end of the stream."""
        while line := self._requests.readline(MAX_LINE + 1):
            request = decode(line)
            reply = self._answer(request)
            try:
                encoded = encode(reply)
            except ProtocolError as error:
                encoded = encode({"id": request["id"], "error": f"ProtocolError: the reply: {error}"})
            self._replies.write(encoded)
            self._replies.flush()
            if request.get("op") == "bye":
                return

    def _answer(self, request: Message) -> Message:
        reply: Message = {"id": text(request, "id")}
        op = text(request, "op")
        try:
            if op == "hello":
                return {**reply, **self._hello(request)}
            if op == "call":
                return {**reply, **self._call(request)}
            if op in SESSION_OPS:
                return {**reply, "ok": True, **self._of_session(request)}
            return {**reply, "ok": True} if op == "bye" else {**reply, "unsupported": f"op {op!r}"}
        except BaseException as error:
            kind, line, frames = session_failure(error) if op in SESSION_OPS else failure_of(error)
            kind = "error" if op == "hello" else kind
            return {**reply, kind: _clean(line), "trace": _clean(frames)}

    def _hello(self, request: Message) -> dict[str, Value]:
        os.environ[LOADING] = "1"
        try:
            self._subject = load_subject(self._where)
        finally:
            del os.environ[LOADING]
        hello = describe(self._subject)
        claims = json.dumps(hello.claims)
        fields: dict[str, Value] = {"ok": True, "wire": WIRE, "name": hello.name, "version": hello.version}
        fields["verbs"] = ",".join(hello.verbs)
        if len(claims) < MAX_LINE // 4:
            fields["claims"] = claims
        else:
            path = os.path.join(text(request, "scratch"), "claims.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write(claims)
            fields["claims_file"] = path
        return {**fields, **{f"env.{key}": value for key, value in hello.environment.items()}}

    def _call(self, message: Message) -> dict[str, Value]:
        request = read_call(message)
        inputs = {name: self._tensor(ref) for name, ref in request.inputs.items()}
        outputs = {name: self._tensor(ref) for name, ref in request.outputs.items()}
        misfits = run(self._subject, request.verb, inputs, request.params, outputs, request.in_place)
        fields: dict[str, Value] = {"ok": True}
        for name, found in misfits.items():
            fields |= {f"{name}.dtype": found.dtype, f"{name}.shape": join(found.shape)}
        return fields

    def _of_session(self, message: Message) -> dict[str, Value]:
        request = read_session(message)
        if request.op == "open":
            self._sessions[request.session] = open_manager(self._subject, request.manager, request.arguments)
            return {}
        if request.session not in self._sessions:
            raise ProtocolError(f"session {request.session!r} is not open")
        if request.op == "close":
            del self._sessions[request.session]
            return {}
        made = self._sessions[request.session]
        try:
            return given_fields(apply(made, request.manager, request.operation, request.arguments))
        except MisfitError as error:
            return {MISFIT: _clean(str(error))}

    def _tensor(self, ref: TensorRef) -> Array:
        status = os.stat(ref.path)
        if status.st_size < ref.end:
            raise ProtocolError(f"{ref.path} has {status.st_size} bytes, expected at least {ref.end}")
        identity = (status.st_dev, status.st_ino, status.st_size)
        known = self._maps.get(ref.path)
        if known is None or known[0] != identity:
            with open(ref.path, "r+b") as file:
                mapped = np.frombuffer(mmap.mmap(file.fileno(), status.st_size), np.uint8)
            self._maps[ref.path] = known = (identity, mapped)
        return view(known[1], ref)


def _clean(line: str) -> str:
    """Return text short enough for a line and free of what UTF-8 cannot carry."""
    return line[:LONGEST_TEXT].encode("utf-8", "backslashreplace").decode("utf-8")
