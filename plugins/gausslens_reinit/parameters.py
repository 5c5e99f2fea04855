"""The parameters of the edits of this plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from gausslens import Parameters

Matrix = Literal["W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out"]
MATRICES: tuple[Matrix, ...] = ("W_Q", "W_K", "W_V", "W_O", "W_in", "W_gate", "W_out")


class ReinitParameters(Parameters):
    """Parameters of every edit of this plugin."""

    matrices: tuple[Matrix, ...] = Field(
        MATRICES,
        min_length=1,
        description="Which weight matrices of the layers; those that the model does not have are left out.",
    )
    biases: bool = Field(
        True,
        description="The bias of each matrix too. A query bias that training left in place would keep its structure.",
    )

    @field_validator("matrices")
    @classmethod
    def _each_once(cls, matrices: tuple[Matrix, ...]) -> tuple[Matrix, ...]:
        twice = sorted({m for m in matrices if matrices.count(m) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        return matrices


class ConfigParameters(ReinitParameters):
    """Parameters of reinit.config."""

    norms: bool = Field(
        True,
        description="The gains and shifts of the layers' norms too: training sets them, initialisation is 1 and 0.",
    )
