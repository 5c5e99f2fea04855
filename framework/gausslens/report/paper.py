"""A figure for a paper: as wide as a column or a page, in letters that are read at that size, with fonts embedded.

A figure with dials is drawn at all their places as panels where these fit on a page, else at the place where it opens.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from ..contract.errors import InputError
from ..figures import ColourMap, Passages, Plot, Plots, TableRows
from .matplotlib_figures import dials_of, place_on
from .painted.maps import Room, add_bar, below, marks_of, paint_map
from .painted.plots import legend_of, paint_plot
from .painted.rows import paint_table, paint_texts, set_table, set_texts
from .painted.words import LINE, longest, plain, short, width, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

    from ..figures import Dial, Drawing

# Inches: a column and a page of two columns; the height that a page has.
WIDTHS = {"column": 3.25, "page": 6.75}
NARROWEST, WIDEST, HIGHEST = 1.0, 40.0, 9.2
FORMATS = ("pdf", "svg", "png")
LETTERS = 7.0  # points
# Tokens that are all named at the width of a column.
FEW_TOKENS = 26
# Points: the least panel of a map and of a plot, and what stands around cells.
MAP_PANEL, PLOT_PANEL = (34.0, 30.0), (118.0, 96.0)
_BESIDE, _BAR = 26.0, 46.0
_STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": LETTERS,
    "axes.titlesize": LETTERS,
    "axes.labelsize": LETTERS,
    "xtick.labelsize": 6,
    "ytick.labelsize": 6,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.5,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
    # Letters as outlines that stay letters in PDF; in SVG as paths, which look alike everywhere.
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "gausslens",
    "text.usetex": False,
}
Places = Mapping[str, Sequence[str]]


@dataclass
class Sheet:
    """A figure as it is drawn: on what, at which places of its dials, and what is to be said of it."""

    canvas: Canvas
    places: str = ""
    notes: list[str] = field(default_factory=list)


def inches(width: str) -> float:
    """A width as it is asked for: column, page, or a number with mm, cm, in or pt."""
    if width in WIDTHS:
        return WIDTHS[width]
    found = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(mm|cm|in|pt)\s*", width)
    if found is None:
        raise InputError(f"the width {width!r} is none of column, page, and no length as 85mm, 8.5cm, 3.25in or 234pt")
    made = float(found[1]) * {"mm": 1 / 25.4, "cm": 1 / 2.54, "in": 1.0, "pt": 1 / 72}[found[2]]
    if not NARROWEST <= made <= WIDEST:
        raise InputError(f"the width {width!r} is {made:.3g} in: give {NARROWEST:g} to {WIDEST:g} in")
    return made


def usual(drawing: Drawing) -> str:
    """The width of a drawing where none is asked for: a page where it is wide, a column else."""
    few = isinstance(drawing, ColourMap) and len(drawing.columns) <= FEW_TOKENS and len(drawing.dials) < 2
    return "page" if drawing.wide and not few else "column"


@contextmanager
def style() -> Iterator[None]:
    """The settings of matplotlib that figures of a paper are drawn and written with; those of before come back."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        for name, value in _STYLE.items():
            matplotlib.rcParams[name] = value  # type: ignore[index]
        yield


def sheet(drawing: Drawing, name: str, wide: float, at: Places | None = None, title: bool = False) -> Sheet:
    """The figure of this name, ``wide`` inches wide; ``at`` chooses places of its dials by label, several as panels.

    To be called, and its canvas written, within ``style()``.
    """
    chosen, said, notes = _chosen(name, drawing, at or {}, wide)
    match drawing:
        case TableRows():
            made = _table(drawing, wide)
        case Passages():
            made = _texts(drawing, wide)
        case Plot():
            made = _plots([[drawing]], [], wide, name)
        case Plots():
            each = [[drawing.plots[drawing.at(place)] for place in row] for row in chosen]
            made = _plots(each, _names(drawing.dials, chosen), wide, name)
        case ColourMap():
            made = _maps(drawing, chosen, wide)
        case _:
            raise TypeError(f"there is no picture of a {type(drawing).__name__}")
    if title:
        made.canvas.suptitle("\n".join(wrapped(name, int(wide * 72 / (LETTERS * 0.6)))), fontsize=LETTERS + 1)
    made.places, made.notes = said, list(dict.fromkeys([*notes, *made.notes]))
    return made


