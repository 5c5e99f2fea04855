"""The plugin ``tiny``: the tiny model as a loader with its engine, for hosts of tests."""

from __future__ import annotations

from ..contract.descriptors import Engine, Loader
from ..contract.hooks import hookimpl

TINY = Loader(
    name="tiny",
    version=1,
    summary="A tiny transformer that is made, not loaded: path builtin:testing",
    parameters="gausslens.testing.tiny_parameters:TinyParameters",
    claims="gausslens.testing.tiny_model:claims",
    open="gausslens.testing.tiny_model:open_tiny",
    rank=1000,  # it claims one path, which other loaders of builtin: models may claim with the rest
)
TINY_ENGINE = Engine(
    name="tiny",
    version=1,
    summary="Every site of the tiny model",
    engine="gausslens.testing.tiny_engine:TinyEngine",
    serves=("tiny",),
)


@hookimpl
def loaders() -> list[Loader]:
    """The tiny model."""
    return [TINY]


@hookimpl
def captures() -> list[Engine]:
    """Its engine."""
    return [TINY_ENGINE]
