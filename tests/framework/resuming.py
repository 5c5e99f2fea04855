"""A plugin for tests of passes that commit on the way: in order and merged, drawing from the global generators."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import torch
import xarray as xr
from pydantic import Field

import gausslens
from gausslens import Batch, Context, Parameters, Request

ATTRS = {"units": "1", "long_name": "of a probe"}


class Slow(Parameters):
    """Parameters of both."""

    seconds: float = Field(default=0.0, ge=0, description="How long an update takes.")
    give: str = Field(default="arrays", description="What state() gives, or what restore() does.")


def noise() -> float:
    return random.random() + float(np.random.standard_normal()) + float(torch.randn(()))


class Walk:
    """In order, two passes: a direction found by noisy steps."""

    def __init__(self, parameters: Slow, context: Context) -> None:
        self.parameters = parameters
        self.at: dict[int, torch.Tensor] = {}
        self.passes = 0

    def request(self) -> Request:
        return Request(("resid_pre",), passes=2, ordered=True)

    def update(self, batch: Batch) -> None:
        time.sleep(self.parameters.seconds)
        assert batch.layer is not None
        mean = batch["resid_pre"].double()[batch.text].mean(0)
        before = self.at.get(batch.layer, torch.zeros_like(mean))
        self.at[batch.layer] = before + 0.25 * (mean - before) + noise()

    def end_pass(self, index: int) -> None:
        self.passes = index + 1

    def state(self) -> dict[str, Any]:
        noise()  # what it draws here does not count
        if self.parameters.give == "objects":
            return {"at": np.array([self.at], dtype=object)}
        return {"passes": np.array(self.passes)} | {str(n): at.numpy() for n, at in self.at.items()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        noise()
        if self.parameters.give == "nothing":
            self.passes = 7
            raise ValueError("not today")
        self.passes = int(state["passes"])
        self.at = {int(n): torch.from_numpy(at) for n, at in state.items() if n != "passes"}

    def result(self) -> xr.Dataset:
        found = np.stack([self.at[n].numpy() for n in sorted(self.at)])
        return xr.Dataset({"at": (("layer", "d_model"), found, ATTRS), "passes": ((), self.passes, ATTRS)})


class Sums:
    """Merged, two passes: noisy sums about what the first pass found, in float32 so that the order of sums shows."""

    def __init__(self, parameters: Slow, context: Context) -> None:
        self.parameters = parameters
        self.fixed = np.zeros(0, np.float32)
        self.sums = np.zeros(0, np.float32)

    def request(self) -> Request:
        return Request(("resid_pre",), layers=(1,), passes=2)

    def update(self, batch: Batch) -> None:
        time.sleep(self.parameters.seconds)
        kept = batch.numpy("resid_pre")[batch.text.numpy()].sum(0)
        self._add(kept * np.float32(noise()) - (self.fixed if self.fixed.size else 0))

    def merge(self, other: Sums) -> None:
        if other.sums.size:
            self._add(other.sums)

    def _add(self, more: np.ndarray) -> None:
        self.sums = self.sums + more if self.sums.size else more.copy()

    def end_pass(self, index: int) -> None:
        self.fixed, self.sums = self.sums, np.zeros(0, np.float32)

    def state(self) -> dict[str, np.ndarray]:
        return {"fixed": self.fixed, "sums": self.sums}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.fixed, self.sums = state["fixed"], state["sums"]

    def result(self) -> xr.Dataset:
        return xr.Dataset({"sums": ("part", self.sums, ATTRS), "fixed": ("feature", self.fixed, ATTRS)})


def analysis(name: str, made: str) -> gausslens.Analysis:
    return gausslens.Analysis(
        name=name,
        version=1,
        shape="stream",
        summary="A probe that commits on the way",
        parameters="resuming:Slow",
        analysis=f"resuming:{made}",
    )


WALK, SUMS = analysis("resuming.walk", "Walk"), analysis("resuming.sums", "Sums")


@gausslens.hookimpl
def analyses() -> list[gausslens.Analysis]:
    return [WALK, SUMS]
