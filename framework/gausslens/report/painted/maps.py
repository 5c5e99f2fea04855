"""Maps of colours on matplotlib axes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..colours import Scale, category_colour, ink, scale_of, stops
from ..numbers import MINUS
from ..svg.maps import initials
from .words import LINE, evenly, fitting, longest, ordinal, short, width

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from numpy.typing import NDArray

    from ...figures import ColourMap

GREY = "0.85"  # of what is missing
EDGED = 2000  # a map of fewer cells has edges between them
TICK, INSIDE = 0.86, 0.78  # sizes of labels at the sides and of numbers in cells, of the size of letters


@dataclass(frozen=True)
class Room:
    """About how much room there is for the cells and left of them, in points, and the size of letters."""

    wide: float
    high: float
    letters: float
    beside: float


def room_of(axes: Axes) -> Room:
    """The room that axes have as they stand."""
    from matplotlib import rcParams

    box, scale = axes.get_window_extent(), 72 / axes.figure.dpi
    return Room(0.85 * box.width * scale, box.height * scale, float(rcParams["font.size"]), 0.35 * box.width * scale)


def paint_map(
    drawing: ColourMap, axes: Axes, turned: tuple[int, ...], room: Room, sides: bool = True, inside: bool = True
) -> tuple[ScalarMappable, list[str]]:
    """One map with what stands at its sides; gives what a colour bar is made of, and what is to be said of it.

    ``sides`` are the labels of rows and columns, ``inside`` the numbers in cells.
    """
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap, Normalize, PowerNorm

    shown = np.ma.masked_invalid(drawing.values[turned])
    over = scale_of(drawing)
    if drawing.categories:
        colours: Any = ListedColormap([category_colour(i) for i in range(len(drawing.categories))])
        norm: Any = Normalize(-0.5, len(drawing.categories) - 0.5)
    else:
        colours = LinearSegmentedColormap.from_list("gausslens", stops(over.diverging))
        ends = (over.low, over.high) if over.high > over.low else (over.low - 0.5, over.high + 0.5)
        norm = PowerNorm(over.power, *ends)
    axes.set_facecolor(GREY)  # seen where a value is missing
    if drawing.shares or shown.size > EDGED or not shown.size:
        image: Any = axes.imshow(shown, cmap=colours, norm=norm, aspect="auto", interpolation="nearest")
    else:
        across, down = (np.arange(n + 1) - 0.5 for n in shown.shape[::-1])
        image = axes.pcolormesh(across, down, shown, cmap=colours, norm=norm, edgecolors="white", linewidth=0.4)
        axes.set_ylim(shown.shape[0] - 0.5, -0.5)
        if inside:
            _inside(drawing, shown.filled(np.nan), over, axes, room)
    notes = [over.note] if over.note else []
    axes.tick_params(length=0)
    if not sides:
        axes.set(xticks=[], yticks=[])
        return image, notes
    return image, [*notes, *_sides(drawing, axes, room)]


def add_bar(drawing: ColourMap, image: ScalarMappable, axes: Any, canvas: Any, high: float) -> None:
    """The colour bar of one or several maps, below them where they are low; none where there is no value."""
    over = scale_of(drawing)
    if not np.isfinite(drawing.values).any():
        return
    extend = {(False, False): "neither", (True, False): "min", (False, True): "max", (True, True): "both"}
    low = high < 60
    place: dict[str, Any] = (
        {"location": "bottom", "aspect": 40} if low else {"location": "right", "aspect": max(8.0, high / 7)}
    )
    bar = canvas.colorbar(image, ax=axes, extend=extend[over.below, over.above], pad=0.02, **place)
    from matplotlib import rcParams

    size = float(rcParams["font.size"])
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(width=0.4, labelsize=TICK * size)
    if over.power == 1.0:
        bar.locator = _locator(5 if low else int(np.clip(high / (2.2 * size), 2, 7)))
        bar.update_ticks()
    words = short(drawing.units, 60)
    if low or 2 < len(words) < fitting(high, size):
        bar.set_label(words)
    else:
        bar.ax.set_title(short(drawing.units, 24), fontsize=TICK * size)


def marks_of(drawing: ColourMap) -> list[Artist]:
    """What a legend says of a map: which category is which colour, of those that are on it, and why a cell is grey."""
    from matplotlib.patches import Patch

    names = drawing.categories
    letters = initials(names)
    marks: list[Artist] = [
        Patch(color=category_colour(i), label=short(name if letters[i] == name else f"{letters[i]}  {name}"))
        for i, name in enumerate(names)
        if (drawing.values == i).any()
    ]
    if np.isnan(drawing.values).any() and (names or drawing.missing):
        marks.append(Patch(color=GREY, label=short(drawing.missing or "no value", 60)))
    return marks


def below(drawing: ColourMap, cell: float, size: float) -> tuple[float, bool]:
    """How high the labels below a map are, in points, and whether they stand upright."""
    most = min(longest(drawing.columns), 24)
    numbers = all(name.lstrip("-").replace(".", "", 1).isdigit() for name in drawing.columns)
    upright = not numbers and width(most + 1, size * TICK) > cell
    return (width(most, size * TICK) if upright else LINE * size), upright


def _locator(bins: int) -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(bins)


def _sides(drawing: ColourMap, axes: Axes, room: Room) -> list[str]:
    """The labels of rows and columns, as many as there is room for; says which."""
    size = TICK * room.letters
    cell = room.wide / max(1, len(drawing.columns))
    _, upright = below(drawing, cell, room.letters)
    least = LINE * size if upright else width(longest(drawing.columns) + 1, size)
    across = evenly(drawing.columns, least, cell)
    down = evenly(drawing.rows, 1.15 * size, room.high / max(1, len(drawing.rows)))
    most = max(4, fitting(room.beside, size))
    axes.set_xticks(list(across), [short(drawing.columns[i], 24) for i in across], fontsize=size)
    axes.set_yticks(list(down), [short(drawing.rows[i], most) for i in down], fontsize=size)
    if upright:
        axes.tick_params(axis="x", rotation=90)
    axes.set_ylabel(short(drawing.row_name))
    axes.set_xlabel(short(drawing.column_name))
    return [
        f"Every {ordinal(each.step)} {name} is named."
        for name, each in ((drawing.row_name, down), (drawing.column_name, across))
        if each.step > 1 and drawing.shares
    ]


def _inside(drawing: ColourMap, shown: NDArray[np.float64], over: Scale, axes: Axes, room: Room) -> None:
    """Numbers in the cells, or the first letters of categories, where all fit."""
    rows, columns = shown.shape
    size = INSIDE * room.letters
    cell, tall = room.wide / columns, room.high / rows
    if tall < 1.15 * size:
        return
    if drawing.categories:
        letters = initials(drawing.categories)
        texts = {(i, j): letters[int(v)] for (i, j), v in np.ndenumerate(shown) if np.isfinite(v)}
    else:
        end = max(abs(over.low), abs(over.high))
        decimals = max(0, 2 - math.ceil(math.log10(end))) if end else 0
        if end and not 1e-2 <= end < 1e4:
            return
        finite = ((at, v) for at, v in np.ndenumerate(shown) if np.isfinite(v))
        texts = {(at[0], at[1]): f"{v:z.{decimals}f}".replace("-", MINUS) for at, v in finite}
    if width(longest(texts.values()) + 0.5, size) > cell:
        return
    for (i, j), text in texts.items():
        value = float(shown[i, j])
        colour = category_colour(int(value)) if drawing.categories else over.colour(value)
        look: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": size}
        axes.text(j, i, text, color="black" if ink(colour) == "dark" else "white", **look)
