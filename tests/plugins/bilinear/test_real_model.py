"""Real weights: how far predictions are off over all heads, and what spectra and circuits are against chance."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from safetensors.numpy import save_file

import gausslens
from gausslens.maths.spectra import product_squared_singular_values

pytestmark = pytest.mark.real_model


def _run(model: Path, store: Path, analyses: list[dict[str, Any]], prompts: dict[str, Any] | None) -> Any:
    study: dict[str, Any] = {"gausslens": 1, "name": "real", "model": {"path": str(model)}, "analyses": analyses}
    if prompts is None:
        study["model"]["loader"] = "weights"
    else:
        study["prompts"] = prompts
    return gausslens.run(study | {"report": False}, store=store)


def _quantiles(values: xr.DataArray) -> np.ndarray:
    found = values.values[np.isfinite(values.values)]
    return np.quantile(found, [0.1, 0.5, 0.9])


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_relative_errors_over_the_heads(
    every: int, real_models: Path, root: Path, tmp_path: Path, record_testsuite_property: Any
) -> None:
    """The distribution over smollm2's 270 heads, of predictions from Gaussians fitted on other prompts."""
    text = "\n".join(path.read_text("utf-8") for path in sorted([*root.glob("*.md"), *root.glob("framework/*.md")]))
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    prompts = {"source": "file", "path": str(tmp_path / "text.txt"), "chunk": 96, "max_tokens": 6144}
    layers = list(range(0, 30, every))
    analyses = [{"use": "bilinear.logits", "with": {"lags": [1, 16], "sample": 256}, "layers": layers}]
    found = _run(real_models / "smollm2", tmp_path / "store", analyses, prompts)["trained", "bilinear.logits"]
    assert found.sizes["layer"] * found.sizes["head"] == 270 // every
    for family in ("content", "score", "independent"):
        for moment in ("mean", "variance"):
            for lag in (0, 1, 16):
                low, middle, high = _quantiles(found[f"{family}_{moment}_off"].sel(lag=lag))
                name = f"{family} {moment} off, lag {lag}: 10 %, 50 %, 90 % of heads"
                record_testsuite_property(name, f"{low:+.3f} {middle:+.3f} {high:+.3f}")
    # Means, and variances of independent pairs, hold for any distribution: what is left is prompts, here few and alike.
    for name in ("content_mean_off", "score_mean_off", "independent_mean_off", "independent_variance_off"):
        assert np.median(np.abs(found[name].sel(lag=16).values)) < 0.15, name
    # Far pairs are nearly independent, so theirs too; self pairs are not Gaussian, for a norm fixes their length.
    assert np.median(np.abs(found["score_variance_off"].sel(lag=16).values)) < 0.15
    assert np.median(found["content_variance_off"].sel(lag=0).values) > 0.15
    rows = found.sel(row_keys=32)
    assert (
        np.corrcoef(rows["row_variance_measured"].values.ravel(), rows["row_variance_predicted"].values.ravel())[0, 1]
        > 0.9
    )
    assert np.median(np.abs((rows["row_entropy_measured"] - rows["row_entropy_predicted"]).values)) < 0.4


def test_spectra_and_circuits(real_models: Path, tmp_path: Path) -> None:
    analyses = [
        {"use": "bilinear.spectrum", "with": {"matrices": ["W_Q", "W_K"]}, "layers": [0, 12]},
        {"use": "bilinear.alignment", "with": {"gains": False}, "layers": [11, 12]},
    ]
    results = _run(real_models / "smollm2", tmp_path / "store", analyses, None)
    model = gausslens.load(str(real_models / "smollm2"), loader="weights")
    weights = model.weights(12)
    W_Q, W_K = (weights[n].double().numpy() for n in ("W_Q", "W_K"))
    spectra = results["trained", "bilinear.spectrum"].sel(layer=12)
    for name, W in (("W_Q", W_Q), ("W_K", W_K)):
        wanted = np.linalg.svd(np.concatenate(list(W), axis=1), compute_uv=False) ** 2
        found = spectra["squared"].sel(tensor=name).dropna("feature").values
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-12 * wanted[0])
    circuits = results["trained", "bilinear.alignment"].sel(layer=12)
    for head in (0, 8):
        C = W_Q[head] @ W_K[weights.kv_of_head[head]].T
        one = circuits.sel(head=head)
        squared = np.linalg.svd(C, compute_uv=False)[:64] ** 2
        np.testing.assert_allclose(one["qk_squared"], squared, rtol=1e-8)
        assert float(one["qk_trace"]) == pytest.approx(np.trace(C), rel=1e-9)
    # Trained weights are no noise: no head's spectrum is that of a product of random matrices.
    assert (circuits["qk_bulk_accepted"] == 0).all()
    assert float(np.abs(circuits["ov_trace_z"]).max()) > 10


