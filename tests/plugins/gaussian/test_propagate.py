"""gaussian.propagate: predicted against measured, where the truth is planted and on the tiny model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from gausslens import Context, GausslensError, LayerWeights, ModelError, ModelInfo, Part, Prompt, Tokens
from gausslens.testing import TinyModel, TinyParameters, check_forward, check_round_trip
from gausslens_gaussian.analyses.propagate import SITES, Propagate, estimate
from gausslens_gaussian.analyses.value_path import ValuePath
from gausslens_gaussian.parameters import PropagateParameters
from gausslens_gaussian.plugin import PROPAGATE


def texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(chr(97 + c) for c in rng.integers(0, 26, 12)) for _ in range(count)]


class Planted:
    """A runner whose residual stream is exactly Gaussian, and whose pattern is what a test says."""

    def __init__(self, model: TinyModel, pattern: Any, seed: int = 1) -> None:
        self.model, self.info, self.pattern = model, model.info, pattern
        self.rng = np.random.default_rng(seed)
        d = self.info.d_model
        self.L = self.rng.normal(size=(d, d)) / np.sqrt(d)

    @property
    def whole(self) -> Planted:
        return self

    def weights(self, layer: int | None) -> LayerWeights:
        return LayerWeights(self.model, layer)

    def forward(self, tokens: np.ndarray, sites: Any = (), **_: Any) -> Mapping[Any, torch.Tensor]:
        found = {}
        p, n = tokens.shape
        for layer in self.info.layers:
            # Neighbours are correlated, so that there is information to predict.
            white = self.rng.normal(size=(p, n + 1, self.info.d_model))
            x = (white[:, 1:] + white[:, :-1]) / np.sqrt(2) @ self.L.T + 0.3
            v = ValuePath.of(self.weights(layer)).values(x)
            A = self.pattern(self.rng, x, self.info.n_heads)
            z = np.einsum("phqk,pkhe->pqhe", A, v[:, :, list(self.info.kv_of_head)])
            arrays = {"resid_pre": x, "v": v, "pattern": A, "z": z}
            found |= {(layer, s): torch.from_numpy(arrays[s]) for s in sites}
        return found


def softmax(logits: np.ndarray) -> np.ndarray:
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.tril(e) / np.tril(e).sum(axis=-1, keepdims=True)


def fixed(rng: np.random.Generator, x: np.ndarray, heads: int) -> np.ndarray:
    p, n = x.shape[:2]
    one = softmax(np.random.default_rng(5).normal(size=(heads, n, n)))
    return np.broadcast_to(one, (p, heads, n, n)).copy()


def drawn(rng: np.random.Generator, x: np.ndarray, heads: int) -> np.ndarray:
    p, n = x.shape[:2]
    return softmax(2 * rng.normal(size=(p, heads, n, n)))


def of_tokens(rng: np.random.Generator, x: np.ndarray, heads: int) -> np.ndarray:
    """Each query takes the key that lies furthest along the tokens' mean: what it gets is no average any more."""
    keys = 3 * x.mean(axis=-1) * np.sqrt(x.shape[-1])
    A = softmax(np.repeat(keys[:, None], x.shape[1], axis=1))
    return np.repeat(A[:, None], heads, axis=1)


def propagated(pattern: Any, count: int = 3000, **parameters: Any) -> xr.Dataset:
    model = TinyModel(TinyParameters(layers=1, d_model=24, d_head=6))
    ids = np.random.default_rng(2).integers(0, 256, (count, 5))
    tokens = model.tokenise([Prompt(ids=tuple(row)) for row in ids.tolist()])
    analysis = Propagate(PropagateParameters(window=5, **({"dims": 3} | parameters)), Context(model.info, 0, tokens))
    return analysis.run(Planted(model, pattern), tokens).isel(layer=0)


def test_it_repeats_and_is_well_formed() -> None:
    result = check_forward(PROPAGATE, PropagateParameters(window=6, dims=3), texts=texts(40))
    check_round_trip(result)
    assert result["covariance_error_own"].dims == ("layer", "head")
    assert result["position"].values.tolist() == [1, 2, 3, 4, 5]  # at 0 there is BOS in every prompt


def test_through_a_fixed_pattern_the_prediction_is_exact() -> None:
    result = propagated(fixed)
    for kind in ("mean", "own"):
        assert float(result[f"covariance_error_{kind}"].max()) < 1e-10
        assert float(result[f"entropy_error_{kind}"].max()) < 1e-9
        assert float(result[f"mutual_information_error_{kind}"].max()) < 1e-6
    assert float(result["mean_error"].max()) < 1e-10


def test_through_patterns_apart_from_the_tokens_each_ones_own_predicts_and_the_mean_does_not() -> None:
    result = propagated(drawn)
    # Sampling moves covariances of 15 coordinates from 3,000 prompts by a few per cent.
    assert float(result["covariance_error_own"].max()) < 0.1
    assert float(result["covariance_error_mean"].min()) > 2 * float(result["covariance_error_own"].max())
    assert float(result["entropy_error_own"].max()) < 0.03
    assert float(result["entropy_error_mean"].min()) > float(result["entropy_error_own"].max())


