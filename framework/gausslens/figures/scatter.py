"""Points, in groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import Axis, Dots, Plot
from .figure import Figure

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


@dataclass(frozen=True, kw_only=True, eq=False)
class Scatter(Figure):
    """Points, each with a label that hovering shows, in groups that colours tell apart. ``diagonal`` draws x = y."""

    x: ArrayLike
    y: ArrayLike
    x_name: str
    y_name: str
    labels: Iterable[Any] | None = None
    groups: Iterable[Any] | None = None
    diagonal: bool = False
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        x, y = self._numbers("x", self.x, 1), self._numbers("y", self.y, 1)
        if len(x) != len(y):
            raise self._bad(f"x has {len(x)} values, y has {len(y)}")
        self._set("x", x)
        self._set("y", y)
        self._set("labels", self._labels("labels", [""] * len(x) if self.labels is None else self.labels, len(x)))
        self._set("groups", self._labels("groups", [""] * len(x) if self.groups is None else self.groups, len(x)))

    def drawing(self) -> Plot:
        """The points, and x = y where it is asked for."""
        dots = Dots(np.asarray(self.x), np.asarray(self.y), tuple(self.labels or ()), tuple(self.groups or ()))
        across, up = Axis(self.x_name, self.log_x), Axis(self.y_name, self.log_y)
        return Plot(x=across, y=up, dots=dots, diagonal=self.diagonal)
