"""Curves over a common x in several panels, one for each place of a slider."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from .drawing import Dial, Plot, Plots
from .figure import Figure
from .lines import Line, Lines

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True, eq=False)
class Panels(Figure):
    """Curves over a common x, in panels [place of the first dial, ..., of the last] that sliders turn.

    ``panels`` holds the curves of each panel, the last dial turning fastest. With ``alike`` all have one vertical axis.
    """

    x: ArrayLike
    x_name: str
    panels: tuple[tuple[Line, ...], ...]
    dials: tuple[Dial, ...]
    log_x: bool = False
    log_y: bool = False
    alike: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("x", self._numbers("x", self.x, 1))
        made = []
        for dial in self.dials:
            labels = tuple(map(str, dial.labels))
            if not 0 <= dial.start < len(labels):
                raise self._bad(f"the dial {dial.name!r} starts at {dial.start} and has {len(labels)} places")
            made.append(Dial(str(dial.name), labels, int(dial.start)))
        self._set("dials", tuple(made))
        places = math.prod(len(tuple(dial.labels)) for dial in made)
        if len(self.panels) != places:
            raise self._bad(f"it has {len(self.panels)} panels, and its dials {places} places")
        self._set("panels", tuple(self._lines(curves).series for curves in self.panels))

    def _lines(self, curves: tuple[Line, ...]) -> Lines:
        return Lines(
            title=self.title,
            caption=self.caption,
            sources=self.sources,
            units=self.units,
            x=self.x,
            x_name=self.x_name,
            series=tuple(curves),
            log_x=self.log_x,
            log_y=self.log_y,
        )

    def drawing(self) -> Plots:
        """A plot for each panel."""
        plots = [self._lines(curves).drawing() for curves in self.panels]
        if self.alike:
            ends = _ends(plots)
            plots = [replace(plot, y=replace(plot.y, holds=ends)) for plot in plots]
        return Plots(plots=tuple(plots), dials=self.dials)


def _ends(plots: list[Plot]) -> tuple[float, ...]:
    """The smallest and the largest value of all plots that have a place on their axis."""
    drawn = [
        np.asarray(values).ravel()
        for plot in plots
        for curve in plot.curves
        for values in (curve.y, curve.low, curve.high)
        if values is not None
    ]
    held = np.concatenate(drawn)
    held = held[np.isfinite(held) & ((held > 0) if plots[0].y.log else True)]
    return (float(held.min()), float(held.max())) if held.size else ()
