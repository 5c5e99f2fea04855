"""Loader `builtin`: models that come with gausslens, small enough to try everything on in seconds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gausslens import InputError

if TYPE_CHECKING:
    from gausslens import ModelSpec

    from .pretrained import PretrainedModel

PREFIX = "builtin:"
DIRECTORY = Path(__file__).parents[1] / "builtin"
# One row for each built-in model: its data is builtin/<name>/.
MODELS = {
    "clue-tiny": "four layers of Mistral type, eight heads over two key/value heads; defines words, from examples",
    "tiny": "three layers of Mistral type, four heads over two key/value heads, bytes as tokens; has induction heads",
}


def claims(path: str) -> bool:
    """Everything that starts with ``builtin:``."""
    return path.startswith(PREFIX)


def open_builtin(spec: ModelSpec) -> PretrainedModel:
    """Open a built-in model by name."""
    from .pretrained import PretrainedModel  # here: `claims` above is called by every check

    return PretrainedModel(replace(spec, path=str(directory_of(spec.path))), spec.path)


def directory_of(path: str) -> Path:
    """Where the files of a built-in model are."""
    name = path.removeprefix(PREFIX)
    if name not in MODELS:
        raise InputError(f"{path}: no such built-in model; there are {', '.join(PREFIX + m for m in MODELS)}")
    return DIRECTORY / name
