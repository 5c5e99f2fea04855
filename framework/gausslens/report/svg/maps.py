"""Maps of colours on the page, and the sliders that turn them.

The maps that sliders reach stand in the page as numbers of two bytes; the script colours the cells.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..colours import Scale, category_colour, ink, scale_of, stops
from ..markup import Markup, element, joined
from ..numbers import MINUS, number
from .axes import WIDTH

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ...figures import ColourMap, Dial

MISSING = 65535  # the number that stands for no value
TOP, BAR = 8.0, 88.0  # room above, and for the colour bar and its numbers
LARGE, SMALL, EDGED = 26.0, 7.0, 12.0  # sides of a cell; below the last, cells have no edge
TALLEST = 520.0  # of a map whose cells could be larger
LETTER, LETTERS = 6.3, 14  # width of a letter of a label, and how many are shown


def map_picture(drawing: ColourMap, title: str) -> tuple[Markup, str]:
    """The map with its sliders, and what was said of cells beyond the ends of the colours."""
    over = scale_of(drawing)
    grid = _Grid(drawing, over)
    above = [sliders(drawing, over) or Markup(""), map_key(drawing)]
    return joined([*above, element("div", grid.picture(title), class_="scroll")]), over.note


def map_key(drawing: ColourMap) -> Markup:
    """What is no amount on a map: the colour and letters of each category, and why a cell is grey."""
    letters = initials(drawing.categories)
    marks = [
        (name, [_swatch(category_colour(i)), _inside(letters[i], category_colour(i), 13, 9)])
        for i, name in enumerate(drawing.categories)
        if (drawing.values == i).any()
    ]
    if np.isnan(drawing.values).any():
        marks.append((drawing.missing or "no value", [_swatch(None)]))
    names = [
        element("span", element("svg", *mark, viewBox="0 0 26 12", aria_hidden="true"), name) for name, mark in marks
    ]
    return element("div", *names, class_="key") if names else Markup("")


def _swatch(colour: str | None) -> Markup:
    return element("rect", class_=None if colour else "none", fill=colour, x=0, y=0, width=26, height=12)


def initials(names: Sequence[str]) -> list[str]:
    """Of each name its first letters, as few as tell it from all others."""
    made = []
    for name in names:
        others = [other for other in names if other != name]
        sizes = (n for n in range(1, len(name)) if not any(other.startswith(name[:n]) for other in others))
        made.append(name[: next(sizes, len(name))])
    return made


def sliders(found: ColourMap, over: Scale) -> Markup | None:
    """The sliders, and beside them all maps; the script shows them, so that without it there are none."""
    if not found.dials:
        return None
    held = found.values[np.isfinite(found.values)]
    low, high = (float(held.min()), float(held.max())) if held.size else (0.0, 0.0)
    clipped = np.clip(found.values, low, high)
    numbers = np.round((clipped - low) / ((high - low) or 1.0) * (MISSING - 1))
    stored = np.where(np.isnan(found.values), MISSING, np.nan_to_num(numbers)).astype("<u2")
    data: dict[str, str | float | None] = {
        "data_map": base64.b64encode(stored.tobytes()).decode("ascii"),
        "data_range": json.dumps([low, high, over.low, over.high, over.power]),
        "data_colours": " ".join(stops(over.diverging)),
        "data_units": found.units,
        "data_missing": found.missing or None,
    }
    if found.categories:
        data["data_names"] = json.dumps(found.categories)
        data["data_colours"] = " ".join(category_colour(i) for i in range(len(found.categories)))

    return element("div", *map(slider, found.dials), class_="dials", hidden="hidden", **data)


def slider(dial: Dial) -> Markup:
    """One slider: its name, and beside it the label of the place where it stands."""
    labels = tuple(map(str, dial.labels))
    turned = element(
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
    return element("label", element("span", dial.name), turned, element("output", labels[dial.start]))


@dataclass(frozen=True)
class _Grid:
    """What is drawn, and from it where everything is."""

    map: ColourMap
    scale: Scale

    @cached_property
    def values(self) -> NDArray[np.float64]:
        return self.map.first

    @cached_property
    def left(self) -> float:
        return 32 + LETTER * _longest(self.map.rows)

    @cached_property
    def kind(self) -> str:
        return "cell" if self.side >= EDGED else "cell fine"

    @cached_property
    def turned(self) -> bool:
        """Whether the labels of the columns are too long to lie side by side."""
        return LETTER * _longest(self.map.columns) + 8 > self.side

    @cached_property
    def side(self) -> float:
        return float(np.clip((WIDTH - self.left - BAR) / max(1, len(self.map.columns)), SMALL, LARGE))

    @cached_property
    def tall(self) -> float:
        least = 11.0 if len(self.map.rows) <= 40 else SMALL
        return float(np.clip(min(self.side, TALLEST / max(1, len(self.map.rows))), least, LARGE))

    @property
    def upright(self) -> tuple[str, str]:
        """What is written upright: beside the rows, and beside the bar of colours."""
        return self.map.row_name, "" if self.map.categories else self.map.units

    @cached_property
    def right(self) -> float:
        return self.left + self.side * len(self.map.columns)

    @cached_property
    def bottom(self) -> float:
        return TOP + self.tall * len(self.map.rows)

    @cached_property
    def decimals(self) -> int | None:
        """Of the numbers in the cells, two digits of the end of the scale; None where not all of them fit."""
        finite = self.values[np.isfinite(self.values)]
        end = max(abs(self.scale.low), abs(self.scale.high))
        if self.map.dials or self.tall < 15 or not (end == 0 or 1e-2 <= end < 1e4):
            return None
        if self.map.categories:
            return None
        decimals = max(0, 2 - math.ceil(math.log10(end))) if end else 0
        longest = max((len(f"{v:.{decimals}f}") for v in (finite.min(), finite.max())), default=0) if finite.size else 0
        return decimals if 5.4 * longest + 4 <= self.side else None

    def picture(self, title: str) -> Markup:
        under = LETTER * _longest(self.map.columns) + 10 if self.turned else 18
        width = max(self.right + (8 if self.map.categories else BAR), 240.0)
        # Words that stand upright need their length.
        height = max(self.bottom + under + 22, 92.0 + under, *(2 * TOP + 7.0 * len(w) for w in self.upright))
        name = {"x": (self.left + self.right) / 2, "y": self.bottom + under + 14}
        drawn = [
            _rotated(self.map.row_name, 12, max((TOP + self.bottom) / 2, TOP + 3.5 * len(self.map.row_name))),
            element("text", self.map.column_name, class_="name", text_anchor="middle", **name),
            *self._row_labels(),
            *self._column_labels(),
            *(self._cell(i, j) for i in range(len(self.map.rows)) for j in range(len(self.map.columns))),
            self._bar(),
        ]
        scale = f"width:{width:.0f}px"
        box = f"0 0 {width:g} {height:g}"
        heads = self.map.row_name == "layer" and self.map.column_name in ("head", "kv_head")
        told: dict[str, str | float | None] = {
            "role": "img",
            "aria_label": title,
            "tabindex": 0,
            "data_across": len(self.map.columns),
            "data_rows": json.dumps(self.map.rows) if heads else None,
            "data_columns": json.dumps(self.map.columns) if heads else None,
            "data_heads": self.map.column_name if heads else None,
        }
        return element("svg", joined(drawn), viewBox=box, style=scale, **told)

    def _cell(self, i: int, j: int) -> Markup:
        value = float(self.values[i, j])
        where = f"{self.map.row_name} {self.map.rows[i]}, {self.map.column_name} {self.map.columns[j]}"
        title = element("title", f"{where}: {self._told(value)}")
        x, y = self.left + j * self.side, TOP + i * self.tall
        place = {"x": x, "y": y, "width": self.side, "height": self.tall}
        if math.isnan(value):
            return element("rect", title, class_=f"{self.kind} none", **place)
        colour = category_colour(int(value)) if self.map.categories else self.scale.colour(value)
        cell = element("rect", title, class_=self.kind, fill=colour, **place)
        inside = self._inside(value)
        return joined([cell, _inside(inside, colour, x + self.side / 2, y + self.tall / 2 + 3)]) if inside else cell

    def _told(self, value: float) -> str:
        """A value in words: a category by its name, no value by why there is none."""
        if math.isnan(value):
            return self.map.missing or number(value)
        return self.map.categories[int(value)] if self.map.categories else f"{number(value)} {self.map.units}".rstrip()

    @cached_property
    def letters(self) -> list[str]:
        """What stands in the cells of categories; nothing where they are too small for it, or turned by a dial."""
        found = initials(self.map.categories)
        room = self.tall >= 11 and max(map(len, found), default=0) * 6 + 2 <= self.side
        return found if room else [""] * len(found)

    def _inside(self, value: float) -> str:
        if self.map.categories:
            return self.letters[int(value)]
        if self.decimals is None:
            return ""
        return f"{value:z.{self.decimals}f}".replace("-", MINUS) if math.isfinite(value) else number(value)

    def _bar(self) -> Markup:
        """Which colour is which value; nothing where there is no value."""
        if self.map.categories or not np.isfinite(self.map.values).any():
            return Markup("")
        low, high = self.scale.low, self.scale.high
        height, steps, x = max(self.bottom - TOP, 60.0), 32, self.right + 16
        levels = np.linspace(high, low, steps)
        part = {"x": x, "width": 12, "height": height / steps + 0.5}
        drawn = [
            element("rect", y=TOP + height * i / steps, fill=self.scale.colour(float(v)), **part)
            for i, v in enumerate(levels)
        ]
        marks = [(0.0, high, "≥ " * self.scale.above), (0.5, (low + high) / 2, ""), (1.0, low, "≤ " * self.scale.below)]
        told = [(share, sign + number(float(f"{value:.3g}"))) for share, value, sign in marks]
        # All alike but for rounding: one number says it.
        for share, text in told if told[0][1] != told[-1][1] else told[1:2]:
            at = {"x": x + 18, "y": TOP + 8 + (height - 8) * share}
            drawn.append(element("text", text, class_="tick", **at))
        middle = max(TOP + height / 2, TOP + 3.5 * len(self.map.units))
        drawn.append(_rotated(self.map.units, x + 66, middle))
        return joined(drawn)

    def _row_labels(self) -> list[Markup]:
        every = max(1, math.ceil(11 / self.tall))
        return [
            element(
                "text", _cut(name), class_="tick", x=self.left - 6, y=TOP + (i + 0.5) * self.tall + 4, text_anchor="end"
            )
            for i, name in enumerate(self.map.rows)
            if i % every == 0
        ]

    def _column_labels(self) -> list[Markup]:
        every = max(1, math.ceil(12 / self.side))
        drawn = []
        for j, name in enumerate(self.map.columns):
            x, y = self.left + (j + 0.5) * self.side, self.bottom
            if self.turned and j % every == 0:
                turn = {"text_anchor": "end", "transform": f"rotate(-90 {x + 4:g} {y + 7:g})"}
                drawn.append(element("text", _cut(name), class_="tick", x=x + 4, y=y + 7, **turn))
            elif not self.turned:
                drawn.append(element("text", name, class_="tick", x=x, y=y + 15, text_anchor="middle"))
        return drawn


def _inside(text: str, colour: str, x: float, y: float) -> Markup:
    return element("text", text, class_=f"inside {ink(colour)}", x=x, y=y)


def _longest(labels: Sequence[str]) -> int:
    return min(LETTERS, max((len(label) for label in labels), default=1))


def _rotated(text: str, x: float, y: float) -> Markup:
    return element("text", text, class_="name", x=x, y=y, text_anchor="middle", transform=f"rotate(-90 {x:g} {y:g})")


def _cut(label: str) -> str:
    return label if len(label) <= LETTERS else label[: LETTERS - 1] + "…"
