"""attention.roles: which of the families of Conti (2024) each head's patterns belong to, and what its map is like."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, Estimate, ModelInfo, Request, Tokens, variable

from ..maths.arrays import Floats
from ..maths.band_plus_sparse import places
from ..maths.map_families import NAMES, within
from ..maths.measures import cumulative_map_spectrum, entropy
from ..maths.prompts import ByPrompt, OfPrompts, over_prompts, stacked
from ..maths.rare_tokens import RareTokens
from .patterns import attention_of, looks_back, of_maps, of_other_keys

if TYPE_CHECKING:
    from ..parameters import RolesParameters

NONE = "none"
FAMILIES = (*NAMES, NONE)


class Roles(OfPrompts):
    """Compares the best members of the families at equal storage, prompt by prompt."""

    def __init__(self, parameters: RolesParameters, context: Context) -> None:
        super().__init__()
        self.parameters = parameters
        self.model = context.model

    def request(self) -> Request:
        """Patterns."""
        return Request(("pattern",))

    def update(self, batch: Batch) -> None:
        """Each prompt of a shard in one layer."""
        assert batch.layer is not None
        for row, prompt in enumerate(batch.prompts):
            P = attention_of(batch, row)
            storage = max(round(self.parameters.scalars * P.shape[-2]), P.shape[-2] + 1)
            found = of_families(P, storage, looks_back(self.model)) | cumulative_map_spectrum(
                P, self.parameters.directions, self.parameters.parts
            )
            self.by_prompt[batch.layer, int(prompt)] = found

    def result(self) -> xr.Dataset:
        """The family of each head, its parameters and margin, and the map of the model."""
        return _dataset(self.by_prompt, self.model, self.parameters)


def of_families(P: Floats, scalars: int, causal: bool) -> dict[str, Floats]:
    """What the best member of each family holds of maps [head, n, m], and its parameters."""
    n, m = P.shape[-2:]
    line, near, rare = within(P, scalars, causal)
    mass = np.abs(P).sum(axis=(-1, -2))
    share = np.stack([m.captured for m in (line, near, rare)], axis=-1) / np.where(mass > 0, mass, 1.0)[:, None]
    return {
        "share": share,
        "offset": line.parameter.astype(np.float64),
        "width": near.parameter.astype(np.float64),
        "windows": rare.windows.astype(np.float64),
        "windowed": (~rare.own).mean(axis=-1),
        "column": _column(rare),
        "first": P[..., 0].mean(axis=-1),
        "itself": np.take_along_axis(P, places(n, m)[None, :, None], axis=-1)[..., 0].sum(axis=-1) / n,
        "entropy": entropy(P),
    }


def _column(rare: RareTokens) -> Floats:
    """The column that most windowed rows look at; -1 where there is none."""
    found = []
    for column, own in zip(rare.column, rare.own, strict=True):
        looked_at = column[~own]
        found.append(float(np.bincount(looked_at).argmax()) if len(looked_at) else -1.0)
    return np.array(found)


_TEXTS = {
    "windows": ("windows of the best rare-token member", "windows"),
    "windowed": ("share of rows that look into a window's column instead of at themselves", "1"),
    "first": ("attention to the first token", "1"),
    "itself": ("attention of tokens to themselves", "1"),
    "entropy": ("entropy of the rows over that of uniform rows: how soft the map is", "1"),
    "rank": ("numerical rank of the map", "dimensions"),
    "effective_rank": ("effective rank: exp of the entropy of the singular values' shares", "dimensions"),
    "condition": ("log10 of the condition number, of values above rounding", "1"),
    "spectral": ("largest singular value of the map", "1"),
    "frobenius": ("Frobenius norm of the map", "1"),
    "nuclear": ("sum of the singular values", "1"),
    "column_sum": ("most attention that one key gets, the norm of columns", "1"),
}
_MODES = {
    "offset": ("offset query - key of the best diagonal, the most frequent over prompts", "tokens"),
    "width": ("width of the best band, the most frequent over prompts", "tokens"),
    "column": ("key that most windowed rows look at, the most frequent over prompts (-1: none)", "tokens"),
}


def _dataset(by_prompt: ByPrompt, model: ModelInfo, parameters: RolesParameters) -> xr.Dataset:
    layers, means, errors = over_prompts(by_prompt)
    share = means["share"]
    falling = -np.sort(-share, axis=-1)
    # The first of those that are as good: a band with dropout holds any diagonal, and rare tokens come last.
    simplest = (share >= falling[..., :1] - parameters.tie).argmax(axis=-1)
    family = np.where(falling[..., 0] >= parameters.least, simplest, len(NAMES))
    dims = ("layer", "head")
    code = ", ".join(f"{i} {name}" for i, name in enumerate(FAMILIES))
    variables: dict[str, Any] = {
        "family": variable(dims, family, f"family of the head: {code}", against=False),
        "share": variable((*dims, "family_name"), share, "attention that the best member holds"),
        "share_se": variable((*dims, "family_name"), errors["share"], "its standard error over prompts", against=False),
        "margin": variable(dims, falling[..., 0] - falling[..., 1], "share of the best family less the second's"),
        "heads": variable(
            ("layer", "role"),
            np.stack([(family == i).sum(axis=1) for i in range(len(FAMILIES))], axis=1),
            "heads of each family",
            "heads",
        ),
        "singular": variable(
            (*dims, "direction"),
            means["singular"],
            "singular values of the map, mean over prompts (NaN: a prompt is shorter)",
            against=False,
        ),
    }
    coords: dict[str, Any] = {"layer": layers, "head": list(model.heads)}
    coords |= {"family_name": list(NAMES), "role": list(FAMILIES)}
    if parameters.parts:
        text = "what the largest singular values hold of their sum, mean over prompts"
        variables["cumulative"] = variable((*dims, "part"), means["cumulative"], text)
        coords["part"] = [number / parameters.parts for number in range(parameters.parts + 1)]
    variables |= {name: variable(dims, means[name], *texts) for name, texts in _TEXTS.items()}
    for name, texts in _MODES.items():
        variables[name] = variable(dims, _mode(stacked(by_prompt, name)), *texts, against=False)
    prompts = len({prompt for _, prompt in by_prompt})
    coords["direction"] = list(range(parameters.directions))
    notes = {"prompts": prompts, "scalars": parameters.scalars}
    return xr.Dataset(variables, coords=coords, attrs=notes | of_other_keys(model))


def _mode(each: Floats) -> Floats:
    """The most frequent value along axis 1 [layer, prompt, head]; of equally frequent ones the smallest."""

    def one(values: Floats) -> float:
        found, count = np.unique(values, return_counts=True)
        return float(found[count.argmax()])

    return np.apply_along_axis(one, 1, each)


def estimate(parameters: RolesParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:  # noqa: ARG001
    """Of each map a member of three families, and its singular values."""
    return of_maps(info, tokens, 9e-7)
