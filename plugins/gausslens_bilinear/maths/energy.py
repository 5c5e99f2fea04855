"""Attention as a step of gradient descent on an energy of each query, whose keys stay where they are. Pure torch.

A head has an energy of the token x that asks, E(x) = -log sum_j exp s_j(x), s_j being its score with key j. Of scores
that are linear in what queries read, h = norm(x), s_j = scale (h W_Q) . k_j, so that

    -dE/dh = scale sum_j p_j W_Q k_j,     p = softmax(s)

and a head writes sum_j p_j h_j W_V W_O. These are one vector, up to the scale, where W_V W_O = (W_Q W_K^T)^T:
attention is then exactly a step of gradient descent (Hoover et al., "Energy Transformer", 2023). With x itself in place
of h and k_j = x_j it is the update of a continuous Hopfield network, x' = K^T softmax(beta K x), one step of size 1 on

    E(x) = -(1/beta) log sum_j exp(beta k_j . x) + |x|^2 / 2,     E(x) - E(x') >= |x - x'|^2 / 2

for log-sum-exp is convex (Ramsauer et al., "Hopfield Networks is All You Need", 2020: the concave-convex procedure).
What position adds to scores, masks and sinks does not depend on x, and is in p: differences of E need nothing but p and
scores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from gausslens.maths.effective_forms import Effective, Projection, Scoring


def energy_change(
    pattern: torch.Tensor, before: torch.Tensor, after: torch.Tensor, sinks: bool = False
) -> torch.Tensor:
    """E after less E before [..., query], in nats, of scores [..., query, key]: -log(sum_j p_j exp(s'_j - s_j)).

    ``pattern`` is the softmax of ``before``; with ``sinks`` what it lacks of 1 goes to a sink, whose score stays.
    """
    moved = pattern.log() + after - before
    if sinks:
        moved = torch.cat([moved, (1 - pattern.sum(-1, keepdim=True)).clamp(min=0).log()], dim=-1)
    return -torch.logsumexp(moved, dim=-1)


def scores_of(h: torch.Tensor, keys: torch.Tensor, effective: Effective) -> torch.Tensor:
    """Scores [head, query, key] of what queries read [query, d_model] with keys [key, kv_head, d_head] as they meet.

    Differentiable by h. What position adds to scores, and what may not be seen, is left out.
    """
    scoring, projection = effective.scoring, effective.query
    W, b = h.new_tensor(projection.W), h.new_tensor(projection.b)
    q = torch.einsum("qd,hde->qhe", h, W) + b
    if not scoring.late:
        q = _own_norm(q, projection, scoring)
    q = q if scoring.clip is None else q.clamp(-scoring.clip, scoring.clip)
    q = scoring.rotation.turned(q[None], torch.arange(len(q)))[0]
    if scoring.late:
        q = _own_norm(q, projection, scoring)
    if scoring.growth is not None:
        rate, size, shift = scoring.growth
        places = torch.arange(len(q), dtype=q.dtype)
        q = q * (1 + rate * torch.log1p(torch.floor((places + shift) / size)))[:, None, None]
    found = torch.einsum("qhe,khe->hqk", q, keys[:, list(effective.kv_of_head)]) * scoring.scale
    return found if scoring.soft_cap is None else scoring.soft_cap * torch.tanh(found / scoring.soft_cap)


def read_by(x: torch.Tensor, scoring: Scoring) -> torch.Tensor:
    """What queries read of the stream [..., d_model]: its norm, whose gain is in the effective forms, or the stream."""
    return _normed(x, scoring, 1) if scoring.norm_first else x


def descent(
    h: torch.Tensor, keys: torch.Tensor, pattern: torch.Tensor, effective: Effective
) -> tuple[torch.Tensor, torch.Tensor]:
    """-dE/dh [head, query, d_model] of each head's energy at h, and the scores there [head, query, key]."""
    at = h.detach().requires_grad_()
    with torch.enable_grad():
        scores = scores_of(at, keys, effective)
        # dE/ds_j = -p_j: the softmax is that of the model, with all that stands beside the scores.
        lowered = (pattern * scores).sum(dim=(1, 2))
        found = [torch.autograd.grad(one, at, retain_graph=True)[0] for one in lowered]
    return torch.stack(found), scores.detach()


def written_by_heads(
    z: torch.Tensor, added: torch.Tensor, effective: Effective, bias: torch.Tensor
) -> tuple[torch.Tensor, float]:
    """What each head adds to the stream [head, query, d_model], of z [query, head, d_value]; and what is left unsaid.

    Their sum with the ``bias`` is ``added`` [query, d_model] but for a factor of each token, of a norm or a multiplier
    behind, which is found and laid on all of them. What is left is the share of the length of ``added`` that is not so.
    """
    tiny = torch.finfo(z.dtype).tiny
    each = torch.einsum("qhe,hed->hqd", z, z.new_tensor(effective.W_O))
    whole = each.sum(dim=0) + bias
    factor = (added * whole).sum(-1, keepdim=True) / whole.square().sum(-1, keepdim=True).clamp(min=tiny)
    left = (added - factor * whole).norm() / added.norm().clamp(min=tiny)
    return each * factor, float(left)


def _own_norm(q: torch.Tensor, projection: Projection, scoring: Scoring) -> torch.Tensor:
    """q [query, head, d_head] behind its own norm, if it has one."""
    if projection.gain is None:
        return q
    q = _normed(q, scoring, 2 if projection.whole else 1) * q.new_tensor(projection.gain)
    return q if projection.shift is None else q + q.new_tensor(projection.shift)


def _normed(x: torch.Tensor, scoring: Scoring, width: int) -> torch.Tensor:
    """x/rms(x) or (x - mean)/sd over the last axes, ``width`` of them."""
    axes = tuple(range(-width, 0))
    x = x - x.mean(axes, keepdim=True) if scoring.norm == "layer" else x
    return x * torch.rsqrt(x.square().mean(axes, keepdim=True) + scoring.epsilon)
