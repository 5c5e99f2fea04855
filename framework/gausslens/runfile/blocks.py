"""The keys of a run file that are the host's own; the others are those of plugins' parameters.

These models hold no unions: pydantic would put their names into the places of errors.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from .wording import name_pattern

FORMAT = 1
WHOLE_RUN = "all"  # the variant under which results of the whole run are kept: no variant may be called so
MOST_DRAWS = 10_000

NAME_WORDS = "a name of 1 to 100 letters, digits, '-' and '_'"
NAME = name_pattern(r"^[A-Za-z0-9_-]{1,100}$", NAME_WORDS)
LABEL = name_pattern(
    r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,99}$", "a label of 1 to 100 letters, digits, '-', '_' and '.', not first"
)
DEVICE = name_pattern(r"^(cpu|cuda|mps|xpu)(:[0-9]+)?$", "cpu, cuda, cuda:1, mps or xpu")

Dtype = Literal["float32", "float64", "float16", "bfloat16"]
Index = Annotated[int, Field(ge=0)]

LAYERS = "Only these layers; all where it is left out."
HEADS = "Only these heads; all where it is left out."


class Block(BaseModel):
    """A table of the host: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class RunBlock(Block):
    """A whole run file."""

    gausslens: int = Field(description="The format of this file: 1.")
    name: str | None = Field(
        None, pattern=NAME, description="What the run is called in the store; else as the file is called."
    )
    seed: int = Field(0, ge=0, description="All randomness of the run comes from it.")
    model: dict[str, Any] = Field(description="The model: its path, and how to open it.")
    prompts: dict[str, Any] | None = Field(None, description="What the model reads: a source and its parameters.")
    variants: dict[str, Any] = Field(
        {"trained": []}, min_length=1, description="The model and its edited twins, by name: each a list of edits."
    )
    analyses: list[Any] = Field(min_length=1, description="What to compute.")
    against: Any = Field(
        None, description="The variant, or variants, of several draws that the others are compared with."
    )
    report: bool = Field(True, description="Write the report page after the run.")

    @field_validator("gausslens")
    @classmethod
    def _is_known(cls, value: int) -> int:
        if value > FORMAT:
            raise ValueError(
                f"this file is of format {value}, and this gausslens reads format {FORMAT}: update gausslens"
            )
        if value < FORMAT:
            raise ValueError(f"there is no format {value}: write {FORMAT}")
        return value


class ModelBlock(Block):
    """The host's keys of `model:`."""

    path: str = Field(min_length=1, description="A directory, or builtin:NAME, or hub:OWNER/NAME@REVISION.")
    loader: str = Field("auto", description="What opens it; auto takes the first that claims the path.")
    dtype: Dtype | None = Field(None, description="What to compute in; else the checkpoint's own.")
    device: str = Field("cpu", pattern=DEVICE, description="Where to compute.")


class PromptsBlock(Block):
    """The host's keys of `prompts:`."""

    source: str = Field(description="Where the prompts come from.")


class VariantBlock(Block):
    """A variant with draws."""

    edits: list[Any] = Field([], description="What is changed, in order.")
    draws: int | None = Field(None, ge=1, le=MOST_DRAWS, description="How many random twins there are.")


class EditBlock(Block):
    """The host's keys of an edit."""

    edit: str = Field(description="What is done to the weights.")
    layers: list[Index] | None = Field(None, min_length=1, description=LAYERS)
    heads: list[Index] | None = Field(None, min_length=1, description=HEADS)
    sweep: dict[str, list[Any]] = Field(
        {}, description="Parameters with the values that they take in turn; each becomes a dimension of the results."
    )


class AnalysisBlock(Block):
    """One entry of `analyses:`."""

    use: str = Field(description="Which analysis.")
    label: str | None = Field(
        None, alias="as", pattern=LABEL, description="What its results are called; else as the analysis is."
    )
    parameters: dict[str, Any] = Field({}, alias="with", description="Its parameters.")
    layers: list[Index] | None = Field(None, min_length=1, description=LAYERS)
    heads: list[Index] | None = Field(None, min_length=1, description=HEADS)
    variants: list[str] | None = Field(None, min_length=1, description="Only on these variants; else on all.")
    prompts: dict[str, Any] | None = Field(None, description="Its own prompts, in place of those of the run.")

    @field_validator("label")
    @classmethod
    def _is_no_comparison(cls, value: str | None) -> str | None:
        if value is not None and ".against." in value:
            raise ValueError("'.against.' is kept for the labels of comparisons with a null")
        return value


def is_name(text: str) -> bool:
    """Whether a text can name a run or a variant."""
    return re.fullmatch(NAME, text) is not None and not text.endswith("\n")


def keys(block: type[Block]) -> tuple[str, ...]:
    """The keys of a block as they are written."""
    return tuple(info.alias or name for name, info in block.model_fields.items())
