"""gaussian.joint: windows of positions, planted and streamed; and what follows a token."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
import xarray as xr
from pydantic import ValidationError
from scipy import stats

from gausslens import Batch, Context, GausslensError, Part, Prompt
from gausslens.testing import TinyModel, check_round_trip, check_stream
from gausslens_gaussian.analyses.joint import Joint, estimate
from gausslens_gaussian.maths.bigrams import Bigrams
from gausslens_gaussian.maths.geometry import random_projection
from gausslens_gaussian.maths.information import mutual_information
from gausslens_gaussian.maths.information_from_samples import TooFewSamples
from gausslens_gaussian.maths.window_gaussian import fit_window
from gausslens_gaussian.parameters import JointParameters
from gausslens_gaussian.plugin import JOINT

from .batches import batch


def texts(count: int, least: int = 12, most: int = 20) -> list[str]:
    rng = np.random.default_rng(0)
    return ["".join(chr(97 + c) for c in rng.integers(0, 26, rng.integers(least, most))) for _ in range(count)]


def chain(n: int, window: int, d: int, rho: float, seed: int = 1) -> np.ndarray:
    """A stationary autoregression: I(X_i; X_j) = -d/2 log(1 - rho^(2|i-j|))."""
    rng = np.random.default_rng(seed)
    steps = [rng.standard_normal((n, d))]
    for _ in range(window - 1):
        steps.append(rho * steps[-1] + np.sqrt(1 - rho**2) * rng.standard_normal((n, d)))
    return np.stack(steps, axis=1)


def joint(values: np.ndarray, **parameters: object) -> xr.Dataset:
    """Through the analysis, on a batch made by hand; a first position that the window leaves out stands before."""
    width = {"window": values.shape[1], "reduce": "none", "dims": values.shape[2], "bigrams": 0, "permutations": 0}
    analysis = Joint(JointParameters(**(width | parameters)), Context(TinyModel().info, 0))
    shifted = np.concatenate([np.full_like(values[:, :1], 1e3), values], axis=1)
    for part in np.array_split(np.arange(len(shifted)), 3):
        one = batch("resid_pre", shifted[part])
        one.prompts = part
        analysis.update(one)
    return analysis.result().isel(layer=0)


@pytest.mark.parametrize("reduce", ["pca", "random", "none"])
@pytest.mark.parametrize("site", ["resid_pre", "v", "embed"])
def test_it_does_not_matter_how_prompts_are_cut(site: str, reduce: str) -> None:
    parameters = JointParameters(site=site, window=4, dims=2, permutations=5, reduce=reduce)
    if reduce == "none":
        parameters = parameters.model_copy(update={"window": 2})
    count = 20 if reduce != "none" else 70
    result = check_stream(JOINT, parameters, model=TinyModel(dtype="float64"), texts=texts(count), rtol=1e-7, atol=1e-9)
    check_round_trip(result)
    assert result.attrs["reduced_to"] == (2 if reduce != "none" else 6 if site == "v" else 16)
    lead = {"resid_pre": ("layer",), "v": ("layer", "kv_head"), "embed": ()}[site]
    assert result["mutual_information"].dims == (*lead, "position", "position_other")


def test_a_planted_chain_is_found_within_three_standard_errors() -> None:
    n, window, d, rho = 3000, 5, 3, 0.8
    result = joint(chain(n, window, d, rho))
    lags = np.arange(1, window)
    planted = -d / 2 * np.log(1 - rho ** (2 * lags))
    for i in range(window):
        for j in range(i + 1, window):
            error = float(result["mutual_information_se"][i, j])
            assert abs(float(result["mutual_information"][i, j]) - planted[j - i - 1]) < 4 * error
    np.testing.assert_allclose(result["decay"], planted, atol=0.1)
    # H(X_{i+1} | X_i) = d/2 log(2 pi e (1 - rho^2)), H(X) = d/2 log(2 pi e); sd sqrt(d / 2n).
    error = np.sqrt(d / (2 * n))
    assert np.abs(result["entropy"] - d / 2 * np.log(2 * np.pi * np.e)).max() < 4 * error
    conditional = d / 2 * np.log(2 * np.pi * np.e * (1 - rho**2))
    assert np.abs(result["conditional_entropy"] - conditional).max() < 4 * error
    np.testing.assert_allclose(result["transition"], np.broadcast_to(rho * np.eye(d), (4, d, d)), atol=4 / np.sqrt(n))
    np.testing.assert_allclose(result["explained"], rho**2, atol=0.05)
    blocks = rho ** np.abs(np.subtract.outer(range(window), range(window)))
    planted_joint = np.einsum("ij,ab->iajb", blocks, np.eye(d))
    np.testing.assert_allclose(result["covariance"], planted_joint, atol=5 / np.sqrt(n))
    # -1/2 log(1 - r^2k) is not quite exponential in k; at these lags its slope is this.
    slope = -np.polyfit(lags, np.log(planted), 1)[0]
    assert float(result["decay_rate"]) == pytest.approx(slope, rel=0.15)


def test_independent_positions_tell_nothing() -> None:
    result = joint(chain(400, 4, 8, 0.0), permutations=19)
    upper = np.triu_indices(4, 1)
    z = (result["mutual_information"] / result["mutual_information_se"]).values[upper]
    assert np.abs(z).max() < 3.5
    assert result["mutual_information_plugin"].values[upper].min() > 0.03
    assert float(result["mutual_information_bias"]) == pytest.approx(8 * 8 / (2 * 400), rel=0.1)
    assert result["mutual_information_p"].values[upper].min() > 1 / 20


def test_the_chain_rule_holds_for_what_is_given() -> None:
    result = joint(chain(500, 3, 2, 0.6))
    next_ones = np.array([float(result["mutual_information"][i, i + 1]) for i in range(2)])
    np.testing.assert_allclose(result["conditional_entropy"], result["entropy"].values[1:] - next_ones)


def test_principal_directions_find_what_is_shared() -> None:
    """The leading directions carry the dependence; noise of less variance is left out."""
    n = 600
    shared = chain(n, 3, 2, 0.9) * 5
    noise = np.random.default_rng(2).standard_normal((n, 3, 10))
    values = np.concatenate([shared, noise], axis=2)
    analysis = Joint(
        JointParameters(window=3, dims=2, bigrams=0, start=0, permutations=0, reduce="pca"),
        Context(TinyModel().info, 0),
    )
    for index in range(2):
        analysis.update(batch("resid_pre", values))
        if index == 0:
            analysis.end_pass(0)
    result = analysis.result().isel(layer=0)
    planted = -np.log(1 - 0.81)
    assert float(result["mutual_information"][0, 1]) == pytest.approx(planted, abs=0.2)
    assert np.abs(result["axes"].values[:, :2]).sum() > 1.9
    assert result.attrs["reduced_by"] == "leading principal directions"
    assert result.attrs["frame"] == "this variant's own"
    assert all(one.attrs["against"] == 0 for one in result.data_vars.values())


def streamed(values: np.ndarray, reduce: str) -> xr.Dataset:
    parameters = JointParameters(window=2, dims=2, bigrams=0, start=0, permutations=0, reduce=reduce)
    analysis = Joint(parameters, Context(TinyModel().info, 7))
    for index in range(analysis.request().passes):
        analysis.update(batch("resid_pre", values))
        if index + 1 < analysis.request().passes:
            analysis.end_pass(index)
    return analysis.result().isel(layer=0)


def test_a_model_and_its_twin_are_seen_in_one_frame() -> None:
    """Both share the same two directions; the twin's other ones are noisier. Principal directions look elsewhere."""
    n, rng = 4000, np.random.default_rng(4)
    shared, noise = chain(n, 2, 2, 0.9) * 5, rng.standard_normal((n, 2, 10))
    projection = random_projection(12, 2, Context(TinyModel().info, 7).generator("projection"))
    for scale in (1.0, 10.0):
        values = np.concatenate([shared, scale * noise], axis=2)
        own, one = streamed(values, "pca"), streamed(values, "random")
        alone = projection @ np.diag([25.0] * 2 + [scale**2] * 10) @ projection.T
        across = projection[:, :2] @ projection[:, :2].T * 0.9 * 25
        planted = mutual_information(np.block([[alone, across], [across.T, alone]]), 2)
        error = float(one["mutual_information_se"][0, 1])
        assert abs(float(one["mutual_information"][0, 1]) - planted) < 4 * error
        assert one.attrs["frame"] == "one for all variants"
        assert one["decay"].attrs.get("against", 1)
        exact = -np.log(1 - 0.81) if scale == 1 else 0.0
        assert float(own["mutual_information"][0, 1]) == pytest.approx(exact, abs=0.1)