def test_patterns_that_follow_the_tokens_are_seen_to() -> None:
    apart, following = propagated(drawn), propagated(of_tokens)
    assert float(following["covariance_error_own"].min()) > 2 * float(apart["covariance_error_own"].max())


def test_values_of_a_gaussian_stream_are_predicted_through_the_norm() -> None:
    result = propagated(fixed)
    # 12,000 tokens: relative sampling error of a covariance of 6 dimensions is about sqrt(7 / 12000) = 0.024; both
    # sides come from the same tokens, so less remains.
    assert float(result["value_covariance_error"].max()) < 0.024
    assert float(np.abs(result["value_entropy_error"]).max()) < 0.01


class Recorded(Planted):
    """A planted runner that keeps what it gave."""

    def forward(self, tokens: np.ndarray, sites: Any = (), **how: Any) -> Mapping[Any, torch.Tensor]:
        found = super().forward(tokens, sites, **how)
        self.given = [*getattr(self, "given", []), {key: array.numpy() for key, array in found.items()}]
        return found


def test_errors_are_over_all_dimensions_of_a_head() -> None:
    """By brute force, without projections, moments or tensor products, from the samples themselves."""
    model = TinyModel(TinyParameters(layers=1, d_model=24, d_head=6))
    ids = np.random.default_rng(2).integers(0, 256, (600, 5))
    tokens = model.tokenise([Prompt(ids=tuple(row)) for row in ids.tolist()])
    results = {}
    for dims in (1, 2):
        runner = Recorded(model, of_tokens)
        analysis = Propagate(PropagateParameters(window=5, dims=dims), Context(model.info, 0, tokens))
        results[dims] = analysis.run(runner, tokens).isel(layer=0)
    v, z, A = (np.concatenate([one[0, site] for one in runner.given]) for site in ("v", "z", "pattern"))
    for head, kv_head in enumerate(model.info.kv_of_head):
        values, n = v[:, :, kv_head], len(v)
        measured = np.cov(z[:, :, head].reshape(n, -1).T)
        by_mean = np.einsum("qk,pke->pqe", A[:, head].mean(axis=0), values)
        # Each prompt's own pattern, on the values of every prompt: all pairs; the covariance of that many samples.
        every = np.einsum("aqk,bke->abqe", A[:, head], values, optimize=True).reshape(n * n, -1)
        spread = A[:, head] - A[:, head].mean(axis=0)
        # Of pairs the patterns' spread is over n, of moments over n - 1, and so is the values'.
        mu, V = values.mean(axis=0), values - values.mean(axis=0)
        pieces = [np.cov(by_mean.reshape(n, -1).T), np.einsum("aqk,ke->aqe", spread, mu).reshape(n, -1)]
        both = np.einsum("aqk,bke->abqe", spread, V, optimize=True).reshape(n * n, -1)
        own = pieces[0] + pieces[1].T @ pieces[1] / (n - 1) + both.T @ both / (n - 1) ** 2
        np.testing.assert_allclose(own, np.cov(every.T), rtol=0.01, atol=0.01 * np.abs(own).max())
        for kind, predicted in (("mean", pieces[0]), ("own", own)):
            exact = np.linalg.norm(predicted - measured) / np.linalg.norm(measured)
            for result in results.values():
                assert float(result[f"covariance_error_{kind}"][head]) == pytest.approx(exact, rel=1e-8)
        mean = z[:, :, head].mean(axis=0)
        exact = np.linalg.norm(by_mean.mean(axis=0) - mean) / np.linalg.norm(mean)
        assert float(results[1]["mean_error"][head]) == pytest.approx(exact, rel=1e-8)


def test_it_does_not_matter_how_many_layers_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, parameters = TinyModel(TinyParameters(layers=3)), PropagateParameters(window=6, dims=2)
    whole = check_forward(PROPAGATE, parameters, model=model, texts=texts(40))
    monkeypatch.setattr("gausslens_gaussian.analyses.propagate._HELD", 1)
    xr.testing.assert_identical(check_forward(PROPAGATE, parameters, model=model, texts=texts(40)), whole)
    wide = replace(model.info, d_head=1024)
    assert estimate(parameters, wide, None).memory < 2 * estimate(parameters, replace(wide, layers=(0,)), None).memory


def test_a_projection_commutes_with_attention() -> None:
    whole = propagated(fixed, dims=6)
    assert whole.attrs["reduced_to"] == 6
    assert float(whole["covariance_error_mean"].max()) < 1e-10
    assert propagated(fixed, dims=50).attrs["reduced_to"] == 6


def test_few_or_equal_prompts_are_refused() -> None:
    model = TinyModel()
    tokens = model.tokenise([Prompt((Part(t),)) for t in texts(10)])

    def run(tokens: Tokens, **parameters: Any) -> None:
        analysis = Propagate(PropagateParameters(**parameters), Context(model.info, 0, tokens))
        analysis.run(Planted(model, fixed), tokens)

    with pytest.raises(GausslensError, match="10 of 10 prompts have 8 tokens or more, and it needs 25"):
        run(tokens, dims=6)
    with pytest.raises(GausslensError, match="0 of 10 prompts have 60 tokens"):
        run(tokens, window=60, dims=2)
    same = model.tokenise([Prompt((Part("the same"),))] * 20)
    with pytest.raises(GausslensError, match="are the same but for 0"):
        run(same, dims=2)


