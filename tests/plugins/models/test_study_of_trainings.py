"""A study of eight trainings, from four starts with one head and with eight: killed at random and gone on with."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gausslens

EXAMPLES = Path(__file__).parents[3] / "examples"
STARTS = ["plain", "identity", "diagonal", "band"]
STEPS = [0, 4]


def of_heads(heads: int, **more: Any) -> dict[str, Any]:
    model = {"path": f"trainings/{{start}}-{heads}/step{{step}}", "stack": "encoder"}
    return {"model": model, "sweep": {"start": STARTS, "step": "all"}, **more}


def study() -> dict[str, Any]:
    permuted = {"edits": [{"edit": "reinit.permute"}], "draws": 2}
    return {
        "gausslens": 1,
        "name": "starts",
        "model": {"path": "trainings/plain-1/base", "stack": "encoder"},
        "prompts": {"source": "text", "text": ["water", "garden", "yellow"]},
        "variants": {
            "one": of_heads(1),
            "eight": of_heads(8),
            "chance-one": of_heads(1, **permuted),
            "chance-eight": of_heads(8, **permuted),
        },
        "analyses": [{"use": "bilinear.spectrum"}, {"use": "model.attention", "with": {"maps": "none"}}],
        "against": ["chance-one", "chance-eight"],
        "report": False,
    }


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The trainings, and the run file beside them."""
    place = tmp_path_factory.mktemp("starts")
    threads, state = torch.get_num_threads(), torch.random.get_rng_state()
    sys.path.insert(0, str(EXAMPLES))
    try:
        import train_starts

        small = ("--width", "16", "--length", "12", "--rows", "4", "--steps", str(STEPS[-1]), "--quiet")
        train_starts.main([str(place / "trainings"), *small, "--save", *map(str, STEPS)])
        (place / "study.yaml").write_text(yaml.safe_dump(study(), sort_keys=False), encoding="utf-8")
        yield place
    finally:
        sys.path.remove(str(EXAMPLES))
        for name in ("train_small", "train_starts", "small_texts", "train_tiny_model"):
            sys.modules.pop(name, None)
        torch.set_num_threads(threads)
        torch.random.set_rng_state(state)


def started(here: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "gausslens", "run", str(here / "study.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def parts(here: Path) -> dict[Path, int]:
    return {part: part.stat().st_mtime_ns for part in (here / "store").glob("parts/*/*.h5")}


def killed_after(here: Path, more: int) -> dict[Path, int]:
    """Killed once so many more results are there; those that are there then."""
    before = len(parts(here))
    process = started(here)
    until = time.monotonic() + 300
    while process.poll() is None and len(parts(here)) < before + more and time.monotonic() < until:
        time.sleep(0.01)
    process.kill()
    process.wait()
    return parts(here)


@pytest.mark.full
def test_a_study_of_eight_trainings_is_killed_and_computes_nothing_twice(here: Path) -> None:
    choose = random.Random(17)
    kept: dict[Path, int] = {}
    for _ in range(2):
        now = killed_after(here, choose.randint(5, 40))
        assert {part: now[part] for part in kept} == kept
        assert len(now) > len(kept)
        kept = now
    results = gausslens.run(here / "study.yaml")
    now = parts(here)
    assert {part: now[part] for part in kept} == kept
    whole = gausslens.run(here / "study.yaml", store=here / "apart")
    digests = [{part.name: part for part in (here / store).glob("parts/*/*.h5")} for store in ("store", "apart")]
    assert digests[0].keys() == digests[1].keys()
    for name in whole:
        assert results[name].load().equals(whole[name].load()), name
    (run,) = results.runs
    assert run == "starts"
    found = results["one", "bilinear.spectrum"]
    assert found["start"].values.tolist() == STARTS
    assert found["step"].values.tolist() == STEPS
    assert results["eight", "model.attention"].sizes["head"] == 8
    compared = results.against("eight", "model.attention", "chance-eight")
    assert compared.sizes["start"] == len(STARTS)
    assert "chance-one" not in results.nulls("eight", "model.attention")
