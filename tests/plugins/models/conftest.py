"""Tiny random models of every family, as directories: odd on purpose (grouped queries, head_dim not d_model over heads,
biases that are not zero, tied embeddings, fused q/k/v, sliding windows, soft caps).

A test that asks for ``which`` runs once for each of them, and for ten of tiny_decoders.py and tiny_mixtures.py (in the
long tier for all of these); one that asks for ``family_of_all`` once for each, in every tier.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from random_models import ALL, MODELS, MORE, build
from tiny_decoders import VOCABULARY
from tiny_stacks import saved as saved_stacks

from gausslens import ModelSpec, Part, Prompt, Tokens, Twin
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.loading.weights import CheckpointModel, open_weights
from gausslens_models.parameters import TransformersParameters, WeightsParameters

TIER = os.environ.get("GAUSSLENS_FULL")
# The long tier takes every sixth besides, the soak all of them; the proof itself runs on all.
SAMPLE = (
    *("olmo2", "cohere2", "nanochat", "granite", "glm4", "gpt_bigcode", "phi", "mixtral", "gpt_oss", "qwen2_moe"),
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "which" in metafunc.fixturenames:
        # TransformerLens is asked for what plain transformers cannot do; the rest of the tables needs it for nothing.
        more = () if metafunc.module.__name__.endswith("test_bridge") else _more()
        metafunc.parametrize("which", dict.fromkeys([*MODELS, *more]))
    if "family_of_all" in metafunc.fixturenames:
        metafunc.parametrize("family_of_all", ALL)


def _more() -> list[str]:
    """The new types that tests of many run on."""
    if TIER == "soak":
        return list(MORE)
    return [*SAMPLE, *list(MORE)[::6]] if TIER else list(SAMPLE)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Fingerprints of tests go into a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model, saved once."""
    saved: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in saved:
            saved[name] = tmp_path_factory.mktemp(name)
            build(name).save_pretrained(saved[name])
        return saved[name]

    return of


@pytest.fixture(scope="session")
def opened(directory: Callable[[str], Path]) -> Callable[[str], PretrainedModel]:
    """A tiny model opened by the loader `transformers`, fresh each time."""
    return lambda name: open_pretrained(ModelSpec(str(directory(name)), TransformersParameters()))


@pytest.fixture(scope="session")
def stacks_at(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny model of two stacks, saved once."""
    made: dict[str, Path] = {}

    def of(name: str) -> Path:
        if name not in made:
            made[name] = saved_stacks(name, tmp_path_factory.mktemp(name))
        return made[name]

    return of


@pytest.fixture(scope="session")
def open_stack(stacks_at: Callable[[str], Path]) -> Callable[..., PretrainedModel]:
    """One stack of a tiny model of two, fresh each time."""

    def of(name: str, stack: Any, dtype: str = "float32") -> PretrainedModel:
        return open_pretrained(ModelSpec(str(stacks_at(name)), TransformersParameters(stack=stack), dtype=dtype))

    return of


@pytest.fixture(scope="session")
def as_files(directory: Callable[[str], Path]) -> Callable[[str], CheckpointModel]:
    """A tiny model opened by the loader `weights`."""
    return lambda name: open_weights(ModelSpec(str(directory(name)), WeightsParameters()))


@pytest.fixture(scope="session")
def prompts() -> Tokens:
    """Three prompts of different lengths as token numbers."""
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(3, VOCABULARY, (n,), generator=draw).tolist() for n in (11, 7, 9)]
    from gausslens_models.prompts.tokenise import tokenise

    return tokenise(None, [Prompt(ids=tuple(row)) for row in rows], "tiny")


@pytest.fixture
def text_prompt() -> Prompt:
    """A prompt of two parts."""
    return Prompt((Part("The ant", segment="word"), Part(" sees the bee", segment="clue")))


@dataclass
class Written(Twin):
    """A twin whose overlay is written down, for tests of engines alone."""

    change: Callable[[str, torch.Tensor], torch.Tensor | None] = lambda name, tensor: None
    edits: Any = ("written",)
    made: dict[Any, dict[str, torch.Tensor]] = field(default_factory=dict)

    def overlay(self, layer: int | None) -> Mapping[str, torch.Tensor]:
        if layer not in self.made:
            found = {name: self.change(name, self.base.tensor(layer, name)) for name in self.base.names(layer)}
            self.made[layer] = {name: tensor for name, tensor in found.items() if tensor is not None}
        return self.made[layer]

    def touches(self, layer: int | None) -> frozenset[str]:
        return frozenset(self.overlay(layer))

    def adopt(self, layer: int | None, name: str, tensor: torch.Tensor) -> None:
        assert torch.equal(self.made[layer][name], tensor)
        self.made[layer][name] = tensor


@pytest.fixture(scope="session")
def written() -> type[Written]:
    """The class of twins whose overlay is written down."""
    return Written
