"""Drawing values [row, column] as colours: Heatmap and TokenMap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..figures import TokenMap
from .axes import MINUS, WIDTH, number
from .colours import ink
from .dials import controls, maps
from .markup import Markup, element, joined
from .scale import Scale, scale, shares
from .thin import FINE, Most

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..figures import Heatmap

TOP, BAR = 8.0, 96.0  # room above, and for the colour bar and its numbers
LARGE, SMALL, EDGED = 40.0, 7.0, 12.0  # sides of a cell; below the last, cells have no edge
TALLEST = 520.0  # of a map whose cells could be larger
LETTER, LETTERS = 6.3, 14  # width of a letter of a label, and how many are shown


def draw_heatmap(figure: Heatmap, most: Most = FINE) -> tuple[Markup, str]:
    """The drawing, and what was thinned."""
    rows, columns = tuple(figure.rows), tuple(figure.columns)
    return _drawn(figure, rows, columns, (figure.row_name, figure.column_name), most)


def draw_token_map(figure: TokenMap, most: Most = FINE) -> tuple[Markup, str]:
    """The drawing, and what was thinned."""
    queries, keys = (tuple(_token(t) for t in side) for side in (figure.queries, figure.keys))
    return _drawn(figure, queries, keys, ("query", "key"), most)


def _token(text: str) -> str:
    """A token as a label: white space is seen."""
    return text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "·") or "∅"


def _drawn(
    figure: Heatmap | TokenMap, rows: Sequence[str], columns: Sequence[str], names: tuple[str, str], most: Most
) -> tuple[Markup, str]:
    found = maps(np.asarray(figure.values), figure.dials, most)
    attention = isinstance(figure, TokenMap)
    over = shares(found.values, figure.centre) if attention else scale(found.values, figure.centre, clip=True)
    units = "" if figure.units == "1" else figure.units
    labels = [rows[i] for i in found.rows], [columns[j] for j in found.columns]
    grid = _Grid(found.shown, *labels, *names, units, over, numbers=not found.dials)
    sliders = controls(found, over, units) or Markup("")
    return joined([sliders, grid.drawing(figure.title)]), " ".join(s for s in (found.note, over.note) if s)


@dataclass(frozen=True)
class _Grid:
    """What is drawn, and from it where everything is."""

    values: NDArray[np.float64]
    rows: Sequence[str]
    columns: Sequence[str]
    row_name: str
    column_name: str
    units: str
    scale: Scale
    numbers: bool

    @cached_property
    def left(self) -> float:
        return 32 + LETTER * _longest(self.rows)

    @cached_property
    def kind(self) -> str:
        return "cell" if self.side >= EDGED else "cell fine"

    @cached_property
    def turned(self) -> bool:
        """Whether the labels of the columns are too long to lie side by side."""
        return LETTER * _longest(self.columns) + 4 > self.side

    @cached_property
    def side(self) -> float:
        return float(np.clip((WIDTH - self.left - BAR) / max(1, len(self.columns)), SMALL, LARGE))

    @cached_property
    def tall(self) -> float:
        least = 11.0 if len(self.rows) <= 40 else SMALL
        return float(np.clip(min(self.side, TALLEST / max(1, len(self.rows))), least, LARGE))

    @cached_property
    def right(self) -> float:
        return self.left + self.side * len(self.columns)

    @cached_property
    def bottom(self) -> float:
        return TOP + self.tall * len(self.rows)

    @cached_property
    def decimals(self) -> int | None:
        """Of the numbers in the cells, two digits of the end of the scale; None where not all of them fit."""
        finite = self.values[np.isfinite(self.values)]
        end = max(abs(self.scale.low), abs(self.scale.high))
        if not self.numbers or self.tall < 15 or not (end == 0 or 1e-2 <= end < 1e4):
            return None
        decimals = max(0, 2 - math.ceil(math.log10(end))) if end else 0
        longest = max((len(f"{v:.{decimals}f}") for v in (finite.min(), finite.max())), default=0) if finite.size else 0
        return decimals if 5.4 * longest + 4 <= self.side else None

    def drawing(self, title: str) -> Markup:
        under = LETTER * _longest(self.columns) + 10 if self.turned else 18
        width = max(self.right + BAR, 240.0)
        height = max(self.bottom, 70.0) + under + 22
        name = {"x": (self.left + self.right) / 2, "y": self.bottom + under + 14}
        drawn = [
            _rotated(self.row_name, 12, (TOP + self.bottom) / 2),
            element("text", self.column_name, class_="name", text_anchor="middle", **name),
            *self._row_labels(),
            *self._column_labels(),
            *(self._cell(i, j) for i in range(len(self.rows)) for j in range(len(self.columns))),
            self._bar(),
        ]
        scale = f"width:{min(1.0, width / WIDTH) * 100:.0f}%"
        box = f"0 0 {width:g} {height:g}"
        told: dict[str, str | float | None] = {
            "role": "img",
            "aria_label": title,
            "tabindex": 0,
            "data_across": len(self.columns),
        }
        return element("svg", joined(drawn), viewBox=box, style=scale, **told)

    def _cell(self, i: int, j: int) -> Markup:
        value = float(self.values[i, j])
        where = f"{self.row_name} {self.rows[i]}, {self.column_name} {self.columns[j]}"
        title = element("title", f"{where}: {number(value)} {self.units}".rstrip())
        x, y = self.left + j * self.side, TOP + i * self.tall
        place = {"x": x, "y": y, "width": self.side, "height": self.tall}
        if math.isnan(value):
            return element("rect", title, class_=f"{self.kind} none", **place)
        colour = self.scale.colour(value)
        cell = element("rect", title, class_=self.kind, fill=colour, **place)
        if self.decimals is None:
            return cell
        middle = {"x": x + self.side / 2, "y": y + self.tall / 2 + 3}
        return joined([cell, element("text", self._inside(value), class_=f"inside {ink(colour)}", **middle)])

    def _inside(self, value: float) -> str:
        return f"{value:z.{self.decimals}f}".replace("-", MINUS) if math.isfinite(value) else number(value)

    def _bar(self) -> Markup:
        """Which colour is which value."""
        low, high = self.scale.low, self.scale.high
        height, steps, x = max(self.bottom - TOP, 60.0), 32, self.right + 16
        levels = np.linspace(high, low, steps)
        part = {"x": x, "width": 12, "height": height / steps + 0.5}
        drawn = [
            element("rect", y=TOP + height * i / steps, fill=self.scale.colour(float(v)), **part)
            for i, v in enumerate(levels)
        ]
        marks = [(0.0, high, "≥ " * self.scale.above), (0.5, (low + high) / 2, ""), (1.0, low, "≤ " * self.scale.below)]
        for share, value, sign in marks if high > low else [(0.5, low, "")]:
            at = {"x": x + 18, "y": TOP + 8 + (height - 8) * share}
            drawn.append(element("text", sign + number(float(f"{value:.3g}")), class_="tick", **at))
        drawn.append(_rotated(self.units, x + 72, TOP + height / 2))
        return joined(drawn)

    def _row_labels(self) -> list[Markup]:
        every = max(1, math.ceil(11 / self.tall))
        return [
            element(
                "text", _cut(name), class_="tick", x=self.left - 6, y=TOP + (i + 0.5) * self.tall + 4, text_anchor="end"
            )
            for i, name in enumerate(self.rows)
            if i % every == 0
        ]

    def _column_labels(self) -> list[Markup]:
        every = max(1, math.ceil(12 / self.side))
        drawn = []
        for j, name in enumerate(self.columns):
            x, y = self.left + (j + 0.5) * self.side, self.bottom
            if self.turned and j % every == 0:
                turn = {"text_anchor": "end", "transform": f"rotate(-90 {x + 4:g} {y + 7:g})"}
                drawn.append(element("text", _cut(name), class_="tick", x=x + 4, y=y + 7, **turn))
            elif not self.turned:
                drawn.append(element("text", name, class_="tick", x=x, y=y + 15, text_anchor="middle"))
        return drawn


def _longest(labels: Sequence[str]) -> int:
    return min(LETTERS, max((len(label) for label in labels), default=1))


def _rotated(text: str, x: float, y: float) -> Markup:
    return element("text", text, class_="name", x=x, y=y, text_anchor="middle", transform=f"rotate(-90 {x:g} {y:g})")


def _cut(label: str) -> str:
    return label if len(label) <= LETTERS else label[: LETTERS - 1] + "…"