def test_too_few_prompts_are_refused_with_how_many_are_needed() -> None:
    with pytest.raises(GausslensError, match="needs 33 samples, not 20: give 33 prompts or more of at least 4 tokens"):
        joint(chain(20, 3, 8, 0.0))
    with pytest.raises(TooFewSamples, match="needs 33"):
        fit_window(chain(20, 3, 8, 0.0), 0, np.random.default_rng(0))


def test_prompts_too_short_for_the_window_are_told() -> None:
    analysis = Joint(JointParameters(window=30, bigrams=0, reduce="none"), Context(TinyModel().info, 0))
    analysis.update(batch("resid_pre", np.ones((4, 10, 3))))
    with pytest.raises(GausslensError, match="no prompt is long enough for a window of 30 positions from position 1"):
        analysis.result()


def test_further_windows_of_a_prompt() -> None:
    one, many = (
        Joint(JointParameters(window=4, every=every, start=1, reduce="none"), Context(TinyModel().info, 0))
        for every in (None, 4)
    )
    mask = np.ones((1, 13), dtype=bool)
    mask[0, 12:] = False
    assert one._windows(mask) == [(0, 1)]
    assert many._windows(mask) == [(0, 1), (0, 5)]


def test_activations_that_are_not_finite_are_refused() -> None:
    values = chain(50, 3, 2, 0.0)
    values[7, 1, 0] = np.nan
    with pytest.raises(GausslensError, match="not finite"):
        joint(values)


