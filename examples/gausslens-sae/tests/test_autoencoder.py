"""The autoencoder by hand, its training on a planted dictionary, and its statistics beside numpy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gausslens_sae.autoencoder import (
    Autoencoder,
    across_rows,
    ball_of,
    beginning,
    geometric_median,
    largest,
    loss,
    unit_rows,
)
from gausslens_sae.statistics import Firings, Spread, best, explained, recovered
from gausslens_sae.training import Recipe, Training

RECIPE = Recipe(
    features=64,
    k=3,
    learning_rate=3e-3,
    batch=128,
    epochs=40,
    buffer=4096,
    dead_after=2048,
    auxiliary=16,
    auxiliary_weight=1 / 32,
    outliers=10.0,
    frozen=False,
)


def planted(samples=2500, features=48, d=24, k=3, seed=1):
    """Sums of k of these directions with positive weights, about a centre far from 0: what a dictionary should find."""
    rows = unit_rows(torch.randn(features, d, generator=torch.Generator().manual_seed(0)))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.rand(samples, features, generator=generator).topk(k, dim=1).indices
    weights = 1 + torch.rand(samples, k, generator=generator)
    codes = torch.zeros(samples, features).scatter(1, chosen, weights)
    return codes @ rows + 5.0, rows, codes


def trained(recipe: Recipe, x: torch.Tensor, seed: int = 1) -> Training:
    training = Training(recipe, np.random.default_rng(seed))
    for part in x.split(300):
        training.feed(part)
    training.finish()
    return training


def test_the_largest_entries_are_kept_where_they_are_positive():
    values = torch.tensor([[3.0, -1.0, 2.0, 1.0], [-5.0, -2.0, 0.5, -1.0]])
    assert largest(values, 2).tolist() == [[3, 0, 2, 0], [0, 0, 0.5, 0]]
    assert largest(values, 9).tolist() == values.clamp(min=0).tolist()


def test_an_autoencoder_by_hand():
    sae = Autoencoder(torch.eye(2), torch.tensor([0.0, 1.0]), torch.eye(2), torch.tensor([1.0, 0.0]), k=1)
    x = torch.tensor([[4.0, 1.0]])  # reads 3 and 1 + 1
    assert sae.encode(x).tolist() == [[3.0, 0.0]]
    assert sae.reconstruct(x).tolist() == [[4.0, 0.0]]


def test_other_units_are_the_biases_alone():
    x, rows, _ = planted(64)
    sae = beginning(rows, x.mean(0), k=3)
    torch.testing.assert_close(sae.in_units_of(7.0).reconstruct(7 * x), 7 * sae.reconstruct(x))


def test_the_geometric_median_is_where_unit_vectors_to_all_points_cancel():
    x = planted(500)[0].double()
    x[:20] += 1000  # outliers, of whom the mean speaks
    at = geometric_median(x, rounds=200)
    pulls = (x - at) / (x - at).norm(dim=1, keepdim=True)
    assert float(pulls.mean(0).norm()) < 1e-6
    assert float((x.mean(0) - at).norm()) > 100


def test_the_auxiliary_loss_is_that_of_silent_features_on_the_residual():
    x, rows, _ = planted(32)
    sae = beginning(rows, x.mean(0), k=2)
    silent = torch.zeros(len(rows), dtype=torch.bool)
    silent[5:9] = True
    plain, residual, fired = loss(sae, x, torch.zeros_like(silent), 2, 0.5)
    torch.testing.assert_close(residual, x - sae.reconstruct(x))
    torch.testing.assert_close(plain, residual.square().sum(1).mean())
    assert fired.tolist() == (sae.encode(x) > 0).any(0).tolist()
    before = ((x - sae.decoder_bias) @ sae.encoder)[:, 5:9]
    top = torch.zeros_like(before)
    for row, values in zip(top, before, strict=True):
        for place in sorted(range(4), key=lambda i: -values[i])[:2]:
            row[place] = float(values[place])
    expected = plain + 0.5 * (residual - top @ rows[5:9]).square().sum(1).mean()
    torch.testing.assert_close(loss(sae, x, silent, 2, 0.5)[0], expected)


def test_what_is_left_of_a_gradient_is_at_right_angles_to_its_row():
    rows = unit_rows(torch.randn(6, 4, dtype=torch.float64))
    gradient = torch.randn(6, 4, dtype=torch.float64)
    left = across_rows(gradient, rows)
    torch.testing.assert_close((left * rows).sum(1), torch.zeros(6, dtype=torch.float64))
    torch.testing.assert_close(left + (gradient * rows).sum(1, keepdim=True) * rows, gradient)


@pytest.fixture(scope="module")
def found() -> tuple[torch.Tensor, torch.Tensor, Training]:
    x, rows, _ = planted()
    return x, rows, trained(RECIPE, x)


def test_planted_features_are_found(found):
    _, rows, training = found
    sae = training.trained()
    cosine = (rows @ sae.decoder.T).amax(1)
    assert float(cosine.mean()) > 0.95  # of random directions in 24 dimensions the best of 64 has about 0.5
    assert float((cosine > 0.9).double().mean()) > 0.9
    held_out = planted(1000, seed=2)[0]
    spread = Spread()
    spread.add(held_out.numpy())
    residual = float((held_out - sae.reconstruct(held_out)).square().sum(1).mean())
    assert explained(residual, spread.variance()) > 0.9
    assert training.variance_explained() > 0.9
    assert training.curve()[0] < 0.5 < training.curve()[-1]


def test_rows_of_the_decoder_have_length_1(found):
    torch.testing.assert_close(found[2].trained().decoder.norm(dim=1), torch.ones(64))


def test_a_frozen_decoder_stays_as_it_was_drawn_and_explains_less(found):
    x, rows, training = found
    frozen = trained(replace(RECIPE, frozen=True), x)
    drawn = np.random.default_rng(1).standard_normal((64, 24)).astype(np.float32)
    torch.testing.assert_close(frozen.trained().decoder, unit_rows(torch.from_numpy(drawn)))
    assert frozen.variance_explained() < training.variance_explained() - 0.1
    assert float((rows @ frozen.trained().decoder.T).amax(1).mean()) < 0.8


def test_the_auxiliary_loss_brings_dead_features_back():
    """Features whose bias is far below all others never fire of themselves."""
    x = planted()[0]
    dead = {}
    for weight in (0.0, 1 / 32):
        training = Training(replace(RECIPE, auxiliary_weight=weight, epochs=10), np.random.default_rng(1))
        training.ball = ball_of(x, None)
        training._begin(x, training.ball.centre)
        assert training.now is not None
        with torch.no_grad():
            training.now.encoder_bias[:32] = -1.0  # in units of the mean distance
        training.feed(x)
        training.finish()
        dead[weight] = training.dead()
    assert dead[0.0] >= 0.45
    assert dead[1 / 32] < 0.2


def test_training_is_the_same_however_vectors_are_handed_in_and_in_inference_mode():
    x = planted(1500)[0]
    one, other = (Training(RECIPE, np.random.default_rng(3)) for _ in range(2))
    one.feed(x)
    with torch.inference_mode():
        for part in x.clone().split(77):
            other.feed(part)
        other.finish()
        other_made = other.trained()
    one.finish()
    assert torch.equal(one.trained().decoder, other_made.decoder)
    assert torch.equal(one.trained().encoder, other_made.encoder)
    one.finish()  # nothing is left
    assert torch.equal(one.trained().decoder, other_made.decoder)


def test_a_vector_a_hundred_times_as_far_away_does_not_count():
    x = planted(1000)[0]
    far = x.clone()
    far[::250] += 1000.0
    training = trained(replace(RECIPE, epochs=2), far)
    assert training.left_out() == pytest.approx(4 / 1000)
    assert training.ball is not None
    assert training.ball.holds(far).sum() == 996
    near = far[training.ball.holds(far)]
    assert training.spread.variance() == pytest.approx(float(near.double().var(dim=0, correction=0).sum()), rel=1e-6)
    assert trained(replace(RECIPE, epochs=2, outliers=None), far).left_out() == 0


def test_units_do_not_matter_to_the_training():
    x = planted(1000)[0]
    small, large = trained(RECIPE, x), trained(RECIPE, 1024 * x)
    torch.testing.assert_close(large.trained().decoder, small.trained().decoder, rtol=0, atol=1e-3)
    assert large.variance_explained() == pytest.approx(small.variance_explained(), abs=1e-3)


def test_spread_is_numpys_variance_in_any_cut():
    x = np.random.default_rng(0).standard_normal((300, 7)) * 3 + 1e4
    parts = [Spread() for _ in range(3)]
    for part, rows in zip(parts, (x[:10], x[10:11], x[11:]), strict=True):
        part.add(rows)
    whole = Spread()
    for part in parts:
        whole.merge(part)
    assert whole.variance() == pytest.approx(x.var(axis=0).sum(), rel=1e-10)
    np.testing.assert_allclose(whole.mean, x.mean(axis=0))
    assert np.isnan(Spread().variance())


def test_loss_recovered_by_hand_and_its_error_by_many_draws():
    clean, replaced, removed = np.array([1.0, 2, 3]), np.array([1.5, 2.5, 3.5]), np.array([5.0, 7, 6])
    assert recovered(clean, replaced, removed)[0] == pytest.approx((6 - 2.5) / (6 - 2))
    generator = np.random.default_rng(0)
    ratios, errors = [], []
    for _ in range(400):
        base = generator.normal(3, 1, 40)
        gap = generator.normal(4, 1, 40)
        ratio, error = recovered(base, base + 0.2 * gap + generator.normal(0, 0.5, 40), base + gap)
        ratios.append(ratio)
        errors.append(error)
    # The sd of 400 ratios is known to 1 / sqrt(800) = 3.5 %; four of these.
    assert np.mean(errors) == pytest.approx(np.std(ratios), rel=0.15)
    assert np.mean(ratios) == pytest.approx(0.8, abs=4 * np.std(ratios) / 20)


def test_nothing_is_recovered_where_removing_costs_nothing():
    generator = np.random.default_rng(0)
    clean = generator.normal(5, 1, 30)
    assert np.isnan(recovered(clean, clean + 1, clean + generator.normal(0, 1, 30) * 1e-3)[0])
    assert np.isnan(recovered([1.0], [1.0], [2.0])[0])
    assert np.isnan(recovered(clean, clean - 1, clean - 2)[0])  # the model does better without


def test_the_strongest_firings_are_the_same_in_any_order_and_any_cut():
    generator = np.random.default_rng(0)
    n = 200
    value = generator.choice([1.0, 2.0, 2.00001, 3.0], n)  # many ties
    firings = Firings(generator.integers(0, 7, n), value, generator.integers(0, 9, n), np.arange(n))
    expected = best(firings, 3)
    for _ in range(5):
        mixed = firings.at(generator.permutation(n))
        first, second = (mixed.at(np.arange(*part)) for part in ((0, 80), (80, n)))
        found = best(best(first, 3).and_those_of(best(second, 3)), 3)
        for column in ("feature", "value", "prompt", "position"):
            assert getattr(found, column).tolist() == getattr(expected, column).tolist()
    assert np.bincount(expected.feature).max() == 3
    assert expected.ranks().max() == 2
    assert len(best(Firings(), 3).feature) == 0