def _adapter(directory: Path, model: Path, layers: tuple[int, ...], rank: int, share: float) -> None:
    """A LoRA adapter of k and v whose B A has this share of the norm of the weights, in directions at random."""
    rng = np.random.default_rng(0)
    base = gausslens.load(str(model), loader="weights")
    tensors = {}
    for layer in layers:
        for ours, theirs in (("W_K", "k_proj"), ("W_V", "v_proj")):
            W = np.concatenate(list(base.weights(layer)[ours].double().numpy()), axis=1).T
            B, A = rng.normal(size=(len(W), rank)), rng.normal(size=(rank, W.shape[1]))
            B *= share * np.linalg.norm(W) / np.linalg.norm(B @ A)
            name = f"base_model.model.model.layers.{layer}.self_attn.{theirs}"
            tensors |= {f"{name}.lora_{n}.weight": t.astype(np.float32) for n, t in (("A", A), ("B", B))}
    directory.mkdir()
    save_file(tensors, directory / "adapter_model.safetensors")
    told = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": ["k_proj", "v_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(told | {"base_model_name_or_path": str(model)}))


def test_a_planted_difference_of_rank_two_is_found_and_a_random_one_is_not(
    real_models: Path, tmp_path: Path, record_testsuite_property: Any
) -> None:
    """A twentieth of the weights in norm, beside 19 Gaussian ones of that norm, of which the random one is another.

    Beside differences of its own singular values its directions, which are random, say nothing.
    """
    _adapter(tmp_path / "adapter", real_models / "smollm2", (0, 12), 2, 0.05)
    pair = {"difference": ["tuned", "base"]}
    matrices = {"matrices": ["W_K", "W_V"]}
    study = {
        "gausslens": 1,
        "name": "planted",
        "model": {"path": str(real_models / "smollm2"), "loader": "weights"},
        "variants": {
            "base": [],
            "tuned": [{"edit": "model.lora", "path": str(tmp_path / "adapter")}],
            "planted": pair,
            "random": pair | {"edits": [{"edit": "reinit.gaussian", "series": 1}], "draws": 1},
            "equal": pair | {"edits": [{"edit": "reinit.gaussian"}], "draws": 19},
            "turned": pair | {"edits": [{"edit": "reinit.rotate", "by": "matrix"}], "draws": 8},
        },
        "analyses": [
            {"use": "bilinear.difference", "with": matrices | {"ranks": [1, 2, 4]}, "layers": [0, 12]},
            {"use": "bilinear.spectrum", "with": matrices, "layers": [0, 12]},
        ],
        "against": ["equal", "turned"],
        "report": False,
    }
    results = gausslens.run(study, store=tmp_path / "store")
    found, random = (results[name, "bilinear.difference"] for name in ("planted", "random"))
    assert (found["matrix_rank"] == 2).all()
    for one in (found, random):
        np.testing.assert_allclose(one["relative_norm"], 0.05, rtol=1e-3)
    called: dict[tuple[str, str], set[str]] = {}
    for variant in ("planted", "random"):
        for null in ("equal", "turned"):
            told = called.setdefault((variant, null), set())
            for label in ("bilinear.difference", "bilinear.spectrum"):
                table = results.frame(variant, label, null=null)
                table = table[table["called"].fillna(False).astype(bool)]
                told.update(table["variable"])
                for name, rows in table.groupby("variable"):
                    value = f"q {rows['q'].min():.2g}, {len(rows)} cells"
                    record_testsuite_property(f"{variant} beside {null}: {label} {name}", value)
    assert {"leading_share", "effective_rank", "stable_rank", "maximum"} <= called["planted", "equal"]
    assert not {"cosine", "overlap", "captured", "captured_both", "base_share"} & called["planted", "turned"]
    assert not called["random", "equal"]


@pytest.mark.full
def test_all_heads_by_their_factors(real_models: Path) -> None:
    """Factors against full matrices over every head of both models, to 1e-10 of the largest."""
    for name in ("smollm2", "minilm"):
        model = gausslens.load(str(real_models / name), loader="weights")
        for layer in model.info.layers[::5]:
            weights = model.weights(layer)
            W_Q, W_K = (weights[n].double().numpy() for n in ("W_Q", "W_K"))
            K = W_K[list(weights.kv_of_head)]
            full = np.linalg.svd(W_Q @ K.swapaxes(-1, -2), compute_uv=False)[:, : W_Q.shape[-1]] ** 2
            found = product_squared_singular_values(W_Q, K)
            np.testing.assert_allclose(found, full, rtol=1e-8, atol=1e-10 * full.max())
