"""The keys of a config, each read once and checked; what was not read is judged at the end.

A config is somebody else's dictionary. Every value that decides something is asked for by name, with its
type and its bounds; two spellings of one thing must agree; and at the end each key that nobody asked for is
either known to leave the cache alone, or reads as if it did not and is refused by name.

Realises: KV-SIZE-013 undecided-key-refused, KV-SIZE-017 absurd-config-refused.
For porters: port `refuse_unread` first; a reader that ignores what it does not know is worse than none.
Source: Hugging Face's config.json, whose keys are nowhere written down together.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from kvref.errors import ConfigError, shown
from kvref.planning.indifferent_keys import may_decide, may_decide_around, of_other_things

#: Bounds of what a config may say; beyond them it is a mistake, and no list is made of it.
MAX_LAYERS, MAX_HEADS, MAX_WIDTH, MAX_LENGTH = 4096, 2**16, 2**20, 2**40
#: Objects within objects.
MAX_DEPTH = 32

#: Why a config is refused: what it keeps is open, as far as kvref can tell; or it describes no model.
UNDECIDED, ABSURD = "KV-SIZE-013 undecided-key-refused", "KV-SIZE-017 absurd-config-refused"

#: Spellings of the number of layers.
LAYER_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_transformer_layers")


class Said(str):
    """What was found, in words of a message; every other text is a value of the config."""


MISSING = Said("missing")


class Keys:
    """A config that remembers which of its keys were read, and what was decided without any."""

    def __init__(self, config: Mapping[str, Any], path: str = "", warnings: list[str] | None = None) -> None:
        self.config = config
        self.path = path
        self.warnings = [] if warnings is None else warnings
        self._read: set[str] = set()
        self._parts: dict[str, Keys] = {}
        self._depth = 0
        self.defaults: Mapping[str, int] = {}
        """What the class says of keys that are not there. One that is null is there, and says that."""

    def __contains__(self, name: str) -> bool:
        """Say whether a key is there and not null, or its class has a default."""
        return self.config.get(name, self.defaults.get(name)) is not None

    def get(self, name: str) -> Any:
        """Return a value as it is, or None; the key counts as read."""
        self._read.add(name)
        return self.config.get(name)

    def spelled(self, *names: str) -> tuple[str, Any]:
        """Return the first of several spellings that is there, with its value; ("", None) if none is.

        What only the class says is a warning.
        Raises: ConfigError if two of them are there and differ.
        """
        found = [(name, self.get(name)) for name in names if self.config.get(name) is not None]
        self._read.update(names)
        if not any(name in self.config for name in names):
            found = [(name, self._default(name)) for name in names if name in self.defaults][:1]
        for name, value in found[1:]:
            if value != found[0][1]:
                first = found[0][0]
                self.refuse(UNDECIDED, name, f"the same as {self.path}{first} = {shown(found[0][1])}")
        return found[0] if found else ("", None)

    def count(self, *names: str, at_most: int = MAX_WIDTH, minimum: int = 1) -> int | None:
        """Return a whole number by any of its spellings, or None if it is absent or null.

        Raises: ConfigError.
        """
        name, value = self.spelled(*names)
        return None if value is None else self.checked(name, value, at_most, minimum)

    def needed(
        self, *names: str, at_most: int = MAX_WIDTH, minimum: int = 1, default: int | None = None
    ) -> int:
        """Return a whole number that must be there, or its default, which is then a warning.

        Raises: ConfigError.
        """
        value = self.count(*names, at_most=at_most, minimum=minimum)
        if value is not None:
            return value
        if default is None:
            self.refuse(UNDECIDED, names[0], "a whole number", found=MISSING)
        self.warn(f"{self.path}{names[0]} is absent: {default} is the default of the class")
        return default

    def checked(self, name: str, value: Any, at_most: int, minimum: int = 1) -> int:
        """Return a value that must be a whole number within bounds.

        Raises: ConfigError.
        """
        if type(value) is not int or not minimum <= value <= at_most:
            self.refuse(ABSURD, name, f"a whole number from {minimum} to {at_most}", found=value)
        return value

    def flag(self, name: str) -> bool | None:
        """Return true or false, or None if it is absent or null.

        Raises: ConfigError.
        """
        value = self.get(name)
        if name not in self.config and name in self.defaults:
            return bool(self._default(name))
        if value is not None and type(value) is not bool:
            self.refuse(ABSURD, name, "true or false", found=value)
        return value

    def word(self, *names: str) -> str | None:
        """Return a text, or None if it is absent or null.

        Raises: ConfigError.
        """
        name, value = self.spelled(*names)
        if value is not None and not isinstance(value, str):
            self.refuse(ABSURD, name, "a text", found=value)
        return value

    def one_of(self, name: str, value: Any, words: Collection[str]) -> str:
        """Return a text that must be one of those that are known.

        Raises: ConfigError.
        """
        if not isinstance(value, str) or value not in words:
            rule = UNDECIDED if isinstance(value, str) else ABSURD
            self.refuse(rule, name, f"one of {', '.join(words)}", found=value)
        return value

    def items(self, name: str, length: int | None = None) -> list[Any] | None:
        """Return a list, or None if it is absent or null; `length` is what it must have.

        Raises: ConfigError.
        """
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Sequence) or isinstance(value, str):
            self.refuse(ABSURD, name, "a list", found=value)
        if length is not None and len(value) != length:
            counted = f"{length}{self.by_class(*LAYER_COUNTS)}"
            self.refuse(UNDECIDED, name, f"{counted}, one a layer", found=Said(f"a list of {len(value)}"))
        return list(value)

    def layer_ids(self, name: str, num_layers: int, *, first: int = 0) -> list[int] | None:
        """Return a list of layers, from 0, each named once and in their order; `first` is the first's number.

        Raises: ConfigError.
        """
        value = self.items(name)
        if value is None:
            return None
        last = num_layers - 1 + first
        if not all(type(i) is int and first <= i <= last for i in value) or len(set(value)) != len(value):
            self.refuse(ABSURD, name, f"layers from {first} to {last}, each once", found=value)
        return sorted(i - first for i in value)

    def inside(self, name: str) -> "Keys | None":
        """Return the keys of an object within, or None if it is absent or null.

        Raises: ConfigError.
        """
        value = self.get(name)
        if value is None:
            return None
        return self.part(name, value)

    def part(self, name: str, value: Any) -> "Keys":
        """Return the keys of an object that stands under a name; they are judged with these.

        Asked for twice, it is the same object, and remembers what was read before.
        Raises: ConfigError if it is no object.
        """
        if not isinstance(value, Mapping):
            self.refuse(ABSURD, name, "an object", found=value)
        found = self._parts.setdefault(name, Keys(value, f"{self.path}{name}.", self.warnings))
        found._depth = self._depth + 1
        return found

    def replaced(self, values: Mapping[str, Any], where: str = "") -> "Keys":
        """Return the same keys with a few of them replaced; what is read there counts as read here."""
        changed = Keys({**self.config, **values}, f"{self.path}{where}", self.warnings)
        changed._read, changed._parts, changed.defaults = self._read, self._parts, self.defaults
        return changed

    def passed(self, *names: str) -> None:
        """Count keys as read that other keys have decided already."""
        self._read.update(names)

    def warn(self, what: str) -> None:
        """Note what was decided by a default."""
        if what not in self.warnings:
            self.warnings.append(what)

    def spelling(self, value: Any, *names: str) -> str:
        """Return the spelling under which a value stands; the first if none has it."""
        return next((name for name in names if self.config.get(name) == value), names[0])

    def by_class(self, *names: str) -> str:
        """Return what a message adds to a number that no spelling of the config says, but the class."""
        if any(name in self.config for name in names) or not any(name in self.defaults for name in names):
            return ""
        return " (the default of the class)"

    def _default(self, name: str) -> int:
        value = self.defaults[name]
        self.warn(f"{self.path}{name} is absent: {value} is the default of the class")
        return value

    def refuse(self, rule: str, name: str, expected: str, *, found: Any = None) -> NoReturn:
        """Raise a ConfigError that names the key, what was found there, what was expected, and by which rule.

        `rule` is `UNDECIDED` or `ABSURD`.
        """
        value = self.config.get(name, self.defaults.get(name)) if found is None else found
        equals = f"= {value if isinstance(value, Said) else shown(value)}"
        if value is MISSING:
            equals = "is missing"
        elif name not in self.config and name in self.defaults and value == self.defaults[name]:
            equals = f"is absent, {value} by the class"
        raise ConfigError(f"{self.path}{name} {equals}, expected {expected} ({rule})")

    def refuse_unread(self, ignored: frozenset[str] = frozenset(), *, around: bool = False) -> None:
        """Refuse the first key that was not read and reads as if it decided what is cached, at every depth.

        `around` if these are the keys around the decoder's, which are judged by themselves.
        Raises: ConfigError.
        """
        if self._depth > MAX_DEPTH:
            raise ConfigError(
                f"{self.path[:60]}… is nested deeper than {MAX_DEPTH}, expected a config ({ABSURD})"
            )
        for name, value in self.config.items():
            if not isinstance(name, str):
                raise ConfigError(
                    f"{self.path}{shown(name)} is a key, expected keys that are texts ({ABSURD})"
                )
            if name in self._read or name in ignored or value is None or value in ([], {}, ""):
                continue
            if may_decide_around(name) if around else may_decide(name):
                raise ConfigError(
                    f"{self.path}{name} = {shown(value)} is a key that may decide what is cached, and kvref "
                    f"does not know how, expected a key it knows ({UNDECIDED})"
                )
            if isinstance(value, Mapping) and not around and not of_other_things(name, value):
                self.part(name, value)
        for part in () if around else self._parts.values():
            part.refuse_unread(ignored)
