"""A Python subject: found by name, asked what it is, called by verb.

Both hosts use this, in the subject's own interpreter or in the suite's. Nothing is required of a subject but
methods and managers with the contract's names: it may be a class, an instance, a module, or a function that
returns one.

Realises: KV-CONF-001 presence-is-claim, KV-CONF-014 answers-as-asked.
"""

import importlib
import importlib.util
import json
import os
import platform
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from kvref.arrays import Array, dtype_name
from kvref.errors import ArgumentError, DTypeError, KVError
from kvref_conformance.claims import ClaimError
from kvref_conformance.contracts import (
    ATTENDING,
    VERBS,
    FailureKind,
    OutputSpec,
    Scalar,
    positional_arguments,
)
from kvref_conformance.foreign_text import one_line
from kvref_conformance.host import Hello
from kvref_conformance.host.bridges import (
    check_framework,
    form_of,
    lend,
    library_versions,
    take_back,
    to_numpy,
)
from kvref_conformance.host.found import MISNAMED, misnamed, no_operation, nothing_in
from kvref_conformance.host.managed import MisfitError, managers_of, offered_by

FRAMES_SHOWN = 4


class AnswerError(TypeError):
    """A subject took or returned something that is no tensor of the contract."""


def load_subject(where: str) -> Any:
    """Return the subject named `module:attr` or `path/to/file.py:attr`; without `:attr`, the module itself.

    Raises: ArgumentError if it is not there or has no method of the contract; whatever its code raises.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    place, _, attr = where.partition(":")
    found: Any = _load_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    for name in attr.split(".") if attr else ():
        if not hasattr(found, name):
            raise ArgumentError(f"subject {where!r}: {found!r} has no attribute {name!r}")
        found = getattr(found, name)
    subject = make_subject(found)
    if not _has_any(subject):
        raise ArgumentError(nothing_in(where, subject))
    return subject


def make_subject(found: Any) -> Any:
    """Return an object with methods: a class or a factory is called, anything else is taken as it is."""
    if isinstance(found, type):
        return found()
    if isinstance(found, ModuleType) or _has_any(found) or not callable(found):
        return found
    return found()


def verbs_of(subject: Any) -> tuple[str, ...]:
    """Return the verbs a subject offers, then its managers and their operations, in the contract's order.

    Raises: whatever a manager raises that has to be opened to be known.
    """
    return (*(verb for verb in VERBS if _offers(subject, verb)), *offered_by(subject))


def describe(subject: Any) -> Hello:
    """Return what a subject says about itself.

    Raises: DTypeError if its claims are neither a record with `to_dict` nor a mapping of JSON values;
    ArgumentError or ImportError if its framework is unknown or not installed, or it offers nothing.
    """
    check_framework(_framework(subject))
    claims = getattr(subject, "claims", {})
    if hasattr(claims, "to_dict"):
        claims = claims.to_dict()
    if not isinstance(claims, Mapping):
        raise DTypeError(f"claims is {type(claims).__name__}, expected Claims or a mapping of JSON values")
    try:
        claims = json.loads(json.dumps(dict(claims), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DTypeError(f"claims holds a value that JSON has not: {error}") from None
    name = claims.get("name") or (
        subject.__name__
        if isinstance(subject, ModuleType)
        else getattr(subject, "name", type(subject).__name__)
    )
    version = claims.get("version") or getattr(subject, "version", getattr(subject, "__version__", ""))
    environment = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "framework": _framework(subject),
        "device": _device(subject),
        **library_versions(),
    }
    offered, managers = verbs_of(subject), managers_of(subject)
    if not offered:
        raise ArgumentError(no_operation(subject, managers))
    if near := [line for name in managers for line in misnamed(getattr(subject, name), name)]:
        environment[MISNAMED] = "; ".join(near)
    return Hello(one_line(str(name)), one_line(str(version)), offered, claims, environment)


def run(
    subject: Any,
    verb: str,
    inputs: Mapping[str, Array],
    params: Mapping[str, Scalar],
    outputs: Mapping[str, Array],
    in_place: tuple[str, ...],
) -> dict[str, OutputSpec]:
    """Call a verb, write what it returns into `outputs`, and return the outputs that came in another form.

    A subject that cannot write in place returns the updated tensors after its outputs. An attending verb of
    one that claims the feature `out` is given the tensor to write as `out=`.
    Raises: NotImplementedError if the verb is not offered; AnswerError if what is returned is not what the
    verb returns; whatever the subject raises.
    """
    if verb not in VERBS or not _offers(subject, verb):
        raise NotImplementedError(f"{verb} is not offered")
    framework, device = _framework(subject), _device(subject)
    out_given = _takes_out(subject, verb, outputs, framework)
    try:
        lent = {name: lend(x, framework, device) for name, x in inputs.items()}
        out = lend(outputs["out"], framework, device) if out_given else None
    except KVError as error:
        raise AnswerError(f"{verb} cannot be given its tensors: {error}") from None
    positional = [name for name in positional_arguments(verb) if name in lent]
    keywords = {name: x for name, x in lent.items() if name not in positional}
    if out is not None:
        keywords["out"] = out
    returned = getattr(subject, verb)(*(lent[name] for name in positional), **keywords, **params)
    if returned is None and out is not None and len(outputs) == 1:
        returned = out
    found = _named(verb, returned, tuple(outputs), in_place)
    for name, tensor in lent.items():
        take_back(tensor, inputs[name])
    misfits: dict[str, OutputSpec] = {}
    for name, x in found.items():
        target = outputs[name] if name in outputs else inputs[name]
        if isinstance(x, OutputSpec):
            misfits[name] = x
        elif x.shape != target.shape or x.dtype != target.dtype:
            misfits[name] = OutputSpec(dtype_name(x), x.shape)
        else:
            target[...] = x
    return misfits


def failure_of(error: BaseException) -> tuple[FailureKind, str, str]:
    """Return kind, one line and the last frames of what a subject raised.

    kvref's own input errors are a refusal, NotImplementedError says unsupported, all else is an error. A
    declaration that is refused says itself where it is wrong: the frames would be those of the suite.
    """
    line = f"{type(error).__name__}: {_said_by(error)}".strip().removesuffix(":")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    shown = "\n".join(
        f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}" for frame in frames[-FRAMES_SHOWN:]
    )
    if isinstance(error, KVError):
        return "refused", line, "" if isinstance(error, ClaimError) else shown
    return ("unsupported" if isinstance(error, NotImplementedError) else "error"), line, shown


def session_failure(error: BaseException) -> tuple[FailureKind, str, str]:
    """Return what `failure_of` does, for an operation of a manager.

    What it gave in the wrong form is of the kind `shape`; a refusal is an answer, and needs no frames.
    """
    if isinstance(error, MisfitError):
        return "shape", str(error), ""
    if isinstance(error, KVError) and not isinstance(error, ClaimError):
        return "refused", f"{type(error).__name__}: {_said_by(error)}", ""
    return failure_of(error)


def _offers(subject: Any, verb: str) -> bool:
    return callable(getattr(subject, verb, None))


def _has_any(subject: Any) -> bool:
    return any(_offers(subject, verb) for verb in VERBS) or bool(managers_of(subject))


def _said_by(error: BaseException) -> str:
    """Return an error's text; a subject's own error may fail at that too."""
    try:
        return str(error)
    except Exception as second:
        return f"(its text cannot be had: {type(second).__name__})"


def _named(
    verb: str, returned: Any, outputs: tuple[str, ...], in_place: tuple[str, ...]
) -> dict[str, Array | OutputSpec]:
    """Return what came back by name; of a dtype that kvref has no name for, only its form."""
    parts = () if returned is None else tuple(returned) if isinstance(returned, tuple | list) else (returned,)
    expected = outputs if len(parts) == len(outputs) else (*outputs, *in_place)
    if len(parts) != len(expected):
        names = ", ".join(outputs) or "None"
        raise AnswerError(f"{verb} returned {_described(returned, parts)}, expected {names}")
    found: dict[str, Array | OutputSpec] = {}
    for name, tensor in zip(expected, parts, strict=True):
        try:
            found[name] = to_numpy(tensor)
        except DTypeError as error:
            form = form_of(tensor)
            if form is None:
                raise AnswerError(f"{verb} returned as {name}: {error}") from None
            found[name] = OutputSpec(one_line(form[0]), form[1])
    return found


def _described(returned: Any, parts: tuple[Any, ...]) -> str:
    """Return in words what came back in place of as many tensors as were expected."""
    if returned is None:
        return "None"
    if all(hasattr(part, "dtype") for part in parts):
        return "1 tensor" if len(parts) == 1 else f"{len(parts)} tensors"
    if not isinstance(returned, tuple | list):
        return f"a {type(returned).__name__}"
    kinds = sorted({type(part).__name__ for part in parts})
    return f"a {type(returned).__name__} of {' and '.join(f'{kind}s' for kind in kinds)}"


def _takes_out(subject: Any, verb: str, outputs: Mapping[str, Array], framework: str) -> bool:
    claims = getattr(subject, "claims", {})
    features = claims.get("features", ()) if isinstance(claims, Mapping) else getattr(claims, "features", ())
    return "out" in features and "out" in outputs and verb in ATTENDING and framework != "jax"


def _is_ours(filename: str) -> bool:
    """Say whether a frame belongs to the host or the import system, not to the subject."""
    return filename.startswith(("<frozen", str(Path(__file__).parent), str(Path(importlib.__file__).parent)))


def _framework(subject: Any) -> str:
    return str(getattr(subject, "framework", "numpy"))


def _device(subject: Any) -> str:
    return str(getattr(subject, "device", "cpu"))


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ArgumentError(f"subject file {str(path)!r} does not exist")
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ArgumentError(f"subject file {str(path)!r} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
