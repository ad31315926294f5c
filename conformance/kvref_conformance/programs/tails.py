"""Tails of prompts that are declared to be keyed: somewhere one of them must be hit.

A last block that is not full may be found by the same prompt alone, whose key it has, or by any prompt that
goes on from there. Both are keyed tails. A cache that hits whole blocks only, however often a tail comes
again, has none.
"""

from dataclasses import dataclass, field

from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.prompts import Prompt


@dataclass
class Tails:
    """Which tails a program leaves, and whether a hit ever ended inside a block."""

    block_size: int
    keyed: bool
    """Whether they are declared to be keyed."""
    known: set[int] = field(default_factory=set)
    """Labels of the last tokens of requests that have finished inside a block."""
    missed: set[str] = field(default_factory=set)
    """Ways in which a tail came again, and whole blocks were hit."""
    hit: bool = False

    def finished(self, prompt: Prompt) -> None:
        """Note the tail of a prompt that was computed as a whole; outputs are another matter."""
        if len(prompt.tokens) == prompt.prompt_len and prompt.prompt_len % self.block_size:
            self.known.add(prompt.labels[-1])

    def admitted(self, prompt: Prompt, hit: int, due: int) -> None:
        """Note the hit of a prompt; `due` are the tokens of whole blocks that it must hit."""
        self.hit |= hit % self.block_size > 0
        stop = min(due + self.block_size - 1, len(prompt.tokens))
        for at in range(due, stop):
            if prompt.labels[at] not in self.known or hit % self.block_size:
                continue
            if at + 1 < len(prompt.tokens):
                self.missed.add("longer")
            elif at % self.block_size:
                self.missed.add("same")

    def judge(self, log: Log) -> None:
        """Write down that tails are declared to be keyed and are not hit in any way."""
        if self.keyed and not self.hit and self.missed == {"longer", "same"}:
            said = "tails came again, in the same prompt and in a longer one, and no hit ends inside a block"
            log.breach(f"{said}: keyed is declared", "KV-PREFIX-003")
