"""The parameters of the edits and the analysis of this plugin, and which tensors an edit with them may change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gausslens import Parameters
from gausslens.maths.heads import BIAS_OF

Matrix = Literal["W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "QK", "OV"]
Hold = Literal["energy", "largest", "nothing"]
# The tensors that a product is made of: editing both it and one of them would be editing twice.
FACTORS = {"QK": ("W_Q", "W_K"), "OV": ("W_V", "W_O")}
# The factor of the query head, which takes a change of a product's singular values.
HEAD_FACTOR = {"QK": "W_Q", "OV": "W_O"}
# The norm, if any, that reads the output of a matrix and nothing else.
NORM_AFTER = {
    "W_Q": ("q_norm.w", "q_norm.b"),
    "W_K": ("k_norm.w", "k_norm.b"),
    "W_O": ("ln1_post.w", "ln1_post.b"),
    "W_out": ("ln2_post.w", "ln2_post.b"),
}


class SurgeryParameters(Parameters):
    """Parameters of every edit of this plugin: which matrices, and what becomes of their biases."""

    matrices: tuple[Matrix, ...] = Field(
        ("W_Q", "W_K"),
        min_length=1,
        description="Which weight matrices; QK and OV are the products W_Q W_K^T and W_V W_O of each head, whose "
        "spectra no change of basis within the head moves (with rotary positions, QK as it is where query and key "
        "stand at the same place). Those that the model does not have are left out.",
    )
    by: Literal["head", "matrix"] = Field(
        "head",
        description="head: each head's own block (each key/value head's of W_K and W_V) has a spectrum; matrix: all "
        "heads side by side are one matrix. MLP matrices are always whole, products always by head.",
    )
    biases: Literal["follow", "keep", "zero"] = Field(
        "follow",
        description="What becomes of the bias of each matrix. follow: it goes through the same map as the matrix' own "
        "output, so that scaling W_Q by 2 scales x W_Q + b_Q by 2; keep: it stays; zero: it goes. b_O belongs to no "
        "head: by head it follows scaling alone.",
    )

    @field_validator("matrices")
    @classmethod
    def _each_once(cls, matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        twice = sorted({m for m in matrices if matrices.count(m) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        for product, factors in FACTORS.items():
            both = [f for f in factors if f in matrices]
            if product in matrices and both:
                raise ValueError(f"{product} is made of {' and '.join(factors)}: name it or {both[0]}, not both")
        return matrices


class ScaleParameters(SurgeryParameters):
    """Parameters of spectrum.scale."""

    alpha: float = Field(
        allow_inf_nan=False,
        description="Every singular value is multiplied by it. On W_Q and W_K together it multiplies scores by alpha "
        "squared, as a temperature of 1 / alpha squared does.",
    )
    norms: bool = Field(
        True,
        description="Where the model norms the output of a matrix at once (query and key norms, gemma's norms after "
        "attention and MLP), scale the gain of that norm too: else the norm undoes the change. Gains that all heads "
        "share are left by an edit of some `heads`, which is then undone.",
    )


class ChoiceParameters(SurgeryParameters):
    """Which singular values: so many, or as many as hold a share of the energy."""

    k: int | None = Field(None, ge=0, description="So many singular values; where there are fewer, all.")
    energy: float = Field(
        0.9, gt=0, le=1, description="Where no k is given: the fewest that hold this share of the sum of squares."
    )


class EndParameters(ChoiceParameters):
    """Parameters of spectrum.keep and spectrum.drop."""

    end: Literal["top", "bottom"] = Field("top", description="From which end of the spectrum they are counted.")


class PowerParameters(SurgeryParameters):
    """Parameters of spectrum.power."""

    p: float = Field(ge=0, allow_inf_nan=False, description="Each singular value becomes its p-th power.")
    hold: Hold = Field(
        "energy",
        description="What is held by rescaling: the sum of squares, the largest value, or nothing (then the result "
        "depends on the unit of the weights).",
    )


class FlattenParameters(SurgeryParameters):
    """Parameters of spectrum.flatten."""

    amount: float = Field(
        1.0,
        ge=0,
        le=1,
        description="0 changes nothing, 1 makes all singular values equal; between, each goes that share of the way to "
        "their root mean square. The sum of squares is held.",
    )


class LawParameters(SurgeryParameters):
    """Parameters of spectrum.law."""

    law: Literal["noise", "uniform", "exponential"] = Field(
        "noise",
        description="The law whose quantiles replace the singular values, in order and at the same sum of squares. "
        "noise: what a Gaussian matrix of this shape has (Marchenko-Pastur), of a product what the product of two has.",
    )


class VectorParameters(SurgeryParameters):
    """Parameters of spectrum.vectors."""

    sides: Literal["left", "right", "both"] = Field(
        "both",
        description="Which singular vectors are replaced: left, on the side that the matrix reads (x W), right, on the "
        "side that it writes. Of QK left is the query's side, of OV the side of the values read.",
    )


class GraftParameters(SurgeryParameters):
    """Parameters of spectrum.graft."""

    source: int = Field(ge=0, description="The layer whose singular values are taken; `layers` says where they go.")
    hold: Literal["energy", "nothing"] = Field(
        "nothing", description="energy: only the shape of the spectrum is taken, the sum of squares stays."
    )


class EffectParameters(Parameters):
    """Parameters of spectrum.effect."""

    tokens: int = Field(32, ge=0, description="So many tokens are written after each prompt, by both models; 0: none.")
    attention: bool = Field(True, description="Compare attention too; without, only what the model predicts.")
    level: float = Field(0.95, gt=0, lt=1, description="The level of the intervals.")


def factors_of(name: str) -> tuple[str, ...]:
    """The tensors that a product is made of; of a matrix itself."""
    return FACTORS.get(name, (name,))


def biases_of(name: str) -> tuple[str, ...]:
    """The biases that belong to a matrix or a product."""
    return tuple(BIAS_OF[factor] for factor in factors_of(name))


def touched_by_values(parameters: SurgeryParameters) -> tuple[str, ...]:
    """The tensors that an edit of singular values may change: of a product the factor of the query head."""
    named: list[str] = []
    for name in parameters.matrices:
        matrix = HEAD_FACTOR.get(name, name)
        named.append(matrix)
        if parameters.biases != "keep":
            named += biases_of(name)
        if isinstance(parameters, ScaleParameters) and parameters.norms:
            named += NORM_AFTER.get(matrix, ())
    return tuple(dict.fromkeys(named))


def touched_by_vectors(parameters: VectorParameters) -> tuple[str, ...]:
    """The tensors that an edit of singular vectors may change: of a product the factor on each side turned."""
    named: list[str] = []
    for name in parameters.matrices:
        left, right = FACTORS.get(name, (name, name))
        named += [m for m, side in ((left, "left"), (right, "right")) if parameters.sides in (side, "both")]
        if parameters.biases != "keep":
            named += biases_of(name)
    return tuple(dict.fromkeys(named))
