"""The parameters of the analyses of this plugin."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gausslens import HEAD_AXIS, KV_HEAD_AXIS, Parameters

# Up to this width whole covariances are stored; beyond it, the diagonal and the leading directions.
WHOLE = 1024
# A Gaussian needs vectors: attention maps are none, and a covariance over a vocabulary fits in no memory.
_NOT_VECTORS = {"scores": "attention scores", "pattern": "attention patterns", "logits": "logits over a vocabulary"}


def _vectors(site: str) -> str:
    if site in _NOT_VECTORS:
        raise ValueError(f"{site} holds {_NOT_VECTORS[site]}, not vectors; take a site as resid_pre, q, v or z")
    return site


class MomentsParameters(Parameters):
    """Parameters of gaussian.moments."""

    site: str = Field(
        "resid_pre", min_length=1, description="Where to look: a site that holds vectors, as resid_pre, v or mlp_out."
    )
    tokens: Literal["text", "all-text", "all"] = Field(
        "text",
        description="Which tokens count. text: real text beyond the first position, which is BOS or, where the "
        "tokenizer writes none, the token that attention sinks into; all-text: the first position too; all: BOS and "
        "other special tokens too. Padding never counts. The lengths of those left out are told apart.",
    )
    keep: int = Field(32, ge=1, le=4096, description="How many leading eigenvalues of the covariance to keep.")
    covariance: bool = Field(
        True,
        description="Keep the whole covariance where d is at most 1024; gaussian.compare needs it. Beyond, the leading "
        "directions are kept.",
    )
    principal: int = Field(
        0,
        ge=0,
        le=256,
        description="Along how many leading principal directions to measure skewness and kurtosis, beside the 64 fixed "
        "random ones; takes a second pass.",
    )
    robust: bool = Field(
        False,
        description="A covariance of the bulk beside the plain one: without the vectors that lie far from the median; "
        "takes a second pass.",
    )
    sketch: int | None = Field(
        None,
        ge=8,
        le=4096,
        description="Hold a sketch of this width in place of the whole covariance, for sites too wide for memory: "
        "leading directions and a diagonal, with a bound on the error. Take at least twice `keep`.",
    )

    _site = field_validator("site")(_vectors)

    @model_validator(mode="after")
    def _sketch_fits(self) -> MomentsParameters:
        if self.sketch is None:
            return self
        if self.site in HEAD_AXIS or self.site in KV_HEAD_AXIS:
            raise ValueError(f"sketch is for wide sites; {self.site} is split into heads, whose covariances are small")
        if self.sketch < self.keep or self.sketch < self.principal:
            raise ValueError(f"a sketch of width {self.sketch} cannot give {max(self.keep, self.principal)} directions")
        return self


class CompareParameters(Parameters):
    """Parameters of gaussian.compare."""

    of: str = Field(min_length=1, description="The label of a gaussian.moments step.")
    between: tuple[str, str] = Field(description="Two variants: p, then q. Draws of both are paired by number.")
    angles: int = Field(
        8, ge=1, le=1024, description="Principal angles between the subspaces of so many leading directions."
    )
    draws: int = Field(2000, ge=2, description="Monte Carlo draws of each side for the Jensen-Shannon divergence.")
    equals: int = Field(
        4,
        ge=0,
        le=256,
        description="How many pairs of equal Gaussians are drawn, of as many vectors, to show what distances so few "
        "give where nothing differs (`*_of_equals`); fewer above 128 dimensions, 0 leaves them out.",
    )
    fit: Literal["plain", "robust"] = Field(
        "plain", description="Which Gaussian: of all vectors, or of the bulk (gaussian.moments with `robust: true`)."
    )

    @field_validator("between")
    @classmethod
    def _two(cls, between: tuple[str, str]) -> tuple[str, str]:
        if between[0] == between[1]:
            raise ValueError(f"a variant is not compared with itself: {between[0]} is named twice")
        return between


class BetweenLayersParameters(Parameters):
    """Parameters of gaussian.between-layers."""

    of: str = Field(min_length=1, description="The label of a gaussian.moments step.")
    to: str | None = Field(
        None,
        min_length=1,
        description="The label of another, of the same width: its Gaussian of each layer is compared with that of the "
        "same layer (two sites). Without it, each layer is compared with other layers of the same step.",
    )
    pairs: Literal["next", "all"] = Field(
        "next", description="Without `to`: each layer with the next, or every pair of layers."
    )
    angles: int = Field(
        8, ge=1, le=1024, description="Principal angles between the subspaces of so many leading directions."
    )
    draws: int = Field(2000, ge=2, description="Monte Carlo draws of each side for the Jensen-Shannon divergence.")
    equals: int = Field(
        4,
        ge=0,
        le=256,
        description="How many pairs of equal Gaussians are drawn, of as many vectors, to show what distances so few "
        "give where nothing differs (`*_of_equals`); fewer above 128 dimensions, 0 leaves them out.",
    )
    fit: Literal["plain", "robust"] = Field(
        "plain", description="Which Gaussian: of all vectors, or of the bulk (gaussian.moments with `robust: true`)."
    )


class JointParameters(Parameters):
    """Parameters of gaussian.joint."""

    site: str = Field("resid_pre", min_length=1, description="Where to look: a site that holds vectors.")
    window: int = Field(8, ge=2, le=64, description="How many positions are modelled jointly.")
    start: int = Field(
        1,
        ge=0,
        description="The first position of the window; 0 is BOS or the first token, which attention sinks into.",
    )
    every: int | None = Field(
        None,
        ge=1,
        description="Take further windows of a prompt, this many positions apart. Windows of one prompt are not "
        "independent, which intervals and p take them to be; by default each prompt gives one.",
    )
    reduce: Literal["pca", "random", "none"] = Field(
        "random",
        description="How vectors are reduced to `dims` numbers. random: by a random projection that is the same for "
        "all variants, draws and layers, so that they are compared in one frame; pca: by the leading principal "
        "directions of the window's tokens (a second pass), which see the most of one variant and are its own, so that "
        "nothing is compared with a null; none: not at all.",
    )
    dims: int = Field(8, ge=1, le=512, description="Dimensions of each position after reduction.")
    permutations: int = Field(
        99, ge=0, le=9999, description="Permutations of the prompts for p of each mutual information; 0 makes none."
    )
    bigrams: int = Field(
        16,
        ge=0,
        le=1000,
        description="For how many of the most frequent tokens to describe the embeddings of the tokens that follow "
        "them, as a weighted set of vectors; 0 leaves it out.",
    )

    determinants: bool = Field(
        False,
        description="Also the log of the absolute determinant of the covariance between two positions, which Wertich "
        "(2024), 4.2, takes for what their information follows, and the rank correlation of both over all pairs.",
    )

    followers: int = Field(
        0,
        ge=0,
        le=1000,
        description="Also how much of what follows a token its so many most frequent followers hold: as counted, "
        "smoothed, and of followers that were not counted; and the angles between what follows. 0 leaves it out.",
    )

    _site = field_validator("site")(_vectors)

    @model_validator(mode="after")
    def _of_bigrams(self) -> Self:
        if self.followers and not self.bigrams:
            raise ValueError("followers are told of bigrams: let `bigrams` be 1 or more")
        return self

    def canonical(self) -> dict[str, Any]:
        """What enters a key: where no determinants and followers are asked for, what it was before they could be."""
        left = {name for name in ("determinants", "followers") if not getattr(self, name)}
        return {name: one for name, one in super().canonical().items() if name not in left}


class PropagateParameters(Parameters):
    """Parameters of gaussian.propagate."""

    window: int = Field(
        8, ge=2, le=64, description="How many positions from the start of each prompt; shorter prompts are left out."
    )
    dims: int = Field(
        8,
        ge=1,
        le=256,
        description="Dimensions of each head's values after a fixed random projection, which commutes with attention: "
        "for entropies and information, which few prompts cannot give in more. Errors of mean and covariance are over "
        "all dimensions.",
    )


class CollapseParameters(Parameters):
    """Parameters of gaussian.collapse."""

    positions: int = Field(
        8, ge=2, le=64, description="Between how many positions to compare the distributions over prompts."
    )
    dims: int = Field(
        8, ge=1, le=64, description="Dimensions in which they are compared, after a fixed random projection."
    )
