"""How far a changed run of a model is from its own: loss, next-token distributions, hidden states. On tensors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .arrays import Floats

# What is measured of a prompt; the first four are sums over predicted tokens.
LOSS, KL, AGREEMENT, TOKENS, LOGIT_CHANGE, HIDDEN_CHANGE = range(6)
MEASURED = 6


@dataclass(frozen=True)
class Prediction:
    """What a run gave for one prompt: the last layer's residual stream [position, d_model], logits if there are."""

    hidden: torch.Tensor
    logits: torch.Tensor | None


def compare(changed: Prediction, own: Prediction, ids: np.ndarray, text: np.ndarray, causal: bool) -> Floats:
    """Sums over predicted tokens of loss, of KL(own, changed) and of agreement on the likeliest token, with their
    number; the largest change of a logit; and |change| / |hidden state|.

    A causal model predicts each token of text from those before it. Others predict nothing here: their distributions
    are compared at each token of text, and they have no loss (NaN).
    """
    found = np.full(MEASURED, np.nan)
    found[HIDDEN_CHANGE] = relative_change(changed.hidden, own.hidden)
    if changed.logits is None or own.logits is None:
        return found
    found[LOGIT_CHANGE] = float((changed.logits - own.logits).abs().max())
    rows = torch.as_tensor(np.flatnonzero(text[1:] if causal else text))
    new, old = (logits[rows].double().log_softmax(dim=-1) for logits in (changed.logits, own.logits))
    found[KL] = float((old.exp() * (old - new)).sum())
    found[AGREEMENT] = float((new.argmax(-1) == old.argmax(-1)).sum())
    found[TOKENS] = len(rows)
    if causal:
        targets = torch.as_tensor(ids[1:])[rows].to(new.device)
        found[LOSS] = float(-new.gather(1, targets[:, None]).sum())
    return found


def relative_change(changed: torch.Tensor, own: torch.Tensor) -> float:
    """|changed - own| / |own| in double precision; infinity for any change of zero."""
    size = float(own.double().norm())
    apart = float((changed.double() - own.double()).norm())
    return apart / size if size > 0 else (np.inf if apart > 0 else 0.0)
