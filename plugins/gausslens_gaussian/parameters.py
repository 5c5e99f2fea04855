"""The parameters of the analyses of this plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gausslens import Parameters

# A Gaussian needs vectors: attention maps are none, and a covariance over a vocabulary fits in no memory.
_NOT_VECTORS = {"scores": "attention scores", "pattern": "attention patterns", "logits": "logits over a vocabulary"}


class MomentsParameters(Parameters):
    """Parameters of gaussian.moments."""

    site: str = Field(
        "resid_pre", min_length=1, description="Where to look: a site that holds vectors, as resid_pre, v or mlp_out."
    )
    tokens: Literal["text", "all"] = Field(
        "text", description="Which tokens count: text leaves out BOS and other special tokens; all is all but padding."
    )
    keep: int = Field(32, ge=1, le=4096, description="How many leading eigenvalues of the covariance to keep.")
    covariance: bool = Field(
        True, description="Keep the whole covariance where d is at most 1024; gaussian.compare needs it."
    )

    @field_validator("site")
    @classmethod
    def _holds_vectors(cls, site: str) -> str:
        if site in _NOT_VECTORS:
            raise ValueError(f"{site} holds {_NOT_VECTORS[site]}, not vectors; take a site as resid_pre, q, v or z")
        return site


class CompareParameters(Parameters):
    """Parameters of gaussian.compare."""

    of: str = Field(min_length=1, description="The label of a gaussian.moments step.")
    between: tuple[str, str] = Field(description="Two variants: p, then q. Draws of both are paired by number.")

    @field_validator("between")
    @classmethod
    def _two(cls, between: tuple[str, str]) -> tuple[str, str]:
        if between[0] == between[1]:
            raise ValueError(f"a variant is not compared with itself: {between[0]} is named twice")
        return between
