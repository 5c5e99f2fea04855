"""Every analysis of attention on either stack of two and on the attention between them, beside its null."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_stacks import WORDS, saved

import gausslens
from gausslens.__main__ import main

ATTENTION: dict[str, dict[str, Any]] = {
    "attention.band": {"w": [0, 2], "budget": [0, 4]},
    "attention.masks": {"keys": [2, 4], "draws": 2},
    "attention.lowrank": {"rank": [1, 2], "draws": 2},
    "attention.kernels": {"features": [8], "draws": 2},
    "attention.pooling": {"functions": ["dot"]},
    "attention.roles": {},
    "attention.swap": {"band": [2], "budget": [1], "masks": ["window"], "keys": [2], "rank": [2]},
    "model.attention": {"maps": "heads"},
    "bilinear.alignment": {"composition": False},
}
HEADED = {"model.loss": {}, "model.generate": {"tokens": 3, "stop": ""}}


def pairs() -> Iterator[dict[str, str]]:
    """Sources and targets of unequal lengths, drawn once for all."""
    draw = np.random.default_rng(0)
    for _ in range(6):
        source, target = (" ".join(draw.choice(WORDS[5:], size=draw.integers(9, 15))) for _ in range(2))
        yield {"source": source, "target": target}


def _one_layer(use: str) -> dict[str, Any]:
    return {} if use in HEADED else {"layers": [1]}


@pytest.mark.parametrize("stack", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("name", ["marian", "t5"])
def test_all_of_it_runs_and_is_compared(name: str, stack: str, tmp_path: Path) -> None:
    # What the encoder gives has no loss that a swapped head could change.
    wanted = ATTENTION | HEADED if stack != "encoder" else {n: p for n, p in ATTENTION.items() if n != "attention.swap"}
    study = {
        "gausslens": 1,
        "name": "stack",
        "model": {"path": str(saved(name, tmp_path / "model")), "stack": stack},
        "prompts": {"source": "pairs", "pairs": list(pairs())},
        "variants": {"trained": [], "before": {"edits": [{"edit": "reinit.config"}], "draws": 3}},
        "analyses": [{"use": use, "with": given} | _one_layer(use) for use, given in wanted.items()],
        "against": ["before"],
        "errors": False,
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path / "store", shown=False)
    for use in wanted:
        frame = results.frame("trained", use)
        assert use == "model.generate" or np.isfinite(frame["null_mean"].to_numpy(float)).any(), use
    maps = results["trained", "model.attention"]["pattern"]
    sums = maps.sum("key", skipna=True).where(maps.notnull().any("key"))
    np.testing.assert_allclose(sums.values[np.isfinite(sums.values)], 1.0, atol=1e-5)
    there = maps.isel(layer=0, head=0).notnull()
    same = (there.any("key").sum("query") == there.any("query").sum("key")).values
    assert same.all() == (stack != "cross")
    assert main(["report", str(tmp_path / "store")]) == 0
