"""Bounds on what has no recurrence: the convolution, the decay gate, step sizes, single functions."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from recurrent.honest import ORDERS, add_up

from kvref.arrays import Array
from kvref.attention.bounds import margin
from kvref.errors import ArgumentError, DTypeError
from kvref.recurrent.arithmetic import ScanArithmetic
from kvref.recurrent.bounds import conv_bound, gate_bound, selective_bound, ssd_bound
from kvref.recurrent.bounds.delta_block import spectral_bound
from kvref.recurrent.bounds.elementwise import sigmoid_error, silu_error, softplus_error
from kvref.recurrent.gates import sigmoid, silu, softplus

F = np.float32
FACTS = ScanArithmetic()
#: Arguments at which a function turns: around 0, where exp overflows, where it is subnormal.
ARGUMENTS = np.concatenate([np.linspace(-30, 30, 4001), np.linspace(-110, 110, 441), [0.0, 1e-30]]).astype(F)


def wide(x: Array) -> Array:
    """Return float32 numbers in float64."""
    return x.astype(np.float64)


class TestFunctions:
    """The functions of gates, as float32 libraries compute them."""

    def test_sigmoid_and_silu(self) -> None:
        """By one exponential and a division, on either side of 0, and where the exponential overflows."""
        x = ARGUMENTS
        with np.errstate(over="ignore"):
            s = F(1) / (F(1) + np.exp(-x))
        assert margin(s, sigmoid(wide(x)), sigmoid_error(wide(x), 0.0, FACTS)) <= 1
        assert margin(x * s, silu(wide(x)), silu_error(wide(x), 0.0, FACTS)) <= 1

    def test_softplus(self) -> None:
        """By log1p; with a threshold of 20, as PyTorch; as written, if that is declared, and only then."""
        x = ARGUMENTS
        exact, bound = softplus(wide(x)), softplus_error(wide(x), 0.0, FACTS)
        with np.errstate(over="ignore"):
            good, plain = np.log1p(np.exp(x)), np.log(F(1) + np.exp(x))
        good, plain = np.where(x > 20, x, good), np.where(x > 20, x, plain)
        assert margin(good, exact, bound) <= 1
        assert margin(np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), exact, bound) <= 1
        assert margin(plain, exact, bound) > 100
        declared = softplus_error(wide(x), 0.0, replace(FACTS, plain_softplus=True))
        assert 0.1 < margin(plain, exact, declared) <= 1

    @pytest.mark.parametrize("moved", [1e-6, 1e-3, 1.0])
    def test_an_argument_that_is_off_moves_the_answer_no_further(self, moved: float) -> None:
        """The bounds hold for any error of the argument, large ones included."""
        x = wide(ARGUMENTS)
        for function, bound in ((sigmoid, sigmoid_error), (silu, silu_error), (softplus, softplus_error)):
            for sign in (-1, 1):
                assert margin(function(x + sign * moved), function(x), bound(x, moved, FACTS)) <= 1 + 1e-12

    def test_the_spectral_bound_is_one(self) -> None:
        """Never below the largest singular value, and at most 7 % above it; 0 for a matrix of zeros."""
        rng = np.random.default_rng(0)
        for shape in ((5, 64, 64), (5, 64, 17), (5, 3, 40)):
            m = rng.normal(size=shape) * 10.0 ** np.arange(-100, 150, 50)[:, None, None]
            true = np.linalg.norm(m, 2, axis=(-2, -1))
            assert (spectral_bound(m) >= true * (1 - 1e-12)).all()
            assert (spectral_bound(m) <= 1.07 * true).all()
        assert not spectral_bound(np.zeros((2, 4, 4))).any()


class TestConvolution:
    """One dot product of four numbers, and a copy."""

    def draw(self, dtype: str) -> dict[str, Any]:
        """Draw a request of 50 tokens and 6 channels."""
        rng = np.random.default_rng(0)
        shapes = {"x": (50, 6), "weight": (6, 4), "bias": (6,), "initial_state": (1, 6, 3)}
        return {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}

    def run(self, draw: dict[str, Any], order: str, stored: str) -> Array:
        """Convolve in float32, in a given order, rounding the sum before its activation."""
        x, weight, bias, first = (np.asarray(part, F) for part in draw.values())
        inputs = np.concatenate([first[0].T, x])
        windows = np.stack([inputs[t : t + 4].T for t in range(50)])  # [T, C, 4]
        terms = np.concatenate([windows * weight, np.broadcast_to(bias[:, None], (50, 6, 1))], axis=2)
        y = add_up(terms, order).astype(stored).astype(F)
        return (y / (F(1) + np.exp(-y))).astype(draw["x"].dtype)

    @pytest.mark.parametrize("order", ORDERS)
    @pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
    def test_honest_kernels(self, dtype: str, order: str) -> None:
        """Whatever the dtype and the order; a sum rounded before the activation must be declared."""
        draw = self.draw(dtype)
        starts: dict[str, Any] = {"query_start_loc": [0, 50], "activation": "silu"}
        for stored in ("float32", dtype):
            seen = self.run(draw, order, stored)
            facts = ScanArithmetic(stored=stored)
            exact, bound = conv_bound(**draw, **starts, arithmetic=facts)
            assert margin(seen, exact.out, bound.out) <= 1
            if stored == "bfloat16":
                bound = conv_bound(**draw, **starts, arithmetic=FACTS)[1]
                assert margin(seen, exact.out, bound.out) > 1

    def test_the_state_must_be_exact(self) -> None:
        """It is a copy; only a format that does not hold the inputs may change them."""
        draw = self.draw("float32")
        _, bound = conv_bound(**draw, query_start_loc=[0, 50], arithmetic=FACTS)
        assert not bound.state.any()
        narrow = conv_bound(**draw, query_start_loc=[0, 50], arithmetic=ScanArithmetic(state="bfloat16"))
        kept = narrow[0].state.astype("bfloat16")
        assert 0.5 < margin(kept, narrow[0].state, narrow[1].state) <= 1

    @pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
    def test_torch_is_within_the_bound(self, dtype: str) -> None:
        """PyTorch's convolution, which returns its sum in the dtype of x before the activation."""
        torch = pytest.importorskip("torch", reason="torch is not installed")
        draw = self.draw(dtype)
        x, weight, bias, first = (
            torch.from_numpy(np.asarray(part, F)).to(getattr(torch, dtype)) for part in draw.values()
        )
        y = torch.nn.functional.conv1d(torch.cat([first, x.T[None]], 2), weight[:, None], bias, groups=6)
        seen = torch.nn.functional.silu(y)[0].T.float().numpy()
        exact, bound = conv_bound(
            **draw, query_start_loc=[0, 50], activation="silu", arithmetic=ScanArithmetic(stored="input")
        )
        assert margin(seen, exact.out, bound.out) <= 1