def written(made: Sheet, form: str) -> bytes:
    """The file, the same each time; letters that the font lacks are noted."""
    held = io.BytesIO()
    told: dict[str, Any] = {"pdf": {"CreationDate": None, "Creator": "gausslens"}, "svg": {"Date": None}}
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        made.canvas.savefig(held, format=form, dpi=300, metadata=told.get(form))
    lacking = {str(each.message) for each in warned if "missing from font" in str(each.message)}
    others = [each for each in warned if "missing from font" not in str(each.message)]
    for each in others:
        warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    if lacking:
        letters = "1 letter that its font lacks is a box" if len(lacking) == 1 else f"{len(lacking)} letters are boxes"
        made.notes = list(dict.fromkeys([*made.notes, f"{letters}: DejaVu Sans has none."]))
    return held.getvalue()


def _chosen(
    title: str, drawing: Drawing, at: Places, wide: float
) -> tuple[list[list[tuple[int, ...]]], str, list[str]]:
    """The places of the dials that are drawn, in rows of panels; which these are in words; and what is left out."""
    dials = dials_of(drawing)
    if not dials:
        return [[()]], "", []
    asked = [[place_on(title, dial, label) for label in at.get(dial.name, ())] for dial in dials]
    places = [found or list(range(len(tuple(dial.labels)))) for dial, found in zip(dials, asked, strict=True)]
    notes = []
    if not _fits(drawing, [len(each) for each in places], wide):
        if any(len(each) > 1 for each in asked):
            count = math.prod(map(len, places))
            raise InputError(f"{title!r}: {count} panels do not fit on a page: choose fewer places, or a larger width")
        open_ = [dial.name for dial, found in zip(dials, asked, strict=True) if not found]
        notes.append(f"One of {math.prod(map(len, places))} places: --at {open_[-1]}=... draws others.")
        places = [found or [dial.start] for dial, found in zip(dials, asked, strict=True)]
    spread = [i for i, each in enumerate(places) if len(each) > 1]
    labels = [tuple(map(str, dial.labels)) for dial in dials]
    said = ", ".join(
        f"every {dial.name} of {len(labels[i])}"
        if len(places[i]) == len(labels[i]) > 1
        else f"{dial.name} {' and '.join(labels[i][place] for place in places[i])}"
        for i, dial in enumerate(dials)
    )
    every = list(product(*places))
    across = len(places[spread[-1]]) if len(spread) > 1 else _columns(drawing, len(every), wide)
    return [every[i : i + across] for i in range(0, len(every), across)], said, notes


def _columns(drawing: Drawing, count: int, wide: float) -> int:
    """How many panels stand beside each other where one dial is spread: as even rows as there are."""
    least = (MAP_PANEL if isinstance(drawing, ColourMap) else PLOT_PANEL)[0]
    most = max(1, int((72 * wide - _BESIDE - _BAR * isinstance(drawing, ColourMap)) / least))
    return math.ceil(count / math.ceil(count / most))


def _fits(drawing: Drawing, counts: Sequence[int], wide: float) -> bool:
    """Whether so many panels fit on a page."""
    total, spread = math.prod(counts), [n for n in counts if n > 1]
    if total == 1:
        return True
    across = spread[-1] if len(spread) > 1 else _columns(drawing, total, wide)
    room = 72 * wide - _BESIDE - _BAR * isinstance(drawing, ColourMap)
    least = MAP_PANEL if isinstance(drawing, ColourMap) else PLOT_PANEL
    high = least[1]
    if isinstance(drawing, ColourMap):
        high = max(high, room / across * len(drawing.rows) / max(1, len(drawing.columns)) if drawing.shares else 0.0)
        if not drawing.shares:  # what is not an overview has its labels
            least = (max(least[0], 9.0 * len(drawing.columns)), 0.0)
            high = 10.0 * len(drawing.rows) + 30
    return across * least[0] <= room and math.ceil(total / across) * (high + 12) <= 72 * HIGHEST - 60


def _names(dials: Sequence[Dial], rows: Sequence[Sequence[tuple[int, ...]]]) -> list[list[str]]:
    """What each panel is called: the places of the dials that differ."""
    every = [place for row in rows for place in row]
    differ = [i for i in range(len(dials)) if len({place[i] for place in every}) > 1]
    labels = [tuple(map(str, dial.labels)) for dial in dials]
    return [[", ".join(f"{dials[i].name} {labels[i][place[i]]}" for i in differ) for place in row] for row in rows]


def _canvas(wide: float, high: float, arranged: bool = True) -> Any:
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(wide, max(0.4, high)), layout="constrained" if arranged else None)


