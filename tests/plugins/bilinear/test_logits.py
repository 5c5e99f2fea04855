"""bilinear.logits: as the host runs it, and predictions against measurement on planted Gaussians and real modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import xarray as xr
from pydantic import ValidationError

from gausslens import Batch, Context, InputError, LayerWeights, ModelError, ModelInfo, Part, Prompt
from gausslens.maths.resampling import MOMENTS
from gausslens.maths.rotary import Rotation
from gausslens.testing import TinyModel, TinyParameters, check_round_trip, check_stream
from gausslens_bilinear.analyses.logits import Logits
from gausslens_bilinear.maths import bilinear_form as form
from gausslens_bilinear.maths.attention_rows import bins, row_variances
from gausslens_bilinear.maths.query_key_pairs import Sample, token_numbers
from gausslens_bilinear.parameters import LogitsParameters
from gausslens_bilinear.plugin import LOGITS

TEXTS = [
    f"{word} {i} was here, and {word[::-1]} went there {i * 7} times." for i, word in enumerate(["otter", "ibex"] * 6)
]


def test_as_the_host_runs_it() -> None:
    parameters = LogitsParameters(lags=(1, 3), sample=40)
    result = check_stream(LOGITS, parameters, texts=TEXTS, rtol=1e-6, atol=1e-7)
    check_round_trip(result)
    assert result["lag"].values.tolist() == [0, 1, 3]
    assert result["score_mean_measured"].dims == ("layer", "head", "lag")
    # The tiny model has no position: the true score is the content form.
    for moment in MOMENTS:
        np.testing.assert_allclose(
            result[f"score_{moment}_measured"], result[f"content_{moment}_measured"], rtol=1e-4, atol=1e-5
        )
    for name in ("fitted_on", "measured_on"):
        assert result.attrs[name] == "6 prompts"


class _Planted:
    """Sequences of Gaussian x with a planted covariance and memory, through the weights of a random tiny model."""

    def __init__(self, prompts: int, length: int, rho: float = 0.6) -> None:
        self.model = TinyModel(TinyParameters(layers=1, heads=4, kv_heads=2, d_model=10, d_head=4))
        self.info, self.rho = self.model.info, rho
        rng = np.random.default_rng(5)
        d = self.info.d_model
        self.mean, self.root = 0.5 * rng.normal(size=d), rng.normal(size=(d, d)) / np.sqrt(d)
        noise = rng.normal(size=(prompts, length, d))
        for t in range(1, length):
            noise[:, t] = rho * noise[:, t - 1] + np.sqrt(1 - rho**2) * noise[:, t]
        self.x = self.mean + noise @ self.root.T
        ids = rng.integers(0, 250, (prompts, length))
        self.tokens = self.model.tokenise([Prompt(ids=tuple(map(int, row))) for row in ids])
        self.context = Context(self.info, 0, self.tokens)

    def batches(self, size: int = 50) -> Iterator[Batch]:
        """As an engine would give them."""
        weights = LayerWeights(self.model, 0)
        W_Q, W_K = (weights[n].double() for n in ("W_Q", "W_K"))
        x = torch.tensor(self.x)
        q, k = (torch.einsum("ptd,hde->pthe", x, W) for W in (W_Q, W_K))
        of = list(weights.kv_of_head)
        scores = torch.einsum("pqhe,pkhe->phqk", q, k[:, :, of]) * self.info.d_head**-0.5
        n = x.shape[1]
        scores = scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -torch.inf)
        sites = {"q": q, "k": k, "scores": scores, "pattern": scores.softmax(-1)}
        for at in range(0, len(x), size):
            some = slice(at, at + size)
            there = torch.ones(len(x[some]), n, dtype=torch.bool)
            arrays = {name: array[some] for name, array in sites.items()}
            prompts = np.arange(len(x))[some]
            yield Batch(0, prompts, there.long(), there, there, arrays, self.info.heads, self.info.kv_heads)

    def factors(self, head: int) -> tuple[np.ndarray, np.ndarray]:
        """W_Q and W_K of a head, the scale of the scores in the first."""
        W_Q, W_K = (self.model.tensor(0, n).double().numpy() for n in ("W_Q", "W_K"))
        return W_Q[head] * self.info.d_head**-0.5, W_K[self.info.kv_of_head[head]]

    def joint(self, lag: int) -> tuple[np.ndarray, np.ndarray]:
        """The planted mean and covariance of (x_i, x_{i-lag})."""
        S = self.root @ self.root.T
        return np.tile(self.mean, 2), form.joint([[S, self.rho**lag * S], [self.rho**lag * S, S]])


def _run(planted: _Planted, **chosen: Any) -> xr.Dataset:
    state = Logits(LogitsParameters(**chosen), planted.context)
    for batch in planted.batches():
        state.update(batch)
    return state.result().isel(layer=0)


def test_planted_gaussians_are_predicted() -> None:
    """Within 3 standard errors: predictions from the planted moments, and those fitted on the other half."""
    planted = _Planted(prompts=600, length=48)
    found = _run(planted, lags=(1, 2, 8), tokens="all", sample=512)
    misses, fitted = [], []
    for head in planted.info.heads:
        for lag in (0, 1, 2, 8):
            k = form.cumulants(planted.factors(head), *planted.joint(lag))
            right = np.array([k[0], k[1], *form.shape(k)])
            for family in ("content", "score"):
                place = found.sel(head=head, lag=lag)
                measured, error, predicted = (
                    np.array([float(place[f"{family}_{m}_{end}"]) for m in MOMENTS])
                    for end in ("measured", "error", "predicted")
                )
                misses.append((measured - right) / error)
                fitted.append((measured - predicted) / error)
    z, both = np.array(misses), np.array(fitted)
    # 16 heads and lags, correlated; the jackknife of 16 groups has heavy tails: t of 15 degrees, 3 errors hold 99.1 %.
    assert (np.abs(z[:, :2]) < 3).mean() > 0.95
    assert np.abs(z).max() < 6
    # Fitted on as many prompts as measured on, predictions err as much again.
    assert (np.abs(both[:, :2]) < 3 * np.sqrt(2)).mean() > 0.95
    assert np.abs(both).max() < 8
    # In share: 300 prompts of 48 dependent tokens know a variance to some 3 %, both halves to 4.5 %.
    assert np.abs(found["score_variance_off"].values).max() < 0.18


def test_planted_independent_pairs_are_predicted() -> None:
    planted = _Planted(prompts=2000, length=6)
    found = _run(planted, lags=(1,), tokens="all", sample=1500)
    S = planted.joint(0)[1]
    S[:10, 10:] = S[10:, :10] = 0
    for head in planted.info.heads:
        k = form.cumulants(planted.factors(head), np.tile(planted.mean, 2), S)
        place = found.sel(head=head, lag=0)
        for i, moment in enumerate(("mean", "variance")):
            measured, error = (
                float(place[f"independent_{moment}_measured"]),
                float(place[f"independent_{moment}_error"]),
            )
            assert abs(measured - k[i]) < 4 * error
            assert error < 0.1 * max(k[1], np.sqrt(k[1]))
    # What dependent pairs have is another number: the two are never mixed up.
    apart = np.abs(found["content_mean_predicted"] - found["independent_mean_predicted"]).sel(lag=0)
    assert float(apart.max()) > 0.1


def test_rows_are_predicted_where_keys_are_independent() -> None:
    planted = _Planted(prompts=200, length=64, rho=0.0)
    found = _run(planted, lags=(1,), tokens="all", sample=16)
    assert found["row_keys"].values.tolist() == [8, 16, 32, 64]
    for keys in (16, 32):
        place = found.sel(row_keys=keys)
        measured, predicted, error = (place[f"row_variance_{e}"].values for e in ("measured", "predicted", "error"))
        # Both halves err.
        assert (np.abs(measured - predicted) < 5 * np.sqrt(2) * error).all()
        measured, predicted = (place[f"row_entropy_{e}"].values for e in ("measured", "predicted"))
        assert np.abs(measured - predicted).max() < 0.12
        assert (np.abs(measured - predicted) < np.abs(measured - np.log(keys * 1.5)) / 2).all()
    np.testing.assert_allclose(found["row_outside_measured"].sel(row_keys=32), 0, atol=1e-6)


@pytest.mark.parametrize("frequencies", [(), (1.0, 0.1)])
def test_variances_of_rows_over_lags(frequencies: tuple[float, ...], judge: Any, rng: Any) -> None:
    rotation, scale, n = Rotation(6, frequencies, 1.2), 0.7, 12
    L = rng.normal(size=(2, 6, 6)) / 2
    mq, mk = rng.normal(size=(2, 6))
    q = mq + rng.normal(size=(20_000, 6)) @ L[0].T
    k = mk + rng.normal(size=(20_000, n, 6)) @ L[1].T
    forms = np.stack([scale * rotation.between(lag) for lag in range(n)])
    logits = np.einsum("si,lij,slj->sl", q, forms, k)
    mixed, inside = row_variances(L[0] @ L[0].T + np.outer(mq, mq), mk, L[1] @ L[1].T, rotation, scale, n)
    for count in (2, 5, n):
        judge.mean(logits[:, :count].var(axis=1), inside[count - 1])
    # Of the mixture over many keys: without what 1/n of randomness takes.
    assert mixed[n - 1] > inside[n - 1]


def test_a_sample_does_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(0)
    prompts, at = np.repeat(np.arange(30), 5), np.tile(np.arange(5), 30)
    q, k = rng.normal(size=(150, 2, 3)).astype(np.float32), rng.normal(size=(150, 1, 3)).astype(np.float32)
    order = token_numbers(prompts, at)
    assert len(set(order.tolist())) == 150
    states = []
    for places in (np.arange(150), rng.permutation(150)):
        parts = [Sample(20) for _ in range(3)]
        for part, some in zip(parts, np.array_split(places, 3), strict=True):
            part.add(order[some], prompts[some], prompts[some] % 16, q[some], k[some])
        parts[1].merge(parts[2])
        parts[0].merge(parts[1])
        states.append(parts[0])
    np.testing.assert_array_equal(states[0].query, states[1].query)
    forms, heads = [np.eye(3)], 2
    found, _ = states[0].moments(forms, heads, [0, 0])
    one = states[0]
    assert one.query is not None
    assert one.key is not None
    values = [
        float(one.query[i, 1].astype(float) @ one.key[j, 0].astype(float))
        for i in range(20)
        for j in range(20)
        if one.prompt[i] != one.prompt[j]
    ]
    np.testing.assert_allclose(found[1, 0, :2], [np.mean(values), np.var(values)], rtol=1e-9)


def test_a_single_prompt_cannot_be_fitted_on_and_measured_on() -> None:
    model = TinyModel()
    tokens = model.tokenise([Prompt((Part("a"),))] * 3)
    with pytest.raises(InputError, match=r"1 different prompts and holdout 0\.5 .* give more prompts"):
        Logits(LogitsParameters(), Context(model.info, 0, tokens))


class _Stranger(TinyModel):
    """A model of whose family the loader knows nothing."""

    told: ClassVar[dict[str, Any]] = {"position": "unknown", "norm": "unknown"}

    @property
    def info(self) -> ModelInfo:
        return replace(super().info, facts=self.told)


def test_of_a_family_that_nobody_knows_scores_and_rows_are_measured_and_the_rest_is_missing() -> None:
    parameters = LogitsParameters(lags=(1, 3), sample=40)
    strange = check_stream(LOGITS, parameters, model=_Stranger(), texts=TEXTS, rtol=1e-6, atol=1e-7)
    known = check_stream(LOGITS, parameters, texts=TEXTS, rtol=1e-6, atol=1e-7)
    measured = [n for n in known if str(n).startswith(("score", "row")) and str(n).endswith(("_measured", "_error"))]
    assert len(measured) == 16
    for name in measured:
        np.testing.assert_array_equal(strange[name], known[name])
    for name in set(known) - set(measured) - {"score_non_normality"}:
        assert np.isnan(strange[name]).all(), name


def test_a_scale_that_the_loader_does_not_tell_is_refused_by_its_name() -> None:
    class Forgetful(_Stranger):
        told: ClassVar[dict[str, Any]] = {k: v for k, v in TinyModel().info.facts.items() if k != "scale"}

    with pytest.raises(ModelError, match="'scale'"):
        check_stream(LOGITS, LogitsParameters(), model=Forgetful(), texts=TEXTS)


def test_bins_of_rows() -> None:
    assert bins(1) == [8]
    assert bins(15) == [8]
    assert bins(64) == [8, 16, 32, 64]


@pytest.mark.parametrize("lags", [(0,), (1, 1), (-2,)])
def test_lags_are_positive_and_named_once(lags: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="lags are positive"):
        LogitsParameters(lags=lags)