class TestGates:
    """The decay gate in both its forms, and the step sizes of the Mambas."""

    @pytest.mark.parametrize("lower_bound", [None, -5.0])
    @pytest.mark.parametrize("channels", [(), (5,)])
    def test_decay_gate(self, lower_bound: float | None, channels: tuple[int, ...]) -> None:
        """Float32 throughout, for small and for large arguments; a wrong bias is far outside."""
        rng = np.random.default_rng(0)
        a = (4 * rng.normal(size=(200, 3, *channels))).astype(F)
        rate, bias = rng.normal(size=3).astype(F), rng.normal(size=(3, *channels)).astype(F)
        each = np.exp(rate).reshape(3, *[1] * len(channels))
        x = a + bias
        if lower_bound is None:
            seen = -each * np.log1p(np.exp(x))
        else:
            seen = F(lower_bound) / (F(1) + np.exp(-(each * x)))
        exact, bound = gate_bound(a, rate, bias, lower_bound=lower_bound, arithmetic=FACTS)
        assert margin(seen, exact, bound) <= 1
        other, _ = gate_bound(a, rate, np.roll(bias, 1, axis=0), lower_bound=lower_bound, arithmetic=FACTS)
        assert margin(other, exact, bound) > 1000
        stored, bound = (
            seen.astype("bfloat16"),
            gate_bound(a, rate, bias, lower_bound=lower_bound, arithmetic=ScanArithmetic(output="bfloat16"))[
                1
            ],
        )
        assert 0.5 < margin(stored, exact, bound) <= 1

    @pytest.mark.parametrize("gates", ["float32", "bfloat16"])
    def test_step_sizes_skip_and_output_gate(self, gates: str) -> None:
        """Both Mambas with every option, step sizes kept in bfloat16 where that is declared."""
        rng, tokens = np.random.default_rng(1), 60
        x, dt, z = (rng.normal(size=(tokens, 4)).astype(F) for _ in range(3))
        B, C = (rng.normal(size=(tokens, 8)).astype(F) for _ in range(2))
        A, D, bias = -np.ones((4, 8), F), rng.normal(size=4).astype(F), rng.normal(size=4).astype(F)
        options = {"D": D, "z": z, "dt_bias": bias, "dt_softplus": True}
        facts = ScanArithmetic(gates=gates)
        exact, bound = selective_bound(
            x, dt, A, B, C, query_start_loc=[0, tokens], arithmetic=facts, **options
        )
        step = np.log1p(np.exp((dt + bias).astype(gates).astype(F))).astype(gates).astype(F)
        h, seen = np.zeros((4, 8), F), np.zeros_like(x)
        for t in range(tokens):
            h = np.exp(step[t][:, None] * A) * h + (step[t] * x[t])[:, None] * B[t]
            seen[t] = (add_up(h * C[t], "lanes") + D * x[t]) * (z[t] / (F(1) + np.exp(-z[t])))
        assert margin(seen, exact.out, bound.out) <= 1
        assert margin(h[None], exact.state, bound.state) <= 1
        heads = [x[:, :, None], dt, A[:, 0], B[:, None], C[:, None]]
        options["z"] = z[:, :, None]
        exact, bound = ssd_bound(*heads, query_start_loc=[0, tokens], arithmetic=facts, **options)
        assert margin(seen[:, :, None], exact.out, bound.out) <= 1
        assert margin(h[None, :, None], exact.state, bound.state) <= 1

    def test_a_limit_hides_the_error_of_what_it_cuts(self) -> None:
        """dt far above its limit is the limit, whatever the softplus lost."""
        x, dt = np.ones((1, 1, 1), F), np.full((1, 1), 100.0, F)
        arguments = x, dt, -np.ones(1, F), x, x
        options: dict[str, Any] = {"dt_softplus": True, "query_start_loc": [0, 1], "arithmetic": FACTS}
        free = ssd_bound(*arguments, **options)[1]
        limited = ssd_bound(*arguments, dt_limit=(0.0, 0.5), **options)[1]
        assert limited.state < 0.1 * free.state


