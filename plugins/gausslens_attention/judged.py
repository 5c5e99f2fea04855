"""What a model loses by a change, prompt by prompt, and the result of attention.swap as named variables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xarray as xr

from gausslens import ModelInfo

from .band import Floats
from .described import attributes

if TYPE_CHECKING:
    from .parameters import SwapParameters
    from .swapped import Setting

# What is measured of a prompt; the first three are sums over predicted tokens.
LOSS, KL, AGREE, TOKENS, LARGEST, HIDDEN = range(6)
_COUNT = 6


@dataclass(frozen=True)
class Outcome:
    """What a run gave for one prompt: the last layer's residual stream [position, d_model], logits if there are."""

    hidden: torch.Tensor
    logits: torch.Tensor | None


def compared(made: Outcome, whole: Outcome, ids: np.ndarray, text: np.ndarray, causal: bool) -> Floats:
    """Sums over predicted tokens of loss, of KL(whole, made) and of agreement on the likeliest token, with their
    number; the largest change of a logit; and |change| / |hidden state|.

    A causal model predicts each token of text from those before it. Others predict nothing here: their distributions
    are compared at each token of text, and they have no loss.
    """
    found = np.full(_COUNT, np.nan)
    found[HIDDEN] = _relative(made.hidden, whole.hidden)
    if made.logits is None or whole.logits is None:
        return found
    found[LARGEST] = float((made.logits - whole.logits).abs().max())
    rows = torch.as_tensor(np.flatnonzero(text[1:] if causal else text))
    ours, theirs = (o.logits[rows].double().log_softmax(dim=-1) for o in (made, whole))  # type: ignore[index]
    found[KL] = float((theirs.exp() * (theirs - ours)).sum())
    found[AGREE] = float((ours.argmax(-1) == theirs.argmax(-1)).sum())
    found[TOKENS] = len(rows)
    if causal:
        targets = torch.as_tensor(ids[1:])[rows].to(ours.device)
        found[LOSS] = float(-ours.gather(1, targets[:, None]).sum())
    return found


class Judged:
    """Gathers what each setting costs, over prompts."""

    def __init__(
        self, settings: Sequence[Setting], info: ModelInfo, layers: Sequence[int], parameters: SwapParameters
    ) -> None:
        self.settings, self.info, self.layers, self.parameters = settings, info, list(layers), parameters
        self.lengths: list[int] = []
        self.whole: list[Floats] = []
        self.of_all: list[Floats] = []
        self.of_each: list[Floats] = []

    def begin(self, length: int, whole: Floats) -> None:
        """The next prompt: its length, and how the model as it is does."""
        self.lengths.append(length)
        self.whole.append(whole)
        self.of_all.append(np.full((len(self.settings), _COUNT), np.nan))
        shape = (len(self.settings), len(self.layers), len(self.info.heads), _COUNT)
        self.of_each.append(np.full(shape, np.nan))

    def all(self, setting: int, found: Floats) -> None:
        """All heads in view swapped."""
        self.of_all[-1][setting] = found

    def each(self, setting: int, layer: int, head: int, found: Floats) -> None:
        """One head swapped."""
        self.of_each[-1][setting, self.layers.index(layer), self.info.heads.index(head)] = found

    def dataset(self) -> xr.Dataset:
        """Variables [setting] and [setting, layer, head]."""
        whole = np.stack(self.whole)
        stores = np.array([np.mean([s.stores(n, self.info.causal) for n in self.lengths]) for s in self.settings])
        text = "stored scalars of one head's map, mean over prompts"
        variables: dict[str, Any] = {"scalars": (("setting",), stores, attributes(text, "1", 0))}
        if not np.isnan(whole[:, LOSS]).any():
            base = whole[:, LOSS].sum() / whole[:, TOKENS].sum()
            variables["loss_whole"] = ((), base, attributes("mean loss of a token, the model as it is", "nat"))
        kinds = list(dict.fromkeys(s.kind for s in self.settings))
        judge = "loss_change" if "loss_whole" in variables else "hidden_change"
        if "all" in self.parameters.which:
            made = _means(np.stack(self.of_all), whole, ("setting",), "")
            variables |= made
            variables["scalars_needed"] = self._needed(judge, made[judge][1], stores, kinds)
        if "each" in self.parameters.which:
            variables |= _means(np.stack(self.of_each), whole, ("setting", "layer", "head"), "_each")
        coords: dict[str, Any] = {
            "setting": [s.label for s in self.settings],
            "setting_kind": ("setting", [s.kind for s in self.settings]),
            "layer": self.layers,
            "head": list(self.info.heads),
            "kind": kinds,
        }
        coords = {name: held for name, held in coords.items() if name.startswith("setting") or _used(name, variables)}
        notes = {"judge": judge, "tolerance": self.parameters.tolerance, "prompts": len(self.whole)}
        return xr.Dataset(variables, coords=coords, attrs=notes)

    def _needed(self, judge: str, change: Floats, stores: Floats, kinds: Sequence[str]) -> tuple[Any, ...]:
        within = np.where(change <= self.parameters.tolerance, stores, np.inf)
        least = [min(w for w, s in zip(within, self.settings, strict=True) if s.kind == m) for m in kinds]
        what = "loss" if judge == "loss_change" else "last residual stream"
        text = f"least stored scalars that change the {what} by at most {self.parameters.tolerance:g} (NaN: none do)"
        return ("kind",), np.where(np.isfinite(least), least, np.nan), attributes(text, "1")


