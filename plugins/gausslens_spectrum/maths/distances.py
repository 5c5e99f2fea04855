"""How far what one model predicts and attends to is from what another does. Pure torch."""

from __future__ import annotations

import torch

# So many rows of logits are compared at a time: in float64 they take eight bytes an entry.
ROWS = 64


def predictions(logits: torch.Tensor, base: torch.Tensor, ids: torch.Tensor, causal: bool) -> dict[str, torch.Tensor]:
    """Two models on one prompt: {"loss", "base_loss", "kl", "agreement"} for each token [position], float64.

    ``logits`` and ``base`` are [position, vocabulary]. A causal model predicts a token from those before it, so the
    first is NaN; any other gives its probability in its own place. kl = sum_w p(w) log(p(w) / q(w)), p the base
    model's distribution and q the edited one's; agreement is 1 where both put the same token first.
    """
    if causal:
        after = predictions(logits[:-1], base[:-1], ids[1:], causal=False)
        return {name: torch.cat([row.new_full((1,), torch.nan), row]) for name, row in after.items()}
    blocks = [_compared(logits[i : i + ROWS], base[i : i + ROWS], ids[i : i + ROWS]) for i in range(0, len(ids), ROWS)]
    if not blocks:
        return {name: torch.empty(0, dtype=torch.float64) for name in ("loss", "base_loss", "kl", "agreement")}
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def _compared(logits: torch.Tensor, base: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    q, p = logits.double().log_softmax(-1), base.double().log_softmax(-1)
    own = ids[:, None]
    return {
        "loss": -q.gather(-1, own)[:, 0].cpu(),
        "base_loss": -p.gather(-1, own)[:, 0].cpu(),
        # Logits of -inf (tokens that may not come) have probability 0 in both: they add nothing.
        "kl": torch.where(p.isneginf(), 0.0, p.exp() * (p - q)).sum(-1).clamp_min(0).cpu(),
        "agreement": (logits.argmax(-1) == base.argmax(-1)).double().cpu(),
    }


def entropy(rows: torch.Tensor) -> torch.Tensor:
    """H = -sum p log p of the last axis, in nats; 0 log 0 = 0."""
    found: torch.Tensor = torch.special.entr(rows).sum(-1)
    return found


def attention(pattern: torch.Tensor, base: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two attention patterns [head, query, key]: {"entropy", "base_entropy", "divergence"} of each row [head, query].

    divergence is Jensen and Shannon's, H(m) - (H(p) + H(q))/2 with m = (p + q)/2: from 0 to log 2, and its square root
    is a metric.
    """
    p, q = base.double(), pattern.double()
    of_p, of_q = entropy(p), entropy(q)
    return {
        "entropy": of_q.cpu(),
        "base_entropy": of_p.cpu(),
        "divergence": (entropy((p + q) / 2) - (of_p + of_q) / 2).clamp_min(0).cpu(),
    }
