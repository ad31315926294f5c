"""Programs for the geometry of a cache: a model, and how many bytes a request of so many tokens takes.

    llama l h d · types w h d k … · linear …   the model that the next steps ask about, by the family of its
                    config: `models` has them all, and which numbers each takes
    drafts n        the model has n layers that draft, too
    size n e        the bytes of n tokens with e bytes an element
    ranks t n e     the same of one of t ranks that share out the heads
    grouped t d n e  the same where d groups of these ranks share out the requests
    stage f c n e   the bytes of n tokens on the stage of c layers from layer f on
    snapshot e      the bytes of a snapshot, and how many tokens take as many
    joint t e m     the block size, a multiple of m, at which a block of entries holds a state
    odd k           the model is altered so that nobody can say what it keeps: it must be refused
    absurd k        the model is altered so that it is none: it must be refused

What is right is known from what the model was made of, never read out of its config. A step about a family or
a feature that is not claimed is passed over.
"""

import json
from collections.abc import Mapping
from typing import Any

from kvref_conformance.cases import Case
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Failed
from kvref_conformance.programs.breach import Log
from kvref_conformance.programs.model_sizes import BYTES, Model
from kvref_conformance.programs.models import FAMILIES, model_of
from kvref_conformance.programs.models_of_attention import drafted
from kvref_conformance.programs.odd_models import ABSURD, UNDECIDED, absurd, odd
from kvref_conformance.programs.running import Session, attempt
from kvref_conformance.programs.step import Step

#: Steps about the model before them, and how many numbers each takes.
ASKING = {
    "drafts": 1,
    "size": 2,
    "ranks": 3,
    "grouped": 4,
    "stage": 4,
    "snapshot": 1,
    "joint": 3,
    "odd": 1,
    "absurd": 1,
}
#: Every step, and how many numbers it takes.
STEPS: dict[str, int | tuple[int, int]] = {**ASKING, **{name: f.numbers for name, f in FAMILIES.items()}}
#: Most tokens of a request, bytes of an element, ranks, and tokens that a block size is a multiple of.
MAX_TOKENS, ELEMENT_BYTES, MAX_RANKS, MAX_MULTIPLE = 2**30, (1, 2, 4), 64, 1024


def interpreter(session: Session, case: Case, claims: Claims, log: Log) -> "Geometry":
    """Return what performs the steps of one program."""
    return Geometry(session, case, claims, log)


