"""Loader `builtin`: models that come with gausslens, small enough to try everything on in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from .config_and_tokenizer import BUILTIN, directory_of_builtin

if TYPE_CHECKING:
    from gausslens import ModelSpec

    from .pretrained import PretrainedModel


def claims(path: str) -> bool:
    """Everything that starts with ``builtin:``."""
    return path.startswith(BUILTIN)


def open_builtin(spec: ModelSpec) -> PretrainedModel:
    """Open a built-in model by name."""
    from .pretrained import PretrainedModel  # here: `claims` above is called by every check

    return PretrainedModel(replace(spec, path=str(directory_of_builtin(spec.path))), spec.path)
