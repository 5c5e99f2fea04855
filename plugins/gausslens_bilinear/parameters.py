"""The parameters of the analyses of this plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gausslens import Parameters

Matrix = Literal["W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"]


class SpectrumParameters(Parameters):
    """Parameters of bilinear.spectrum."""

    matrices: tuple[Matrix, ...] = Field(
        ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"),
        min_length=1,
        description="Which weight matrices; those that a layer does not have are left out.",
    )
    per_head: bool = Field(
        False, description="Also each head's own block of W_Q and W_O, each key/value head's of W_K and W_V."
    )

    @field_validator("matrices")
    @classmethod
    def _each_once(cls, matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        twice = sorted({m for m in matrices if matrices.count(m) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        return matrices


class DifferenceParameters(SpectrumParameters):
    """Parameters of bilinear.difference."""

    ranks: tuple[int, ...] = Field(
        (1, 2, 4, 8, 16),
        min_length=1,
        description="How many leading directions; numbers are NaN where matrix or difference has fewer.",
    )
    similar: float = Field(
        0.5,
        gt=0,
        le=1,
        description="A leading vector of the tuned matrix is an intruder if its largest cosine with any of the base's "
        "is under this.",
    )

    @field_validator("ranks")
    @classmethod
    def _positive_once(cls, ranks: tuple[int, ...]) -> tuple[int, ...]:
        wrong = [k for k in ranks if k < 1 or ranks.count(k) > 1]
        if wrong:
            raise ValueError(f"ranks are 1 or more and each is named once: {wrong[0]}")
        return ranks


class AlignmentParameters(Parameters):
    """Parameters of bilinear.alignment."""

    gains: bool = Field(
        True,
        description="Circuits as scores see them: with the gains of the norms before them and of q and k, at lags, "
        "with biases. false: of the weights as they are; these stand beside them (`_raw`) in any case.",
    )
    lags: tuple[int, ...] = Field(
        (0, 1, 2, 4, 8, 16, 32, 64),
        min_length=1,
        description="How far the key is before the query in the circuits at a lag, which position makes.",
    )
    composition: bool = Field(
        True,
        description="Compose each head with every head of earlier layers; the factors of all layers are then held.",
    )

    @field_validator("lags")
    @classmethod
    def _once(cls, lags: tuple[int, ...]) -> tuple[int, ...]:
        wrong = [lag for lag in lags if lag < 0 or lags.count(lag) > 1]
        if wrong:
            raise ValueError(f"lags are not negative and each is named once: {wrong[0]}")
        return lags


class LogitsParameters(Parameters):
    """Parameters of bilinear.logits."""

    lags: tuple[int, ...] = Field(
        (1, 2, 4, 8, 16),
        description="How far the key is before the query; each token with itself (0) is always looked at too.",
    )
    holdout: float = Field(
        0.5, gt=0, lt=1, description="The share of the prompts to measure on; predictions are fitted on the others."
    )
    tokens: Literal["text", "all-text", "all"] = Field(
        "text",
        description="Which tokens count. text: real text beyond the first position, which attention sinks into; "
        "all-text: the first position too; all: BOS and other special tokens too.",
    )
    sample: int = Field(
        512, ge=2, le=8192, description="How many held-out tokens to pair across prompts, for independent pairs."
    )

    @field_validator("lags")
    @classmethod
    def _positive_and_once(cls, lags: tuple[int, ...]) -> tuple[int, ...]:
        wrong = [lag for lag in lags if lag < 1 or lags.count(lag) > 1]
        if wrong:
            raise ValueError(f"lags are positive and each is named once: {wrong[0]}")
        return lags


class EnergyParameters(Parameters):
    """bilinear.energy has none: each prompt is run once, and every head is moved by what it writes."""


class HeadRolesParameters(Parameters):
    """Parameters of bilinear.head-roles."""

    positions: int = Field(
        48, ge=2, le=1024, description="Over how many first positions to ask what of attention is position alone."
    )


class AnglesParameters(Parameters):
    """Parameters of bilinear.angles."""

    between: Literal["stream", "embeddings"] = Field(
        "stream", description="Angles between what each layer reads, or between the embeddings at the bottom."
    )
    maps: int = Field(
        1, ge=0, le=16, description="Of how many first prompts to keep the map of cosines and that of attention."
    )


class NoiseParameters(Parameters):
    """Parameters of bilinear.noise."""

    sizes: tuple[tuple[int, int], ...] = Field(
        (), description="Rows and columns of the matrices to draw, as [[1024, 1024]]; none: those of the model's own."
    )
    samples: int = Field(8, ge=2, le=1000, description="How many matrices of each size to draw.")

    @field_validator("sizes")
    @classmethod
    def _positive(cls, sizes: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        wrong = [size for size in sizes if min(size) < 2 or sizes.count(size) > 1]
        if wrong:
            raise ValueError(f"a size has two rows and columns at least and is named once: {list(wrong[0])}")
        return sizes


class SlerpParameters(Parameters):
    """Parameters of bilinear.slerp."""

    sizes: tuple[int, ...] = Field(
        (4, 10, 100, 1000), description="The dimensions of the random vectors, beside pairs of the model's embeddings."
    )
    lengths: tuple[float, ...] = Field((1.0, 5.0), min_length=1, description="The lengths that the vectors are given.")
    pairs: int = Field(200, ge=2, le=10000, description="How many pairs of each dimension.")
    points: int = Field(21, ge=5, le=1001, description="Places on the arc, its ends included.")

    @field_validator("sizes", "lengths")
    @classmethod
    def _once(cls, values: tuple[float, ...]) -> tuple[float, ...]:
        twice = [v for v in values if values.count(v) > 1]
        if twice:
            raise ValueError(f"{twice[0]:g} is named twice")
        return values

    @field_validator("sizes")
    @classmethod
    def _wide(cls, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if any(n < 2 for n in sizes):
            raise ValueError(f"an arc has two dimensions at least, not {min(sizes)}")
        return sizes

    @field_validator("lengths")
    @classmethod
    def _positive(cls, lengths: tuple[float, ...]) -> tuple[float, ...]:
        if any(not length > 0 for length in lengths):
            raise ValueError(f"a length is positive, not {min(lengths):g}")
        return lengths