class Geometry:
    """Performs the steps of one program on one reader of configs."""

    def __init__(self, session: Session, case: Case, claims: Claims, log: Log) -> None:
        self.session, self.log, self.features = session, log, claims.features
        self.model: Model | None = None

    def perform(self, step: Step) -> bool:
        """Perform a step, or pass it over."""
        if step.name in FAMILIES:
            known = set(FAMILIES[step.name].features) <= set(self.features)
            self.model = model_of(step.name, step.numbers) if known else None
            return self.model is not None
        if self.model is None or len(step.numbers) != ASKING.get(step.name, -1):
            return False
        ask = getattr(self, f"_{step.name}")
        return bool(ask(self.model, step, *step.numbers))

    def finish(self) -> None:
        """Ask nothing more."""

    def _drafts(self, model: Model, step: Step, count: int) -> bool:
        found = drafted(model, count) if 0 < count <= 8 else None
        self.model = found or model
        return found is not None

    def _size(self, model: Model, step: Step, num_tokens: int, element_bytes: int) -> bool:
        if not 0 < num_tokens <= MAX_TOKENS or element_bytes not in ELEMENT_BYTES:
            return False
        given = attempt(
            self.session, "size", config=_text(model), num_tokens=num_tokens, element_bytes=element_bytes
        )
        conv = "KV-SIZE-008" if element_bytes != BYTES["bfloat16"] else "KV-SIZE-007"
        rules = dict.fromkeys(("bytes_per_token", "growing_bytes"), model.rule)
        rules |= {"window_bytes": model.window_rule, "recurrent_bytes": "KV-SIZE-007", "conv_bytes": conv}
        what = f"{num_tokens} tokens at {element_bytes} bytes an element"
        return self._judge(step, what, given, model.sizes(num_tokens, element_bytes), rules)

    def _ranks(self, model: Model, step: Step, ranks: int, num_tokens: int, element_bytes: int) -> bool:
        return self._shared(model, step, (ranks, 1), num_tokens, element_bytes, {}, "KV-SIZE-014")

    def _grouped(
        self, model: Model, step: Step, ranks: int, groups: int, num_tokens: int, element_bytes: int
    ) -> bool:
        given = {"dp_attention": groups}
        return self._shared(model, step, (ranks, groups), num_tokens, element_bytes, given, "KV-SIZE-018")

    def _shared(
        self,
        model: Model,
        step: Step,
        where: tuple[int, int],
        num_tokens: int,
        element_bytes: int,
        more: dict[str, Any],
        rule: str,
    ) -> bool:
        """Ask what one of several ranks keeps; `where` is how many there are, and in how many groups."""
        ranks, groups = where
        whole = 0 < ranks <= MAX_RANKS and 0 < groups <= ranks and ranks % groups == 0
        share = model.share(ranks // groups) if whole else None
        fine = 0 < num_tokens <= MAX_TOKENS and element_bytes in ELEMENT_BYTES
        if share is None or not fine or not {"tensor_parallel", *more} <= set(self.features):
            return False
        asked = {"config": _text(model), "num_tokens": num_tokens, "element_bytes": element_bytes}
        given = attempt(self.session, "size", **asked, tensor_parallel=ranks, **more)
        due = share.sizes(num_tokens, element_bytes)
        what = f"{num_tokens} tokens on one of {ranks} ranks" + (f" in {groups} groups" if more else "")
        return self._judge(step, what, given, due, dict.fromkeys(due, rule))

    def _stage(
        self, model: Model, step: Step, first: int, count: int, num_tokens: int, element_bytes: int
    ) -> bool:
        fine = 0 < num_tokens <= MAX_TOKENS and element_bytes in ELEMENT_BYTES
        if not 0 <= first < first + count <= model.num_layers or not fine:
            return False
        if "pipeline_parallel" not in self.features:
            return False
        asked: dict[str, Any] = {"config": _text(model), "num_tokens": num_tokens}
        asked |= {"element_bytes": element_bytes, "first_layer": first, "num_layers": count}
        given = attempt(self.session, "size", **asked)
        stage, what = (
            model.stage(first, count),
            f"{num_tokens} tokens on layers {first} to {first + count - 1}",
        )
        if stage is None:
            return self._refused(step, given, f"{what}, of which one reads another stage's", "KV-SIZE-022")
        due = stage.sizes(num_tokens, element_bytes)
        return self._judge(step, what, given, due, dict.fromkeys(due, "KV-SIZE-019"))

    def _snapshot(self, model: Model, step: Step, element_bytes: int) -> bool:
        due = model.snapshot(element_bytes) if element_bytes in ELEMENT_BYTES else None
        if due is None or "snapshot_sizes" not in self.features:
            return False
        given = attempt(self.session, "snapshot", config=_text(model), element_bytes=element_bytes)
        return self._judge(step, "a snapshot", given, due, dict.fromkeys(due, "KV-SIZE-020"))

    def _joint(self, model: Model, step: Step, ranks: int, element_bytes: int, multiple: int) -> bool:
        share = model.share(ranks) if 0 < ranks <= MAX_RANKS else None
        fine = element_bytes in ELEMENT_BYTES and 0 < multiple <= MAX_MULTIPLE
        due = share.joint_block(element_bytes, multiple) if share is not None and fine else None
        if due is None or "hybrid_blocks" not in self.features:
            return False
        given = attempt(
            self.session,
            "hybrid_block",
            config=_text(model),
            element_bytes=element_bytes,
            tensor_parallel=ranks,
            multiple=multiple,
        )
        return self._judge(step, "a hybrid model", given, due, dict.fromkeys(due, "KV-SIZE-015"))

    def _odd(self, model: Model, step: Step, number: int) -> bool:
        if not 0 <= number < len(UNDECIDED):
            return False
        return self._expect_refusal(step, odd(model, number), UNDECIDED[number].what, "KV-SIZE-013")

    def _absurd(self, model: Model, step: Step, number: int) -> bool:
        if not 0 <= number < len(ABSURD):
            return False
        return self._expect_refusal(step, absurd(model, number), ABSURD[number].what, "KV-SIZE-017")

    def _expect_refusal(self, step: Step, config: str | None, what: str, rule: str) -> bool:
        if config is None:
            return False
        given = attempt(self.session, "size", config=config, num_tokens=100, element_bytes=2)
        return self._refused(step, given, what, rule)

    def _refused(self, step: Step, given: Mapping[str, Any] | Failed, what: str, rule: str) -> bool:
        if not isinstance(given, Failed):
            said = ", ".join(f"{name} {value}" for name, value in given.items())
            self.log.breach(f"{what}: gave {said}, expected a refusal", rule)
        self.log.note(step, "is refused")
        return True

    def _judge(
        self,
        step: Step,
        what: str,
        given: Mapping[str, Any] | Failed,
        due: Mapping[str, int],
        rules: Mapping[str, str],
    ) -> bool:
        """Hold an answer to the right one."""
        if isinstance(given, Failed):
            kind = self.model.text.get("model_type") if self.model else ""
            self.log.breach(f"{what} of a {kind}: refused ({given})", next(iter(rules.values())))
        else:
            for name, value in due.items():
                if given[name] != value:
                    self.log.breach(f"{what}: {name} = {given[name]}, expected {value}", rules[name])
        self.log.note(step, "takes", *due.values())
        return True


def _text(model: Model) -> str:
    return json.dumps(model.config)
