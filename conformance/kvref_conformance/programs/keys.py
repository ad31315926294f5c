"""Programs for keys of blocks: prompts, and which of their blocks have a key in common.

    keys r d n d n …         the keys of n tokens of document d, then n of the next; r names what `drafts` say
    tokens t t …             the keys of these very tokens
    adapter · version · salt · image · embed
                             what prompt r is to be given, as in `drafts`

Every key of a program is compared with every other: equal for equal prefixes in equal namespaces, and for no
others, unless it is opened so that keys collide. Keys of a declared scheme are compared with the
scheme's. The trace has the keys in the order of their appearance.
"""

from collections.abc import Callable

from kvref.errors import KVError
from kvref.memory.keys import block_keys
from kvref.memory.vllm_keys import vllm_block_keys
from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.managers import MAX_LIST
from kvref_conformance.programs.breach import Log, Names, Stop
from kvref_conformance.programs.drafts import PARTS, TEXTS, Drafts
from kvref_conformance.programs.prompts import Given, Prompt, are_pairs, tokens_of
from kvref_conformance.programs.running import Session, attempt
from kvref_conformance.programs.step import Step
from kvref_conformance.subjects.reference_prefix import namespace_of

#: Declared scheme -> what makes its keys.
SCHEMES: dict[str, Callable[..., list[bytes]]] = {
    "kvref": block_keys,
    "vllm_sha256_cbor": vllm_block_keys,
}


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Keys":
    """Return what performs the steps of one program."""
    return Keys(session, case, claims, log)


class Keys:
    """Performs the steps of one program on one maker of keys."""

    def __init__(self, session: Session, case: Case, claims: Claims, log: Log) -> None:
        self.session, self.log, self.block_size = session, log, case.block_size
        self.collide = "hash_bits" in case.options
        self.keyed_tail = claims.choice("tail-block") == "keyed"
        self.drafts = Drafts(claims.features)
        self.scheme = SCHEMES.get(claims.choice("key-scheme"))
        self.names = Names()
        self.key_of: dict[int, str] = {}
        self.owner: dict[str, tuple[int, int]] = {}
        """Key -> the label it stands for, and the step that showed it."""

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        if step.name in TEXTS or step.name in PARTS:
            return self.drafts.perform(step)
        if not 0 < len(step.numbers) <= MAX_LIST or min(step.numbers) < 0:
            return False
        if step.name == "tokens":
            return self._judge(step, Prompt(Given(), step.numbers))
        if step.name != "keys" or not are_pairs(step.numbers[1:]):
            return False
        request, *pairs = step.numbers
        given = self.drafts.of(request)
        if sum(pairs[1::2]) > MAX_LIST or not given.fits(sum(pairs[1::2])):
            return False
        self.drafts.drop(request)
        return self._judge(step, Prompt(given, tokens_of(pairs)))

    def finish(self) -> None:
        """Ask nothing more."""

    def _judge(self, step: Step, prompt: Prompt) -> bool:
        answer = attempt(self.session, "keys", tokens=prompt.tokens, **prompt.given.arguments())
        if isinstance(answer, Failed):
            self.log.breach(f"keys of {len(prompt.tokens)} tokens: {answer}", "KV-PREFIX-032")
            raise Stop
        keys, full = list(answer["keys"]), len(prompt.tokens) // self.block_size
        tail = self.keyed_tail and len(prompt.tokens) % self.block_size > 0
        if len(keys) != full + tail:
            said = f"{len(prompt.tokens)} tokens in blocks of {self.block_size} have {len(keys)} keys"
            self.log.breach(f"{said}, expected {full + tail}", "KV-PREFIX-032")
        self._judge_scheme(prompt, keys[:full])
        for at, key in enumerate(keys):
            end = min((at + 1) * self.block_size, len(prompt.tokens))
            self._judge_key(prompt.labels[end - 1], key, at)
        self.log.note(step, "has", self.names.names(keys[:full]))
        return True

    def _judge_scheme(self, prompt: Prompt, keys: list[str]) -> None:
        if self.scheme is None:
            return
        namespace = namespace_of(prompt.given.arguments())
        try:
            expected = [key.hex() for key in self.scheme(prompt.tokens, self.block_size, namespace)]
        except KVError:
            return  # the scheme has no place for what is given
        for at, (key, due) in enumerate(zip(keys, expected, strict=False)):
            if key != due:
                self.log.breach(f"block {at} has key {key}, expected {due}", "KV-PREFIX-033")

    def _judge_key(self, own: int, key: str, at: int) -> None:
        known = self.key_of.setdefault(own, key)
        if known != key:
            self.log.breach(f"block {at} has key {key:.16}…, and had {known:.16}… before", "KV-PREFIX-030")
        other, step = self.owner.setdefault(key, (own, self.log.step))
        if other != own and not self.collide:
            self.log.breach(
                f"block {at} has key {key:.16}… of another prefix, from step {step}", "KV-PREFIX-030"
            )
