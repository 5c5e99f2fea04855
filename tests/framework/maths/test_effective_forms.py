"""What scores see: effective forms against scores written out token by token, and numbers of a form by its matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.effective_forms import Projection, Scoring, bias_numbers, effective, form_numbers
from gausslens.maths.rotary import Rotation

D, WIDTH, HEADS, KV = 9, 6, 4, 2
ROTATION = Rotation(WIDTH, (1.0, 0.3), 1.2)


class Layer(dict[str, np.ndarray]):
    """Random tensors of a layer, with what is asked for beside the matrices, and the heads they are of."""

    def __init__(self, rng: np.random.Generator, more: dict[str, tuple[int, ...]], heads: Any = range(HEADS)) -> None:
        shapes = {"W_Q": (HEADS, D, WIDTH), "W_K": (KV, D, WIDTH), "W_V": (KV, D, WIDTH), "W_O": (HEADS, WIDTH, D)}
        super().__init__({name: rng.normal(size=shape) for name, shape in (shapes | more).items()})
        self.heads, self.kv_heads = tuple(heads), tuple(range(KV))
        self.kv_of_head = tuple(head * KV // HEADS for head in self.heads)
        self |= {name: self[name][list(self.heads)] for name in ("W_Q", "W_O", "b_Q") if name in self}


BIASES = {"b_Q": (HEADS, WIDTH), "b_K": (KV, WIDTH), "b_V": (KV, WIDTH)}
BLOCK = {"ln1.w": (D,), "ln1.b": (D,)}
CASES: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]]]] = {
    "bare": ({}, {}),
    "rms": ({}, {"ln1.w": (D,)}),
    "layer norm": ({"norm": "layer"}, BLOCK | BIASES),
    "norm behind": ({"norm": "layer", "norm_first": False}, BLOCK | BIASES),
    "query norm": ({"query_norm": True}, {"ln1.w": (D,), "q_norm.w": (WIDTH,), "k_norm.w": (WIDTH,)} | BIASES),
    "query norm of each head": (
        {"query_norm": True, "norm": "layer"},
        BLOCK | BIASES | {"q_norm.w": (HEADS, WIDTH), "k_norm.w": (KV, WIDTH), "q_norm.b": (WIDTH,)},
    ),
    "query norm over all": (
        {"query_norm": True, "norm_first": False},
        {"q_norm.w": (HEADS * WIDTH,), "k_norm.w": (KV * WIDTH,), "ln1_post.w": (D,)},
    ),
    "query norm over all, cut into heads": (
        {"query_norm": True, "over_all": True, "norm": "layer"},
        {"q_norm.w": (HEADS, WIDTH), "k_norm.w": (KV, WIDTH)} | BIASES,
    ),
    "query norm without gain": ({"query_norm": True}, {}),
    "late query norm": ({"query_norm": True, "late": True}, {"q_norm.w": (WIDTH,), "k_norm.w": (WIDTH,)}),
    "late, not turned": (
        {"query_norm": True, "late": True, "rotation": Rotation(WIDTH)},
        {"q_norm.w": (WIDTH,), "k_norm.w": (WIDTH,)},
    ),
    "clipped": ({"clip": 0.7, "soft_cap": 3.0}, BIASES),
    "growing": ({"growth": (0.1, 2.0, 1.0)}, {}),
}


def scoring(**given: Any) -> Scoring:
    usual = {
        "norm": "rms",
        "epsilon": 1e-3,
        "norm_first": True,
        "query_norm": False,
        "rotation": ROTATION,
        "scale": 0.4,
    }
    return Scoring(**(usual | given))


def _norm(x: np.ndarray, kind: str) -> np.ndarray:
    flat = x - x.mean() if kind == "layer" else x
    return flat / np.sqrt((flat**2).mean() + 1e-3)


def _by_hand(layer: Layer, s: Scoring, x: np.ndarray, source: np.ndarray | None = None) -> np.ndarray:
    """Scores [head, query, key], token by token and head by head; keys read a source as it is, if there is one."""
    read = x if source is None else source

    def vectors(letter: str, token: int) -> np.ndarray:
        h = x[token] if letter == "Q" else read[token]
        if s.norm_first and (letter == "Q" or source is None):
            h = _norm(h, s.norm) * layer.get("ln1.w", 1.0) + layer.get("ln1.b", 0.0)
        W, b = layer[f"W_{letter}"], layer.get(f"b_{letter}", np.zeros((len(layer[f"W_{letter}"]), WIDTH)))
        q = np.stack([h @ W[i] + b[i] for i in range(len(W))])
        name = f"{letter.lower()}_norm"

        def normed(q: np.ndarray) -> np.ndarray:
            gain = layer.get(f"{name}.w", np.ones(WIDTH))
            whole = s.over_all or (gain.size > WIDTH and gain.ndim == 1)
            made = _norm(q, s.norm) if whole else np.stack([_norm(one, s.norm) for one in q])
            return made * (gain if gain.size == WIDTH else gain.reshape(-1, WIDTH)) + layer.get(f"{name}.b", 0.0)

        there = s.query_norm and not (s.late and not s.rotation.frequencies)
        if there and not s.late:
            q = normed(q)
        q = q if s.clip is None else np.clip(q, -s.clip, s.clip)
        q = np.stack([s.rotation.matrix(token) @ (one * s.rotation.scales) for one in q])
        q = normed(q) if there and s.late else q
        if s.growth is not None and letter == "Q":
            b_, n, shift = s.growth
            q = q * (1 + b_ * np.log(1 + np.floor((token + shift) / n)))
        return q

    found = np.empty((len(layer.heads), len(x), len(read)))
    for i in range(len(x)):
        for j in range(len(read)):
            q, k = vectors("Q", i), vectors("K", j)
            found[:, i, j] = [s.scale * q[h] @ k[layer.kv_of_head[h]] for h in range(len(q))]
    return found if s.soft_cap is None else s.soft_cap * np.tanh(found / s.soft_cap)


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_every_pair_of_tokens(case: str) -> None:
    given_, tensors = CASES[case]
    rng, s = np.random.default_rng(len(case)), scoring(**given_)
    layer, x = Layer(rng, tensors), 2 * rng.normal(size=(5, D)) + 0.3
    found = effective(layer, s).scores(x)
    # Angles are in float32, as models have them.
    np.testing.assert_allclose(found, _by_hand(layer, s, x), atol=2e-6 * np.abs(found).max())
    np.testing.assert_array_equal(effective(layer, s).scores(np.stack([x, x]))[1], found)


@pytest.mark.parametrize("case", CASES)
def test_keys_of_another_stack_read_it_as_it_is(case: str) -> None:
    given_, tensors = CASES[case]
    rng, s = np.random.default_rng(len(case)), scoring(**({"rotation": Rotation(WIDTH)} | given_), crossed=True)
    layer, x, y = Layer(rng, tensors), 2 * rng.normal(size=(5, D)) + 0.3, rng.normal(size=(3, D)) - 0.2
    made = effective(layer, s)
    found = made.scores(x, y)
    np.testing.assert_allclose(found, _by_hand(layer, s, x, y), atol=2e-6 * np.abs(found).max())
    np.testing.assert_array_equal(made.key.W, layer["W_K"])
    np.testing.assert_array_equal(made.value.W, layer["W_V"])
    np.testing.assert_array_equal(made.query.W, effective(layer, scoring(**given_)).query.W)
    if not s.query_norm and s.clip is None and s.growth is None:
        A, B = made.form(0, biases=True)
        h, k = (np.concatenate([side, np.ones((len(side), 1))], axis=1) for side in (made.read(x), y))
        by_form = np.einsum("qd,hde,hce,kc->hqk", h, A, B, k)
        np.testing.assert_allclose(found, by_form, atol=2e-6 * np.abs(found).max())


def test_a_source_is_for_keys_of_another_stack_alone() -> None:
    layer, x = Layer(np.random.default_rng(0), {}), np.ones((2, D))
    for crossed, more in ((True, ()), (False, (x,))):
        with pytest.raises(ValueError, match="made of a source"):
            effective(layer, scoring(crossed=crossed)).scores(x, *more)


@pytest.mark.parametrize("case", [c for c in CASES if c not in ("clipped", "growing", "late query norm")])
def test_a_score_is_the_form_at_its_lag_up_to_the_scalars_of_its_tokens(case: str) -> None:
    given_, tensors = CASES[case]
    rng, s = np.random.default_rng(len(case)), scoring(**given_)
    layer, x = Layer(rng, {n: v for n, v in tensors.items() if n != "q_norm.b"}), rng.normal(size=(5, D))
    made = effective(layer, s)
    h = np.concatenate([made.read(x), np.ones((5, 1))], axis=1)
    wanted = made.scores(x)
    if s.has_query_norm:
        # 1/rms of q and of k, of each token and head, from the vectors before their gain.
        lengths = []
        for p in (made.query, made.key):
            raw = p.of(made.read(x))
            raw = raw - raw.mean(axis=(1, 2) if p.whole else 2, keepdims=True) if s.norm == "layer" else raw
            squares = (raw**2).mean(axis=(1, 2) if p.whole else 2, keepdims=True)
            lengths.append(np.sqrt(np.broadcast_to(squares, (*raw.shape[:2], 1))[..., 0] + s.epsilon))
        of_q, of_k = lengths[0].T, lengths[1].T[list(layer.kv_of_head)]
    else:
        of_q = of_k = np.ones((HEADS, 5))
    for i, j in ((4, 1), (2, 2), (0, 3)):
        A, B = made.form(i - j, biases=True)
        found = np.einsum("d,hde,hfe,f->h", h[i], A, B, h[j]) / (of_q[:, i] * of_k[:, j])
        np.testing.assert_allclose(found, wanted[:, i, j], atol=2e-6 * np.abs(wanted).max())


def test_without_biases_the_form_is_the_rows_of_the_weights_alone() -> None:
    layer = Layer(np.random.default_rng(0), BLOCK | BIASES)
    made = effective(layer, scoring(norm="layer"))
    for one, other in zip(made.form(3), made.form(3, biases=True), strict=True):
        np.testing.assert_array_equal(one, other[:, :-1])
    # What has mean 0 is all that it reads.
    np.testing.assert_allclose(made.form(0)[1].mean(axis=1), 0, atol=1e-12)


@pytest.mark.parametrize("case", ["layer norm", "query norm over all"])
def test_outputs_are_those_of_the_values_that_are_read(case: str) -> None:
    given_, tensors = CASES[case]
    layer, s = Layer(np.random.default_rng(1), tensors), scoring(**given_)
    x = np.random.default_rng(2).normal(size=D)
    made = effective(layer, s)
    value, W_O = made.ov()
    h = x if not s.norm_first else _norm(x, s.norm) * layer["ln1.w"] + layer["ln1.b"]
    for head in range(HEADS):
        kv = layer.kv_of_head[head]
        v = h @ layer["W_V"][kv] + layer.get("b_V", np.zeros((KV, WIDTH)))[kv]
        wanted = v @ layer["W_O"][head] * layer.get("ln1_post.w", 1.0)
        found = (made.read(x) @ value.W[head] + value.b[head]) @ W_O[head]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)


def test_a_gain_between_heads_and_output_is_in_the_output() -> None:
    layer = Layer(np.random.default_rng(1), {"z_norm.w": (HEADS * WIDTH,)}, heads=(1, 3))
    _, W_O = effective(layer, scoring()).ov()
    gain = layer["z_norm.w"].reshape(HEADS, WIDTH)[[1, 3]]
    np.testing.assert_allclose(W_O, gain[:, :, None] * layer["W_O"])


def test_some_heads_are_as_they_are_among_all_and_a_norm_over_all_needs_all() -> None:
    case = CASES["query norm of each head"]
    x = np.random.default_rng(2).normal(size=(5, D))
    every, some = (Layer(np.random.default_rng(1), case[1], heads=h) for h in (range(HEADS), (1, 2)))
    found, whole = (effective(layer, scoring(**case[0])).scores(x) for layer in (some, every))
    np.testing.assert_allclose(found, whole[[1, 2]], rtol=1e-12)
    given_, tensors = CASES["query norm over all"]
    every, some = (Layer(np.random.default_rng(1), tensors, heads=h) for h in (range(HEADS), (1, 2)))
    made = effective(some, scoring(**given_))
    np.testing.assert_allclose(made.form(2)[0], effective(every, scoring(**given_)).form(2)[0][[1, 2]])
    with pytest.raises(ValueError, match="a norm over all 4 heads is not known from 2 of them"):
        made.scores(x)


def test_gains_behind_the_rotation_are_a_form_at_a_lag_by_their_mean_over_positions() -> None:
    """Positions t and t - lag, over many t: the terms that hang on t itself turn and leave nothing."""
    given_, tensors = CASES["late query norm"]
    layer, s = Layer(np.random.default_rng(3), tensors), scoring(**given_)
    made, lag, count = effective(layer, s), 2, 20_000
    gain = layer["q_norm.w"] * layer["k_norm.w"]
    total = np.zeros((WIDTH, WIDTH))
    for t in range(count):
        total += s.rotation.matrix(t).T @ (gain[:, None] * s.rotation.matrix(t - lag))
    scales = s.rotation.scales
    wanted = s.scale * layer["W_Q"][0] @ (scales[:, None] * total / count * scales) @ layer["W_K"][0].T
    A, B = made.form(lag)
    # A geometric sum of exp(2 i t frequency) is below 1/sin(frequency), 3.4 here, whatever its length.
    np.testing.assert_allclose(A[0] @ B[0].T, wanted, atol=1e-3 * np.abs(wanted).max())


@given(seed=st.integers(0, 2**31), scaling=st.floats(0.5, 2), turned=st.integers(0, 3))
def test_numbers_of_a_form_at_a_lag_are_those_of_its_matrix(seed: int, scaling: float, turned: int) -> None:
    rng = np.random.default_rng(seed)
    rotation = Rotation(WIDTH, tuple(rng.uniform(0.01, 2, turned)), scaling)
    W_Q, W_K = rng.normal(size=(2, 1, D, WIDTH))
    b_Q, b_K = rng.normal(size=(2, 1, WIDTH))
    lags = np.array([0.0, 1.0, 5.0])
    found = form_numbers(W_Q[0], W_K[0], rotation, lags)
    added = bias_numbers(Projection(W_Q, b_Q), Projection(W_K, b_K), 0, rotation, lags)
    for i, lag in enumerate(lags):
        R = rotation.between(int(lag))
        C, u, v = W_Q[0] @ R @ W_K[0].T, W_Q[0] @ R @ b_K[0], W_K[0] @ R.T @ b_Q[0]
        wanted = np.trace(C), np.trace(C @ C), (C**2).sum()
        np.testing.assert_allclose([one[i] for one in found], wanted, rtol=1e-8, atol=1e-8 * wanted[2])
        wanted = u @ u, v @ v, u @ v, b_Q[0] @ R @ b_K[0]
        np.testing.assert_allclose([one[i] for one in added], wanted, rtol=1e-8, atol=1e-8 * (wanted[0] + wanted[1]))
