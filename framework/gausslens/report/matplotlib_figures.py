"""The figures of the page on matplotlib: for a notebook, or `gausslens show --png`; ``paper`` has those for a paper."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError, did_you_mean
from ..figures import ColourMap, Passages, Plot, Plots, TableRows, View
from .painted.maps import add_bar, marks_of, paint_map, room_of
from .painted.plots import legend_of, paint_plot
from .painted.rows import SetTable, paint_table, paint_texts, set_table, set_texts
from .painted.words import LINE, fitting, plain, short, wrapped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ..figures import Dial, Drawing, Figure

Places = Mapping[str, Any]
SIZE = (6.4, 4.4)  # of one figure, in inches
SMALL, POINTS = 8.0, 72.0
# How high pictures of tables and texts are: at most in figures (the files of `figures` have all), at least in inches.
TALLEST, LEAST = 3.0, 2.0


def paint(figure: Figure, axes: Axes, places: Places | None = None) -> None:
    """Draw a figure on matplotlib axes. ``places`` turns its dials, by label: ``{"layer": 3}``."""
    _paint(figure.title, still(figure)[0], axes, places or {})


def still(figure: Figure) -> tuple[Drawing, str]:
    """What matplotlib can draw of a figure, and its caption: of a plugin's own view what stands in for it."""
    return stilled(figure.drawing(), figure.caption)


def stilled(drawing: Drawing, caption: str) -> tuple[Drawing, str]:
    """The same, of the drawing of a figure."""
    return (drawing.fallback, drawing.about) if isinstance(drawing, View) else (drawing, caption)


def _paint(name: str, drawing: Drawing, axes: Axes, places: Places) -> None:
    turned = _turned(name, drawing, places)
    _picture(drawing, axes, tuple(at for _, at in turned))
    said = ", ".join(f"{dial.name} {tuple(dial.labels)[at]}" for dial, at in turned)
    title = short(name, 76) + (f"\n{short(said, 76)}" if said else "")
    axes.set_title(title, fontsize=10, loc="left")


def canvas(
    given: Sequence[tuple[Figure, Places]], columns: int = 2, tell: Callable[[int, Exception], object] | None = None
) -> Canvas:
    """Figures beside each other on one matplotlib figure, each with its caption.

    ``tell`` is called with the number of one that cannot be drawn, whose place stays empty; without it that is raised.
    """
    from matplotlib.figure import Figure as Canvas

    columns = min(columns, max(1, len(given)))
    rows = max(1, math.ceil(len(given) / columns))
    heights = [
        max((_high(each) for each, _ in given[columns * i : columns * (i + 1)]), default=1.0) for i in range(rows)
    ]
    made = Canvas(figsize=(SIZE[0] * columns, sum(heights) if given else SIZE[1]), layout="constrained")
    grid = made.subplots(rows, columns, squeeze=False, height_ratios=heights if given else None)
    for place, (axes, (figure, places)) in enumerate(zip(grid.flat, given, strict=False)):
        try:
            drawing, caption = still(figure)
            _paint(figure.title, drawing, axes, places)
        except Exception as error:
            if tell is None:
                raise
            tell(place, error)
            axes.clear()
            axes.set_axis_off()
            continue
        _caption(axes, caption)
    for axes in grid.flat[len(given) :]:
        axes.set_axis_off()
    return made


def _high(figure: Figure) -> float:
    """How high a figure is, in inches: of a table or texts, as high as they are."""
    try:
        drawing, caption = still(figure)
    except Exception:  # it is told where it is drawn
        return SIZE[1]
    lines = LINE * 7 * (2 + len(wrapped(caption, 84)))
    if isinstance(drawing, TableRows):
        return max(LEAST, min((_set(drawing).high + lines) / POINTS + 0.5, TALLEST * SIZE[1]))
    if isinstance(drawing, Passages):
        return max(LEAST, min((LINE * SMALL * len(_lines(drawing)) + lines) / POINTS + 0.5, TALLEST * SIZE[1]))
    return SIZE[1]


