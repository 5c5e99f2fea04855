"""Which tensors an edit of this plugin touches."""

from __future__ import annotations

from gausslens import LayerWeights

from .parameters import CascadeParameters, ConfigParameters, ReinitParameters

BIAS_OF = {
    "W_Q": "b_Q",
    "W_K": "b_K",
    "W_V": "b_V",
    "W_O": "b_O",
    "W_in": "b_in",
    "W_gate": "b_gate",
    "W_out": "b_out",
    "W_conv": "b_conv",
    "W_conv_in": "b_conv_in",
    "W_conv_out": "b_conv_out",
}
# Norms within a layer: before and after attention and MLP, and of queries and keys.
NORMS = tuple(f"{norm}.{part}" for norm in ("ln1", "ln1_post", "ln2", "ln2_post", "q_norm", "k_norm") for part in "wb")
# Outside the layers; heads of other tasks, which no run reads, are left alone.
OUTSIDE = (
    *("W_E", "W_pos", "W_token_type", "W_project_in", "W_project_out", "W_head", "W_U", "b_head", "b_U"),
    *(f"{norm}.{part}" for norm in ("ln_embed", "ln_head", "ln_final") for part in "wb"),
)


def touched(parameters: ReinitParameters) -> tuple[str, ...]:
    """Every tensor that may be drawn anew: the matrices, their biases, and for reinit.config norms and embeddings."""
    biases = tuple(BIAS_OF[m] for m in parameters.matrices) if parameters.biases else ()
    config = isinstance(parameters, ConfigParameters)
    norms = NORMS if _with_norms(parameters) else ()
    outside = OUTSIDE if config and getattr(parameters, "embeddings", False) else ()
    return (*parameters.matrices, *biases, *norms, *outside)


def present(weights: LayerWeights, parameters: ReinitParameters) -> list[str]:
    """Those of them that this layer has."""
    return [name for name in touched(parameters) if name in weights]


def _with_norms(parameters: ReinitParameters) -> bool:
    if isinstance(parameters, CascadeParameters):
        return parameters.scheme == "config"
    return isinstance(parameters, ConfigParameters) and parameters.norms
