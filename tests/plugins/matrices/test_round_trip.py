"""Maps saved from a model and read back give what the model itself gives."""

from __future__ import annotations

import json
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray as xr
from safetensors.torch import save_file

import gausslens
from gausslens import Results

SITES = ("pattern", "q", "k", "v", "z", "q_rot", "k_rot", "scores")
PROMPTS = {"source": "tokens", "ids": [[5 + (3 * i * i + 7 * n) % 40 for i in range(n)] for n in (14, 9, 11)]}
LENGTHS = [14, 9, 11]
ANALYSES = [
    {"use": "attention.band", "with": {"w": [0, 2], "stochastic": True}},
    {"use": "attention.masks", "with": {"keys": [3, 6]}},
    {"use": "attention.lowrank", "with": {"rank": [1, 4]}},
    {"use": "attention.kernels", "with": {"features": [16]}},
    {"use": "attention.roles"},
    {"use": "attention.pooling", "with": {"functions": ["dot", "multiplicative"], "directions": 2}},
]


@pytest.fixture(scope="module")
def of_model(tmp_path_factory: pytest.TempPathFactory) -> Results:
    capture = {"use": "model.capture", "with": {"sites": list(SITES)}}
    maps = {"use": "model.attention", "with": {"maps": "heads"}}
    return _run({"model": {"path": "builtin:tiny"}, "prompts": PROMPTS}, [*ANALYSES, capture, maps], tmp_path_factory)


def _run(what: Mapping[str, Any], analyses: list[Any], where: pytest.TempPathFactory) -> Results:
    study = {"name": "maps", "errors": False, "report": False, "analyses": analyses, **what}
    return gausslens.run(study, store=where.mktemp("store"))


@pytest.fixture(scope="module")
def arrays(of_model: Results) -> dict[str, np.ndarray]:
    """What was captured, as [prompt, layer, head, token, ...]; the store holds NaN behind shorter prompts."""
    data = of_model["trained", "model.capture"]
    found = {}
    for site in SITES:
        one = data[site]
        heads = "kv_head" if "kv_head" in one.dims else "head"
        last = ("query", "key") if "query" in one.dims else ("position", one.dims[-1])
        found[site] = one.transpose("prompt", "layer", heads, *last).values
    return found


def _same(one: xr.Dataset, other: xr.Dataset) -> float:
    """The largest difference between two results, which hold the same variables and the same NaN."""
    assert set(one) == set(other)
    worst = 0.0
    for name in one:
        a, b = one[name].values, other[name].values
        assert a.shape == b.shape, name
        if np.issubdtype(a.dtype, np.number):
            assert (np.isnan(a) == np.isnan(b)).all(), name
            worst = max(worst, float(np.nanmax(np.abs(a - b), initial=0.0)))
    return worst


