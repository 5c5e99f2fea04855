"""What a run file may choose."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gausslens import Parameters

SiteName = Literal[
    "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out", "mlp_pre", "mlp_post", "q", "k", "v", "z"
]
SITE_WORDS = "The site whose vectors are read; those of all heads in view are one vector."


class TrainParameters(Parameters):
    """Parameters of sae.train."""

    site: SiteName = Field("resid_post", description=SITE_WORDS)
    features: int | None = Field(
        None, ge=1, description="How many features; not given: four times the width of the site."
    )
    k: int = Field(32, ge=1, description="How many features fire at once, at most.")
    decoder: Literal["trained", "frozen"] = Field(
        "trained", description="frozen: its rows stay random, which is the baseline; encoder and biases are trained."
    )
    learning_rate: float = Field(
        1e-3, gt=0, description="Of Adam, on vectors in units of their mean distance from their centre."
    )
    batch: int = Field(512, ge=1, description="Vectors in a step.")
    passes: int = Field(1, ge=1, description="How often the model runs over all prompts.")
    epochs: int = Field(1, ge=1, description="How often a full buffer is gone through, in a new order each time.")
    buffer: int = Field(65536, ge=1, description="Vectors that are shuffled together.")
    after: int = Field(
        1, ge=0, description="The first position that counts: vectors of the first token are often far from all others."
    )
    outliers: float | None = Field(
        10.0,
        gt=1,
        description="Vectors do not count that are further from the centre than so many times the median distance.",
    )
    dead_after: int = Field(16384, ge=1, description="A feature is silent that has not fired for so many vectors.")
    auxiliary: int = Field(256, ge=1, description="How many silent features are trained on what the others leave over.")
    auxiliary_weight: float = Field(1 / 32, ge=0, description="The weight of this in the loss; 0: silent ones stay so.")

    @model_validator(mode="after")
    def _fits(self) -> TrainParameters:
        if self.features is not None and self.k > self.features:
            raise ValueError(f"k is {self.k}, and there are {self.features} features: no more can fire at once")
        return self


class FeaturesParameters(Parameters):
    """Parameters of sae.features."""

    of: str = Field("sae.train", description="The label of the sae.train step whose autoencoder is measured.")
    site: SiteName = Field("resid_post", description=SITE_WORDS)
    top: int = Field(5, ge=1, description="How many tokens are kept for each feature: those at which it fires most.")
    context: int = Field(6, ge=0, description="How many tokens are shown on either side of these.")
    dense: float = Field(
        0.1, gt=0, lt=1, description="A feature is dense that fires at more than this share of tokens."
    )


class LossParameters(Parameters):
    """Parameters of sae.loss."""

    of: str = Field("sae.train", description="The label of the sae.train step whose autoencoder is put into the model.")
    removed: Literal["mean", "zero"] = Field(
        "mean", description="What stands at the site where it is removed: the mean of the training's vectors, or 0."
    )
