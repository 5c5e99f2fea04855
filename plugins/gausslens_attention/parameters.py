"""The parameters of the analyses of this plugin."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from gausslens import Parameters

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]

LowRankKind = Literal["svd", "svd+sparse", "sketch", "linformer", "linformer-fitted"]
MaskKind = Literal["window", "dilated", "longformer", "bigbird", "top-k"]
Kernel = Literal["elu", "taylor-1", "taylor-2", "performer", "least-squares"]
Scoring = Literal["dot", "multiplicative", "additive"]

_TOLERANCE = "The error of a head's output, |(P - X) V| / |P V|, within which a budget is called enough."
_DRAWS = "How often what is drawn at random is drawn, for each head by itself: means over draws, and their spread."


class BandParameters(Parameters):
    """Parameters of attention.band."""

    w: list[Count] = Field(
        [0, 1, 2, 4, 8, 16], min_length=1, description="Widths of the band |query - key| <= w; 0 is the diagonal."
    )
    budget: list[Count] = Field(
        [0, 16], min_length=1, description="Sparse errors outside the band: the largest cells there, copied."
    )
    per: Literal["map", "row"] = Field(
        "map", description="Whether a budget is of a whole map, or of each of its rows on average."
    )
    epsilon: float | None = Field(None, gt=0, description="The largest size of a sparse error; default: any.")
    stochastic: bool = Field(
        False,
        description="Let the rows of the approximation sum to one, as those of attention do: kept cells, rescaled.",
    )
    tolerance: float = Field(0.1, gt=0, description=_TOLERANCE)

    _distinct = field_validator("w", "budget")(lambda values: _distinct(values))


class LowRankParameters(Parameters):
    """Parameters of attention.lowrank."""

    rank: list[Positive] = Field(
        [1, 2, 4, 8, 16, 32], min_length=1, description="Ranks, or rows of the projections; those beyond n count as n."
    )
    kinds: list[LowRankKind] = Field(
        ["svd", "svd+sparse", "sketch", "linformer", "linformer-fitted"],
        min_length=1,
        description="svd: truncated, the oracle; svd+sparse: half the storage in largest cells; sketch: P R'R; "
        "linformer: keys and values projected at random, or fitted to the map. Linformer is not causal.",
    )
    draws: Positive = Field(4, description=_DRAWS)
    tolerance: float = Field(0.1, gt=0, description=_TOLERANCE)

    _different = field_validator("rank", "kinds")(lambda values: _distinct(values))


class MaskParameters(Parameters):
    """Parameters of attention.masks."""

    keys: list[Positive] = Field(
        [4, 8, 16, 32], min_length=1, description="How many keys a row may look at, globals and random ones included."
    )
    kinds: list[MaskKind] = Field(
        ["window", "dilated", "longformer", "bigbird", "top-k"],
        min_length=1,
        description="Which masks before the softmax; top-k keeps the largest cells of each row, the oracle.",
    )
    globals: int = Field(1, ge=0, description="Global tokens of longformer and bigbird: the first of a prompt.")
    dilation: int = Field(2, ge=1, description="The step of the dilated window.")
    draws: Positive = Field(4, description=_DRAWS)
    tolerance: float = Field(0.1, gt=0, description=_TOLERANCE)

    _different = field_validator("keys", "kinds")(lambda values: _distinct(values))

    @model_validator(mode="after")
    def _room(self) -> MaskParameters:
        if {"longformer", "bigbird"} & set(self.kinds) and self.globals >= min(self.keys):
            raise ValueError(f"{self.globals} global tokens leave {min(self.keys)} keys no window: give more keys")
        return self


class KernelParameters(Parameters):
    """Parameters of attention.kernels."""

    kernels: list[Kernel] = Field(
        ["elu", "taylor-1", "taylor-2", "performer", "least-squares"], min_length=1, description="Which feature maps."
    )
    features: list[Positive] = Field(
        [16, 64, 256], min_length=1, description="Numbers of random features of performer; the others have their own."
    )
    alpha: float = Field(1.0, gt=0, description="The ridge of least-squares attention, Q [K'K + alpha I]^-1 K'V.")
    draws: Positive = Field(4, description=_DRAWS)
    tolerance: float = Field(0.1, gt=0, description=_TOLERANCE)

    _different = field_validator("kernels", "features")(lambda values: _distinct(values))


class PoolingParameters(Parameters):
    """Parameters of attention.pooling."""

    functions: list[Scoring] = Field(
        ["dot", "multiplicative", "additive"],
        min_length=1,
        description="dot: a <q, k> + c; multiplicative: q'W k + c; additive: u'tanh(W q + V k + b) + c.",
    )
    directions: Positive = Field(
        8, description="Leading directions of q and of k that multiplicative and additive see; dot sees all."
    )
    hidden: Positive = Field(8, description="Hidden units of the additive function.")
    steps: Positive = Field(60, description="Iterations of the additive fit.")

    _different = field_validator("functions")(lambda values: _distinct(values))


class RolesParameters(Parameters):
    """Parameters of attention.roles."""

    scalars: float = Field(
        1.25,
        ge=1,
        le=8,
        description="Stored scalars for each token that a member of a family may take: values, offsets, columns, mask.",
    )
    least: float = Field(
        0.5, ge=0, le=1, description="A head whose best family holds less than this share of the attention has no role."
    )
    tie: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Where a simpler family holds as much of the attention but for this share, the head is of that: a "
        "diagonal before a band, a band before rare tokens.",
    )
    directions: int = Field(16, ge=1, le=256, description="How many leading singular values of the map to keep.")
    parts: int = Field(
        0,
        ge=0,
        le=256,
        description="Points of the cumulative spectrum of all singular values, from none of them to all; 0: no curve.",
    )

    def canonical(self) -> dict[str, Any]:
        """As plain data; without the curve where none is asked for, for keys of then are keys of now."""
        return {name: held for name, held in super().canonical().items() if (name, held) != ("parts", 0)}


class MembersParameters(Parameters):
    """Parameters of attention.members."""

    w: list[Count] = Field([3, 10], min_length=1, description="Widths of the band, and rows of a drawn window.")
    windows: list[Positive] = Field([1, 2], min_length=1, description="Windows of the rare-token set.")
    draws: Count = Field(
        30, description="Matrices of each set that are drawn at each place of the grid; 0: none, the exact alone."
    )
    steps: Annotated[int, Field(ge=2)] = Field(
        4, description="Steps of the grid of coefficients, cubed; 11 is what the source took."
    )
    repeats: Annotated[int, Field(ge=2)] = Field(3, description="Random searches, for their spread.")
    holds: float = Field(
        0.8,
        gt=0,
        lt=1,
        description="The share of the attention that a member must hold for its width, or its windows, to be enough.",
    )
    published: dict[str, list[float]] = Field(
        {},
        description="Published distances to show beside, by head: {'3, 2': [17.229, ...]} for w 3 and two windows. Of "
        "the maps that they were published of: one prompt, one layer.",
    )

    _different = field_validator("w", "windows")(lambda values: _distinct(values))

    @model_validator(mode="after")
    def _in_the_grid(self) -> MembersParameters:
        grid = [f"{w}, {count}" for w in self.w for count in self.windows]
        other = [name for name in self.published if name not in grid]
        if other:
            raise ValueError(f"published has {other[0]!r}, which is none of the grid: {'; '.join(grid)}")
        return self


class SwapParameters(Parameters):
    """Parameters of attention.swap."""

    band: list[Count] = Field([0, 4, 16], description="Widths of a band, kept with the budget of errors beside.")
    budget: list[Count] = Field([0, 1], description="Sparse errors for each row of a band, on average.")
    masks: list[MaskKind] = Field(["window", "longformer", "top-k"], description="Masks before the softmax.")
    keys: list[Positive] = Field([8, 32], description="Keys of each row of a mask.")
    globals: int = Field(1, ge=0, description="Global tokens of longformer and bigbird.")
    dilation: int = Field(2, ge=1, description="The step of the dilated window.")
    rank: list[Positive] = Field([4, 16], description="Ranks of the map's own truncated decomposition.")
    kernels: list[Kernel] = Field(
        [], description="Kernels; with all heads at once each takes a pass for every layer, since it needs q and k."
    )
    features: list[Positive] = Field([64], description="Numbers of random features of performer.")
    alpha: float = Field(1.0, gt=0, description="The ridge of least-squares attention.")
    which: list[Literal["all", "each"]] = Field(
        ["all"], min_length=1, description="all: every head in view at once; each: one head at a time."
    )
    tolerance: float = Field(
        0.01,
        gt=0,
        description="How much the loss may change, up or down, relative to the model's own, for a budget to be called "
        "enough: with its 95 % interval over prompts.",
    )
    kl_tolerance: float | None = Field(
        None,
        gt=0,
        description="How far next-token distributions may go from the model's own besides, in nats, mean over tokens, "
        "with its interval; default: the tolerance times the model's own loss, where it has one.",
    )
    draws: Positive = Field(4, description=_DRAWS)

    _different = field_validator("band", "budget", "masks", "keys", "rank", "kernels", "features", "which")(
        lambda values: _distinct(values)
    )

    @model_validator(mode="after")
    def _something(self) -> SwapParameters:
        if not ((self.band and self.budget) or (self.masks and self.keys) or self.rank or self.kernels):
            raise ValueError("nothing is swapped in: give band and budget, masks and keys, rank or kernels")
        for given, name, needed, values in (
            (self.band, "band", "budget", self.budget),
            (self.masks, "masks", "keys", self.keys),
            ("performer" in self.kernels, "performer", "features", self.features),
        ):
            if given and not values:
                raise ValueError(f"{name} without {needed} is nothing: give {needed}, or leave {name} out with []")
        if self.keys and {"longformer", "bigbird"} & set(self.masks) and self.globals >= min(self.keys):
            raise ValueError(f"{self.globals} global tokens leave {min(self.keys)} keys no window: give more keys")
        return self


def _distinct(values: list[object]) -> list[object]:
    twice = [v for i, v in enumerate(values) if v in values[:i]]
    if twice:
        raise ValueError(f"{twice[0]} is named twice")
    return values