def _caption(axes: Axes, caption: str) -> None:
    below = "\n".join(wrapped(caption, 84))
    under: Any = axes.xaxis.label if axes.axison else axes.transAxes
    look: dict[str, Any] = {"va": "top", "ha": "center", "fontsize": 7, "color": "0.35"}
    axes.annotate(below, (0.5, 0), (0, -4), under, "offset points", **look)


def png(made: Canvas, dpi: int = 110) -> bytes:
    """The picture as PNG; no display is needed, and nothing is left behind."""
    held = io.BytesIO()
    with warnings.catch_warnings():
        # A letter that the font lacks is drawn as a box.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        made.savefig(held, format="png", dpi=dpi)
    return held.getvalue()


def save(given: Sequence[Figure], path: Path, tell: Callable[[int, Exception], object] | None = None) -> None:
    """Write the figures into one PNG file; ``tell`` as in ``canvas``."""
    path.write_bytes(png(canvas([(figure, {}) for figure in given], tell=tell)))


def _turned(title: str, drawing: Drawing, places: Places) -> list[tuple[Dial, int]]:
    """Each dial, and where it is turned to."""
    dials = dials_of(drawing)
    for name in places:
        if name not in [dial.name for dial in dials]:
            raise InputError(f"{title!r} has no dial {name!r}{did_you_mean(name, [d.name for d in dials])}")
    return [(dial, place_on(title, dial, places[dial.name]) if dial.name in places else dial.start) for dial in dials]


def dials_of(drawing: Drawing) -> tuple[Dial, ...]:
    """The dials of a drawing that has any."""
    return drawing.dials if isinstance(drawing, ColourMap | Plots) else ()


def place_on(title: str, dial: Dial, label: object) -> int:
    """Where a label is on a dial."""
    labels = tuple(map(str, dial.labels))
    if str(label) not in labels:
        raise InputError(f"{title!r}: {dial.name} {str(label)!r} is none of {', '.join(labels[:12])}")
    return labels.index(str(label))


def _picture(drawing: Drawing, axes: Axes, turned: tuple[int, ...]) -> None:
    match drawing:
        case Plot():
            _plot(drawing, axes)
        case Plots():
            _plot(drawing.plots[drawing.at(turned)], axes)
        case ColourMap():
            _map(drawing, axes, turned)
        case TableRows():
            paint_table(_set(drawing), axes)
        case Passages():
            paint_texts(_lines(drawing), axes, SMALL)
        case _:
            raise TypeError(f"there is no picture of a {type(drawing).__name__}")


def _set(drawing: TableRows) -> SetTable:
    return set_table(drawing, 0.94 * SIZE[0] * POINTS, SMALL, (TALLEST * SIZE[1] - 1) * POINTS)


def _lines(drawing: Passages) -> list[tuple[str, bool]]:
    lines, more = set_texts(drawing, 0.94 * SIZE[0] * POINTS, SMALL, (TALLEST * SIZE[1] - 1) * POINTS)
    return [*lines, ("…", False)] if more else lines


def _plot(plot: Plot, axes: Axes) -> None:
    paint_plot(plot, axes)
    marks, names = legend_of(plot, axes)
    letters = fitting(0.6 * SIZE[0] * POINTS, 7)
    if marks:
        axes.legend(marks, ["\n".join(wrapped(plain(name), letters)) for name in names], fontsize=7, frameon=False)


def _map(drawing: ColourMap, axes: Axes, turned: tuple[int, ...]) -> None:
    image, _ = paint_map(drawing, axes, turned, room_of(axes))
    if not drawing.categories:
        add_bar(drawing, image, axes, axes.figure, POINTS * SIZE[1])
        return
    if marks := marks_of(drawing):
        axes.legend(handles=marks, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
