"""Sliders: the maps that they reach stand in the page as numbers of two bytes; the script colours the cells."""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..figures import Dial
from .colours import stops
from .markup import Markup, element
from .thin import Most, blocks, note, picked

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .scale import Scale

MISSING = 65535
SMALLEST = 16  # a side, before maps are left out


@dataclass(frozen=True)
class Maps:
    """Values [dial, ..., row, column] as shown, the first index of each row and column, and what was thinned."""

    values: NDArray[np.float64]
    dials: tuple[Dial, ...]
    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    note: str

    @property
    def shown(self) -> NDArray[np.float64]:
        """The map before any slider is turned."""
        found: NDArray[np.float64] = self.values[tuple(dial.start for dial in self.dials)]
        return found


def maps(values: NDArray[np.float64], dials: tuple[Dial, ...], most: Most) -> Maps:
    """Coarser maps where there are many, and not all places of a dial where there are too many."""
    count = math.prod(values.shape[:-2])
    side = min(most.cells, max(SMALLEST, math.isqrt(most.stored // max(1, count)))) if dials else most.cells
    said, kept = [], []
    share = min(1.0, most.stored / (count * min(side, values.shape[-2]) * min(side, values.shape[-1]) or 1))
    for place, dial in enumerate(dials):
        labels = tuple(dial.labels)
        at = picked(len(labels), max(2, math.floor(len(labels) * share ** (1 / len(dials)))))
        if len(at) < len(labels):
            at = np.union1d(at, [dial.start])
            values = values.take(at, axis=place)
            said.append(note(len(at), len(labels), f"places of {dial.name}"))
        kept.append(Dial(dial.name, tuple(labels[i] for i in at), int(np.searchsorted(at, dial.start))))
    thinned = blocks(values, side)
    said.append(thinned.note)
    return Maps(thinned.values, tuple(kept), thinned.rows, thinned.columns, " ".join(s for s in said if s))


def controls(found: Maps, scale: Scale, units: str) -> Markup | None:
    """The sliders, and beside them all maps; the script shows them, so that without it there are none."""
    if not found.dials:
        return None
    held = found.values[np.isfinite(found.values)]
    low, high = (float(held.min()), float(held.max())) if held.size else (0.0, 0.0)
    clipped = np.clip(found.values, low, high)
    numbers = np.round((clipped - low) / ((high - low) or 1.0) * (MISSING - 1))
    stored = np.where(np.isnan(found.values), MISSING, np.nan_to_num(numbers)).astype("<u2")
    data = {
        "data_map": base64.b64encode(stored.tobytes()).decode("ascii"),
        "data_range": json.dumps([low, high, scale.low, scale.high, scale.power]),
        "data_colours": " ".join(stops(scale.diverging)),
        "data_units": units,
    }
    return element("div", *(_slider(dial) for dial in found.dials), class_="dials", hidden="hidden", **data)


def _slider(dial: Dial) -> Markup:
    labels = tuple(map(str, dial.labels))
    slider = element(
        "input",
        type="range",
        min=0,
        max=len(labels) - 1,
        value=dial.start,
        step=1,
        data_labels=json.dumps(labels),
        autocomplete="off",
        aria_label=dial.name,
        aria_valuetext=labels[dial.start],
    )
    return element("label", element("span", dial.name), slider, element("output", labels[dial.start]))