def test_attention_maps_are_no_vectors() -> None:
    with pytest.raises(ValidationError, match="not vectors"):
        JointParameters(site="pattern")


def test_the_estimate_counts_windows() -> None:
    model = TinyModel()
    tokens = model.tokenise([Prompt((Part(t),)) for t in texts(30)])
    parameters = JointParameters(window=4, dims=2, reduce="random")
    analysis = Joint(parameters, Context(model.info, 0, tokens))
    told = estimate(parameters, model.info, tokens)
    assert told.memory == 8 * model.info.n_layers * 30 * 4 * 2
    assert estimate(parameters.model_copy(update={"every": 2}), model.info, tokens).memory > told.memory
    assert analysis.request().passes == 1


def test_determinants_of_blocks_beside_the_information() -> None:
    model = TinyModel(dtype="float64")
    given = {"window": 4, "dims": 2, "permutations": 0, "bigrams": 0}
    parameters = JointParameters(**given, determinants=True)
    texts = ["".join(np.random.default_rng(seed).choice(list("abcdefgh"), 6)) for seed in range(30)]
    result = check_stream(JOINT, parameters, model=model, texts=texts).isel(layer=1)
    i, j = np.triu_indices(4, 1)
    blocks = result["covariance"].values
    logs = [np.log(abs(np.linalg.det(blocks[a, :, b]))) for a, b in zip(i, j, strict=True)]
    np.testing.assert_allclose(result["block_determinant"].values[i, j], logs)
    exact = stats.spearmanr(logs, result["mutual_information"].values[i, j]).statistic
    assert float(result["determinant_correlation"]) == pytest.approx(exact)
    assert "determinants" not in JointParameters(**given).canonical(), "keys of before stay"
    assert parameters.canonical()["determinants"]


def counted(rows: list[list[int]], embeddings: np.ndarray) -> Bigrams:
    state = Bigrams()
    tokens = np.array(rows)
    state.add(tokens, np.ones(tokens.shape, dtype=bool), embeddings[tokens])
    return state


def test_what_follows_a_token_is_a_weighted_set_of_vectors() -> None:
    embeddings = np.array([[1.0, 0, 0], [0, 2.0, 0], [0, 0, 3.0], [1, 1, 1]])
    # After 0: 1 twice, 2 once.
    found = counted([[0, 1], [0, 1], [0, 2]], embeddings).statistics(2, keep=3)
    assert found["token"] == [0]
    assert (found["times"], found["successors"], found["rank"]) == ([3], [2], [1])
    exact = np.cov(embeddings[[1, 1, 2]].T, bias=True)
    np.testing.assert_allclose(found["spectrum"][0], np.linalg.eigvalsh(exact)[::-1], atol=1e-12)
    assert found["trace"][0] == pytest.approx(np.trace(exact))
    assert found["second_moment"][0] == pytest.approx((4 + 4 + 9) / 3)