def test_layers_without_attention_and_heads_out_of_view_are_left_out() -> None:
    model = TinyModel(TinyParameters(layers=3, attention_free=[1]))
    result = check_forward(PROPAGATE, PropagateParameters(dims=2), model=model, texts=texts(30))
    assert result["layer"].values.tolist() == [0, 2]


class TestValuePath:
    def path(self, **facts: Any) -> tuple[ValuePath, np.ndarray]:
        model = TinyModel(dtype="float64")
        info: ModelInfo = replace(model.info, facts={**model.info.facts, **facts})
        x = np.random.default_rng(6).normal(size=(50, model.info.d_model)) + 1
        return ValuePath.of(LayerWeights(model, 0, info=info)), x

    def test_it_is_what_the_model_computes(self) -> None:
        from gausslens import Twin
        from gausslens.testing import TinyEngine

        model = TinyModel(dtype="float64")
        found = TinyEngine().runner(Twin(model)).forward(np.arange(20)[None], sites=("resid_pre", "v"))
        path = ValuePath.of(LayerWeights(model, 1))
        np.testing.assert_allclose(path.values(found[1, "resid_pre"].numpy()), found[1, "v"].numpy(), atol=1e-12)

    @pytest.mark.parametrize("facts", [{}, {"norm": "layer", "norm_epsilon": 1e-3}, {"norm_first": False}])
    def test_pushing_moments_is_moments_of_the_pushed_where_it_is_linear(self, facts: dict[str, Any]) -> None:
        path, x = self.path(**facts)
        h, v = path.normed(x), path.values(x)
        mean, cov = path.mapped(h.mean(axis=0), np.cov(h.T))
        np.testing.assert_allclose(mean, v.mean(axis=0), atol=1e-12)
        for head in range(v.shape[1]):
            np.testing.assert_allclose(cov[head], np.cov(v[:, head].T), atol=1e-12)

    @pytest.mark.parametrize(
        ("facts", "missing"),
        [
            ({}, "'norm'"),
            ({"norm": "unknown"}, "'norm'"),
            ({"norm": "rms"}, "'norm_epsilon'"),
            ({"norm": "rms", "norm_epsilon": 1e-6}, "'norm_first'"),
            ({"norm": "rms", "norm_epsilon": 1e-6, "norm_first": True}, "'gains'"),
            ({"norm": "rms", "norm_epsilon": 1e-6, "norm_first": True, "gains": False}, "'biases'"),
        ],
    )
    def test_what_a_loader_does_not_tell_is_refused_by_name(self, facts: dict[str, Any], missing: str) -> None:
        model = TinyModel()
        foreign = replace(model.info, facts=facts)
        with pytest.raises(ModelError, match=f"does not tell {missing}"):
            ValuePath.of(LayerWeights(model, 0, info=foreign))

    @pytest.mark.parametrize(("facts", "tensor"), [({"gains": True}, "ln1.w"), ({"biases": ("b_V",)}, "b_V")])
    def test_a_tensor_that_is_told_of_and_is_not_there_is_refused(self, facts: dict[str, Any], tensor: str) -> None:
        with pytest.raises(ModelError, match=f"has no {tensor} in layer 0"):
            self.path(**facts)

    def test_the_analysis_refuses_before_the_model_runs(self) -> None:
        model = TinyModel()
        foreign = replace(model.info, facts={})
        tokens = model.tokenise([Prompt((Part(t),)) for t in texts(20)])

        class Foreign(Planted):
            def weights(self, layer: int | None) -> LayerWeights:
                return LayerWeights(self.model, layer, info=foreign)

            def forward(self, tokens: np.ndarray, sites: Any = (), **_: Any) -> Mapping[Any, torch.Tensor]:
                raise AssertionError("it ran")

        analysis = Propagate(PropagateParameters(dims=2), Context(foreign, 0, tokens))
        with pytest.raises(ModelError, match="does not tell 'norm'"):
            analysis.run(Foreign(model, fixed), tokens)

    def test_without_a_norm_first_a_gaussian_passes_unchanged(self) -> None:
        path, x = self.path(norm_first=False)
        np.testing.assert_array_equal(path.normed(x), x)
        pushed, mapped = path.pushed(x.mean(axis=0), np.cov(x.T)), path.mapped(x.mean(axis=0), np.cov(x.T))
        for a, b in zip(pushed, mapped, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_estimate_grows_with_window_and_width() -> None:
    info = TinyModel().info
    small, large = (estimate(PropagateParameters(window=w), info, None) for w in (4, 16))
    assert large.memory > small.memory
    assert large.disk == 4 * small.disk
    assert set(SITES) == {"resid_pre", "v", "pattern", "z"}
