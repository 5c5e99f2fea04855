"""Which tensors an edit of this plugin touches."""

from __future__ import annotations

from gausslens import LayerWeights

from .parameters import ConfigParameters, ReinitParameters

BIAS_OF = {
    "W_Q": "b_Q",
    "W_K": "b_K",
    "W_V": "b_V",
    "W_O": "b_O",
    "W_in": "b_in",
    "W_gate": "b_gate",
    "W_out": "b_out",
}
# Norms within a layer: before and after attention and MLP, and of queries and keys.
NORMS = tuple(f"{norm}.{part}" for norm in ("ln1", "ln1_post", "ln2", "ln2_post", "q_norm", "k_norm") for part in "wb")


def touched(parameters: ReinitParameters) -> tuple[str, ...]:
    """Every tensor that may be drawn anew: the matrices, their biases, and for reinit.config the norms."""
    biases = tuple(BIAS_OF[m] for m in parameters.matrices) if parameters.biases else ()
    norms = NORMS if isinstance(parameters, ConfigParameters) and parameters.norms else ()
    return (*parameters.matrices, *biases, *norms)


def present(weights: LayerWeights, parameters: ReinitParameters) -> list[str]:
    """Those of them that this layer has."""
    return [name for name in touched(parameters) if name in weights]
