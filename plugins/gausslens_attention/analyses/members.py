"""attention.members: each head's maps beside the nearest members of the three sets of Conti (2024), exact and drawn.

For each width w and number of windows k the sets are the diagonal, the band of w, and rare tokens in at most k windows,
each with as many sparse errors as the map has rows, and rows that sum to one (module map_families). The exact distance
is the least of the three; the drawn one is that of the source's random search (module random_search), several times for
its spread. Windows of exact members have any rows and any column, those that are drawn w rows: so no draw is nearer.

What a map asks for is told besides: the least width, and the fewest windows, that hold a share of its attention
without any error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from gausslens import Batch, Context, Estimate, GausslensError, ModelInfo, Request, Tokens, variable

from ..maths.arrays import Floats
from ..maths.band_plus_sparse import project
from ..maths.prompts import OfPrompts, over_prompts
from ..maths.random_search import random_search
from ..maths.rare_tokens import rare_tokens
from ..maths.widths import distances
from .patterns import attention_of, of_maps

if TYPE_CHECKING:
    from ..parameters import MembersParameters

SETS = ("diagonal", "band", "rare")
# Windows beyond these are not looked for: a map that asks for more has no such structure.
MOST_WINDOWS = 4

_TEXTS = {
    "exact": "sum of |p - x| to the nearest member of any set, n errors beside it",
    "drawn": "the same to the nearest matrix that random search found, mean over searches",
    "drawn_sd": "standard deviation of that between searches of a map",
}


class Members(OfPrompts):
    """Measures each prompt by itself."""

    def __init__(self, parameters: MembersParameters, context: Context) -> None:
        super().__init__()
        self.parameters = parameters
        self.context = context
        self.model = context.model

    def request(self) -> Request:
        """Patterns."""
        return Request(("pattern",))

    def update(self, batch: Batch) -> None:
        """Each prompt of a shard in one layer."""
        assert batch.layer is not None
        for row, prompt in enumerate(batch.prompts):
            P = attention_of(batch, row)
            found = nearest_by_set(P, self.parameters.w, self.parameters.windows)
            found |= needed(P, self.parameters.holds)
            if self.parameters.draws:
                found |= self._drawn(P, batch.layer, tuple(batch.heads))
            self.by_prompt[batch.layer, int(prompt)] = found

    def _drawn(self, P: Floats, layer: int, heads: tuple[int, ...]) -> dict[str, Floats]:
        """What random search finds [head, w, windows]; a head's draws are its own, whichever heads are in view."""
        p = self.parameters
        found = np.empty((p.repeats, len(P), len(p.w), len(p.windows)))
        for each in np.ndindex(*found.shape):
            repeat, head, i, j = each
            what = f"search {repeat}, {P.shape[-1]} tokens, layer {layer}, head {heads[head]}"
            rng = self.context.generator(f"{what}, w {p.w[i]}, windows {p.windows[j]}")
            found[each] = random_search(P[head], rng, p.w[i], p.windows[j], p.draws, p.steps).distance
        return {"drawn": found.mean(axis=0), "drawn_sd": found.std(axis=0, ddof=1)}

    def result(self) -> xr.Dataset:
        """Means over prompts [layer, head, w, windows]."""
        p = self.parameters
        layers, means, _ = over_prompts(self.by_prompt)
        grid = ("layer", "head", "w", "windows")
        variables: dict[str, Any] = {
            name: variable(grid, means[name], text, against=False if name == "drawn_sd" else None)
            for name, text in _TEXTS.items()
            if name in means
        }
        text = "the same by set; a band has no windows, windows no width"
        variables["by_set"] = variable((*grid, "set"), means["by_set"], text, against=False)
        text = f"least width of a band that holds {p.holds:g} of the attention, without errors"
        variables["width_needed"] = variable(grid[:2], means["width_needed"], text, "tokens")
        text = f"fewest windows of rare tokens that do ({MOST_WINDOWS + 1}: more than {MOST_WINDOWS})"
        variables["windows_needed"] = variable(grid[:2], means["windows_needed"], text, "windows")
        coords = {"layer": layers, "head": list(self.model.heads), "w": p.w, "windows": p.windows, "set": list(SETS)}
        searched = p.draws * p.steps**3 * len(SETS)
        notes: dict[str, Any] = {"prompts": len({prompt for _, prompt in self.by_prompt})}
        notes |= {"searched": searched, "repeats": p.repeats}
        if p.published:
            notes["published"] = self._published(layers)
        return xr.Dataset(variables, coords=coords, attrs=notes | {"holds": p.holds})

    def _published(self, layers: list[int]) -> str:
        """What was published, as JSON, where it is of these maps."""
        heads = len(self.model.heads)
        for name, values in self.parameters.published.items():
            if len(values) != heads or len(self.by_prompt) != 1 or len(layers) != 1:
                raise GausslensError(
                    f"published distances of w, windows {name} are {len(values)}, one a head of one map; here are "
                    f"{len(self.by_prompt)} maps of {heads} heads: give the maps that they are of"
                )
        return json.dumps(self.parameters.published)


def nearest_by_set(P: Floats, widths: list[int], windows: list[int]) -> dict[str, Floats]:
    """The exact distances of maps [head, n, n]: of any set [head, w, windows], and by set."""
    n = P.shape[-1]
    by_set = np.empty((len(P), len(widths), len(windows), len(SETS)))
    by_set[..., 0] = project(P, 0, n, stochastic=True)[1][:, None, None]
    by_set[..., 1] = np.stack([project(P, w, n, stochastic=True)[1] for w in widths], axis=-1)[:, :, None]
    # Every row of a member has a cell, so that rows that sum to one cost twice what it does not hold.
    held = np.stack([rare_tokens(P, count, n).captured for count in windows], axis=-1)
    by_set[..., 2] = np.clip(2 * (P.sum(axis=(-1, -2))[:, None] - held), 0.0, None)[:, None]
    return {"by_set": by_set, "exact": by_set.min(axis=-1)}


def needed(P: Floats, holds: float) -> dict[str, Floats]:
    """The least width, and the fewest windows, that hold this share of maps [head, n, n], without any error.

    An error a row could hold whatever a window does.
    """
    total = P.sum(axis=(-1, -2))
    lost = (1 - holds) * total
    width = (distances(P)[..., 0] > lost[:, None] + 1e-9).sum(axis=-1)
    held = np.stack([rare_tokens(P, count).captured for count in range(MOST_WINDOWS + 1)], axis=-1)
    windows = (total[:, None] - held > lost[:, None] + 1e-9).sum(axis=-1)
    return {"width_needed": width.astype(np.float64), "windows_needed": windows.astype(np.float64)}


def estimate(parameters: MembersParameters, info: ModelInfo, tokens: Tokens | None) -> Estimate:
    """By what is drawn, and by errors times windows of the exact members."""
    drawn = parameters.draws * parameters.steps**3 * 3 * parameters.repeats * len(parameters.w)
    cells = 1e-8 * drawn * len(parameters.windows)
    longest = 0 if tokens is None else max(tokens.lengths, default=0)
    return of_maps(info, tokens, cells + 2e-8 * longest**2 * len(parameters.windows))
