"""The scans of transformers' recurrent models, as they run without compiled kernels.

The raw entry points are the functions that its layers call: `torch_chunk_gated_delta_rule` of Qwen3-Next,
`chunk_kimi_delta_attention` of Kimi Linear, `mamba2_chunk_scan` of Mamba-2, and for one token a request
`torch_recurrent_gated_delta_rule`, `recurrent_kimi_delta_attention`, `mamba2_selective_state_update`,
`mamba_selective_state_update` and `causal_conv1d_update`. The last one is also what a prompt's next part
goes through, with the window it has kept. The adapter cuts a ragged batch into one call a request, and for
updates gathers the states of a step and puts them back; what a head of Mamba-2 has is repeated for its
channels, as the layer does.

`mamba_selective_scan` takes no state, so there is no Mamba-1 scan here. The scale of queries is no
argument.
Source: transformers 5.24, src/transformers/models/{qwen3_next,kimi_linear,mamba,mamba2}/modeling_*.py.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.ragged import for_each_channel, requests

try:
    import torch
    import transformers
    from transformers.models.kimi_linear import modeling_kimi_linear as kimi
    from transformers.models.mamba import modeling_mamba as mamba
    from transformers.models.mamba2 import modeling_mamba2 as mamba2
    from transformers.models.qwen3_next import modeling_qwen3_next as qwen
except ImportError as error:
    raise ImportError(
        "the subject transformers_scans needs transformers 5.24 and PyTorch: "
        "pip install transformers==5.24.0 torch==2.13.0"
    ) from error

CHUNK = 64


class TransformersScans:
    """Scans of whole requests, in chunks."""

    framework = "torch"
    claims = Claims(
        name="transformers scans",
        version=str(transformers.__version__),
        scan_arithmetic=ScanArithmetic(chunk_size=CHUNK, gates="input", stored="input"),
        dtypes=("float32", "bfloat16"),
        head_dims=(64, 128, 80),
        state_dims=(16, 128),
        conv_widths=(4, 3, 2),
        features=(
            *("conv_bias", "silu", "skip", "dt_bias", "dt_softplus", "dt_limit"),
            *("qk_l2norm", "value_width"),
        ),
    )

    def causal_conv(
        self,
        x: Any,
        weight: Any,
        *,
        query_start_loc: Any,
        initial_state: Any,
        bias: Any = None,
        activation: str | None = None,
    ) -> Any:
        """Convolve each request behind its window."""
        out, final = torch.empty_like(x), initial_state.clone()
        for request, tokens in requests(query_start_loc):
            window = final[request : request + 1]
            part = mamba2.causal_conv1d_update(x[tokens].T[None], window, weight, bias, activation)
            out[tokens] = part[0].T
        return out, final

    def ssd_scan(
        self,
        x: Any,
        dt: Any,
        A: Any,
        B: Any,
        C: Any,
        *,
        query_start_loc: Any,
        initial_state: Any,
        dt_limit: Any = (0.0, float("inf")),
        **variant: Any,
    ) -> Any:
        """Scan each request in chunks."""
        out, final = torch.empty_like(x), initial_state.clone()
        least, largest = map(float, dt_limit)
        for request, tokens in requests(query_start_loc):
            out[tokens], final[request] = mamba2.mamba2_chunk_scan(
                x[tokens][None],
                dt[tokens][None],
                A,
                B[tokens][None],
                C[tokens][None],
                CHUNK,
                initial_states=initial_state[request : request + 1],
                dt_limit=(least, largest),
                return_final_states=True,
                **variant,
            )
        return out, final

    def gated_delta_rule(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request in chunks."""
        return _delta(partial(qwen.torch_chunk_gated_delta_rule, chunk_size=CHUNK), *tensors, **arguments)

    def kimi_delta_attention(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request in chunks."""
        return _delta(partial(kimi.chunk_kimi_delta_attention, chunk_size=CHUNK), *tensors, **arguments)


class TransformersSteps:
    """The same token by token: what decodes, which may also be given whole requests."""

    framework = "torch"
    claims = Claims(
        name="transformers token by token",
        version=str(transformers.__version__),
        scan_arithmetic=ScanArithmetic(chunk_size=None, stored="input"),
        dtypes=("float32", "bfloat16"),
        head_dims=(64, 128, 80),
        conv_widths=(4, 3, 2),
        features=("conv_bias", "silu", "qk_l2norm", "value_width"),
    )

    def gated_delta_rule(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request token by token."""
        return _delta(qwen.torch_recurrent_gated_delta_rule, *tensors, **arguments)

    def kimi_delta_attention(self, *tensors: Any, **arguments: Any) -> Any:
        """Scan each request token by token."""
        return _delta(kimi.recurrent_kimi_delta_attention, *tensors, **arguments)

    def causal_conv_update(
        self,
        x: Any,
        weight: Any,
        state: Any,
        *,
        state_indices: Any,
        bias: Any = None,
        activation: str | None = None,
    ) -> Any:
        """Convolve one token of each request, and shift its window."""
        windows = state[state_indices]
        out = mamba2.causal_conv1d_update(x[:, :, None], windows, weight, bias, activation)
        state[state_indices] = windows
        return out[:, :, 0]

    def gated_delta_rule_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Advance gathered states by one token."""
        return _delta_update(qwen.torch_recurrent_gated_delta_rule, *tensors, **arguments)

    def kimi_delta_attention_update(self, *tensors: Any, **arguments: Any) -> Any:
        """Advance gathered states by one token."""
        return _delta_update(kimi.recurrent_kimi_delta_attention, *tensors, **arguments)


class TransformersMambaSteps:
    """The update of each Mamba: every line but the exponential is in the dtype of its inputs."""

    framework = "torch"
    claims = Claims(
        name="transformers Mamba token by token",
        version=str(transformers.__version__),
        scan_arithmetic=ScanArithmetic(working="input", chunk_size=None),
        dtypes=("float32", "bfloat16"),
        head_dims=(64, 128, 80),
        state_dims=(16, 128),
        features=("skip", "output_gate", "dt_bias", "dt_softplus", "dt_limit"),
    )

    def selective_state_update(
        self, x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any, *, state_indices: Any, **variant: Any
    ) -> Any:
        """Advance gathered states by one token."""
        return _advanced(mamba.mamba_selective_state_update, x, dt, A, B, C, state, state_indices, **variant)

    def ssd_update(
        self, x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any, *, state_indices: Any, **variant: Any
    ) -> Any:
        """Advance gathered states by one token, what a head has repeated for its channels."""
        dt, rates, wide = for_each_channel(x.shape[2], B.shape[2], dt, A, variant)
        return _advanced(
            mamba2.mamba2_selective_state_update, x, dt, rates, B, C, state, state_indices, **wide
        )


def _delta(
    rule: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    query_start_loc: Any,
    initial_state: Any,
    qk_l2norm: bool = False,
) -> Any:
    """Call a delta rule once a request."""
    out, final = torch.empty_like(v), initial_state.clone()
    for request, tokens in requests(query_start_loc):
        out[tokens], final[request] = rule(
            *(x[tokens][None] for x in (q, k, v, g, beta)),
            initial_state=initial_state[request : request + 1],
            output_final_state=True,
            use_qk_l2norm_in_kernel=qk_l2norm,
        )
    return out, final


def _delta_update(
    rule: Callable[..., Any],
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    state: Any,
    *,
    state_indices: Any,
    qk_l2norm: bool = False,
) -> Any:
    """Call a delta rule for a batch of requests with one token each."""
    out, advanced = rule(
        *(x[:, None] for x in (q, k, v, g, beta)),
        initial_state=state[state_indices],
        output_final_state=True,
        use_qk_l2norm_in_kernel=qk_l2norm,
    )
    state[state_indices] = advanced
    return out[:, 0]


def _advanced(
    update: Callable[..., Any],
    x: Any,
    dt: Any,
    A: Any,
    B: Any,
    C: Any,
    state: Any,
    state_indices: Any,
    **variant: Any,
) -> Any:
    """Call an update in place on gathered states, and put them back."""
    states = state[state_indices]
    out = update(states, x, dt, A, B, C, **variant)
    state[state_indices] = states
    return out
