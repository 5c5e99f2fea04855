"""The wiring: hook implementations and nothing else."""

from __future__ import annotations

from gausslens import Edit, hookimpl

CONFIG = Edit(
    name="reinit.config",
    version=1,
    summary="Draw weights anew from the model's own initialisation, as its class and config have it.",
    parameters="gausslens_reinit.parameters:ConfigParameters",
    edit="gausslens_reinit.edits:from_config",
    touches="gausslens_reinit.tensors:touched",
    random=True,
)
GAUSSIAN = Edit(
    name="reinit.gaussian",
    version=1,
    summary="Replace each tensor by Gaussian noise of exactly its mean and variance.",
    parameters="gausslens_reinit.parameters:ReinitParameters",
    edit="gausslens_reinit.edits:gaussian",
    touches="gausslens_reinit.tensors:touched",
    random=True,
)
PERMUTE = Edit(
    name="reinit.permute",
    version=1,
    summary="Shuffle the entries of each tensor: the values stay, their places do not.",
    parameters="gausslens_reinit.parameters:ReinitParameters",
    edit="gausslens_reinit.edits:permute",
    touches="gausslens_reinit.tensors:touched",
    random=True,
)


@hookimpl
def edits() -> list[Edit]:
    """The nulls."""
    return [CONFIG, GAUSSIAN, PERMUTE]
