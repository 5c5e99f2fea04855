"""All analyses of the plugin through a run, on a tiny model of every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gausslens
from gausslens.testing import host_of

SMALL: dict[str, dict[str, Any]] = {
    "attention.band": {"w": [0, 40], "budget": [0]},
    "attention.lowrank": {"rank": [1, 40], "kinds": ["svd", "linformer"]},
    "attention.masks": {"keys": [3, 40], "kinds": ["top-k", "bigbird"]},
    "attention.kernels": {"kernels": ["elu", "performer"], "features": [8]},
    "attention.roles": {"directions": 2},
    "attention.pooling": {"functions": ["dot", "multiplicative"], "directions": 1},
    "attention.swap": {"band": [40], "budget": [0], "masks": [], "rank": [1], "kernels": ["elu"], "which": ["each"]},
}


def test_every_analysis_runs_on_every_family(
    family: str, family_directory: Callable[[str], Path], tmp_path: Path
) -> None:
    rows = [[3 + (7 * i * i + 5 * i * n) % 20 for i in range(n)] for n in (11, 8)]
    study = {
        "gausslens": 1,
        "name": "families",
        "model": {"path": str(family_directory(family))},
        "prompts": {"source": "tokens", "ids": rows},
        "analyses": [{"use": name, "with": given} for name, given in SMALL.items()],
    }
    results = gausslens.run(study, store=tmp_path / "store", host=host_of("models", "attention"), shown=False)
    found = {name: results["trained", name] for name in SMALL}
    for name in ("attention.band", "attention.masks", "attention.lowrank"):
        whole = found[name].isel({d: -1 for d in ("w", "keys", "rank") if d in found[name].dims})
        whole = whole.isel(kind=0) if "kind" in whole.dims else whole
        assert float(whole["output_error"].max()) < 1e-6
    for name, data in found.items():
        for variable in ("output_error", "share", "explained", "hidden_change_each"):
            assert variable not in data or np.isfinite(data[variable].values).all(), (name, variable)
    # Where position is not applied to q and k, they make the scores.
    dot = found["attention.pooling"]["explained"].sel(scoring="dot")
    info = gausslens.load(family_directory(family)).info
    if info.facts["position"] == "learned":
        assert float(dot.min()) > 1 - 1e-6
