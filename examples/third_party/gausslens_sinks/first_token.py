"""sinks.first-token: for each head, over queries i >= after of real text,

mass = mean of pattern[i, 0]        share = mean of [pattern[i, 0] >= pattern[i, j] for every j]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from gausslens import Batch, Context, InputError, Request
from gausslens.maths.moments import arrays_of, parted

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .parameters import FirstTokenParameters


class FirstToken:
    """Sums for each layer: queries counted, and by head their attention to the first token and how often it leads."""

    def __init__(self, parameters: FirstTokenParameters, context: Context) -> None:
        self.after = parameters.after
        self.heads = context.model.heads
        self.queries: dict[int, int] = {}
        self.sums: dict[int, np.ndarray] = {}

    def request(self) -> Request:
        return Request(sites=("pattern",))

    def update(self, batch: Batch) -> None:
        assert batch.layer is not None  # a pattern belongs to a layer
        pattern = batch["pattern"]  # [prompt, head, query, key], its first query row is batch.rows
        here = slice(batch.rows, batch.rows + pattern.shape[2])
        counted = batch.text[:, here].clone()
        counted[:, : max(0, self.after - batch.rows)] = False
        first = pattern[..., 0]
        found = (first.double(), (first >= pattern.amax(-1)).double())
        sums = np.stack([(each * counted[:, None]).sum((0, 2)).cpu().numpy() for each in found])
        self.sums[batch.layer] = self.sums.get(batch.layer, 0.0) + sums
        self.queries[batch.layer] = self.queries.get(batch.layer, 0) + int(counted.sum())

    def merge(self, other: FirstToken) -> None:
        for layer, sums in other.sums.items():
            self.sums[layer] = self.sums.get(layer, 0.0) + sums
            self.queries[layer] = self.queries.get(layer, 0) + other.queries[layer]

    def state(self) -> Mapping[str, np.ndarray]:
        return arrays_of({"queries": self.queries, "sums": self.sums})

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        parts = parted(state)
        self.queries = {int(layer): int(count) for layer, count in parts.get("queries", {}).items()}
        self.sums = {int(layer): sums for layer, sums in parts.get("sums", {}).items()}

    def result(self) -> xr.Dataset:
        layers = sorted(self.sums)
        if not any(self.queries.values()):
            raise InputError(f"no prompt has a token at position {self.after} or later: give longer prompts")
        values = np.stack([self.sums[layer] / self.queries[layer] for layer in layers], axis=1)
        words = {"mass": "mean attention on the first token", "share": "queries whose most attended token is the first"}
        return xr.Dataset(
            {
                name: (("layer", "head"), array, {"long_name": words[name], "units": "1"})
                for name, array in zip(words, values, strict=True)
            },
            coords={"layer": layers, "head": list(self.heads)},
        )
