"""Checkpoints of a sweep that are not in the order of their steps, or hold the same weights, are told at plan."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import random_models
import torch

from gausslens.spreading.prepare import prepare

STEPS = (0, 10, 100, 1000, 2000, 4000, 8000)
RUN = """
gausslens: 1
name: order
model: {{path: "{root}/step00000", loader: weights}}
variants:
  training: {{model: {{path: "{root}/step{{step}}", loader: weights}}, sweep: {{step: all}}}}
analyses: [{{use: bilinear.spectrum}}]
"""


@pytest.fixture(scope="module", params=["walk", "line", "settled"])
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache_of_tests: None) -> Path:
    """Seven checkpoints of a made training: a random walk in the steps, a straight line, or noise about one place."""
    root = tmp_path_factory.mktemp(request.param)
    model = random_models.build("llama")
    generator = torch.Generator().manual_seed(0)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    ahead = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in start.items()}
    walked = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    last = 0
    for step in STEPS:
        for name, tensor in walked.items():
            noise = torch.randn(tensor.shape, generator=generator)
            if request.param == "walk":
                walked[name] = tensor + noise * (step - last) ** 0.5 / 100
            elif request.param == "line":
                walked[name] = ahead[name] * step / 1000
            else:
                walked[name] = noise / 100
        last = step
        model.load_state_dict({name: start[name] + walked[name] for name in start})
        model.save_pretrained(root / f"step{step:05d}")
    return root


@pytest.fixture
def told(training: Path, tmp_path: Path) -> Callable[[Sequence[int]], str]:
    """What the plan says of a training whose directories hold the checkpoints of these steps."""

    def of(held: Sequence[int]) -> str:
        for step, source in zip(STEPS, held, strict=True):
            shutil.copytree(training / f"step{source:05d}", tmp_path / f"step{step:05d}")
        run = tmp_path / "run.yaml"
        run.write_text(RUN.format(root=tmp_path), encoding="utf-8")
        _, _, models, plan = prepare(run)
        models.close()
        return " | ".join(re.sub(r"^\S+run\.yaml:\d+:\d+: |^run\.yaml:\d+:\d+: ", "", note) for note in plan.notes)

    return of


def test_a_training_in_order_is_told_nothing_of(told: Callable[[Sequence[int]], str]) -> None:
    assert told(STEPS) == ""


def test_two_that_changed_places_are_named(told: Callable[[Sequence[int]], str], training: Path) -> None:
    said = told((0, 10, 2000, 1000, 100, 4000, 8000))
    if training.name.startswith("settled"):
        assert said == ""  # noise about one place has no order to break
    else:
        assert said == (
            "training: by their weights step 100 and step 2000 have changed places: are they labelled rightly?"
        )


def test_a_duplicate_is_told_as_one_and_as_out_of_line(told: Callable[[Sequence[int]], str], training: Path) -> None:
    said = told((0, 10, 100, 1000, 2000, 4000, 10))
    assert "step 10 and step 8000 of training are the same weights" in said
    out = "by its weights step 8000 does not lie between its neighbours" in said
    assert out or training.name.startswith("settled") or "have changed places" in said


def test_one_of_another_training_is_named(told: Callable[[Sequence[int]], str], training: Path) -> None:
    strange = training / "step99999"
    model = random_models.build("llama")
    generator = torch.Generator().manual_seed(1)
    drawn = {name: torch.randn(tensor.shape, generator=generator) for name, tensor in model.state_dict().items()}
    model.load_state_dict(drawn)
    model.save_pretrained(strange)
    said = told((0, 10, 100, 99999, 2000, 4000, 8000))
    # Of noise about one place any step may be the first: that a far one changed places with it says as much.
    settled = training.name.startswith("settled") and "step 0 and step 1000 have changed places" in said
    assert settled or "by its weights step 1000 does not lie between its neighbours" in said


def test_models_of_several_sizes_have_no_order(tmp_path: Path, cache_of_tests: None) -> None:
    for step, family in enumerate(("llama", "llama", "gpt2", "llama")):
        random_models.build(family).save_pretrained(tmp_path / f"step{step:05d}")
    run = tmp_path / "run.yaml"
    run.write_text(RUN.format(root=tmp_path), encoding="utf-8")
    _, _, models, plan = prepare(run)
    models.close()
    assert not any("weights" in note and "the same" not in note for note in plan.notes)
