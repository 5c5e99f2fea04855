"""A plugin of tests whose weights analysis has layers apart, and does what it is asked to do on the way."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import xarray as xr
from pydantic import Field

from gausslens import Analysis, Edit, GausslensError, Parameters, hookimpl


class Does(Parameters):
    """What goes wrong."""

    does: Literal["", "layer", "made", "join", "odd", "draws", "spoils"] = Field("", description="What.")


class Norm:
    """Norms of each head's queries."""

    def __init__(self, parameters: Does, context: Any) -> None:
        self.does = parameters.does
        if self.does == "made":
            raise GausslensError("it cannot be made")

    def layer(self, weights: Any, layer: int) -> xr.Dataset:
        if self.does == "layer" and layer == 1:
            raise ValueError("a layer that it does not like")
        told: dict[str, Any] = {"units": "1", "long_name": "norm"}
        if self.does == "odd":
            told["of"] = np.float32(2)
        values = weights.W_Q.flatten(1).norm(dim=1).numpy()
        if self.does == "spoils" and layer == 1:
            weights._model.held()["1.W_Q"].mul_(2)
        return xr.Dataset({"norm": ("head", values + (np.random.random() if self.does == "draws" else 0.0), told)})

    def join(self, layers: Any) -> xr.Dataset:
        if self.does == "join":
            raise ValueError("it cannot be joined")
        made = xr.concat([layers[n] for n in sorted(layers)], dim="layer", combine_attrs="override")
        for variable in made.variables.values():
            variable.attrs.pop("of", None)
        return made


def double(weights: Any, parameters: Any, generators: Any) -> dict[str, Any]:
    return {"W_Q": weights.W_Q * 2}


@hookimpl
def analyses() -> list[Analysis]:
    return [
        Analysis(
            name="layered.norm",
            version=1,
            shape="weights",
            summary="Norms.",
            parameters="layered:Does",
            analysis="layered:Norm",
            by_layer=True,
        )
    ]


@hookimpl
def edits() -> list[Edit]:
    return [Edit(name="layered.double", version=1, summary="Twice.", edit="layered:double", touches=("W_Q",))]
