"""The verbs of recurrent layers: a scan over whole requests, and the same for one token each.

A scan is given the state each request starts from and returns the state it ends in; nothing is written in
place. An update takes one token a request, and advances the states of a pool where they lie.
"""

from kvref_conformance.verb import Argument, Verb, tensors

_STARTS = tensors("query_start_loc[num_requests+1]")
_FRESH = tensors("has_initial_state[num_requests]", feature="has_initial_state")
_INDICES = tensors("state_indices[num_requests]")

_CONV = tensors("x[num_tokens num_channels]; weight[num_channels conv_width]", positional=True)
_CONV_STATE = "num_channels conv_width-1"
_CONV_VARIANT = (
    *tensors("bias[num_channels]", feature="conv_bias"),
    Argument("activation", feature="silu"),
)

_MAMBA = tensors(
    "x[num_tokens num_channels]; dt[num_tokens num_channels]; A[num_channels state_dim]; "
    "B[num_tokens state_dim]; C[num_tokens state_dim]",
    positional=True,
)
_MAMBA_STATE = "num_channels state_dim"
_MAMBA_VARIANT = (
    *tensors("D[num_channels]", feature="skip"),
    *tensors("z[num_tokens num_channels]", feature="output_gate"),
    *tensors("dt_bias[num_channels]", feature="dt_bias"),
    Argument("dt_softplus", feature="dt_softplus"),
)

_SSD = tensors(
    "x[num_tokens num_heads head_dim]; dt[num_tokens num_heads]; A[num_heads]; "
    "B[num_tokens num_groups state_dim]; C[num_tokens num_groups state_dim]",
    positional=True,
)
_SSD_STATE = "num_heads head_dim state_dim"
_SSD_VARIANT = (
    *tensors("D[num_heads]", feature="skip"),
    *tensors("z[num_tokens num_heads head_dim]", feature="output_gate"),
    *tensors("dt_bias[num_heads]", feature="dt_bias"),
    Argument("dt_softplus", feature="dt_softplus"),
    *tensors("dt_limit[2]", feature="dt_limit"),
)

_DELTA_QKV = (
    "q[num_tokens num_k_heads head_k_dim]; k[num_tokens num_k_heads head_k_dim]; "
    "v[num_tokens num_v_heads head_v_dim]"
)
_DELTA = tensors(f"{_DELTA_QKV}; g[num_tokens num_v_heads]; beta[num_tokens num_v_heads]", positional=True)
_KDA = tensors(
    f"{_DELTA_QKV}; g[num_tokens num_v_heads head_k_dim]; beta[num_tokens num_v_heads]", positional=True
)
_DELTA_STATE = "num_v_heads head_k_dim head_v_dim"
_DELTA_VARIANT = (Argument("scale", feature="delta_scale"), Argument("qk_l2norm", feature="qk_l2norm"))


def _scan(
    name: str, inputs: tuple[Argument, ...], state: str, variant: tuple[Argument, ...], summary: str
) -> Verb:
    initial = tensors(f"initial_state[num_requests {state}]")
    return Verb(name, (*inputs, *_STARTS, *initial, *_FRESH, *variant), ("out", "final_state"), summary)


def _update(
    name: str, inputs: tuple[Argument, ...], state: str, variant: tuple[Argument, ...], summary: str
) -> Verb:
    pool = tensors(f"state[num_state_slots {state}]", positional=True, in_place=True)
    return Verb(name, (*inputs, *pool, *_INDICES, *variant), ("out",), summary)


OF_SCANS = (
    _scan("causal_conv", _CONV, _CONV_STATE, _CONV_VARIANT, "a short convolution along each request"),
    _scan("selective_scan", _MAMBA, _MAMBA_STATE, _MAMBA_VARIANT, "the recurrence of Mamba-1"),
    _scan("ssd_scan", _SSD, _SSD_STATE, _SSD_VARIANT, "the recurrence of Mamba-2"),
    _scan("gated_delta_rule", _DELTA, _DELTA_STATE, _DELTA_VARIANT, "the recurrence of Gated DeltaNet"),
    _scan(
        "kimi_delta_attention",
        _KDA,
        _DELTA_STATE,
        _DELTA_VARIANT,
        "the delta rule with a decay for each channel of a key",
    ),
    _update(
        "causal_conv_update", _CONV, _CONV_STATE, _CONV_VARIANT, "causal_conv for one token of each request"
    ),
    _update(
        "selective_state_update",
        _MAMBA,
        _MAMBA_STATE,
        _MAMBA_VARIANT,
        "selective_scan for one token of each request",
    ),
    _update("ssd_update", _SSD, _SSD_STATE, _SSD_VARIANT, "ssd_scan for one token of each request"),
    _update(
        "gated_delta_rule_update",
        _DELTA,
        _DELTA_STATE,
        _DELTA_VARIANT,
        "gated_delta_rule for one token of each request",
    ),
    _update(
        "kimi_delta_attention_update",
        _KDA,
        _DELTA_STATE,
        _DELTA_VARIANT,
        "kimi_delta_attention for one token of each request",
    ),
    Verb(
        "decay_gate",
        (
            *tensors(
                "a[num_tokens num_heads ...]; A_log[num_heads]; dt_bias[num_heads ...]", positional=True
            ),
            Argument("lower_bound", feature="lower_bound"),
        ),
        ("g",),
        "what a layer's gate makes of its input: the logarithm of a decay, for a head or for each channel",
    ),
)

#: The scans, and what each is called for one token a request.
UPDATES = {
    "causal_conv": "causal_conv_update",
    "selective_scan": "selective_state_update",
    "ssd_scan": "ssd_update",
    "gated_delta_rule": "gated_delta_rule_update",
    "kimi_delta_attention": "kimi_delta_attention_update",
}
#: Verbs of recurrent layers.
RECURRENT = tuple(verb.name for verb in OF_SCANS)