def test_each_analysis_gives_on_saved_maps_what_it_gives_on_the_model(
    of_model: Results, arrays: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("maps") / "maps.npz"
    np.savez(path, lengths=LENGTHS, **arrays)
    prompts = {"source": "matrices", "path": str(path), "causal": True}
    saved = _run({"prompts": prompts}, [*ANALYSES, {"use": "model.attention"}], tmp_path_factory)
    for each in ANALYSES:
        name = str(each["use"])
        assert _same(of_model["trained", name], saved["trained", name]) < 1e-6, name
    assert saved["trained", "model.attention"].sizes["head"] == arrays["pattern"].shape[2]
    with pytest.raises(gausslens.GausslensError, match="cannot be run"):
        _run({"prompts": prompts}, [{"use": "attention.swap"}], tmp_path_factory)


def _npy(directory: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    for name, array in arrays.items():
        np.save(directory / f"{name}.npy", array)
    return directory


def _compressed(directory: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    np.savez_compressed(directory / "maps.npz", **arrays)
    return directory / "maps.npz"


def _safetensors(directory: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    save_file(
        {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}, directory / "m.safetensors"
    )
    return directory / "m.safetensors"


def _hdf5(directory: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    with h5py.File(directory / "maps.h5", "w") as file:
        for name, array in arrays.items():
            file.create_dataset(f"run/{name}", data=array, chunks=True)
    return directory / "maps.h5"


def _one_file_a_prompt(directory: Path, arrays: Mapping[str, np.ndarray]) -> Path:
    """No padding: each prompt in a file of its own, which are read in natural order."""
    for prompt, n in enumerate(LENGTHS):
        cut = {"pattern": arrays["pattern"][prompt, :, :, :n, :n], "v": arrays["v"][prompt, :, :, :n]}
        np.savez(directory / f"text{9 + prompt}.npz", **cut)
    return directory


@pytest.mark.parametrize("written", [_npy, _compressed, _safetensors, _hdf5, _one_file_a_prompt])
def test_every_format_gives_the_same(
    written: Any, of_model: Results, arrays: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    kept = {"pattern": arrays["pattern"], "v": arrays["v"], "lengths": np.array(LENGTHS)}
    place = written(tmp_path_factory.mktemp("maps"), kept)
    # By its path alone, as a model: its loader claims it.
    what = {"model": {"path": str(place)}, "prompts": {"source": "matrices"}}
    saved = _run(what, [ANALYSES[0], ANALYSES[4]], tmp_path_factory)
    for name in ("attention.band", "attention.roles"):
        assert _same(of_model["trained", name], saved["trained", name]) < 1e-6


def test_maps_without_values_have_distances_and_no_output_errors(
    of_model: Results, arrays: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("maps") / "maps.npy"
    np.save(path, arrays["pattern"])
    prompts = {"source": "matrices", "path": str(path), "lengths": LENGTHS}
    masks = {"use": "attention.masks", "with": {"keys": [3, 6]}}
    saved = _run({"prompts": prompts}, [ANALYSES[0], masks], tmp_path_factory)
    for name in ("attention.band", "attention.masks"):
        own, alone = of_model["trained", name], saved["trained", name]
        for variable in ("distance", "kl", "excess", "scalars", "entropy", "trivial_kl"):
            np.testing.assert_allclose(alone[variable].values, own[variable].values, atol=1e-6)
        assert np.isnan(alone["output_error"].values).all()
        assert np.isnan(alone["excess_flops"].values).all()
    titles = [drawn.figure.title for drawn in gausslens.draw(saved)]
    assert "Distance of band plus sparse error, trained" in titles
    assert not any("enough" in title for title in titles)
    with pytest.raises(gausslens.GausslensError, match="holds no array q"):
        _run({"prompts": prompts}, [{"use": "attention.kernels"}], tmp_path_factory)
    lowrank = {"use": "attention.lowrank", "with": {"rank": [1, 4]}}
    with pytest.raises(gausslens.GausslensError, match=r"Linformer .* no site 'q'.* `kinds: (\[.*\])`") as told:
        _run({"prompts": prompts}, [lowrank], tmp_path_factory)
    kinds = json.loads(str(told.value).rpartition("`kinds: ")[2].rstrip("`"))
    without = {"use": "attention.lowrank", "with": {"rank": [1, 4], "kinds": kinds}}
    found = _run({"prompts": prompts}, [without], tmp_path_factory)["trained", "attention.lowrank"]
    assert np.isfinite(found["distance"].values).all()
    own = of_model["trained", "attention.lowrank"].sel(kind=kinds[:2])  # what is drawn depends on what is asked for
    np.testing.assert_allclose(found["distance"].sel(kind=kinds[:2]).values, own["distance"].values, atol=1e-6)


def test_special_tokens_are_those_that_the_file_says(tmp_path_factory: pytest.TempPathFactory, root: Path) -> None:
    """builtin:clue-tiny begins each prompt with BOS, from which no number of model.attention is taken."""
    path = tmp_path_factory.mktemp("maps") / "maps.npz"
    script = runpy.run_path(str(root / "examples/save_maps.py"))
    arrays = script["captured"]()
    assert (~arrays["text"]).any(axis=1).all()
    maps = {"use": "model.attention", "with": {"maps": "heads"}}
    what = {"model": {"path": "builtin:clue-tiny"}, "prompts": {"source": "text", "text": script["TEXTS"]}}
    capture = {"use": "model.capture", "with": {"sites": ["pattern", "v"]}}
    analyses = [maps, ANALYSES[0], ANALYSES[4]]
    own = _run(what, [*analyses, capture], tmp_path_factory)
    for name, heads, last in (("pattern", "head", ("query", "key")), ("v", "kv_head", ("position", "d_head"))):
        captured = own["trained", "model.capture"][name].transpose("prompt", "layer", heads, *last).values
        arrays[name] = np.nan_to_num(captured)  # in full, where the script saves half precision

    def of_saved(**arrays: np.ndarray) -> Results:
        np.savez(path, **arrays)  # type: ignore[arg-type]
        return _run({"prompts": {"source": "matrices", "path": str(path)}}, analyses, tmp_path_factory)

    saved = of_saved(**arrays)
    numbers = ("to_first", "to_self", "entropy")
    for each in analyses:
        one, other = (results["trained", str(each["use"])] for results in (saved, own))
        for variable, value in other.items():
            if value.dtype.kind == "f":
                np.testing.assert_allclose(one[variable], value, rtol=1e-4, atol=1e-5)
    all_text = of_saved(**{name: array for name, array in arrays.items() if name != "text"})
    for name in numbers:
        gap = np.abs(all_text["trained", "model.attention"][name] - own["trained", "model.attention"][name])
        assert float(gap.max()) > 0.01, name


def test_the_example_runs_and_draws_figures(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    saved = gausslens.run(root / "examples/matrices.yaml", store=tmp_path_factory.mktemp("store"))
    titles = [drawn.figure.title for drawn in gausslens.draw(saved)]
    assert len(titles) >= 10
    assert saved["trained", "maps"].coords["query_text"].values[0, 1] == "A"