class TestArithmetic:
    """The record of declared facts."""

    def test_roundtrip_through_json(self) -> None:
        """What was written is read back."""
        facts = ScanArithmetic(products="bfloat16", state="float16", state_rounded="token", depth=8)
        assert ScanArithmetic.from_dict(facts.to_dict()) == facts

    @pytest.mark.parametrize(
        "record",
        [
            {"tolerance": 1e-3},
            {"state_rounded": "sometimes"},
            {"chunk_size": 0},
            {"state_rounded": "chunk", "chunk_size": None},
            {"exp_error": -1.0},
            {"plain_softplus": 1},
            {"rounding": "up"},
        ],
    )
    def test_what_is_no_fact_is_refused(self, record: dict[str, Any]) -> None:
        """There is no entry for a tolerance."""
        with pytest.raises(ArgumentError):
            ScanArithmetic.from_dict(record)

    @pytest.mark.parametrize("name", ["float12", "int32", 3, None])
    def test_a_dtype_that_is_not_real_is_refused(self, name: Any) -> None:
        """A stage rounds to a real format that has a name."""
        with pytest.raises(DTypeError):
            ScanArithmetic(products=name)

    def test_tensorfloat32_is_a_format_of_operands(self) -> None:
        """11 significant bits with the range of float32; nothing is stored in it."""
        costs = ScanArithmetic(products="tensorfloat32").format("products")
        assert (costs.roundoff, costs.underflow) == (2.0**-11, 2.0**-126)
        with pytest.raises(DTypeError):
            ScanArithmetic(state="tensorfloat32")

    def test_input_means_the_dtype_of_the_first_argument(self) -> None:
        """Resolved once, then a plain name."""
        assert ScanArithmetic(products="input").resolve("float16").products == "float16"
        assert ScanArithmetic().resolve("bfloat16").output == "bfloat16"

    def test_another_kernels_arithmetic_is_refused(self) -> None:
        """A record of attention says nothing about a scan."""
        with pytest.raises(ArgumentError, match="expected a ScanArithmetic"):
            gate_bound(np.ones((1, 1)), [0.0], [0.0], arithmetic="float32")  # type: ignore[arg-type]
