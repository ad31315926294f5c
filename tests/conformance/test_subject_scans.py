"""Real scans at the points where engines differ: the facts that their reports tell.

They run where their interpreters are named (KVREF_VLLM_PYTHON, KVREF_TRANSFORMERS_PYTHON, KVREF_FLA_PYTHON),
those of ONNX where they are installed.
"""

import numpy as np
import pytest
from subject_hosts import OF_SCANS, opened

from kvref.arrays import Array
from kvref_conformance.claims import Claims
from kvref_conformance.contracts import Call, Failed, OutputSpec
from kvref_conformance.host import Host
from kvref_conformance.oracle import Oracle
from kvref_conformance.runner.evaluate import evaluate, plan

#: Takes every channel for the first one, so no answer of it is right.
WRONG = ("vllm_cpu_mamba", "selective_state_update")


@pytest.mark.parametrize("name", sorted(OF_SCANS))
def test_random_requests_are_within_the_bound(hosts: dict[str, Host], name: str) -> None:
    """One case of every verb, under the arithmetic that the adapter declares."""
    host = opened(hosts, name)
    claims = Claims.from_dict(host.hello().claims)
    for verb in host.hello().verbs:
        wanted = [pair for pair in plan((verb,), claims, "quick") if pair[0].requirement == "KV-RNN-022"]
        check, case = wanted[1]  # without what is optional
        found = evaluate(check, case, host, Oracle(claims))
        assert found.status == ("fail" if (name, verb) == WRONG else "pass"), (verb, found)


def short_key(host: Host, length: float) -> float:
    """Return how long a key comes out that is divided by its length: what it writes of a value of 1."""
    width = 64
    key = np.zeros((1, 1, width), np.float32)
    key[0, 0, 3] = length
    ones = np.ones((1, 1, width), np.float32)
    tensors = {
        "q": ones,
        "k": key,
        "v": ones,
        "g": np.zeros((1, 1), np.float32),
        "beta": np.ones((1, 1), np.float32),
        "query_start_loc": np.array([0, 1], np.int32),
        "initial_state": np.zeros((1, 1, width, width), np.float32),
    }
    outputs = {
        name: OutputSpec("float32", x.shape)
        for name, x in (("out", ones), ("final_state", tensors["initial_state"]))
    }
    params = {"scale": 1.0, "qk_l2norm": True}
    return float(host.call(Call("gated_delta_rule", tensors, params, outputs)).outputs["final_state"].max())


def test_gated_delta_net_has_an_epsilon_of_its_own(hosts: dict[str, Host]) -> None:
    """ONNX Runtime adds 1e-12 to the sum of squares, where models are trained with 1e-6."""
    host = opened(hosts, "onnxruntime_scans")
    assert short_key(host, 0.001) == pytest.approx(1.0, rel=1e-5)  # and not 0.7071
    assert short_key(host, 1e-5) == pytest.approx(1e-5 / np.sqrt(1e-10 + 1e-12), rel=1e-5)


def test_gated_delta_net_refuses_a_batch_without_tokens(hosts: dict[str, Host]) -> None:
    """It says so; requests without tokens beside others are served."""
    host = opened(hosts, "onnxruntime_scans")
    none = np.zeros((0, 1, 64), np.float32)
    gates = np.zeros((0, 1), np.float32)
    state = np.zeros((1, 1, 64, 64), np.float32)
    tensors = {"q": none, "k": none, "v": none, "g": gates, "beta": gates}
    tensors |= {"query_start_loc": np.zeros(2, np.int32), "initial_state": state}
    outputs = {"out": OutputSpec("float32", none.shape), "final_state": OutputSpec("float32", state.shape)}
    with pytest.raises(Failed, match="total_tokens must be positive"):
        host.call(Call("gated_delta_rule", tensors, {"scale": 1.0}, outputs))


def mamba_step(host: Host, verb: str, dt: Array, index: int = 0, **given: Array) -> Array:
    """Return the output of one token of ones, from a state of zeros, without decay."""
    width = dt.shape[-1]
    heads = () if verb == "selective_state_update" else (1,)
    x = np.ones((1, *heads, width), np.float32)
    tensors = {
        "x": x,
        "dt": dt if not heads else dt[:, :1],
        "A": np.zeros((1,) if heads else (width, 16), np.float32),
        **{name: np.ones((1, *heads, 16), np.float32) / 16 for name in ("B", "C")},
        "state": np.zeros((2, *heads, width, 16), np.float32),
        "state_indices": np.array([index], np.int32),
        **given,
    }
    call = Call(verb, tensors, {}, {"out": OutputSpec("float32", x.shape)}, in_place=("state",))
    return host.call(call).outputs["out"] * 16


def test_updates_of_mamba_1_take_the_first_channel_for_all(hosts: dict[str, Host]) -> None:
    """vLLM's CPU kernel reads one step size for each head, and Mamba-1 is one head to it."""
    dt = np.arange(1.0, 65.0, dtype=np.float32)[None]
    assert mamba_step(opened(hosts, "transformers_mamba_steps"), WRONG[1], dt).tolist() == dt.tolist()
    assert (mamba_step(opened(hosts, WRONG[0]), WRONG[1], dt) == 1).all()


def test_rows_of_padding_are_left_unwritten(hosts: dict[str, Host]) -> None:
    """vLLM's update skips them; what the output held stays in it."""
    dt = np.ones((1, 64), np.float32)
    assert np.isnan(mamba_step(opened(hosts, "vllm_cpu_mamba"), "ssd_update", dt, index=-1)).all()


def test_single_steps_of_mamba_2_are_not_limited(hosts: dict[str, Host]) -> None:
    """transformers' update takes the keyword and does not look at it."""
    limit = np.array([0.0, 1.0], np.float32)
    out = mamba_step(
        opened(hosts, "transformers_mamba_steps"),
        "ssd_update",
        np.full((1, 64), 3, np.float32),
        dt_limit=limit,
    )
    assert (out == 3).all()
