"""The parameters of the loader and of the prompt source, which are the same but for the path."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from gausslens import Parameters

Leading = Literal["prompt", "layer", "head"]
Length = Annotated[int, Field(ge=1)]


class MatricesParameters(Parameters):
    """Parameters of the loader matrices."""

    array: str | None = Field(
        None, description="What the maps are called in the file; else pattern, attention or attn, or its one array."
    )
    axes: list[Leading] | None = Field(
        None,
        max_length=3,
        description="What the axes before query and key are, in order; else the last of prompt, layer, head. Those "
        "that are missing are one long.",
    )
    causal: bool | None = Field(
        None, description="Whether tokens see only what is before them; else as the maps are above their diagonals."
    )
    lengths: Literal["whole", "found"] | list[Length] | None = Field(
        None,
        description="How many tokens of each map are real, the rest padding; whole: all of each; found: without "
        "rows at either end that are empty, uniform, alike or even, or empty columns. Else array lengths or mask of "
        "the file, and maps that look padded are refused.",
    )
    crossed: bool = Field(
        False,
        description="Keys are other tokens than queries, as in attention from a decoder to its encoder: maps of n "
        "queries and m keys, k and v of m rows, and every key seen.",
    )
    key_lengths: Literal["whole", "found"] | list[Length] | None = Field(
        None, description="How many keys of each map are real, where `crossed`; else the array key_lengths or key_mask."
    )
    sinks: bool = Field(False, description="Rows may sum to less than one, as beside a sink in the softmax.")
    tolerance: float | None = Field(
        None, gt=0, description="How far the sum of a row may be from one; else 1e-4, or four roundings of the dtype."
    )
    scale: float | None = Field(
        None, gt=0, description="What q . k was multiplied by; else one over the root of the width of a query."
    )

    @field_validator("axes")
    @classmethod
    def _distinct(cls, value: list[Leading] | None) -> list[Leading] | None:
        if value is not None and len(set(value)) < len(value):
            raise ValueError("an axis is named twice")
        return value

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if self.crossed and self.causal:
            raise ValueError("keys of another stack are all seen: causal goes with maps of tokens to each other")
        if self.key_lengths is not None and not self.crossed:
            raise ValueError("key_lengths goes with `crossed: true`; tokens that are queries and keys have lengths")
        return self


class MapsParameters(MatricesParameters):
    """Parameters of the source matrices."""

    path: str | None = Field(
        None,
        min_length=1,
        description="A .npy, .npz, .safetensors, .h5 or .hdf5 file, or a directory of them; else that of `model:`.",
    )

    def options(self) -> dict[str, Any]:
        """All but the path: what the loader is given."""
        return {name: value for name, value in self.canonical().items() if name != "path"}


def model_block(parameters: MapsParameters) -> dict[str, Any] | None:
    """The `model:` block that the source brings: what opens its path."""
    if parameters.path is None:
        return None
    return {"path": parameters.path, "loader": "matrices", **parameters.options()}
