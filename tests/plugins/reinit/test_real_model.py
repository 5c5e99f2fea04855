"""Real weights: the attention of a random twin is as uneven as its initialisation says, in every layer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gausslens import ModelSpec, Part, Prompt, Twin
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel, open_pretrained
from gausslens_models.parameters import TransformersParameters
from gausslens_reinit.plugin import CONFIG

pytestmark = pytest.mark.real_model
TEXT = (
    "Once upon a time there was a small town at the edge of a dark forest. Every evening the baker closed his shop, "
    "walked to the old bridge and fed the ducks with what was left of the bread."
)
DRAWS = 3


def turned(frequencies: tuple[float, ...], tokens: int) -> torch.Tensor:
    """What rotation leaves of the covariance of two keys: the mean of cos(frequency * their distance)."""
    apart = torch.arange(tokens)[:, None] - torch.arange(tokens)
    return torch.stack([torch.cos(f * apart) for f in frequencies]).mean(0).double()


def predicted(resid: torch.Tensor, variance: float, frequencies: tuple[float, ...]) -> torch.Tensor:
    """The entropy that each row [query] lacks, on the mean over draws of W_Q and W_K with entries of this variance s.

    Queries and keys read x of length sqrt(d), so scores of a row have covariance s^2 d <x_j, x_k> c(j - k), c from the
    rotation, and softmax of Gaussians of variance v about the mean of their row lacks v / 2 (THEORY A19, A20, where
    tokens are independent and s = 1 / d: half a nat).
    """
    d = resid.shape[-1]
    x = torch.nn.functional.normalize(resid.double(), dim=-1) * d**0.5
    cov = variance**2 * d * (x @ x.T) * turned(frequencies, len(x))
    rows = range(1, len(x) + 1)
    return torch.stack([(cov[:n, :n].diagonal().mean() - cov[:n, :n].mean()) / 2 for n in rows])


def measured(model: PretrainedModel, twin: Twin, ids: np.ndarray) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
    """The entropy that rows lack [layer, head, query], and the residual stream before each layer."""
    found: dict[int, torch.Tensor] = {}

    def look(layer: int, _scores: Any, pattern: torch.Tensor, _v: Any) -> None:
        p = pattern[0].double()
        most = torch.arange(1, p.shape[-1] + 1).log()
        found[layer] = most + torch.special.xlogy(p, p).sum(-1)

    seen = TransformersEngine().runner(twin).forward(ids[None], sites=("resid_pre",), replace=look)
    return torch.stack([found[layer] for layer in model.info.layers]), seen


def test_rows_of_a_random_twin_lack_the_entropy_that_theory_says(
    real_models: Path, twin_of: Any, record_testsuite_property: Any
) -> None:
    model = open_pretrained(ModelSpec(str(real_models / "smollm2"), TransformersParameters()))
    (ids,) = model.tokenise([Prompt((Part(TEXT),))]).ids
    spread = float(model.module.config.initializer_range)
    frequencies = model.info.facts["rotary"][0]["frequencies"]
    lacking, wanted = [], []
    for draw in range(DRAWS):
        twin = twin_of(model, (CONFIG, {}), draw=draw)
        rows, seen = measured(model, twin, ids)
        lacking.append(rows.mean(-1))
        stream = (seen[layer, "resid_pre"][0] for layer in model.info.layers)
        wanted.append(torch.stack([predicted(x, spread**2, frequencies).mean() for x in stream]))
    of_draws = torch.stack(lacking)  # [draw, layer, head]
    ratios = of_draws / torch.stack(wanted).unsqueeze(-1)
    means = ratios.mean((0, 2))
    # Heads of a draw share tokens and, in groups, keys: what is independent is at least the key/value heads of draws.
    errors = ratios.std((0, 2)) / (DRAWS * model.info.n_kv_heads) ** 0.5
    for layer in model.info.layers:
        said = f"{of_draws[:, layer].mean():.5f} nats, predicted {torch.stack(wanted)[:, layer].mean():.5f}"
        record_testsuite_property(f"entropy deficit of random rows, smollm2, layer {layer}", said)
    # 30 layers: the largest of 30 ratios is within 5 standard errors; all together within 4 of theirs.
    assert float(((means - 1) / errors).abs().max()) < 5
    assert abs(float(means.mean()) - 1) < 4 * float(errors.mean()) / len(means) ** 0.5
