"""Drawn prompts: they begin like earlier ones, cut at any token, and are given nearly what others were."""

import random
from dataclasses import dataclass, field

from kvref_conformance.claims import Claims

#: Documents and requests that a program names.
DOCUMENTS, REQUESTS = 5, 6
#: Prompts of a program that later ones begin like.
REMEMBERED = 6
#: Texts and digests that requests are given: some run together with others, some differ in few digits.
TEXTS, DIGESTS = (0, 1, 2, 3, 4, 5, 9), (1, 2, 101, 5001)
#: Feature -> steps that give a request what the feature is about.
GIVING = {
    "adapter": "adapter",
    "adapter_version": "version",
    "salt": "salt",
    "media": "image",
    "embeddings": "embed",
}


@dataclass
class Prompts:
    """Prompts that begin like earlier ones, and what they are given."""

    rng: random.Random
    claims: Claims
    block_size: int
    known: list[list[int]] = field(default_factory=list)
    given: list[tuple[str, list[int]]] = field(default_factory=list)
    """Steps that gave the last request something, and their numbers."""
    asked: list[int] = field(default_factory=list)
    """The prompt of that request."""

    def steps(self) -> list[str]:
        """Return the steps that ask for the keys of one prompt."""
        if self.rng.random() < 0.2:
            return [f"tokens {spelled(self._cut_digits())}"]
        request = self.rng.randrange(REQUESTS)
        given, prompt = self.asking(request)
        return [*given, f"keys {request} {spelled(prompt)}"]

    def _cut_digits(self) -> list[int]:
        """Return small tokens whose digits, one behind the other, are always the same."""
        digits = "123456789" * self.block_size
        tokens: list[int] = []
        while digits and len(tokens) < 2 * self.block_size:
            count = self.rng.choice((1, 1, 2))
            tokens.append(int(digits[:count]))
            digits = digits[count:]
        return tokens

    def count(self) -> int:
        """Return a number of tokens: around the edges of blocks, mostly."""
        edge = self.block_size * self.rng.choice((0, 1, 1, 1, 2, 2, 3, 4))
        return max(1, edge + self.rng.choice((-1, 0, 0, 0, 1, self.rng.randint(0, self.block_size))))

    def prompt(self) -> list[int]:
        """Return a prompt that is new, an earlier one, or begins like one."""
        old = self.rng.choice(self.known) if self.known and self.rng.random() < 0.8 else []
        if old and self.rng.random() < 0.6:
            return self.rng.choice((old, [*old, 0, 1]))
        keep = self.rng.randrange(0, len(old) + 1, 2)
        prompt = [*old[:keep], self.rng.randrange(DOCUMENTS), self.count()]
        self.known = [*self.known, prompt][-REMEMBERED:]
        return prompt

    def asking(self, request: int) -> tuple[list[str], list[int]]:
        """Return a prompt, and the steps before it that give the request something besides tokens.

        Often it is what the last such request was given, or nearly, and the same prompt as well.
        """
        features = [name for name in GIVING if name in self.claims.features]
        prompt, kind = self.prompt(), self.rng.random()
        if not features or kind < 0.4:
            return [], prompt
        if not self.given or kind < 0.55:
            feature = self.rng.choice(features)
            rows = feature in ("media", "embeddings")
            prompt = [0, self.count()] if rows and self.rng.random() < 0.7 else prompt
            self.given = [self._gift(name, sum(prompt[1::2])) for name in (feature, *self._another(features))]
            self.asked = prompt
        elif kind < 0.85:
            at = self.rng.randrange(len(self.given))
            self.given = [*self.given[:at], self._altered(self.given[at]), *self.given[at + 1 :]]
            prompt = self.rng.choice((self.asked, [*self.asked, 0, 1]))
        return [f"{name} {request} {spelled(numbers)}" for name, numbers in self.given], prompt

    def _another(self, features: list[str]) -> list[str]:
        return [self.rng.choice(features)] if self.rng.random() < 0.3 else []

    def _gift(self, feature: str, count: int) -> tuple[str, list[int]]:
        if feature not in ("media", "embeddings"):
            return GIVING[feature], [self.rng.choice(TEXTS)]
        length = self.rng.randint(1, max(1, min(count, self.block_size) // 2))
        offset = self.rng.randint(0, min(count, self.block_size) - length)
        return GIVING[feature], [self.rng.choice(DIGESTS), offset, length]

    def _altered(self, gift: tuple[str, list[int]]) -> tuple[str, list[int]]:
        name, numbers = gift
        if len(numbers) == 1:
            return name, [self.rng.choice(TEXTS)]
        digest, offset, length = numbers
        if self.rng.random() < 0.5:
            return name, [self.rng.choice(DIGESTS), offset, length]
        return name, [digest, max(0, offset + self.rng.choice((-1, 1))), length]


def spelled(numbers: list[int]) -> str:
    """Return numbers as a step has them."""
    return " ".join(map(str, numbers))
