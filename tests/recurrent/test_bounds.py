"""Bounds on scans: what they must never reject, always reject, and not depend on."""

from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recurrent import honest
from recurrent.families import DECAYS, KEYS, delta_inputs, log_decays
from recurrent.honest import ORDERS, Way, delta, selective, ssd

from kvref.arrays import Array
from kvref.attention.bounds import margin
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.recurrent.bounds import delta_bound, selective_bound, ssd_bound
from kvref.recurrent.gated_delta import gated_delta_rule
from kvref.recurrent.kda import kimi_delta_attention
from kvref.recurrent.scan import Scan

F = np.float32
SCALE = 0.37
WAYS = [
    *(Way(None, order, explicit=explicit) for order, explicit in product(ORDERS, (True, False))),
    *(Way(64, order, explicit=explicit) for order, explicit in product(ORDERS, (True, False))),
    Way(16, "serial", base2=True),
    Way(16, "lanes", running=False),
    Way(64, "serial", products="bfloat16"),
    Way(64, "halves", products="bfloat16", state="bfloat16", rounded="chunk"),
    Way(64, "reverse", products="float16", explicit=False),
    Way(64, "lanes", products="tensorfloat32"),
    Way(None, "lanes", state="bfloat16", rounded="token"),
    Way(None, "serial", state="bfloat16"),
    Way(None, "halves", state="float16", rounded="token"),
]


def facts_of(way: Way) -> ScanArithmetic:
    """Declare what an honest kernel does."""
    return ScanArithmetic(
        products=way.products,
        state=way.state,
        state_rounded=way.rounded,
        chunk_size=way.chunk,
        running_sums=way.running,
    )


def share(seen: tuple[Array, Array], exact: Scan, bound: Scan) -> float:
    """Return the largest error of output and state as a share of the bound."""
    pairs = (seen[0], exact.out, bound.out), (seen[1], exact.state, bound.state)
    return max(margin(np.reshape(x, y.shape), y, z) for x, y, z in pairs)


def first_state(seed: int, way: Way, shape: tuple[int, ...], size: float = 1.0) -> Array:
    """Draw a state that the kernel's format holds."""
    state = (size * np.random.default_rng(seed).normal(size=shape)).astype(way.state)
    return state.astype(F)


