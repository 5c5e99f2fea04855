"""How far a changed run of a model is from its own: loss, next-token distributions, hidden states. On tensors.

What is near enough is told by the size of a change and its interval over prompts, never by its sign: a map may cost a
model its predictions and by luck lower the loss of the tokens at hand. Hence two conditions, both with the Student
interval of half width h = t_(1 + level)/2 (m - 1) se over m prompts:

    |L' - L| / L + h  <=  tolerance             the loss of the text, which has a sign
    KL(p, p') + h     <=  tolerance L           the divergence, mean over tokens, which has none

KL(p, p') is what the loss would rise by on text that the model itself writes, E_p[log p - log p']: so by default it is
held to the same nats as the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import stdtrit

from .arrays import Floats

# What is measured of a prompt; the first four are sums over predicted tokens.
LOSS, KL, AGREEMENT, TOKENS, LOGIT_CHANGE, HIDDEN_CHANGE = range(6)
MEASURED = 6
# Of the intervals over prompts by which a setting is judged.
LEVEL = 0.95


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


def is_within(change: Floats, error: Floats, prompts: Floats, bound: float) -> Floats:
    """Whether the size of a change is within a bound: 1 where |change| + h is, 0 where |change| - h is beyond.

    NaN where the interval holds the bound, or where one prompt tells no interval: undecided. ``error`` is that over so
    many ``prompts``; h is the half width above.
    """
    count = np.asarray(prompts, dtype=np.float64)
    half = np.where(count > 1, stdtrit(np.maximum(count - 1, 1), (1 + LEVEL) / 2), np.nan) * error
    size = np.abs(change)
    return np.where(size + half <= bound, 1.0, np.where(size - half > bound, 0.0, np.nan))


def enough(*conditions: Floats) -> Floats:
    """All conditions at once: 1 where all are met, 0 where one is not, NaN where that is undecided."""
    all_of = np.stack(conditions)
    return np.where((all_of == 0).any(axis=0), 0.0, np.where((all_of == 1).all(axis=0), 1.0, np.nan))
