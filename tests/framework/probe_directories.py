"""A probe plugin: directories with a tiny.json as models, which count how often they are opened and held."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import torch

import gausslens
from gausslens.testing import TinyModel
from gausslens.testing.tiny_parameters import TinyParameters

OPENED: list[str] = []  # each path, as often as it was opened
HELD: list[set[str]] = []  # whose weights were in memory, at each reading of one


class OfDirectory(TinyModel):
    """A tiny model that a directory describes; it holds its weights from the first tensor to its close."""

    place = ""
    holding: ClassVar[set[str]] = set()

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        self.holding.add(self.place)
        HELD.append(set(self.holding))
        return super().tensor(layer, name)

    def close(self) -> None:
        self.holding.discard(self.place)
        self._held.clear()


def claims(path: str) -> bool:
    return (Path(path) / "tiny.json").is_file()


def open_directory(spec: Any) -> OfDirectory:
    OPENED.append(spec.path)
    told = json.loads((Path(spec.path) / "tiny.json").read_text(encoding="utf-8"))
    model = OfDirectory(TinyParameters(**told), spec.dtype or "float32")
    model.place = spec.path
    return model


LOADER = gausslens.Loader(
    name="probe-directory",
    version=1,
    summary="A directory with a tiny.json",
    claims="probe_directories:claims",
    open="probe_directories:open_directory",
)
ENGINE = gausslens.Engine(
    name="probe-directory",
    version=1,
    summary="Every site of it",
    engine="gausslens.testing.tiny_engine:TinyEngine",
    serves=("probe-directory",),
)


@gausslens.hookimpl
def loaders() -> list[gausslens.Loader]:
    return [LOADER]


@gausslens.hookimpl
def captures() -> list[gausslens.Engine]:
    return [ENGINE]