def _used(name: str, variables: Mapping[str, Any]) -> bool:
    return any(name in variable[0] for variable in variables.values())


def _means(found: Floats, whole: Floats, dims: tuple[str, ...], suffix: str) -> dict[str, Any]:
    """Means over tokens and prompts of [prompt, *dims, measure]."""
    made: dict[str, Any] = {
        f"hidden_change{suffix}": (
            dims,
            found[..., HIDDEN].mean(axis=0),
            attributes("change of the last residual stream, relative", "1"),
        )
    }
    if np.isnan(whole[:, TOKENS]).any():
        return made
    tokens = whole[:, TOKENS].sum()
    texts = {
        "kl": (KL, "divergence of next-token distributions from the model's own", "nat"),
        "agreement": (AGREE, "share of tokens at which the likeliest next token stays", "1"),
    }
    for name, (place, text, units) in texts.items():
        made[f"{name}{suffix}"] = (dims, found[..., place].sum(axis=0) / tokens, attributes(text, units))
    text = "largest change of a logit"
    made[f"logit_change{suffix}"] = (dims, found[..., LARGEST].max(axis=0), attributes(text, "1"))
    if not np.isnan(whole[:, LOSS]).any():
        made |= _losses(found[..., LOSS], whole, dims, suffix)
    return made


def _losses(losses: Floats, whole: Floats, dims: tuple[str, ...], suffix: str) -> dict[str, Any]:
    """Loss and its relative change; the standard error is that over prompts of the paired difference."""
    tokens = whole[:, TOKENS].sum()
    base = whole[:, LOSS].sum() / tokens
    loss = losses.sum(axis=0) / tokens
    m = len(losses)
    lost, counted = (whole[:, i].reshape(m, *(1,) * (losses.ndim - 1)) for i in (LOSS, TOKENS))
    apart = losses - lost
    residual = apart - counted * apart.sum(axis=0) / tokens
    error = np.sqrt((residual**2).sum(axis=0) * m / max(m - 1, 1)) / tokens if m > 1 else np.full(loss.shape, np.nan)
    return {
        f"loss{suffix}": (dims, loss, attributes("mean loss of a token", "nat")),
        f"loss_change{suffix}": (
            dims,
            loss / base - 1,
            attributes("change of the loss, relative to the model's own", "1"),
        ),
        f"loss_change_se{suffix}": (
            dims,
            error / base,
            attributes("standard error of that change, over prompts (NaN: one prompt)", "1", 0),
        ),
    }


def _relative(made: torch.Tensor, whole: torch.Tensor) -> float:
    size = float(whole.double().norm())
    apart = float((made.double() - whole.double()).norm())
    return apart / size if size > 0 else (np.inf if apart > 0 else 0.0)
