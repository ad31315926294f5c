"""What the next request of a number is to be given besides tokens.

Steps that come before it say so:

    adapter r a · version r a · salt r a     the text a (0 is the empty one, which is passed as well)
    image r d o n · embed r d o n            n rows of digest d in place of the tokens from position o on
"""

from dataclasses import dataclass, field

from kvref_conformance.programs.prompts import Given, Part
from kvref_conformance.programs.step import Step

#: Step that names a text, or rows -> the argument that passes it.
TEXTS = {"adapter": "adapter", "version": "adapter_version", "salt": "salt"}
PARTS = {"image": "media", "embed": "embeddings"}


@dataclass
class Draft:
    """What one request is to be given."""

    texts: dict[str, int] = field(default_factory=dict)
    parts: dict[str, list[Part]] = field(default_factory=dict)

    def given(self) -> Given:
        """Return it, parts in the order of their positions."""
        media, embeddings = (
            tuple(sorted(self.parts.get(name, ()), key=lambda part: part.offset)) for name in PARTS.values()
        )
        texts = dict(self.texts)
        if texts.get("adapter_version") and not texts.get("adapter"):
            del texts["adapter_version"]  # a version of nothing is none
        return Given(texts, media, embeddings)


@dataclass
class Drafts:
    """Drafts by request, as far as the subject claims what they pass."""

    features: tuple[str, ...]
    _drafts: dict[int, Draft] = field(default_factory=dict)

    def perform(self, step: Step) -> bool:
        """Perform a step that adds to a draft, or pass it over."""
        name = TEXTS.get(step.name) or PARTS.get(step.name)
        due = 2 if step.name in TEXTS else 4
        if name not in self.features or len(step.numbers) != due or min(step.numbers) < 0:
            return False
        request, *numbers = step.numbers
        draft = self._drafts.setdefault(request, Draft())
        if step.name in TEXTS:
            draft.texts[name] = numbers[0]
        elif numbers[2]:
            draft.parts.setdefault(name, []).append(Part(*numbers))
        return True

    def of(self, request: int) -> Given:
        """Return what a request is to be given; the draft stays."""
        return self._drafts.get(request, Draft()).given()

    def drop(self, request: int) -> None:
        """Forget a draft that was used."""
        self._drafts.pop(request, None)
