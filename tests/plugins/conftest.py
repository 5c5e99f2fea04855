"""Tiny models of every family for the tests of edits: those that the tests of the model plugin are made with.

A test that asks for ``family`` runs once for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import random_models
from tiny_decoders import VOCABULARY

from gausslens import Edit, ModelSpec, Prompt, Tokens, Twin
from gausslens.contract.descriptors import Owned, Owner
from gausslens.contract.errors import Mark
from gausslens.contract.reference import resolve
from gausslens.contract.twin import EditCall
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters
from gausslens_models.prompts.tokenise import tokenise


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        metafunc.parametrize("family", random_models.MODELS)


@pytest.fixture(scope="session")
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Fingerprints of tests go into a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def family_directory(tmp_path_factory: pytest.TempPathFactory, cache_of_tests: Any) -> Callable[[str], Path]:
    """The directory of a tiny model of a family, saved once: every parameter random, biases and gains too."""
    saved: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in saved:
            saved[name] = tmp_path_factory.mktemp(name)
            random_models.build(name).save_pretrained(saved[name])
        return saved[name]

    return of


@pytest.fixture(scope="session")
def family_model(family_directory: Callable[[str], Path]) -> Callable[[str], PretrainedModel]:
    """It, opened by the loader `transformers`, fresh each time."""
    return lambda name: open_pretrained(ModelSpec(str(family_directory(name)), TransformersParameters()))


@pytest.fixture(scope="session")
def family_files(family_directory: Callable[[str], Path]) -> Callable[[str], CheckpointModel]:
    """It, opened by the loader `weights`."""
    return lambda name: open_weights(ModelSpec(str(family_directory(name)), WeightsParameters()))


@pytest.fixture(scope="session")
def family_tokens() -> Tokens:
    """Three prompts of different lengths as token numbers."""
    rows = [[3 + (7 * i * i + 5 * i * n) % (VOCABULARY - 3) for i in range(n)] for n in (11, 7, 9)]
    return tokenise(None, [Prompt(ids=tuple(row)) for row in rows], "tiny")


@pytest.fixture(scope="session")
def twin_of() -> Callable[..., Twin]:
    """``twin_of(model, (EDIT, {"alpha": 2.0}), ..., seed=0, draw=0, layers=None, heads=None)``: an edited twin."""

    def made(model: Any, *edits: tuple[Edit, dict[str, Any]], seed: int = 0, draw: int = 0, **scope: Any) -> Twin:
        owner = Owner("tests", "tests", "0")
        calls = [
            EditCall(
                Owned(edit, owner),
                resolve(edit.parameters).model_validate(given),
                scope.get("layers"),
                scope.get("heads"),
                Mark("<test>", 1, 1),
            )
            for edit, given in edits
        ]
        return Twin(model, calls, seed, draw)

    return made
