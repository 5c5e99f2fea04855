"""On real weights: values are what the norm and W_V say, sinks are found, and numbers lie where they must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
from gausslens import Twin
from gausslens_gaussian.analyses.value_path import ValuePath

pytestmark = pytest.mark.real_model

TEXTS = (
    "The keeper of the lighthouse counted the ships that passed, and wrote each of them into a long thin book.",
    "Water boils at a lower temperature on a mountain, since there is less air above it to press upon it.",
    "She put the violin back into its case, closed the window, and waited for the rain to begin again.",
    "Every evening the baker's dog walked to the station alone and came back with the man from the last train.",
)
RUN = {"gausslens": 1, "name": "real", "prompts": {"source": "text", "text": list(TEXTS)}, "report": False}


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_values_are_the_normed_stream_through_w_v(name: str, real_models: Path) -> None:
    opened = gausslens.load(real_models / name)._opened
    tokens = opened.model.tokenise([gausslens.Prompt((gausslens.Part(TEXTS[0]),))])
    runner = opened.running.runner(Twin(opened.model))
    found = runner.forward(tokens.ids[0][None], sites=("resid_pre", "v"))
    for layer in (0, opened.model.info.n_layers // 2, opened.model.info.n_layers - 1):
        path = ValuePath.of(runner.weights(layer))
        v = found[layer, "v"][0].double().numpy()
        ours = path.values(found[layer, "resid_pre"][0].double().numpy())
        assert np.abs(ours - v).max() < 1e-4 * np.abs(v).max()


@pytest.mark.parametrize("name", ["smollm2", "minilm"])
def test_all_analyses_finish(name: str, real_models: Path, tmp_path: Path) -> None:
    analyses: list[dict[str, Any]] = [
        {"use": "gaussian.moments", "with": {"principal": 4, "robust": True, "covariance": False}},
        {"use": "gaussian.moments", "as": "sunk", "with": {"tokens": "all", "covariance": False}},
        {"use": "gaussian.collapse"},
        {"use": "gaussian.joint", "with": {"window": 4, "every": 4, "dims": 2, "permutations": 9}},
    ]
    run = RUN | {"model": {"path": str(real_models / name)}, "analyses": analyses}
    store = gausslens.run(run, store=tmp_path / "store", shown=False)
    moments, sunk = store["trained", "gaussian.moments"], store["trained", "sunk"]
    # Fewer tokens than dimensions: the rank is theirs, less one; the first layers may repeat a token.
    assert int(moments["rank"].max()) == int(moments["count"][0]) - 1
    assert (moments["entropy_bias"] == -np.inf).all()
    if name == "smollm2":
        # The first token, for there is no BOS, is an attention sink from the first third of the layers on.
        assert "warning" in sunk.attrs
        assert float(sunk["anisotropy"][15]) > 0.95
        assert float(moments["anisotropy"][15]) < 0.5
        assert float(moments["apart_length_mean"][15]) > 50 * float(moments["length_mean"][15])
    collapse = store["trained", "gaussian.collapse"]
    most = np.log(max(len(text) for text in TEXTS))
    assert float(collapse["entropy_deficit"].min()) > -1e-5
    assert 0.3 < float(collapse["entropy_deficit"].max()) < most
    information = store["trained", "gaussian.joint"]["mutual_information"].values
    assert np.isfinite(information[:, ~np.eye(4, dtype=bool)]).all()
