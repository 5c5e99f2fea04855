"""lens.logit: the stream before each layer, and behind the last, read as if the model ended there.

p_n = softmax(unembedding(x_n)), and p the model's own:  KL(p || p_n), entropy of p_n, and what p_n gives the token that
the model predicts and the one that follows (nostalgebraist, "interpreting GPT: the logit lens", 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr

from gausslens import Context, InputError, NoParameters, Runner, Tokens, mean_over_prompts

from .effects import Variables
from .unembedding import Unembedding

# What is measured of each stream: in words, and its unit.
WORDS = {
    "kl": ("KL divergence of the lens from the model's own distribution", "nat"),
    "entropy": ("entropy of the lens", "nat"),
    "agreement": ("share of tokens at which the lens predicts what the model does", "1"),
    "own_probability": ("probability of what the model predicts", "1"),
    "own_log_rank": ("log of the rank of what the model predicts, 0 being the first", "nat"),
    "next_probability": ("probability of the token that follows", "1"),
    "next_log_rank": ("log of the rank of the token that follows, 0 being the first", "nat"),
}


class LogitLens:
    """Means over the real text of each prompt; then over prompts."""

    def __init__(self, _: NoParameters, context: Context) -> None:
        self.layers, self.depth = context.model.layers, context.model.n_layers

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset:
        """The result, by depth: how many layers the stream has passed."""
        whole = runner.whole
        end = Unembedding.of(whole.info, whole.weights(None))
        values = {name: np.full((len(prompts), len(self.layers) + 1), np.nan) for name in WORDS}
        for number in range(len(prompts)):
            ids, text = prompts.ids[number], prompts.text[number]
            streams, logits = streams_of(whole, ids, prompts.beside([number]), self.layers)
            end.hold(streams[-1], logits)
            for at, stream in enumerate(streams):
                for name, found in compared(end.logits(stream), logits.double(), ids, text).items():
                    values[name][number, at] = found
        return by_depth(values, WORDS, self.layers, self.depth)


def streams_of(
    runner: Runner, ids: np.ndarray, beside: dict[str, Any], layers: Sequence[int]
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """[position, d_model] before each of these layers and behind the last of the model; and the model's logits."""
    last = runner.info.n_layers - 1
    found = runner.forward(ids[None], sites=("resid_pre", "resid_post", "logits"), **beside)
    streams = [found[layer, "resid_pre"][0] for layer in layers]
    return [*streams, found[last, "resid_post"][0]], found["logits"][0]


def compared(lens: torch.Tensor, model: torch.Tensor, ids: np.ndarray, text: np.ndarray) -> dict[str, float]:
    """The numbers of one stream of one prompt: means over its real text, and where it is of what follows.

    ``lens`` and ``model`` are logits [position, token], in float64.
    """
    kept = torch.as_tensor(text, device=lens.device)
    if not bool(kept.any()):
        return {}
    mine, theirs = (torch.log_softmax(each, dim=-1) for each in (lens, model))
    own = model.argmax(-1, keepdim=True)
    found = {
        "kl": (theirs.exp() * (theirs - mine)).sum(-1),
        "entropy": -(mine.exp() * mine).sum(-1),
        "agreement": (lens.argmax(-1, keepdim=True) == own)[:, 0].double(),
        **_of_token("own", lens, mine, own),
    }
    means = {name: float(each[kept].mean()) for name, each in found.items()}
    follows = torch.as_tensor(ids[1:], device=lens.device)[:, None]
    if bool(kept[:-1].any()):
        following = _of_token("next", lens[:-1], mine[:-1], follows)
        means |= {name: float(each[kept[:-1]].mean()) for name, each in following.items()}
    return means


def by_depth(
    values: dict[str, np.ndarray], words: dict[str, tuple[str, str]], layers: Sequence[int], depth: int
) -> xr.Dataset:
    """Means over prompts of values [prompt, depth], with their errors."""
    if not all(np.isfinite(each).any() for each in values.values()):
        raise InputError("no prompt has real text that something follows: give longer prompts")
    found: Variables = {}
    for name, each in values.items():
        found |= mean_over_prompts(name, "depth", each, *words[name])
    return xr.Dataset(found, coords={"depth": [*layers, depth]})


def _of_token(
    name: str, logits: torch.Tensor, log_probabilities: torch.Tensor, token: torch.Tensor
) -> dict[str, torch.Tensor]:
    rank = 1 + (logits > logits.gather(-1, token)).sum(-1)
    return {
        f"{name}_probability": log_probabilities.gather(-1, token)[:, 0].exp(),
        f"{name}_log_rank": rank.double().log(),
    }