def _table(drawing: TableRows, wide: float) -> Sheet:
    """A table, no wider than it needs to be; where its words need more than the width, that is said."""
    table = set_table(drawing, 72 * wide - 4, LETTERS, 72 * HIGHEST)
    needed = max(0.4, (table.wide + 4) / 72)
    made = _canvas(needed, (table.high + 4) / 72, arranged=False)
    axes = made.add_axes((2 / 72 / needed, 0, 1, 1 - 2 / (table.high + 4)))
    paint_table(table, axes)
    notes = [f"{needed:.1f} in wide: its words do not fit into less."] if needed > wide + 0.01 else []
    if table.left_out:
        notes.append(f"{table.left_out:,} of {len(drawing.rows):,} rows are in .csv and .tex alone.")
    return Sheet(made, notes=notes)


def _texts(drawing: Passages, wide: float) -> Sheet:
    lines, more = set_texts(drawing, 72 * wide - 4, LETTERS, 72 * HIGHEST)
    high = LINE * LETTERS * len(lines) + 6
    made = _canvas(wide, high / 72, arranged=False)
    paint_texts(lines, made.add_axes((2 / 72 / wide, 0, 1, 1 - 3 / high)), LETTERS)
    return Sheet(made, notes=["A page is full: the whole text is in .txt."] if more else [])


def _plots(rows: Sequence[Sequence[Plot]], names: Sequence[Sequence[str]], wide: float, title: str) -> Sheet:
    """Plots beside each other, under one legend that lies over none of their curves."""
    down, across = len(rows), max(map(len, rows))
    alone = down * across == 1
    each_high = min(0.66 * 72 * wide, 190.0) if alone else max(PLOT_PANEL[1], 0.72 * 72 * wide / across)
    made = _canvas(wide, 1.0)
    grid = made.subplots(down, across, squeeze=False)
    marks: dict[str, Any] = {}
    for i, row in enumerate(rows):
        for j, plot in enumerate(row):
            paint_plot(plot, grid[i, j], names=alone)
            found, labels = legend_of(plot, grid[i, j])
            marks |= dict(zip(labels, found, strict=True))
            if not alone:
                grid[i, j].set_title(short(names[i][j], 60), loc="left")
        for axes in grid[i, len(row) :]:
            axes.set_axis_off()
    upright = _upright(rows[0][0], title, each_high * down)
    if alone:
        grid[0, 0].set_ylabel(upright)
    else:
        made.supxlabel(short(rows[0][0].x.written, 60), fontsize=LETTERS)
        made.supylabel(upright, fontsize=LETTERS)
    above = _legend(made, list(marks.values()), list(marks), wide)
    made.set_size_inches(wide, min(HIGHEST, (above + 8 + down * each_high) / 72))
    return Sheet(made)


def _upright(plot: Plot, title: str, high: float) -> str:
    """What stands beside the axis of values: where that has but a unit, the title too, for there is no other."""
    unit, letters = plot.y.written, max(12, int(high / (LETTERS * 0.6)))
    if unit not in ("", plot.units):
        return "\n".join(wrapped(unit, letters))
    name = re.sub(r" \([^()]*\)$", "", title)
    unit = f"({unit})" if unit else ""
    if len(name) + 1 + len(unit) <= letters:
        return plain(f"{name} {unit}".rstrip())
    lines = wrapped(name, letters)
    return "\n".join(
        [*lines[:2], *([f"{lines[2]} …"] if len(lines) > 3 else lines[2:]), *([plain(unit)] if unit else [])]
    )


def _legend(made: Any, marks: Sequence[Any], labels: Sequence[str], wide: float) -> float:
    """A legend above all axes, in as many columns as fit; how high it is, in points."""
    if not marks:
        return 0.0
    size = 6.5
    room = 72 * wide - 8
    letters = int((room - 34) / (0.5 * size))
    broken = ["\n".join(wrapped(name.replace(r"\$", "$"), letters)) for name in labels]
    entry = width(longest(line for name in broken for line in name.split("\n")), size) + 34
    columns = max(1, min(len(marks), int(room / entry)))
    look: dict[str, Any] = {"frameon": False, "handlelength": 2.4, "columnspacing": 1.2, "borderaxespad": 0.2}
    made.legend(marks, broken, loc="outside upper left", ncols=columns, fontsize=size, **look)
    lines = sum(name.count("\n") + 1 for name in broken)
    return LINE * size * math.ceil(lines / columns) + 8


