"""Which tensors an edit of this plugin touches."""

from __future__ import annotations

from gausslens import LayerWeights

from .parameters import FACTORS, ScaleParameters, SurgeryParameters, VectorParameters

# The biases that belong to a matrix or a product.
BIASES = {
    "W_Q": ("b_Q",),
    "W_K": ("b_K",),
    "W_V": ("b_V",),
    "W_O": ("b_O",),
    "W_in": ("b_in",),
    "W_gate": ("b_gate",),
    "W_out": ("b_out",),
    "QK": ("b_Q", "b_K"),
    "OV": ("b_V", "b_O"),
}
# The norm, if any, that reads the output of a matrix and nothing else.
NORM_AFTER = {
    "W_Q": ("q_norm.w", "q_norm.b"),
    "W_K": ("k_norm.w", "k_norm.b"),
    "W_O": ("ln1_post.w", "ln1_post.b"),
    "W_out": ("ln2_post.w", "ln2_post.b"),
}


def of_values(parameters: SurgeryParameters) -> tuple[str, ...]:
    """The tensors that an edit of singular values may change: of a product the factor of the query head."""
    named: list[str] = []
    for name in parameters.matrices:
        matrix = {"QK": "W_Q", "OV": "W_O"}.get(name, name)
        named.append(matrix)
        if parameters.biases != "keep":
            named += BIASES[name]
        if isinstance(parameters, ScaleParameters) and parameters.norms:
            named += NORM_AFTER.get(matrix, ())
    return tuple(dict.fromkeys(named))


def of_vectors(parameters: VectorParameters) -> tuple[str, ...]:
    """The tensors that an edit of singular vectors may change: of a product the factor on each side turned."""
    named: list[str] = []
    for name in parameters.matrices:
        left, right = FACTORS.get(name, (name, name))
        named += [m for m, side in ((left, "left"), (right, "right")) if parameters.sides in (side, "both")]
        if parameters.biases != "keep":
            named += BIASES[name]
    return tuple(dict.fromkeys(named))


def present(weights: LayerWeights, parameters: SurgeryParameters) -> list[str]:
    """The matrices and products that this layer has."""
    return [name for name in parameters.matrices if all(n in weights for n in FACTORS.get(name, (name,)))]
