"""What each setting of attention.swap costs over prompts and draws, and which of them is enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import ModelInfo, variable
from gausslens.maths.resampling import mean_and_error, ratio_and_error

from ..maths.arrays import Floats
from ..maths.predictions import (
    AGREEMENT,
    HIDDEN_CHANGE,
    KL,
    LEVEL,
    LOGIT_CHANGE,
    LOSS,
    MEASURED,
    TOKENS,
    enough,
    is_within,
)
from ..maths.prompts import sd_over_draws
from .patterns import looks_back, of_other_keys
from .swap_settings import Setting

if TYPE_CHECKING:
    from ..parameters import SwapParameters

_ERROR = "standard error of {}, over prompts (NaN: one prompt)"
_TEXTS = {
    "hidden_change": ("change of the last residual stream, relative", "1"),
    "kl": ("divergence of next-token distributions from the model's own", "nat"),
    "agreement": ("share of tokens at which the likeliest next token stays", "1"),
    "logit_change": ("largest change of a logit", "1"),
    "loss": ("mean loss of a token", "nat"),
    "loss_change": ("change of the loss, relative to the model's own", "1"),
}
# What has an error over draws where a setting draws.
_OF_DRAWS = ("loss_change", "kl", "hidden_change")


class SettingCosts:
    """Gathers what each setting costs, over prompts."""

    def __init__(
        self, settings: Sequence[Setting], info: ModelInfo, layers: Sequence[int], parameters: SwapParameters
    ) -> None:
        self.settings, self.info, self.layers, self.parameters = settings, info, list(layers), parameters
        self.draws = parameters.draws if any(s.random for s in settings) else 1
        self.sizes: list[tuple[int, int]] = []
        self.own: list[Floats] = []
        self.of_all: list[Floats] = []
        self.of_each: list[Floats] = []

    def begin(self, queries: int, keys: int, own: Floats) -> None:
        """The next prompt: how many queries and keys it has, and how the model as it is does."""
        self.sizes.append((queries, keys))
        self.own.append(own)
        shape = (self.draws, len(self.settings))
        self.of_all.append(np.full((*shape, MEASURED), np.nan))
        self.of_each.append(np.full((*shape, len(self.layers), len(self.info.heads), MEASURED), np.nan))

    def all(self, setting: int, draw: int, found: Floats) -> None:
        """All heads in view swapped."""
        self.of_all[-1][self._which(setting, draw), setting] = found

    def each(self, setting: int, draw: int, layer: int, head: int, found: Floats) -> None:
        """One head swapped."""
        place = self.layers.index(layer), self.info.heads.index(head)
        self.of_each[-1][self._which(setting, draw), setting, *place] = found

    def _which(self, setting: int, draw: int) -> slice:
        """The draws that this one stands for: all of them, where nothing is drawn."""
        return slice(draw, draw + 1) if self.settings[setting].random else slice(None)

    def dataset(self) -> xr.Dataset:
        """Variables [setting] and [setting, layer, head]."""
        own = np.stack(self.own)
        causal = looks_back(self.info)
        stores = np.array([np.mean([s.stores(n, m, causal) for n, m in self.sizes]) for s in self.settings])
        text = "stored scalars of one head's map, mean over prompts"
        variables: dict[str, Any] = {"scalars": variable("setting", stores, text, against=False)}
        if not np.isnan(own[:, LOSS]).any():
            base = own[:, LOSS].sum() / own[:, TOKENS].sum()
            variables["loss_whole"] = variable((), base, "mean loss of a token, the model as it is", "nat")
        judge = "loss_change" if "loss_whole" in variables else "hidden_change"
        notes: dict[str, Any] = {
            "judge": judge,
            "tolerance": self.parameters.tolerance,
            "prompts": len(self.own),
            "draws": self.draws,
            **of_other_keys(self.info),
        }
        if "all" in self.parameters.which:
            made, numbers = _variables(np.stack(self.of_all), own, ("setting",), "")
            variables |= made
            bound = self._bound(variables)
            notes |= {} if bound is None else {"kl_tolerance": bound}
            met = self._enough(judge, numbers, bound)
            text = f"1: {judge} and kl are within their bounds, each with its {LEVEL:.0%} interval over prompts; "
            text += "0: one of them is not; NaN: undecided, an interval is too wide"
            variables["enough"] = variable("setting", met, text, against=False)
            variables["scalars_needed"] = self._needed(judge, bound, met, stores)
            notes["smallest_enough"] = self._smallest(met, stores)
        if "each" in self.parameters.which:
            variables |= _variables(np.stack(self.of_each), own, ("setting", "layer", "head"), "_each")[0]
        return xr.Dataset(variables, coords=self._coordinates(variables), attrs=notes | self._too_short())

    def _coordinates(self, variables: dict[str, Any]) -> dict[str, Any]:
        coords: dict[str, Any] = {
            "setting": [s.label for s in self.settings],
            "setting_kind": ("setting", [s.kind for s in self.settings]),
            "layer": self.layers,
            "head": list(self.info.heads),
            "kind": self._kinds,
        }
        used = {dim for one in variables.values() for dim in one[0]}
        return {name: values for name, values in coords.items() if name.startswith("setting") or name in used}

    @property
    def _kinds(self) -> list[str]:
        return list(dict.fromkeys(s.kind for s in self.settings))

    def _bound(self, variables: dict[str, Any]) -> float | None:
        """The most that the divergence may be: as asked for, or the tolerance of the loss in nats."""
        if "kl" not in variables:
            return None
        if self.parameters.kl_tolerance is not None:
            return self.parameters.kl_tolerance
        if "loss_whole" not in variables:
            return None
        return self.parameters.tolerance * float(variables["loss_whole"][1])

    def _enough(self, judge: str, numbers: dict[str, Floats], bound: float | None) -> Floats:
        """1, 0 or NaN for each setting."""
        prompts = np.array([sum(m >= s.least_tokens for _, m in self.sizes) for s in self.settings])
        size = is_within(numbers[judge], numbers[f"{judge}_se"], prompts, self.parameters.tolerance)
        if bound is None:
            return size
        return enough(size, is_within(numbers["kl"], numbers["kl_se"], prompts, bound))

    def _needed(self, judge: str, bound: float | None, met: Floats, stores: Floats) -> tuple[Any, ...]:
        within = np.where(met == 1, stores, np.inf)
        least = [min(w for w, s in zip(within, self.settings, strict=True) if s.kind == m) for m in self._kinds]
        what = "loss" if judge == "loss_change" else "last residual stream"
        text = f"least stored scalars that change the {what} by at most {self.parameters.tolerance:g}, up or down"
        text += "" if bound is None else f", and predictions by at most {bound:.3g} nats"
        text += f", with {LEVEL:.0%} intervals over prompts (NaN: none do)"
        return variable("kind", np.where(np.isfinite(least), least, np.nan), text)

    def _smallest(self, met: Floats, stores: Floats) -> str:
        """The setting of fewest scalars that is enough, by name, or "none"."""
        if not (met == 1).any():
            return "none"
        best = int(np.where(met == 1, stores, np.inf).argmin())
        return f"{self.settings[best].label} ({stores[best]:,.0f} scalars)"

    def _too_short(self) -> dict[str, str]:
        told = []
        for setting in self.settings:
            short = sum(m < setting.least_tokens for _, m in self.sizes)
            if short:
                told.append(
                    f"{setting.label}: {short} of {len(self.sizes)} prompts have fewer than the "
                    f"{setting.least_tokens} tokens that its fit takes, and are left out"
                )
        return {"too_short": "; ".join(told)} if told else {}


def _variables(
    found: Floats, own: Floats, dims: tuple[str, ...], suffix: str
) -> tuple[dict[str, Any], dict[str, Floats]]:
    """Variables of what was found [prompt, draw, *dims, measure], means over draws and prompts; and bare numbers."""
    numbers = _by_setting(found.mean(axis=1), own)
    made: dict[str, Any] = {}
    for name, values in numbers.items():
        if name.endswith("_se"):
            told = "that change" if name != "kl_se" else "that divergence"
            units = _TEXTS[name.removesuffix("_se")][1]
            made[f"{name}{suffix}"] = variable(dims, values, _ERROR.format(told), units, against=False)
        else:
            made[f"{name}{suffix}"] = variable(dims, values, *_TEXTS[name])
    if found.shape[1] > 1:
        drawn = [_by_setting(found[:, draw], own) for draw in range(found.shape[1])]
        for name in [n for n in _OF_DRAWS if n in numbers]:
            sd = sd_over_draws(np.stack([one[name] for one in drawn]))
            text = f"standard deviation over draws of: {_TEXTS[name][0]} (0: nothing is drawn)"
            made[f"{name}{suffix}_draws_sd"] = variable(dims, sd, text, _TEXTS[name][1], against=False)
    return made, numbers


def _by_setting(found: Floats, own: Floats) -> dict[str, Floats]:
    """Numbers [setting, ...] of what was found [prompt, setting, ..., measure], each over the prompts that it has."""
    each = []
    for setting in range(found.shape[1]):
        one = found[:, setting]
        there = ~np.isnan(one[..., HIDDEN_CHANGE]).reshape(len(one), -1).any(axis=1)
        rows = there if there.any() else np.ones(len(one), dtype=bool)
        each.append(_numbers(one[rows], own[rows]))
    return {name: np.stack([one[name] for one in each]) for name in each[0]}


def _numbers(found: Floats, own: Floats) -> dict[str, Floats]:
    """Means over tokens and prompts of [prompt, ..., measure], beside the model's own [prompt, measure]."""
    made: dict[str, Floats] = {}
    made["hidden_change"], made["hidden_change_se"] = mean_and_error(found[..., HIDDEN_CHANGE])
    if np.isnan(own[:, TOKENS]).any():
        return made
    tokens = own[:, TOKENS]
    made["kl"], made["kl_se"] = ratio_and_error(found[..., KL], tokens)
    made["agreement"] = found[..., AGREEMENT].sum(axis=0) / tokens.sum()
    made["logit_change"] = found[..., LOGIT_CHANGE].max(axis=0)
    if not np.isnan(own[:, LOSS]).any():
        base = own[:, LOSS]
        losses = found[..., LOSS]
        made["loss"] = losses.sum(axis=0) / tokens.sum()
        apart = losses - base.reshape(-1, *(1,) * (losses.ndim - 1))
        # The ratio of sums over prompts: a change, and its error, on the same prompts as the loss it is relative to.
        made["loss_change"], made["loss_change_se"] = ratio_and_error(apart, base)
    return made
