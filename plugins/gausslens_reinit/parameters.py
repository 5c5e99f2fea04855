"""The parameters of the edits and the analysis of this plugin, and which tensors an edit with them draws anew."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from gausslens import Parameters
from gausslens.maths.heads import BIAS_OF

Matrix = Literal["W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out", "W_conv", "W_conv_in", "W_conv_out"]
MATRICES: tuple[Matrix, ...] = (
    "W_Q",
    "W_K",
    "W_V",
    "W_O",
    "W_in",
    "W_gate",
    "W_out",
    "W_conv",
    "W_conv_in",
    "W_conv_out",
)
# Norms within a layer: before and after attention and MLP, and of queries and keys.
NORMS = tuple(f"{norm}.{part}" for norm in ("ln1", "ln1_post", "ln2", "ln2_post", "q_norm", "k_norm") for part in "wb")
# Outside the layers; heads of other tasks, which no run reads, are left alone.
OUTSIDE = (
    *("W_E", "W_pos", "W_token_type", "W_project_in", "W_project_out", "W_head", "W_U", "b_head", "b_U"),
    *(f"{norm}.{part}" for norm in ("ln_embed", "ln_head", "ln_final") for part in "wb"),
)
Claim = Literal["mean", "variance", "energy", "values", "spectrum"]


def _each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    twice = sorted({n for n in names if names.count(n) > 1})
    if twice:
        raise ValueError(f"{twice[0]} is named twice")
    return names


class ReinitParameters(Parameters):
    """Parameters of every edit of this plugin."""

    matrices: tuple[Matrix, ...] = Field(
        MATRICES,
        min_length=1,
        description="Which weight matrices of the layers; those that the model does not have are left out.",
    )
    biases: bool = Field(
        True,
        description="The bias of each matrix too: as the scheme has it, or zero where it says nothing of biases. A "
        "query bias that training left in place would keep its structure.",
    )
    series: int = Field(
        0,
        ge=0,
        description="Draws of another series are independent of these: a held-out twin, which is none of the draws of "
        "a null and can be compared with it.",
    )

    _matrices = field_validator("matrices")(_each_once)


class ConfigParameters(ReinitParameters):
    """Parameters of reinit.config."""

    norms: bool = Field(
        True,
        description="The gains and shifts of the layers' norms too: training sets them, initialisation is 1 and 0.",
    )
    embeddings: bool = Field(
        False,
        description="What is outside the layers too: embeddings, unembedding (tied ones stay tied) and final norm. The "
        "twin is then the model before training, of loss log V; without, fresh layers between trained embeddings.",
    )


class GaussianParameters(ReinitParameters):
    """Parameters of reinit.gaussian."""

    variance: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The variance of entries of mean 0; without it each tensor's own mean and variance, exactly.",
    )


class FanParameters(ReinitParameters):
    """Parameters of reinit.xavier and reinit.he."""

    distribution: Literal["normal", "uniform"] = Field("normal", description="The distribution of the entries.")
    gain: float = Field(1.0, gt=0, allow_inf_nan=False, description="The spread is multiplied by it.")


class BlockParameters(ReinitParameters):
    """Parameters of the edits that look at matrices as such."""

    by: Literal["head", "matrix"] = Field(
        "head",
        description="head: each head's own block (each key/value head's of W_K and W_V) is a matrix; matrix: all heads "
        "side by side are one. MLP matrices are always whole.",
    )


class ShapedParameters(ReinitParameters):
    """Parameters of the edits that give a matrix a shape."""

    by: Literal["head", "matrix"] = Field(
        "matrix",
        description="matrix: all heads side by side are one matrix, which gets the shape; head: each head's own block.",
    )


class IdentityParameters(ShapedParameters):
    """Parameters of reinit.identity."""

    value: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="The value on the diagonal, as 1 for the identity; without it what keeps the sum of squares.",
    )

    def canonical(self) -> dict[str, Any]:
        """As plain data; without a value as before there was one, for keys of then are keys of now."""
        plain = super().canonical()
        return {name: held for name, held in plain.items() if name != "value" or held is not None}


class BandParameters(ShapedParameters):
    """Parameters of reinit.band."""

    width: int = Field(ge=0, description="Entries up to so far from the diagonal are drawn; the others are 0.")


class SparseParameters(ShapedParameters):
    """Parameters of reinit.sparse."""

    density: float = Field(
        gt=0, le=1, description="The share of entries that are drawn, in random places; the others are 0."
    )


class RankParameters(ShapedParameters):
    """Parameters of reinit.low-rank."""

    rank: int = Field(ge=1, description="The rank of each matrix; where a side is shorter, that.")


class CascadeParameters(ReinitParameters):
    """Parameters of reinit.cascade."""

    scheme: Literal["config", "gaussian", "permute", "rotate"] = Field(
        "config", description="How the layers are drawn: as the edit reinit.<scheme> with its defaults does."
    )
    start: Literal["top", "bottom"] = Field(
        "top", description="From the last layer downwards, or from the first upwards."
    )
    depth: int = Field(ge=0, description="So many layers are drawn anew; sweep it from 0 to all of them.")


class CheckParameters(Parameters):
    """Parameters of reinit.check."""

    matrices: tuple[Matrix, ...] = Field(MATRICES, min_length=1, description="Which weight matrices to look at.")
    claims: tuple[Claim, ...] = Field(
        (),
        description="What the edits of the variants must have kept in every one of these matrices; if not, the step "
        "fails and says where. Without claims it only measures.",
    )

    _matrices = field_validator("matrices", "claims")(_each_once)


# What matrices of latent attention are products of: reinit.config draws these in their place.
FACTORS = (
    *("W_Q_down", "W_Q_up", "W_KV_down", "W_K_up", "W_V_up", "W_K_shared"),
    *("b_Q_down", "b_KV_down", "b_K_shared", "ln_Q.w", "ln_KV.w"),
)


def touched(parameters: ReinitParameters) -> tuple[str, ...]:
    """Every tensor that may be drawn anew: the matrices, their biases, and for reinit.config norms and embeddings."""
    biases = tuple(BIAS_OF[m] for m in parameters.matrices) if parameters.biases else ()
    norms = NORMS if _with_norms(parameters) else ()
    outside = OUTSIDE if isinstance(parameters, ConfigParameters) and parameters.embeddings else ()
    factors = FACTORS if isinstance(parameters, ConfigParameters) else ()
    return (*parameters.matrices, *biases, *norms, *outside, *factors)


def _whole(parameters: ReinitParameters) -> bool:
    """Whether every matrix and every bias is drawn anew: else twins share more with the model than the scheme keeps."""
    return set(parameters.matrices) == set(MATRICES) and parameters.biases


def config_keeps(parameters: ConfigParameters) -> str | None:
    """The rung of reinit.config: with embeddings the model before training; without norms only the matrices go."""
    if not _whole(parameters) or parameters.embeddings != parameters.norms:
        return None
    return "before" if parameters.embeddings else "gains"


def gaussian_keeps(parameters: GaussianParameters) -> str | None:
    """The rung of reinit.gaussian: the size of each tensor, unless a variance is given."""
    return "scale" if _whole(parameters) and parameters.variance is None else None


def permute_keeps(parameters: ReinitParameters) -> str | None:
    """The rung of reinit.permute: the entries."""
    return "entries" if _whole(parameters) else None


def rotate_keeps(parameters: ReinitParameters) -> str | None:
    """The rung of reinit.rotate: the singular values."""
    return "spectrum" if _whole(parameters) else None


def _with_norms(parameters: ReinitParameters) -> bool:
    if isinstance(parameters, CascadeParameters):
        return parameters.scheme == "config"
    return isinstance(parameters, ConfigParameters) and parameters.norms
