"""What scores see: W_Q, W_K, W_V and W_O with all that stands between the stream and the scores folded in. Numpy.

A layer reads x. Its norm makes h = x/rms(x) (or (x - mean)/sd), times a gain g, plus a shift s. Heads make
q = h W_Q + b_Q and k = h W_K + b_K; some models then divide q and k by their own rms and multiply by a gain. Position
turns them, and

    score = scale q^T R(-lag) k                         (c tanh(score / c) where there is a soft cap)

All of it but three scalars is linear. ``effective`` folds what is linear into the weights (W_K, W_V alike):

    W_Q  ->  diag(g) W_Q diag(g_q),    b_Q  ->  (s W_Q + b_Q) diag(g_q),    W_O  ->  W_O diag(g_post)

with the mean over d_model taken off where the norm is a LayerNorm. What is left are scalars that depend on the data:
1/rms(x) of each token, and 1/rms(q), 1/rms(k) where q and k have norms of their own. They turn no vector and change no
sign, so that a circuit is C = W_Q R(-lag) W_K^T up to them. Biases are a row more of the factors, which meets (h, 1).
Folding: Elhage et al., "A Mathematical Framework for Transformer Circuits" (2021); query norms: Henry et al. (2020).

In attention from one stack to another keys and values read what the other stack gives, y, as it is: the norm before
attention is folded into W_Q alone, and score = scale q^T k with k = y W_K + b_K.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .rotary import Rotation

Floats: TypeAlias = NDArray[np.float64]


class Tensors(Protocol):
    """The tensors of a layer by their names, and the heads they are of: ``gausslens.LayerWeights`` is one."""

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    kv_of_head: tuple[int, ...]

    def __contains__(self, name: str, /) -> bool:
        """Whether there is such a tensor."""
        ...

    def __getitem__(self, name: str, /) -> Any:
        """A tensor of torch, or an array."""
        ...


@dataclass(frozen=True)
class Scoring:
    """What a layer does between the stream and its scores, beside its tensors; ``facts.scoring(layer)`` gives it.

    ``norm_first``: the norm stands before attention; ``query_norm``: q and k have norms of their own, of the same kind,
    over each head or ``over_all`` of them, ``late`` ones behind the rotation. q and k are kept within ``clip``; q at
    position t is multiplied by 1 + b log(1 + floor((t + s) / n)), ``growth`` = (b, n, s). ``crossed``: keys and values
    are of another stack, whose output they read as it is.
    """

    norm: Literal["rms", "layer"]
    epsilon: float
    norm_first: bool
    query_norm: bool
    rotation: Rotation
    scale: float
    soft_cap: float | None = None
    over_all: bool = False
    late: bool = False
    clip: float | None = None
    growth: tuple[float, float, float] | None = None
    crossed: bool = False

    @property
    def has_query_norm(self) -> bool:
        """Whether the layer norms q and k: a norm behind the rotation is there only where a layer rotates."""
        return self.query_norm and not (self.late and not self.rotation.frequencies)

    def normed(self, x: Floats, width: int = 1) -> Floats:
        """x/rms(x) or (x - mean)/sd over the last axes, ``width`` of them, without gain or shift."""
        axes = tuple(range(-width, 0))
        if self.norm == "layer":
            x = x - x.mean(axis=axes, keepdims=True)
        return np.asarray(x / np.sqrt((x**2).mean(axis=axes, keepdims=True) + self.epsilon))


@dataclass(frozen=True)
class Projection:
    """h -> h W + b for each head: W [head, d_model, d_head], b [head, d_head], the norm before them folded in.

    Where q or k has a norm, ``gain`` and ``shift`` [head, d_head] are its; ``whole`` counts the heads over all of which
    it is taken, 0 where each head has its own.
    """

    W: Floats
    b: Floats
    gain: Floats | None = None
    shift: Floats | None = None
    whole: int = 0

    def folded(self, centred: bool) -> Projection:
        """With the gain of its norm in W and b, and taken off what a LayerNorm takes off; up to 1/rms of each vector.

        ``shift`` is left: the scalar is not upon it.
        """
        if self.gain is None:
            return self
        W, b = self.W, self.b
        if centred:
            self._need_all()
            W = W - W.mean(axis=(0, 2) if self.whole else 2, keepdims=True)
            b = b - b.mean(axis=(0, 1) if self.whole else 1, keepdims=True)
        return replace(self, W=W * self.gain[:, None], b=b * self.gain, gain=None)

    def of(self, h: Floats) -> Floats:
        """h W + b [..., head, d_head] of what the norm before it makes of the stream [..., d_model]."""
        found: Floats = np.einsum("...d,hde->...he", h, self.W) + self.b
        return found

    def normed(self, vectors: Floats, scoring: Scoring) -> Floats:
        """q or k [..., head, d_head] behind its own norm, if it has one."""
        if self.gain is None:
            return vectors
        self._need_all()
        found = scoring.normed(vectors, 2 if self.whole else 1) * self.gain
        return found if self.shift is None else found + self.shift

    def _need_all(self) -> None:
        if self.whole not in (0, len(self.W)):
            raise ValueError(f"a norm over all {self.whole} heads is not known from {len(self.W)} of them")


@dataclass(frozen=True)
class Effective:
    """The heads of one layer as scores and outputs see them; made by ``effective``.

    ``query``, ``key`` and ``value`` have the norm of the block folded in, and their own norms beside; ``W_O`` [head,
    d_head, d_model] the gain of the norm behind it. ``kv_of_head`` gives each head its place in ``key`` and ``value``.
    """

    query: Projection
    key: Projection
    value: Projection
    W_O: Floats
    kv_of_head: tuple[int, ...]
    scoring: Scoring

    def qk(self) -> tuple[Projection, Projection]:
        """W_Q and W_K with every gain in them, key heads as each head reads them: q^T k = (h W_Q + b_Q)(h W_K + b_K)^T.

        Up to 1/rms(q) and 1/rms(k) where q and k have norms, and as long as nothing is clipped. Gains behind the
        rotation do not turn with it: their product stands in W_Q by its mean over each plane of rotation, which does.
        """
        query, key = self.query, self.key
        if self.scoring.late and query.gain is not None and key.gain is not None:
            share = np.abs(self.scoring.rotation.diagonal[0]) ** 2
            query = replace(query, gain=query.gain * key.gain[list(self.kv_of_head)] @ share @ share.T)
            key = replace(key, gain=np.ones_like(key.gain))
        centred = self.scoring.norm == "layer" and not self.scoring.late
        return query.folded(centred), _taken(key.folded(centred), self.kv_of_head)

    def form(self, lag: int, biases: bool = False) -> tuple[Floats, Floats]:
        """Factors A, B [head, d_model, d_head] of the form in which tokens at this lag meet: A B^T, the scale in A.

        With ``biases`` they have a row more, which meets (h, 1): then the score itself is (h, 1) A B^T (h', 1)^T, up to
        the scalars and, of a query norm that has one, its shift.
        """
        q, k = self.qk()
        A, B = (augmented(p) if biases else p.W for p in (q, k))
        return self.scoring.scale * A @ self.scoring.rotation.between(lag), B

    def ov(self) -> tuple[Projection, Floats]:
        """W_V and b_V, value heads as each head reads them, and W_O: what a head writes is (h W_V + b_V) W_O."""
        return _taken(self.value, self.kv_of_head), self.W_O

    def read(self, x: Any) -> Floats:
        """What the projections read of the stream [..., d_model]: its norm, the gain of which is in them."""
        wide = _array(x)
        return self.scoring.normed(wide) if self.scoring.norm_first else wide

    def scores(self, x: Any, source: Any = None) -> Floats:
        """Scores [..., head, query, key] of a stream [..., position, d_model] as the model makes them, unmasked.

        ``source`` [..., key, d_model] is what the other stack gives, where keys are of it.
        """
        if self.scoring.crossed != (source is not None):
            raise ValueError("keys of another stack, and no others, are made of a source: what that stack gives")
        h = self.read(x)
        q, k = self._placed(self.query, h), self._placed(self.key, h if source is None else _array(source))
        if self.scoring.growth is not None:
            b, n, s = self.scoring.growth
            q = q * (1 + b * np.log1p(np.floor((np.arange(q.shape[-3]) + s) / n)))[:, None, None]
        found = np.einsum("...qhe,...khe->...hqk", q, k[..., list(self.kv_of_head), :], optimize=True)
        found = found * self.scoring.scale
        cap = self.scoring.soft_cap
        return found if cap is None else np.asarray(cap * np.tanh(found / cap))

    def _placed(self, projection: Projection, h: Floats) -> Floats:
        """q or k [..., position, head, d_head] as they meet: normed, clipped and turned."""
        import torch

        scoring, found = self.scoring, projection.of(h)
        if not scoring.late:
            found = projection.normed(found, scoring)
        if scoring.clip is not None:
            found = np.clip(found, -scoring.clip, scoring.clip)
        flat = torch.from_numpy(np.ascontiguousarray(found.reshape(-1, *found.shape[-3:])))
        turned = scoring.rotation.turned(flat, torch.arange(found.shape[-3])).numpy().reshape(found.shape)
        return projection.normed(turned, scoring) if scoring.late else np.asarray(turned)


def effective(tensors: Tensors, scoring: Scoring) -> Effective:
    """The effective forms of a layer: ``effective(weights, info.facts.scoring(layer))``."""
    gain, shift = (_optional(tensors, name) if scoring.norm_first else None for name in ("ln1.w", "ln1.b"))
    centred = scoring.norm_first and scoring.norm == "layer"

    def projection(letter: str, heads: Sequence[int]) -> Projection:
        W, b = _array(tensors[f"W_{letter}"]), _optional(tensors, f"b_{letter}")
        before = (gain, shift, centred) if letter == "Q" or not scoring.crossed else (None, None, False)
        made = _behind_norm(W, np.zeros((len(W), W.shape[2])) if b is None else b, *before)
        normed = letter != "V" and scoring.has_query_norm
        return _with_norm(made, tensors, letter, heads, scoring.over_all) if normed else made

    W_O = _array(tensors["W_O"])
    # The gain of a norm between the heads and W_O, and of one behind it.
    between, post = (_optional(tensors, name) for name in ("z_norm.w", "ln1_post.w"))
    if between is not None:
        W_O = between.reshape(-1, W_O.shape[1])[list(tensors.heads)][:, :, None] * W_O
    return Effective(
        projection("Q", tensors.heads),
        projection("K", tensors.kv_heads),
        projection("V", tensors.kv_heads),
        W_O if post is None else W_O * post,
        tuple(tensors.kv_of_head),
        scoring,
    )


def augmented(projection: Projection) -> Floats:
    """[head, d_model + 1, d_head]: W, and b as a row more, which meets the 1 of (h, 1)."""
    return np.concatenate([projection.W, projection.b[:, None]], axis=1)


def form_numbers(A: Floats, B: Floats, rotation: Rotation, lags: Floats) -> tuple[Floats, Floats, Floats]:
    """Tr C, Tr C^2 and |C|_F^2 of C = A R(-lag) B^T at each lag, from the d_head-sized products of the factors."""
    if not rotation.frequencies:
        still, each = B.T @ A, np.ones(len(lags))
        return each * np.trace(still), each * (still * still.T).sum(), each * ((A.T @ A) * (B.T @ B)).sum()
    s = rotation.scales
    P, angles = rotation.diagonal
    Q, K = A * s, B * s

    def turned(X: Floats) -> NDArray[np.complex128]:
        return np.asarray(P.conj().T @ X @ P)

    M, QQ, KK = turned(K.T @ Q), turned(Q.T @ Q), turned(K.T @ K)
    v = np.exp(-1j * np.asarray(lags)[:, None] * angles[None, :])
    # R = P diag(v) P^H: Tr(M R), Tr(M R M R), Tr(Q'Q R K'K R^T).
    trace = v @ np.diagonal(M)
    square = ((v @ (M * M.T)) * v).sum(axis=1)
    norm = ((v @ (KK * QQ.T)) * v.conj()).sum(axis=1)
    return trace.real, square.real, norm.real


def bias_numbers(
    A: Projection, B: Projection, head: int, rotation: Rotation, lags: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """What biases add to x^T C y at each lag, u^T x + v^T y + c: |u|^2, |v|^2, u^T v and c of one head.

    u = W_Q R b_K hangs on the query alone, v = W_K R^T b_Q on the key alone, c = b_Q^T R b_K on neither, R = R(-lag).
    """
    s = rotation.scales
    P, angles = rotation.diagonal
    v = np.exp(-1j * np.asarray(lags)[:, None] * angles[None, :])

    def turned(b: Floats, by: NDArray[np.complex128]) -> Floats:
        return np.asarray((by * (P.conj().T @ b)) @ P.T).real

    Q, K, q, k = A.W[head] * s, B.W[head] * s, A.b[head] * s, B.b[head] * s
    key, query = turned(k, v), turned(q, v.conj())
    of_query, of_key = key @ Q.T, query @ K.T
    return (of_query**2).sum(axis=1), (of_key**2).sum(axis=1), (of_query * of_key).sum(axis=1), key @ q


def _behind_norm(W: Floats, b: Floats, gain: Floats | None, shift: Floats | None, centred: bool) -> Projection:
    """(g h + s) W + b as h W' + b': W' = diag(g) W, b' = s W + b; ``centred``: h has mean 0, W' no part in it."""
    b = b if shift is None else b + shift @ W
    W = W if gain is None else gain[:, None] * W
    return Projection(W - W.mean(axis=-2, keepdims=True) if centred else W, b)


def _with_norm(made: Projection, tensors: Tensors, letter: str, heads: Sequence[int], over_all: bool) -> Projection:
    """The norm of q or k: one gain [d_head] for all heads, or each its own [head, d_head], also as [head d_head]."""
    width = made.W.shape[2]

    def cut(found: Floats) -> Floats:
        if found.size == width:
            return np.tile(found, (len(heads), 1))
        rows = found.reshape(-1, width)  # of all heads, or already of those in view
        return rows if len(rows) == len(heads) else rows[list(heads)]

    gain, shift = (_optional(tensors, f"{letter.lower()}_norm.{part}") for part in "wb")
    # One vector over the width of all heads is the gain of one norm.
    over_all = over_all or (gain is not None and gain.ndim == 1 and gain.size > width)
    whole = (len(heads) if gain is None else gain.size // width) if over_all else 0
    gain = np.ones((len(heads), width)) if gain is None else cut(gain)
    return replace(made, gain=gain, shift=None if shift is None else cut(shift), whole=whole)


def _taken(projection: Projection, heads: Sequence[int]) -> Projection:
    """Key/value heads as each head reads them."""
    given = (projection.W, projection.b, projection.gain, projection.shift)
    W, b, gain, shift = (None if array is None else array[list(heads)] for array in given)
    assert W is not None
    assert b is not None
    return Projection(W, b, gain, shift, projection.whole)


def _optional(tensors: Tensors, name: str) -> Floats | None:
    return _array(tensors[name]) if name in tensors else None


def _array(x: Any) -> Floats:
    """In double precision, whatever it was."""
    if hasattr(x, "detach"):
        x = x.detach().cpu().double().numpy()
    return np.asarray(x, dtype=np.float64)