def test_how_much_a_token_explains_of_the_next() -> None:
    rng = np.random.default_rng(3)
    embeddings = rng.normal(size=(8, 5))
    tokens = rng.integers(0, 8, (400, 30))
    independent = counted(tokens.tolist(), embeddings).statistics(1, 2)["explained"]
    # Unbiased about 0; with 8 contexts and 11,600 pairs its sd is about sqrt(2 * 7 / 5) / 11600.
    assert abs(independent) < 0.002
    follows = np.stack([tokens[:, 0], (tokens[:, 0] + 1) % 8], axis=1)
    assert counted(follows.tolist(), embeddings).statistics(1, 2)["explained"] == pytest.approx(1)


def test_how_much_the_most_frequent_followers_hold() -> None:
    rng = np.random.default_rng(5)
    rows = rng.choice(9, (40, 12), p=np.arange(1, 10) / 45).tolist()
    state = counted(rows, rng.normal(size=(9, 4)))
    pairs = [pair for row in rows for pair in pairwise(row)]
    after = {v: [w for one, w in pairs if one == v] for v in range(9)}
    share = {w: [b for _, b in pairs].count(w) / len(pairs) for w in range(9)}
    held, often, smoothed, out = [], [], [], []
    for v, w in pairs:
        top = sorted((after[v].count(x) / len(after[v]) for x in range(9)), reverse=True)
        held.append(sum(top[:3]))
        often.append(held[-1] > 0.9)
        less, n = 0.75 * len(set(after[v])), len(after[v])
        p = [max(after[v].count(x) - 0.75, 0) / n + less / n * share[x] for x in range(9)]
        assert sum(p) == pytest.approx(1)
        smoothed.append(sum(sorted(p, reverse=True)[:3]))
        others = Counter(after[v])
        others[w] -= 1
        more = sum(c > others[w] for x, c in others.items() if x != w)
        equal = sum(c == others[w] for x, c in others.items() if x != w)
        out.append(min(max((3 - more) / (equal + 1), 0), 1) if others[w] else 0)
    found = state.covered(3)
    exact = {"held": held, "often": often, "smoothed": smoothed, "held_out": out}
    for name, each in exact.items():
        assert found[name] == pytest.approx(np.mean(each)), name
    assert found["held_out"] < found["held"]


def test_angles_of_what_follows_part_its_eigenvalues() -> None:
    # After 0 two unit vectors of cosine a, equally often: eigenvalues (1 + a)/2 and (1 - a)/2.
    a = 0.6
    embeddings = np.array([[0.0, 1], [1, 0], [a, np.sqrt(1 - a**2)]])
    state = counted([[0, 1], [0, 2]], embeddings)
    assert state.angles(0, state.followers(1)[1]) == pytest.approx((a, (1 + a) / 2, 0.5))
    with pytest.raises(ValidationError, match="let `bigrams` be 1 or more"):
        JointParameters(bigrams=0, followers=5)


def test_pairs_count_only_where_both_tokens_do() -> None:
    state = Bigrams()
    tokens, embeddings = np.array([[5, 1, 2, 1, 2]]), np.ones((1, 5, 2))
    state.add(tokens, np.array([[False, True, True, False, True]]), embeddings)
    assert dict(state.pairs) == {(1, 2): 1}


def test_bigrams_are_named_by_their_text() -> None:
    model = TinyModel(dtype="float64")
    parameters = JointParameters(window=2, dims=1, permutations=0, bigrams=3)
    result = check_stream(JOINT, parameters, model=model, texts=["abababab", "abcabc", "bababa", "abab", "xaby"] * 3)
    assert result["first"].values.tolist()[:2] == ["a", "b"]
    assert int(result["bigram_successors"][0]) == 1
    assert float(result["bigram_trace"][0]) == pytest.approx(0, abs=1e-12)


def test_embeddings_come_with_the_last_pass_alone() -> None:
    analysis = Joint(JointParameters(window=2, dims=1, reduce="pca"), Context(TinyModel().info, 0))
    one = batch("resid_pre", np.random.default_rng(4).normal(size=(5, 4, 3)))
    whole = Batch(None, one.prompts, one.tokens, one.text, one.mask, {"embed": torch.ones(5, 4, 3)})
    for given in (one, whole):
        analysis.update(given)
    assert not analysis.bigrams.pairs
    analysis.end_pass(0)
    analysis.update(whole)
    assert analysis.bigrams.pairs