class TestHonestKernels:
    """Kernels that do what they declare are within the bound, whatever the input and the order."""

    @pytest.mark.parametrize("channel_decay", [False, True], ids=["gated-delta", "kda"])
    @pytest.mark.parametrize("decay", DECAYS)
    @pytest.mark.parametrize("key", KEYS)
    def test_delta_rules(self, key: str, decay: str, channel_decay: bool) -> None:
        """Keys that agree, oppose, repeat; decays from none to a state wiped out; values that cancel."""
        for number, way in enumerate(WAYS):
            tokens = (1, 17, 65, 130)[number % 4]
            draw = delta_inputs(
                number, tokens=tokens, key=key, decay=decay, full=number % 3 == 0, channel_decay=channel_decay
            )
            state = first_state(number, way, (1, 1, 16, 8), (0.0, 1.0, 100.0)[number % 3])
            starts: dict[str, Any] = {"query_start_loc": [0, tokens], "initial_state": state}
            exact, bound = delta_bound(**draw, **starts, scale=SCALE, arithmetic=facts_of(way))
            seen = delta(way, *(x[:, 0] for x in draw.values()), state[0, 0], SCALE)
            assert share(seen, exact, bound) <= 1, way

    @pytest.mark.parametrize("decay", DECAYS)
    def test_mamba_2(self, decay: str) -> None:
        """The same ways, and one declaration of 64 for every shorter chunk."""
        for number, way in enumerate(WAYS):
            rng, tokens = np.random.default_rng(number), (1, 17, 65, 300)[number % 4]
            dt = -log_decays(rng, decay, (tokens, 1))
            x, B, C = (rng.normal(size=(tokens, 1, n)).astype(F) for n in (4, 8, 8))
            x = (x + F(20) * (-1) ** np.arange(tokens)[:, None, None] * (number % 2)).astype(F)
            A, state = np.array([-1.0], F), first_state(number, way, (1, 1, 4, 8))
            starts: dict[str, Any] = {"query_start_loc": [0, tokens], "initial_state": state}
            exact, bound = ssd_bound(x, dt, A, B, C, **starts, arithmetic=facts_of(way))
            seen = ssd(way, dt[:, 0, None] * x[:, 0], dt[:, 0] * A, B[:, 0], C[:, 0], state[0, 0])
            assert share(seen, exact, bound) <= 1, way
            if way.chunk == 16:
                wide = replace(facts_of(way), chunk_size=64)
                assert share(seen, exact, ssd_bound(x, dt, A, B, C, **starts, arithmetic=wide)[1]) <= 1

    @pytest.mark.parametrize("decay", DECAYS)
    def test_mamba_1(self, decay: str) -> None:
        """One token after another, and an associative scan in doubling steps."""
        for number, way in enumerate(way for way in WAYS if way.products == "float32"):
            rng, tokens = np.random.default_rng(number), (1, 17, 65, 300)[number % 4]
            dt = (-log_decays(rng, decay, (tokens, 1)) * np.exp(rng.normal(size=(tokens, 6)))).astype(F)
            x, B, C = (rng.normal(size=(tokens, n)).astype(F) for n in (6, 8, 8))
            A, state = -np.exp(rng.normal(size=(6, 8))).astype(F), first_state(number, way, (1, 6, 8))
            starts: dict[str, Any] = {"query_start_loc": [0, tokens], "initial_state": state}
            exact, bound = selective_bound(x, dt, A, B, C, **starts, arithmetic=facts_of(way))
            assert share(selective(way, x, dt, A, B, C, state[0]), exact, bound) <= 1, way

    @pytest.mark.parametrize("decay", ["none", "slow", "plain"])
    def test_four_thousand_tokens(self, decay: str) -> None:
        """Errors of a long request add up in the bound as well."""
        for way in (Way(None, "lanes"), Way(64, "lanes")):
            draw = delta_inputs(7, tokens=4096, decay=decay)
            exact, bound = delta_bound(
                **draw, query_start_loc=[0, 4096], scale=SCALE, arithmetic=facts_of(way)
            )
            seen = delta(way, *(x[:, 0] for x in draw.values()), np.zeros((16, 8), F), SCALE)
            assert share(seen, exact, bound) <= 1

    @pytest.mark.parametrize("products", ["float16", "bfloat16", "tensorfloat32"])
    def test_a_chunk_of_one_token(self, products: str) -> None:
        """A kernel of chunks rounds beta · v as an operand, even where there is one token."""
        for number in range(60):
            way = Way(64, ORDERS[number % 4], products=products, explicit=number % 2 == 0)
            tokens = 1 if number % 3 else 65
            draw = delta_inputs(number, tokens=tokens, key=KEYS[number % 5], decay="none", full=True)
            state = first_state(number, way, (1, 1, 16, 8))
            starts: dict[str, Any] = {"query_start_loc": [0, tokens], "initial_state": state}
            exact, bound = delta_bound(**draw, **starts, scale=SCALE, arithmetic=facts_of(way))
            seen = delta(way, *(x[:, 0] for x in draw.values()), state[0, 0], SCALE)
            assert share(seen, exact, bound) <= 1, (number, way)

    @pytest.mark.parametrize("chunk", [None, 4, 16])
    def test_float16_throughout(self, chunk: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
        """With 11 bits every rounding is large, and so is what roundings of roundings come to."""
        monkeypatch.setattr(honest, "F", np.float16)
        names = dict.fromkeys(("working", "products", "gates", "stored", "state", "output"), "float16")
        rng, facts = np.random.default_rng(chunk), ScanArithmetic(**names, chunk_size=chunk)
        for number in range(60):
            tokens, way = (
                (1, 2, 5, 16, 33)[number % 5],
                Way(chunk, ORDERS[number % 4], explicit=number % 3 > 0),
            )
            key, decay = KEYS[number % 4], DECAYS[number // 5 % 5]
            draw = delta_inputs(
                number, tokens=tokens, key=key, decay=decay, channels=(8, 4), channel_decay=number % 2 > 0
            )
            draw = {name: x.astype(np.float16) for name, x in draw.items()}
            state = rng.normal(size=(1, 1, 8, 4)).astype(np.float16)
            starts: dict[str, Any] = {"query_start_loc": [0, tokens], "initial_state": state}
            exact, bound = delta_bound(**draw, **starts, scale=0.375, arithmetic=facts)
            seen = delta(way, *(x[:, 0] for x in draw.values()), state[0, 0], 0.375)
            assert seen[0].dtype == seen[1].dtype == np.float16
            assert share(seen, exact, bound) <= 1, (number, way)
            dt, A = -draw["g"].reshape(tokens, -1)[:, :1], np.array([-1], np.float16)
            x, B, C = (rng.normal(size=(tokens, 1, n)).astype(np.float16) for n in (8, 4, 4))
            exact, bound = ssd_bound(x, dt, A, B, C, **starts, arithmetic=facts)
            seen = ssd(way, dt[:, 0, None] * x[:, 0], dt[:, 0] * A, B[:, 0], C[:, 0], state[0, 0])
            assert share(seen, exact, bound) <= 1, (number, way)

    @pytest.mark.parametrize("length", [0.3, 1.2, 1.45, 2.0])
    def test_keys_that_are_no_unit_vectors(self, length: float) -> None:
        """With beta · |k|² above 2 the state grows, the errors grow with it, and so does the bound."""
        for way in WAYS:
            draw = delta_inputs(3, tokens=40, full=True)
            draw["k"] *= F(length)
            exact, bound = delta_bound(**draw, query_start_loc=[0, 40], scale=SCALE, arithmetic=facts_of(way))
            with np.errstate(over="ignore", invalid="ignore"):
                seen = delta(way, *(x[:, 0] for x in draw.values()), np.zeros((16, 8), F), SCALE)
            assert share(seen, exact, bound) <= 1, way


class TestReference:
    """The reference's own error is part of every bound, so it must be a true bound as well."""

    @pytest.mark.parametrize("channel_decay", [False, True], ids=["gated-delta", "kda"])
    @pytest.mark.parametrize("decay", DECAYS)
    def test_float64_chunks_stay_within_the_float64_bound(self, decay: str, channel_decay: bool) -> None:
        """The chunked form of the reference, judged as a kernel that computes in float64."""
        names = dict.fromkeys(("working", "products", "gates", "stored", "state", "output"), "float64")
        for key in KEYS:
            draw = delta_inputs(1, tokens=150, key=key, decay=decay, channel_decay=channel_decay)
            rule = kimi_delta_attention if channel_decay else gated_delta_rule
            seen = rule(**draw, query_start_loc=[0, 150], scale=SCALE, chunk_size=64)
            facts = ScanArithmetic(**names)
            exact, bound = delta_bound(**draw, query_start_loc=[0, 150], scale=SCALE, arithmetic=facts)
            assert share((seen.out, seen.state), exact, bound) <= 1


class TestRejects:
    """At 1024 tokens of 64 channels a fault is far outside the bound."""

    tokens = 1024

    def draw(self, channel_decay: bool) -> tuple[dict[str, Any], Scan, Scan]:
        """Draw unit keys with decays of about a tenth a token, and bound them for chunks of 64."""
        draw = delta_inputs(5, tokens=self.tokens, channels=(64, 32), channel_decay=channel_decay)
        starts = {"query_start_loc": [0, self.tokens], "scale": SCALE}
        return draw, *delta_bound(**draw, **starts, arithmetic=ScanArithmetic())

    def rule(self, draw: dict[str, Any]) -> Scan:
        rule = kimi_delta_attention if draw["g"].ndim == 3 else gated_delta_rule
        return rule(**draw, query_start_loc=[0, len(draw["q"])], scale=SCALE)

    @pytest.mark.parametrize("channel_decay", [False, True], ids=["gated-delta", "kda"])
    def test_faults(self, channel_decay: bool) -> None:
        """Zeros; a state one token late; one decay forgotten, one write, one output read before its write."""
        draw, exact, bound = self.draw(channel_decay)
        assert share((exact.out, exact.state), exact, bound) == 0

        def out_share(seen: Array) -> float:
            return margin(seen, exact.out, bound.out)

        def state_share(seen: Array) -> float:
            return margin(seen, exact.state, bound.state)

        assert out_share(np.zeros_like(exact.out)) > 100
        assert state_share(np.zeros_like(exact.state)) > 100
        late = self.rule({name: x[:-1] for name, x in draw.items()})
        assert state_share(late.state) > 100
        assert out_share(np.roll(exact.out, 1, axis=0)) > 100
        for name, worth in (("g", 20), ("beta", 100)):
            forgotten = {**draw, name: draw[name].copy()}
            forgotten[name][self.tokens - 8] = 0
            seen = self.rule(forgotten)
            assert out_share(seen.out) > worth
            assert state_share(seen.state) > worth
        early = {**draw, "g": np.roll(draw["g"], 1, axis=0)}
        assert out_share(self.rule(early).out) > 100

    def test_a_decay_that_is_shared_by_all_channels(self) -> None:
        """KDA with the mean of each token's decays is another answer."""
        draw, exact, bound = self.draw(True)
        mean = {**draw, "g": np.broadcast_to(draw["g"].mean(-1, keepdims=True), draw["g"].shape)}
        assert margin(self.rule(mean).out, exact.out, bound.out) > 100

    def test_a_state_in_bfloat16_that_was_not_declared(self) -> None:
        """Rounded once a token is not rounded once a call, and neither is float32."""
        draw = delta_inputs(5, tokens=self.tokens, decay="slow")
        state, arguments = np.zeros((16, 8), F), [x[:, 0] for x in draw.values()]
        seen = {
            rounded: delta(Way(None, state="bfloat16", rounded=rounded), *arguments, state, SCALE)
            for rounded in ("token", "call")
        }
        starts = {"query_start_loc": [0, self.tokens], "scale": SCALE}
        whole = ScanArithmetic(chunk_size=None)
        shares = {}
        for name, facts in {
            "float32": whole,
            "call": replace(whole, state="bfloat16"),
            "token": replace(whole, state="bfloat16", state_rounded="token"),
        }.items():
            exact, bound = delta_bound(**draw, **starts, arithmetic=facts)
            shares[name] = {
                kind: margin(found[1][None, None], exact.state, bound.state) for kind, found in seen.items()
            }
        assert shares["token"]["token"] <= 1
        assert shares["call"]["call"] <= 1
        assert shares["call"]["token"] > 2
        assert shares["float32"]["call"] > 2

    def test_mamba_faults(self) -> None:
        """Zeros, a forgotten decay and a forgotten write, for both Mambas."""
        rng, tokens = np.random.default_rng(0), self.tokens
        x, dt = rng.normal(size=(tokens, 2, 4)), rng.exponential(0.1, size=(tokens, 2))
        A, B, C = -np.ones(2), *(rng.normal(size=(2, tokens, 1, 16)))
        arguments = [part.astype(F) for part in (x, dt, A, B, C)]
        starts = {"query_start_loc": [0, tokens], "arithmetic": ScanArithmetic()}
        exact, bound = ssd_bound(*arguments, **starts)
        changed = [part.copy() for part in arguments]
        changed[1][-5] = 0
        seen = ssd_bound(*changed, **starts)[0]
        assert margin(np.zeros_like(exact.out), exact.out, bound.out) > 100
        assert share((seen.out, seen.state), exact, bound) > 100
        narrow = [x[:, 0], np.repeat(dt[:, :1], 4, 1), -np.ones((4, 16)), B[:, 0], C[:, 0]]
        narrow = [part.astype(F) for part in narrow]
        exact, bound = selective_bound(*narrow, **starts)
        narrow[1] = narrow[1].copy()
        narrow[1][-5] = 0
        seen = selective_bound(*narrow, **starts)[0]
        assert margin(np.zeros_like(exact.out), exact.out, bound.out) > 100
        assert share((seen.out, seen.state), exact, bound) > 100


class TestSharp:
    """The bound is not far above what kernels of its kind do."""

    @pytest.mark.parametrize("tokens", [16, 128, 512])
    @pytest.mark.parametrize("decay", ["slow", "plain", "strong"])
    def test_float32_kernels_reach_a_three_hundredth(self, decay: str, tokens: int) -> None:
        """Over one request of 16 channels, in the worst number of the output."""
        way = Way(64, "serial")
        draw = delta_inputs(11, tokens=tokens, decay=decay)
        exact, bound = delta_bound(**draw, query_start_loc=[0, tokens], scale=SCALE, arithmetic=facts_of(way))
        out, _ = delta(way, *(x[:, 0] for x in draw.values()), np.zeros((16, 8), F), SCALE)
        assert margin(out[:, None], exact.out, bound.out) > 1 / 300

    def test_a_rounding_to_bfloat16_is_nearly_all_of_its_bound(self) -> None:
        """A state rounded once has half a last place to lose, and some number loses nearly all of it."""
        way = Way(None, "halves", state="bfloat16")
        draw = delta_inputs(11, tokens=100)
        exact, bound = delta_bound(**draw, query_start_loc=[0, 100], scale=SCALE, arithmetic=facts_of(way))
        _, state = delta(way, *(x[:, 0] for x in draw.values()), np.zeros((16, 8), F), SCALE)
        assert 0.8 < margin(state[None, None], exact.state, bound.state) <= 1


class TestIndependence:
    """What must not influence the bound, and what must."""

    @pytest.mark.parametrize("channel_decay", [False, True], ids=["gated-delta", "kda"])
    def test_packed_requests_have_the_bounds_they_have_alone(self, channel_decay: bool) -> None:
        """Three requests of 70, 0 and 5 tokens, two value heads a key head."""
        draw = delta_inputs(2, tokens=75, heads=4, channel_decay=channel_decay)
        draw["q"], draw["k"] = draw["q"][:, :2], draw["k"][:, :2]
        state = first_state(0, WAYS[0], (3, 4, 16, 8))
        facts = ScanArithmetic(state="bfloat16")
        starts = {"query_start_loc": [0, 70, 70, 75], "initial_state": state}
        _, bound = delta_bound(**draw, **starts, arithmetic=facts)
        for request, (a, b) in enumerate([(0, 70), (70, 70), (70, 75)]):
            alone = delta_bound(
                **{name: x[a:b] for name, x in draw.items()},
                query_start_loc=[0, b - a],
                initial_state=state[request : request + 1],
                arithmetic=facts,
            )
            np.testing.assert_allclose(bound.out[a:b], alone[1].out, rtol=1e-9)
            np.testing.assert_allclose(bound.state[request], alone[1].state[0], rtol=1e-9)
        assert not bound.state[1].any(), "a request without tokens keeps its state, bit for bit"

    @pytest.mark.parametrize(
        "lax",
        [
            {"products": "bfloat16"},
            {"state": "bfloat16"},
            {"state": "bfloat16", "state_rounded": "chunk"},
            {"output": "bfloat16"},
            {"exp_error": 1000.0},
            {"working": "bfloat16"},
            {"rounding": "truncate"},
        ],
        ids=lambda lax: "-".join(lax),
    )
    def test_a_laxer_declaration_gives_a_laxer_bound(self, lax: dict[str, Any]) -> None:
        """Every declared fact widens a bound when it gets worse; none is dead."""
        draw = delta_inputs(2, tokens=150, heads=2)
        starts = {"query_start_loc": [0, 150], "scale": SCALE}
        strict = delta_bound(**draw, **starts, arithmetic=ScanArithmetic())[1]
        wide = delta_bound(**draw, **starts, arithmetic=ScanArithmetic(**lax))[1]
        assert (wide.out >= strict.out).all()
        assert (wide.state >= strict.state).all()
        assert (wide.state > strict.state).any() or (wide.out > strict.out).any()

    def test_shorter_sums_give_a_smaller_bound(self) -> None:
        """A kernel that adds in a tree, takes one token at a time, or sums each segment may say so."""
        draw = delta_inputs(2, tokens=150, heads=2)
        starts = {"query_start_loc": [0, 150], "scale": SCALE}
        plain = delta_bound(**draw, **starts, arithmetic=ScanArithmetic())[1]
        for fact in ({"depth": 4}, {"chunk_size": None}, {"running_sums": False}):
            less = delta_bound(**draw, **starts, arithmetic=ScanArithmetic(**fact))[1]  # type: ignore[arg-type]
            assert (less.state < plain.state).all()

    def test_where_nothing_is_known_the_bound_is_infinite(self) -> None:
        """Keys three times too long for 500 tokens: the map grows by 17 a token, past every number."""
        draw = delta_inputs(3, tokens=500, full=True, decay="none")
        draw["k"] *= F(4)
        draw["v"] *= 0
        _, bound = delta_bound(**draw, query_start_loc=[0, 500], arithmetic=ScanArithmetic())
        assert np.isinf(bound.state).all()
        assert not np.isnan(bound.out).any()


class TestChapter:
    """What the chapter on recurrent layers says in numbers."""

    text = (Path(__file__).parents[2] / "spec" / "recurrent.md").read_text(encoding="utf-8")

    def test_the_table_lists_every_fact_and_its_default(self) -> None:
        """A kernel's author reads the table, not the record."""
        rows = self.text.split("| fact | default | meaning |")[1].split("\n\n")[0].splitlines()[2:]
        table = {row.split("|")[1].strip(): row.split("|")[2].strip() for row in rows}
        spelled = {True: "yes", False: "no", None: "none"}
        record = {field.name: getattr(ScanArithmetic(), field.name) for field in fields(ScanArithmetic)}
        wanted = {
            name: spelled[value]
            if value in (True, False, None)
            else f"{value:g}"
            if name == "exp_error"
            else str(value)
            for name, value in record.items()
        }
        assert table == wanted

    def test_the_worked_example(self) -> None:
        """A decay of a tenth, every term 1, until nothing changes any more."""
        one = np.ones((2000, 1, 1))
        errors = {}
        for chunk in (64, None):
            exact, bound = ssd_bound(
                one,
                np.full((2000, 1), 0.1),
                [-1.0],
                10 * one,
                one,
                query_start_loc=[0, 2000],
                arithmetic=ScanArithmetic(chunk_size=chunk, output="float64"),
            )
            errors[chunk] = float(bound.state.max())
        state = float(exact.state.max())
        assert f"= {state:.3f}" in self.text
        assert errors[64] * 2**24 == pytest.approx(6517, rel=1e-3)
        assert errors[64] == pytest.approx(3.88e-4, rel=2e-3)
        assert errors[64] / state == pytest.approx(3.7e-5, rel=2e-3)
        assert errors[None] / state == pytest.approx(4.2e-6, rel=1e-2)
        for number in ("= 6517u", "3.88·10⁻⁴", "3.7·10⁻⁵ of the state", "it would be 4.2·10⁻⁶"):
            assert number in self.text

    def test_where_it_is_no_use(self) -> None:
        """Keys nearly in one direction, without decay: a chunked bound as large as the output."""
        draw = delta_inputs(1, tokens=1024, key="parallel", decay="none", channels=(64, 8))
        shares = {}
        for chunk in (64, None):
            facts = ScanArithmetic(chunk_size=chunk)
            exact, bound = delta_bound(**draw, query_start_loc=[0, 1024], scale=SCALE, arithmetic=facts)
            shares[chunk] = float(np.median(bound.out[-64:]) / np.abs(exact.out).mean())
        assert 1 < shares[64] < 2
        assert shares[None] < 0.01
