"""What analyses do with activations that lie on another device: one that counts copies, and one without float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import other_device
import pytest
import xarray as xr
from other_device import COPIES, Copies

import gausslens
from gausslens.testing import host_of

# Those that reduce what they see where it lies.
REDUCED: tuple[dict[str, Any], ...] = (
    {"use": "gaussian.moments", "as": "stream", "with": {"site": "resid_pre"}},
    {"use": "gaussian.moments", "as": "all", "with": {"site": "resid_pre", "tokens": "all"}},
    {"use": "gaussian.moments", "as": "principal", "with": {"site": "resid_pre", "principal": 2}},
    {"use": "gaussian.moments", "as": "values", "with": {"site": "v", "principal": 2}},
    {"use": "gaussian.moments", "as": "sketch", "with": {"site": "resid_pre", "sketch": 8, "keep": 4}},
    {"use": "gaussian.moments", "as": "robust", "with": {"site": "v", "robust": True}},
    {"use": "gaussian.joint", "with": {"window": 2, "dims": 1, "permutations": 0, "bigrams": 0}},
    {
        "use": "gaussian.joint",
        "as": "windows",
        "with": {"site": "v", "window": 2, "dims": 1, "reduce": "random", "bigrams": 0},
    },
    {"use": "model.attention", "with": {"maps": "mean"}},
    {"use": "model.attention", "as": "words", "with": {"maps": "none", "level": "word"}},
    {"use": "model.loss"},
    {"use": "gaussian.collapse"},
)
# Those that work on the CPU, each site copied once for all of them.
COPYING: tuple[dict[str, Any], ...] = (
    {"use": "model.capture", "with": {"sites": ["resid_pre", "pattern"]}},
    {"use": "attention.band", "with": {"w": [0], "budget": [0]}},
    {"use": "attention.masks", "with": {"keys": [2], "kinds": ["window"]}},
    {"use": "attention.lowrank", "with": {"rank": [1], "kinds": ["svd"]}},
    {"use": "attention.kernels", "with": {"kernels": ["elu"]}},
    {"use": "attention.pooling", "with": {"functions": ["dot"]}},
    {"use": "attention.roles"},
    {"use": "bilinear.logits"},
)


@pytest.fixture
def results(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(analyses: Any, place: Any, float64: bool = True) -> tuple[dict[str, xr.Dataset], Copies]:
        other_device.compute(monkeypatch, place)
        COPIES.of.clear()
        monkeypatch.setattr(COPIES, "float64", float64)
        study = {
            "gausslens": 1,
            "name": "device",
            "model": {"path": "builtin:testing"},
            "prompts": {
                "source": "tokens",
                "ids": [[3 + (5 * i * j + i + j) % 40 for j in range(24)] for i in range(24)],
            },
            "variants": {"trained": []},
            "analyses": [dict(one) for one in analyses],
            "errors": False,
            "report": False,
        }
        host = host_of("models", "gaussian", "attention", "bilinear")
        store = gausslens.run(study, store=tmp_path / f"{place.__name__}-{float64}", host=host, shown=False)
        labels = [one.get("as", one["use"]) for one in analyses]
        return {label: store["trained", label] for label in labels}, replace(COPIES, of=dict(COPIES.of))

    return run


@pytest.mark.parametrize("float64", [True, False])
def test_each_site_is_copied_once_and_results_are_the_same(results: Any, float64: bool) -> None:
    there, copies = results(COPYING, other_device.on_device, float64)
    here, none = results(COPYING, other_device.in_float32)
    assert not none.of
    assert len(copies.sites) > 10
    assert {name: count for name, count in copies.sites.items() if count > 1} == {}
    # From the second layer on all that was read before is on its way together.
    assert COPIES.together > 3
    for label, found in here.items():
        xr.testing.assert_identical(there[label].drop_attrs(), found.drop_attrs())


@pytest.mark.parametrize("float64", [True, False])
def test_what_reduces_copies_no_site_and_differs_by_rounding(results: Any, float64: bool) -> None:
    there, copies = results(REDUCED, other_device.on_device, float64)
    here, _ = results(REDUCED, other_device.in_float32)
    # Without float64 the attention-only path of gaussian.collapse is computed on the CPU.
    path = {name for name in copies.sites if name.endswith(("pattern", " v")) and name.startswith("layer")}
    assert set(copies.sites) - (set() if float64 else path) == set()
    worst: dict[tuple[str, str], float] = {}
    for label, found in here.items():
        for name, array in found.data_vars.items():
            if array.dtype.kind == "f":
                worst[label, str(name)] = _apart(there[label][name].values, array.values)
            else:
                np.testing.assert_array_equal(there[label][name].values, array.values, str((label, name)))
    # A p-value is a steep function of what it is of.
    allowed = {what: 1e-10 if float64 else 3e-5 if what[1].endswith("_p") else 3e-6 for what in worst}
    print(sorted(((v, k) for k, v in worst.items()), reverse=True)[:10])
    assert {what: apart for what, apart in worst.items() if apart > allowed[what]} == {}


def _apart(found: np.ndarray, wanted: np.ndarray) -> float:
    """The largest difference as a part of the largest number; infinite where other cells have none."""
    if not np.array_equal(np.isfinite(found), np.isfinite(wanted)):
        return np.inf
    finite = np.isfinite(wanted)
    if not finite.any():
        return 0.0
    return float(np.abs(found[finite] - wanted[finite]).max() / max(np.abs(wanted[finite]).max(), 1e-300))
