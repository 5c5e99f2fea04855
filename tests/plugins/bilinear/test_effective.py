"""Circuits, angles and logits of real modules, against what the module's own parameters give by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import gausslens
from gausslens.maths.effective_forms import effective
from gausslens.maths.resampling import split_prompts

from ..scores_by_hand import MODELS, QUERY_NORMS, VOCABULARY, Layer, build, checked

IDS = np.random.default_rng(0).integers(3, VOCABULARY, (24, 12))
LAGS = (0, 1, 5)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, Any, list[Layer]]]:
    """The module, its results, and its layers by hand; each once."""
    held: dict[str, tuple[Any, Any, list[Layer]]] = {}

    def of(name: str) -> tuple[Any, Any, list[Layer]]:
        if name not in held:
            study = {
                "gausslens": 1,
                "name": "effective",
                "model": {},
                "prompts": {"source": "tokens", "ids": IDS.tolist()},
                "analyses": [
                    {"use": "bilinear.alignment", "with": {"lags": list(LAGS)}},
                    {"use": "bilinear.angles", "with": {"maps": 0}},
                    {"use": "bilinear.logits", "with": {"lags": [1, 5], "tokens": "all", "sample": 40}},
                ],
                "report": False,
            }
            model = build(name)
            results = gausslens.run(study, store=tmp_path_factory.mktemp(name) / "store", model=model, shown=False)
            held[name] = model, results, checked(model, IDS)
        return held[name]

    return of


Ran = Callable[[str], tuple[Any, Any, list[Layer]]]


@pytest.mark.parametrize("name", MODELS)
def test_effective_forms_make_the_scores_of_the_module(name: str, ran: Ran) -> None:
    model, _, layers = ran(name)
    opened = gausslens.load(model)
    for at, layer in enumerate(layers):
        found = effective(opened.weights(at), opened.info.facts.scoring(at)).scores(layer.x)
        np.testing.assert_allclose(found, layer.scores, atol=1e-5 * float(layer.scores.abs().max()))


@pytest.mark.parametrize("name", MODELS)
def test_circuits_are_those_of_the_forms_by_hand(name: str, ran: Ran) -> None:
    _, results, layers = ran(name)
    found = results["trained", "bilinear.alignment"]
    for at, layer in enumerate(layers):
        for head in range(4):
            A, B, a, b = (t[head].numpy() for t in (layer.W_Q, layer.W_K, layer.bias_q, layer.bias_k))
            place = found.sel(layer=at, head=head)
            C = A @ B.T
            _same(place["qk_squared"][:4], np.linalg.svd(C, compute_uv=False)[:4] ** 2)
            whole = (C**2).sum() + ((A @ b) ** 2).sum() + ((B @ a) ** 2).sum() + (a @ b) ** 2
            shares = [1 - (C**2).sum() / whole, ((B @ a) ** 2).sum() / whole]
            np.testing.assert_allclose([place["qk_bias_share"], place["qk_key_bias_share"]], shares, atol=1e-5)
            for lag in LAGS:
                C = A @ layer.R(-lag).numpy() @ B.T
                _same(place["qk_at_lag_norm"].sel(lag=lag), np.linalg.norm(C))
                assert float(place["qk_at_lag_trace"].sel(lag=lag)) == pytest.approx(
                    np.trace(C), abs=1e-5 * np.linalg.norm(C)
                )
                symmetric = np.linalg.norm((C + C.T) / 2) ** 2 / np.linalg.norm(C) ** 2
                _same(place["qk_at_lag_symmetric_share"].sel(lag=lag), symmetric)


@pytest.mark.parametrize("name", MODELS)
def test_angles_are_correlated_with_the_scores_by_hand(name: str, ran: Ran) -> None:
    _, results, layers = ran(name)
    found = results["trained", "bilinear.angles"]
    n = IDS.shape[1]
    i, j = np.meshgrid(np.arange(n), np.arange(n), indexing="ij")
    seen = (i != j if name == "bert" else j < i) & (i > 0) & (j > 0)
    for at, layer in enumerate(layers):
        x = layer.x.numpy()
        x = x - x.mean(-1, keepdims=True) if name in ("gpt2", "gpt_neox", "cohere") else x
        x = x / np.linalg.norm(x, axis=-1, keepdims=True)
        cosine = np.einsum("ptd,psd->pts", x, x)[:, seen].ravel()
        for head in range(4):
            content, raw = (
                np.einsum("pte,pse->pts", q[:, :, head], k[:, :, head])[:, seen].ravel()
                for q, k in ((layer.q, layer.k), layer.raw)
            )
            place = found.sel(layer=at, head=head)
            kinds = {"content": content, "score": layer.scores[:, head].numpy()[:, seen].ravel()}
            kinds |= {"content_raw": raw} if name in QUERY_NORMS else {}
            for kind, values in kinds.items():
                wanted = np.corrcoef(cosine, values)[0, 1]
                assert float(place[f"{kind}_correlation"]) == pytest.approx(wanted, abs=1e-5), kind
    assert ("content_raw_correlation" in found) == (name in QUERY_NORMS)
    assert np.isfinite(found["score_share_predicted"]).all()


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_scores_by_hand(name: str, ran: Ran) -> None:
    model, results, layers = ran(name)
    found: xr.Dataset = results["trained", "bilinear.logits"]
    held_out, _ = split_prompts(list(IDS), 0.5)
    width = layers[0].q.shape[-1]
    scale = float(getattr(model.config, "query_pre_attn_scalar", None) or width) ** -0.5
    cap = getattr(model.config, "attn_logit_softcapping", None)
    for at, layer in enumerate(layers):
        scores = layer.scores.numpy()
        scores = cap * np.arctanh(scores / cap) if cap else scores
        for lag in LAGS:
            score = np.diagonal(scores[held_out], -lag, 2, 3)
            pairs = {"content": (layer.q, layer.k)} | ({"content_raw": layer.raw} if name in QUERY_NORMS else {})
            values = {"score": score.transpose(1, 0, 2).reshape(4, -1)}
            for kind, (q, k) in pairs.items():
                late, early = q[held_out][:, lag:], k[held_out][:, : q.shape[1] - lag]
                values[kind] = scale * (late * early).sum(-1).permute(2, 0, 1).reshape(4, -1).numpy()
            for kind, one in values.items():
                place = found.sel(layer=at, lag=lag)
                size = np.abs(one).max()
                np.testing.assert_allclose(place[f"{kind}_mean_measured"], one.mean(1), atol=1e-5 * size)
                np.testing.assert_allclose(place[f"{kind}_variance_measured"], one.var(1), atol=1e-5 * size**2)
    assert ("content_raw_mean_measured" in found) == (name in QUERY_NORMS)


@pytest.mark.parametrize("name", QUERY_NORMS)
def test_some_heads_are_as_they_are_among_all(name: str, ran: Ran, tmp_path: Path) -> None:
    _, results, _ = ran(name)
    study = {
        "gausslens": 1,
        "name": "some",
        "model": {},
        "prompts": {"source": "tokens", "ids": IDS.tolist()},
        "analyses": [
            {"use": "bilinear.alignment", "heads": [1, 2], "with": {"lags": list(LAGS)}},
            {"use": "bilinear.angles", "heads": [1, 2], "with": {"maps": 0}},
        ],
        "report": False,
    }
    found = gausslens.run(study, store=tmp_path / "store", model=build(name), shown=False)
    for label, variables in {
        "bilinear.alignment": ("qk_trace", "qk_at_lag_trace", "qk_bias_share", "qk_raw_trace", "ov_norm"),
        "bilinear.angles": ("content_correlation", "score_share_predicted", "content_raw_share_predicted"),
    }.items():
        some, every = found["trained", label], results["trained", label].sel(head=[1, 2])
        for variable in variables:
            np.testing.assert_allclose(some[variable], every[variable], rtol=1e-6, atol=1e-9, err_msg=variable)


def _same(found: Any, wanted: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-5)