def _maps(drawing: ColourMap, rows: Sequence[Sequence[tuple[int, ...]]], wide: float) -> Sheet:
    """A map with its labels and colours, or several as panels with one colour bar."""
    down, across = len(rows), max(map(len, rows))
    if down * across > 1:
        return _map_panels(drawing, rows, wide)
    bar = 0.0 if drawing.categories else _BAR
    labels = min(0.42 * 72 * wide, width(longest(drawing.rows), 6))
    room = max(40.0, 72 * wide - bar - 16 - labels)
    cell = room / max(1, len(drawing.columns))
    tall = cell if drawing.shares else max(8.5, min(cell, 17.0 if len(drawing.rows) <= 12 else 11.0))
    high = min(72 * HIGHEST - 80, max(tall * len(drawing.rows), 14.0))
    made = _canvas(wide, 1.0)
    axes = made.subplots()
    image, notes = paint_map(drawing, axes, rows[0][0], Room(room, high, LETTERS, labels + 1))
    marks = marks_of(drawing)
    above = _legend(made, marks, [str(mark.get_label()) for mark in marks], wide)
    if not drawing.categories:
        add_bar(drawing, image, axes, made, high)
    under = below(drawing, cell, LETTERS)[0] + LINE * LETTERS + 10 + (28 if high < 60 and bar else 0)
    made.set_size_inches(wide, (high + above + under) / 72)
    return Sheet(made, notes=notes)


def _map_panels(drawing: ColourMap, rows: Sequence[Sequence[tuple[int, ...]]], wide: float) -> Sheet:
    """A map for each place of the dials, small; of an overview of tokens without their names."""
    down, across = len(rows), max(map(len, rows))
    sides = not drawing.shares
    room = (72 * wide - _BESIDE - _BAR) / across
    shape = len(drawing.rows) / max(1, len(drawing.columns))
    high = max(MAP_PANEL[1], room * shape) if drawing.shares else max(10.0 * len(drawing.rows), 24.0)
    around = (
        14 if drawing.shares else 28 + below(drawing, room / max(1, len(drawing.columns)), LETTERS - 1)[0] - LETTERS
    )
    made = _canvas(wide, 1.0)
    grid = made.subplots(down, across, squeeze=False)
    notes: list[str] = [] if sides else ["Tokens are not named in panels: --at draws one place, with its tokens."]
    names, crossed = _names(drawing.dials, rows), _crossed(drawing.dials, rows)
    for i, row in enumerate(rows):
        for j, place in enumerate(row):
            image, told = paint_map(
                drawing, grid[i, j], place, Room(room - 10, high, LETTERS - 1, 0.4 * room), sides, False
            )
            left, top = (crossed[0][i] if j == 0 else "", crossed[1][j] if i == 0 else "") if crossed else ("", "")
            grid[i, j].set(xlabel="", ylabel=plain(left))
            grid[i, j].set_title(plain(top if crossed else _panel_name(names[i][j], room)), fontsize=6, pad=2)
            notes += told
        for axes in grid[i, len(row) :]:
            axes.set_axis_off()
    made.supxlabel(short(drawing.column_name), fontsize=LETTERS)
    made.supylabel(short(drawing.row_name), fontsize=LETTERS)
    marks = marks_of(drawing)
    above = _legend(made, marks, [str(mark.get_label()) for mark in marks], wide)
    if not drawing.categories:
        add_bar(drawing, image, grid, made, min(160.0, max(61.0, down * high)))
    made.set_size_inches(wide, min(HIGHEST, (above + 24 + down * (high + around)) / 72))
    return Sheet(made, notes=notes)


def _crossed(dials: Sequence[Dial], rows: Sequence[Sequence[tuple[int, ...]]]) -> tuple[list[str], list[str]] | None:
    """What rows and columns of panels are called, where one dial turns down and another across."""
    differ = [i for i in range(len(dials)) if len({place[i] for row in rows for place in row}) > 1]
    if len(differ) != 2:
        return None
    labels = [tuple(map(str, dial.labels)) for dial in dials]
    down, across = differ
    return (
        [f"{dials[down].name} {labels[down][row[0][down]]}" for row in rows],
        [f"{dials[across].name} {labels[across][place[across]]}" for place in rows[0]],
    )


def _panel_name(name: str, room: float) -> str:
    """The places of a panel; where there is little room in letters of a key: "layer 3, head 1" is "3.1"."""
    if width(len(name), 6) <= room:
        return name
    return ".".join(part.rpartition(" ")[2] for part in name.split(", "))
