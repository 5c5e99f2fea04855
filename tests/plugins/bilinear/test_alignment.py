"""bilinear.alignment: circuits by factors against full matrices, chance against draws, and what no gauge changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gausslens import ModelInfo
from gausslens.maths.spectra import principal_cosines, product_eigenvalues, product_squared_singular_values
from gausslens.testing import (
    TinyModel,
    TinyParameters,
    check_forward,
    check_round_trip,
    check_stream,
    check_weights,
)
from gausslens_bilinear.maths import circuits
from gausslens_bilinear.parameters import AlignmentParameters, LogitsParameters, SpectrumParameters
from gausslens_bilinear.plugin import ALIGNMENT, ANGLES, LOGITS, ROLES, SPECTRUM


def haar(rng: np.random.Generator, n: int, draws: int) -> np.ndarray:
    Q, R = np.linalg.qr(rng.normal(size=(draws, n, n)))
    return Q * np.sign(np.diagonal(R, axis1=1, axis2=2))[:, None, :]


@given(seed=st.integers(0, 2**31), n=st.integers(1, 12), h=st.integers(1, 6), m=st.integers(1, 12))
def test_factors_and_full_matrices_have_the_same_spectra(seed: int, n: int, h: int, m: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, n, h)), rng.normal(size=(2, m, h))
    C = A @ B.swapaxes(-1, -2)
    found, wanted = product_squared_singular_values(A, B), np.linalg.svd(C, compute_uv=False) ** 2
    assert found.shape[-1] == min(n, h, m)
    np.testing.assert_allclose(found, wanted[..., : min(n, h, m)], rtol=1e-10, atol=1e-10 * wanted.max())


@given(seed=st.integers(0, 2**31), n=st.integers(2, 12), h=st.integers(1, 6))
def test_a_circuit_is_that_of_its_full_matrix(seed: int, n: int, h: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, n, h))
    C, p = A @ B.T, min(n, h)
    one = circuits.circuit(A, B)
    values = np.linalg.eigvals(C)
    scale = np.abs(values).max()
    np.testing.assert_allclose(
        np.sort(np.abs(one.eigenvalues))[::-1], np.sort(np.abs(values))[::-1][:p], atol=1e-6 * scale
    )
    assert float(one.trace) == pytest.approx(np.trace(C), abs=1e-9 * scale)
    assert float(one.norm) == pytest.approx(np.linalg.norm(C))
    half = (C + C.T) / 2
    assert float(one.symmetric_share) == pytest.approx((half**2).sum() / (C**2).sum(), abs=1e-9)
    U, _, Vt = np.linalg.svd(C)
    assert abs(float(one.leading_cosine)) == pytest.approx(abs(U[:, 0] @ Vt[0]), abs=1e-5)
    assert float(one.leading_cosine) * (U[:, 0] @ Vt[0]) >= -1e-9
    # Principal angles: the projections on both spaces tell the sum of the squared cosines.
    P, Q = A @ np.linalg.pinv(A), B @ np.linalg.pinv(B)
    assert (one.cosines**2).sum() == pytest.approx(np.trace(P @ Q), abs=1e-8)
    np.testing.assert_allclose(principal_cosines(A, B), one.cosines, atol=1e-9)


@given(seed=st.integers(0, 2**31))
def test_a_gauge_changes_no_circuit(seed: int) -> None:
    rng = np.random.default_rng(seed)
    A, B = rng.normal(size=(2, 10, 4))
    gauge = haar(rng, 4, 1)[0] * rng.uniform(0.3, 3, 4)
    one, other = circuits.circuit(A, B), circuits.circuit(A @ gauge, B @ np.linalg.inv(gauge).T)
    for name in ("squared", "norm", "trace", "trace_z", "positive_share", "balance", "symmetric_share", "alignment_z"):
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-6, atol=1e-9)


def test_eigenvalues_come_by_modulus() -> None:
    values = product_eigenvalues(*np.random.default_rng(0).normal(size=(2, 5, 9, 6)))
    assert values.shape == (5, 6)
    assert (np.diff(np.abs(values), axis=1) < 1e-9).all()


def test_copying_circuits_are_told_from_inverting_ones() -> None:
    rng = np.random.default_rng(0)
    A = rng.normal(size=(20, 5))
    plus, minus, random = circuits.circuit(A, A), circuits.circuit(A, -A), circuits.circuit(A, rng.normal(size=(20, 5)))
    assert (plus.positive_share, plus.balance, plus.symmetric_share) == pytest.approx((1, 1, 1))
    assert (minus.positive_share, minus.balance, minus.symmetric_share) == pytest.approx((0, -1, 1))
    assert plus.leading_cosine == pytest.approx(1)
    assert minus.leading_cosine == pytest.approx(-1)
    assert plus.alignment == pytest.approx(1)
    assert plus.trace_z > 5
    assert abs(random.trace_z) < 4
    assert abs(random.alignment_z) < 4
    nothing = circuits.circuit(0 * A, A)
    assert np.isnan([float(nothing.trace_z), float(nothing.balance)]).all()


def test_subspaces_by_chance(judge: Any, rng: Any) -> None:
    n, p, q = 12, 3, 5
    turned = haar(rng, n, 20_000)
    overlap = (turned[:, :p, :q] ** 2).sum(axis=(1, 2))
    mean, variance = circuits.overlap_moments(n, p, q)
    judge.mean(overlap, mean)
    judge.variance(overlap, variance)


def test_composition_by_chance(judge: Any, rng: Any) -> None:
    d, h, draws = 10, 3, 20_000
    V, written, Q, K = (rng.normal(size=(1, d, h)) for _ in range(4))
    turned = haar(rng, d, draws)
    W_O = written.swapaxes(-1, -2) @ turned
    writers = circuits.wrote(circuits.circuit(V, V).triangles[0], W_O)
    found = circuits.composition(writers, circuits.read(Q, circuits.circuit(Q, K).triangles[1]))[0]
    judge.mean(found**2, 1 / d)
    spectra = [product_squared_singular_values(*pair) for pair in ((V, written), (Q, K))]
    z = circuits.composition_z(found[None], d, *spectra)
    judge.mean(z[0], 0.0)
    judge.variance(z[0], 1.0)


def test_composition_is_that_of_full_matrices() -> None:
    model = TinyModel(TinyParameters(layers=3))
    result = check_weights(ALIGNMENT, model=model)
    check_round_trip(result)
    of = model.info.kv_of_head

    def tensor(layer: int, head: int, name: str) -> np.ndarray:
        found = model.tensor(layer, name).double().numpy()
        return found[of[head] if name in ("W_K", "W_V") else head]

    for layer, head, before, earlier in ((2, 3, 0, 1), (1, 0, 0, 2), (2, 1, 1, 3)):
        OV = tensor(before, earlier, "W_V") @ tensor(before, earlier, "W_O")
        QK = tensor(layer, head, "W_Q") @ tensor(layer, head, "W_K").T
        later = tensor(layer, head, "W_V") @ tensor(layer, head, "W_O")
        place = {"layer": layer, "head": head, "from_layer": before, "from_head": earlier}
        for kind, C in (("q", QK), ("k", QK.T), ("v", later)):
            wanted = np.linalg.norm(OV @ C) / (np.linalg.norm(OV) * np.linalg.norm(C))
            assert float(result[f"{kind}_composition"].sel(place)) == pytest.approx(wanted, rel=1e-5)
    known = np.isfinite(result["q_composition"]).sum(("head", "from_head")) > 0
    assert known.values.tolist() == [[False, False, False], [True, False, False], [True, True, False]]
    assert np.abs(result["q_composition_z"]).max() < 6


def test_chance_looks_like_chance_and_what_is_planted_does_not() -> None:
    plain = TinyModel(TinyParameters(d_model=48, d_head=12, heads=4, kv_heads=2, layers=2))
    found = check_weights(ALIGNMENT, model=plain)
    for name in ("qk_trace_z", "ov_trace_z", "qk_alignment_z", "ov_alignment_z"):
        assert np.abs(found[name]).max() < 4.5, name
    assert (found["qk_spikes"] <= 1).all()
    assert (found["qk_bulk_accepted"] == 1).all()

    class Planted(TinyModel):
        """Head 1 of layer 1 reads, as queries, what head 2 of layer 0 writes; its keys are its queries."""

        def tensor(self, layer: int | None, name: str) -> torch.Tensor:
            made = super().tensor(layer, name)
            if (layer, name) == (1, "W_Q"):
                made = made.clone()
                made[1] = super().tensor(0, "W_O")[2].T
            if (layer, name) == (1, "W_K"):
                made = made.clone()
                made[0] = super().tensor(0, "W_O")[2].T
            return made

    planted = check_weights(ALIGNMENT, model=Planted(plain.parameters))
    z = planted["q_composition_z"].sel(layer=1, from_layer=0)
    assert int(z.sel(head=1).values.argmax()) == 2
    assert float(z.sel(head=1, from_head=2)) > 10
    assert float(planted["qk_trace_z"].sel(layer=1, head=1)) > 10
    assert float(planted["qk_positive_share"].sel(layer=1, head=1)) == pytest.approx(1)


@pytest.mark.parametrize("composition", [True, False])
def test_as_the_host_runs_it(composition: bool) -> None:
    result = check_weights(ALIGNMENT, AlignmentParameters(composition=composition))
    assert ("q_composition" in result) == composition
    assert not [name for name in result.data_vars if str(name).startswith("factor_")]
    assert result.sizes["component"] == 6


class _Gained(TinyModel):
    """A gain before attention, as real models have."""

    def names(self, layer: int | None) -> tuple[str, ...]:
        return (*super().names(layer), *(() if layer is None else ("ln1.w",)))

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        if name == "ln1.w":
            return torch.linspace(0.5, 2, self.info.d_model)
        return super().tensor(layer, name)


def test_gains_are_multiplied_in_unless_they_are_left_out() -> None:
    model = _Gained()
    found = check_weights(ALIGNMENT, model=model)
    g = model.tensor(0, "ln1.w").double().numpy()[:, None]
    W_Q, W_K = (model.tensor(0, n)[0].double().numpy() for n in ("W_Q", "W_K"))
    place = {"layer": 0, "head": 0}
    assert float(found["qk_trace"].isel(place)) == pytest.approx(np.trace((g * W_Q) @ (g * W_K).T))
    assert float(found["qk_raw_trace"].isel(place)) == pytest.approx(np.trace(W_Q @ W_K.T))
    bare = check_weights(ALIGNMENT, AlignmentParameters(gains=False), model=model)
    for name in ("trace", "norm", "trace_z", "symmetric_share"):
        for circuit in ("qk", "ov"):
            np.testing.assert_allclose(bare[f"{circuit}_{name}"], found[f"{circuit}_raw_{name}"], rtol=1e-9, atol=1e-12)
    assert "qk_at_lag_trace" not in bare
    # Without position and biases every lag has the circuit itself, and biases bring nothing.
    np.testing.assert_allclose(found["qk_at_lag_trace"].isel(lag=-1), found["qk_trace"], rtol=1e-9, atol=1e-12)
    assert float(abs(found["qk_bias_share"]).max()) == 0


def test_where_a_loader_tells_of_no_norm_circuits_are_those_of_the_weights() -> None:
    class Silent(_Gained):
        @property
        def info(self) -> ModelInfo:
            return replace(super().info, facts={})

    found = check_weights(ALIGNMENT, model=Silent())
    np.testing.assert_allclose(found["qk_trace"], found["qk_raw_trace"], rtol=1e-9, atol=1e-12)
    assert found.attrs["circuits"] == "of the weights as they are"


@pytest.mark.parametrize("lags", [(-1,), (2, 2)])
def test_lags_of_circuits_are_named_once(lags: tuple[int, ...]) -> None:
    with pytest.raises(ValidationError, match="lags are not negative"):
        AlignmentParameters(lags=lags)


class _Gauged(TinyModel):
    """The same model in another gauge, one for each key/value head: every score and output is unchanged."""

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        made = super().tensor(layer, name)
        if name not in ("W_Q", "W_K", "W_V", "W_O"):
            return made
        width, of = self.info.d_head, self.info.kv_of_head
        rng = np.random.default_rng([layer or 0, 0 if name in ("W_Q", "W_K") else 1])
        A = [haar(rng, width, 1)[0] * rng.uniform(0.5, 2, width) for _ in range(self.info.n_kv_heads)]
        wide = made.double().numpy()
        turned = {
            "W_Q": lambda: [wide[h] @ A[of[h]] for h in range(len(wide))],
            "W_K": lambda: [wide[h] @ np.linalg.inv(A[h]).T for h in range(len(wide))],
            "W_V": lambda: [wide[h] @ A[h] for h in range(len(wide))],
            "W_O": lambda: [np.linalg.inv(A[of[h]]) @ wide[h] for h in range(len(wide))],
        }[name]()
        return torch.tensor(np.stack(turned))


def _differing(one: xr.Dataset, other: xr.Dataset) -> set[str]:
    def alike(a: np.ndarray, b: np.ndarray) -> bool:
        if a.dtype == object:  # text
            return np.array_equal(a, b)
        scale = np.nanmax(np.abs(a)) if a.size else 1.0
        return bool(np.allclose(a, b, rtol=1e-6, atol=1e-6 * scale, equal_nan=True))

    return {str(v) for v in one.data_vars if not alike(one[v].values, other[v].values)}


def test_what_is_not_labelled_is_the_same_in_every_gauge() -> None:
    sizes = TinyParameters(layers=3)
    plain, gauged = TinyModel(sizes, dtype="float64"), _Gauged(sizes, dtype="float64")
    aligned = [check_weights(ALIGNMENT, model=m) for m in (plain, gauged)]
    # Cosines near 1 are known to half of the digits; their squares, which alignment means, to all.
    assert _differing(*aligned) == set()
    assert "nothing" in aligned[0].attrs["gauge"]
    spectra = [check_weights(SPECTRUM, SpectrumParameters(per_head=True), model=m) for m in (plain, gauged)]
    labelled = {str(v) for v in spectra[0].data_vars if "W_Q -> W_Q A" in spectra[0][v].attrs.get("gauge", "")}
    differing = _differing(*spectra)
    assert differing <= labelled
    assert {"squared", "maximum", "effective_rank", "head_squared", "kv_head_squared"} <= differing


@pytest.mark.parametrize(
    ("descriptor", "parameters"), [(LOGITS, LogitsParameters(lags=(1, 3), sample=60)), (ROLES, None)], ids=str
)
def test_what_heads_do_is_the_same_in_every_gauge(descriptor: Any, parameters: Any) -> None:
    texts = [f"{word} was {word[::-1]}, not {word}" for word in ("otter", "ibex", "heron", "newt", "stoat", "vole")]
    plain, gauged = TinyModel(dtype="float64"), _Gauged(dtype="float64")
    each = [check_stream(descriptor, parameters, model=m, texts=texts, atol=1e-7) for m in (plain, gauged)]
    assert _differing(*each) == set()


def test_angles_are_the_same_in_every_gauge() -> None:
    each = [check_forward(ANGLES, model=m) for m in (TinyModel(dtype="float64"), _Gauged(dtype="float64"))]
    assert _differing(*each) == set()


def test_a_gap_tells_whether_the_leading_direction_is_known() -> None:
    rng = np.random.default_rng(0)
    Q = np.linalg.qr(rng.normal(size=(9, 3)))[0]
    assert circuits.circuit(Q, Q).leading_gap == pytest.approx(0, abs=1e-9)
    assert circuits.circuit(Q * [4, 1, 1], Q).leading_gap == pytest.approx(0.75)
    assert circuits.circuit(Q[:, :1], Q[:, :1]).leading_gap == pytest.approx(1)
