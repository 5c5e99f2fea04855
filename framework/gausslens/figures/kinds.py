"""Figures as data: what a report section returns. The host draws, thins and escapes them; a plugin never writes HTML.

    from gausslens.figures import Line, Lines, Source

    def section(results):
        data = results["trained", "gaussian.moments"]
        rank = data["effective_rank"]
        return [
            Lines(
                title="Effective rank by layer",
                caption="How many directions the residual stream fills.",
                sources=(Source("trained", "gaussian.moments", "effective_rank"),),
                units="dimensions",
                x=data["layer"].values,
                x_name="layer",
                series=(Line("trained", rank.values),),
            )
        ]

Every figure has a ``title``, a ``caption`` that says what is seen, the ``sources`` it was made from, and the ``units``
of its values. Arrays may be anything numpy takes; NaN is a gap. A figure that does not fit together raises BadFigure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..contract.errors import GausslensError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

Cell: TypeAlias = str | int | float | None


class BadFigure(GausslensError):
    """A figure whose parts do not fit together."""


@dataclass(frozen=True)
class Source:
    """Where the numbers of a figure are in the store: the step, by variant and label, and the array."""

    variant: str
    label: str
    array: str

    @property
    def line(self) -> str:
        """The line of Python that gets the array back."""
        return f"store[{self.variant!r}, {self.label!r}][{self.array!r}]"


@dataclass(frozen=True)
class Line:
    """A curve: its name, its values, its band if there is one. A ``reference`` is drawn behind the others, dashed."""

    name: str
    y: ArrayLike
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    reference: bool = False


@dataclass(frozen=True)
class Text:
    """A text with a name, shown as it is."""

    name: str
    text: str


@dataclass(frozen=True)
class Dial:
    """A leading dimension of a map that a slider turns: its name, a label for each place, the place shown first."""

    name: str
    labels: Iterable[Any]
    start: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure:
    """What all figures say."""

    title: str
    caption: str
    sources: tuple[Source, ...]
    units: str = ""

    def __post_init__(self) -> None:
        for what in ("title", "caption", "units"):
            if not isinstance(getattr(self, what), str):
                raise self._bad(f"its {what} is not text")
        if not self.title.strip() or not self.caption.strip():
            raise self._bad("a figure needs a title and a caption")
        self._set("sources", tuple(self.sources))
        if not all(isinstance(s, Source) for s in self.sources):
            raise self._bad("its sources are not of the type Source")

    def _bad(self, why: str) -> BadFigure:
        return BadFigure(f"{type(self).__name__} {self.title!r}: {why}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _numbers(self, what: str, values: Any, dimensions: int) -> NDArray[np.float64]:
        try:
            array = np.array(values, dtype=np.float64)
        except (TypeError, ValueError):
            raise self._bad(f"{what} is not an array of numbers") from None
        if array.ndim != dimensions:
            raise self._bad(f"{what} has shape {array.shape}; it must have {dimensions} dimension(s)")
        array.setflags(write=False)
        return array

    def _maps(self, values: Any, dials: Iterable[Dial]) -> tuple[NDArray[np.float64], tuple[Dial, ...]]:
        given = tuple(dials)
        array = self._numbers("values", values, 2 + len(given))
        made = []
        for dial, count in zip(given, array.shape, strict=False):
            labels = self._labels(f"labels of the dial {dial.name!r}", dial.labels, count)
            if not 0 <= dial.start < count:
                raise self._bad(f"the dial {dial.name!r} starts at {dial.start} and has {count} places")
            made.append(Dial(str(dial.name), labels, int(dial.start)))
        return array, tuple(made)

    def _labels(self, what: str, labels: Iterable[Any], count: int) -> tuple[str, ...]:
        made = tuple(str(label) for label in labels)
        if len(made) != count:
            raise self._bad(f"{len(made)} {what} for {count} values")
        return made


@dataclass(frozen=True, kw_only=True, eq=False)
class Heatmap(Figure):
    """Values [row, column] as colours: one scale, or with ``centre`` two that diverge from that value (0 for z).

    ``rows`` and ``columns`` are labels, ``row_name`` and ``column_name`` what they are. With ``dials`` the values have
    a leading dimension for each, and the page a slider.
    """

    values: ArrayLike
    rows: Iterable[Any]
    columns: Iterable[Any]
    row_name: str
    column_name: str
    centre: float | None = None
    dials: tuple[Dial, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        values, dials = self._maps(self.values, self.dials)
        self._set("values", values)
        self._set("dials", dials)
        self._set("rows", self._labels("row labels", self.rows, values.shape[-2]))
        self._set("columns", self._labels("column labels", self.columns, values.shape[-1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenMap(Figure):
    """An attention map, or any values [dial, ..., query, key], beside its tokens, shown as text whatever they hold."""

    values: ArrayLike
    queries: Iterable[str]
    keys: Iterable[str]
    centre: float | None = None
    dials: tuple[Dial, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        values, dials = self._maps(self.values, self.dials)
        self._set("values", values)
        self._set("dials", dials)
        self._set("queries", self._labels("query tokens", self.queries, values.shape[-2]))
        self._set("keys", self._labels("key tokens", self.keys, values.shape[-1]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Lines(Figure):
    """Curves over a common x."""

    x: ArrayLike
    x_name: str
    series: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        x = self._numbers("x", self.x, 1)
        self._set("x", x)
        self._set("series", tuple(self._line(line, len(x)) for line in self.series))
        if not self.series:
            raise self._bad("it has no series")

    def _line(self, line: Line, count: int) -> Line:
        made = {}
        for what, values in (("y", line.y), ("low", line.low), ("high", line.high)):
            if values is None:
                continue
            made[what] = self._numbers(f"{what} of {line.name!r}", values, 1)
            if len(made[what]) != count:
                raise self._bad(f"{what} of {line.name!r} has {len(made[what])} values, x has {count}")
        if ("low" in made) != ("high" in made):
            raise self._bad(f"{line.name!r} has one side of a band only")
        return Line(str(line.name), made["y"], made.get("low"), made.get("high"), line.reference)


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum(Figure):
    """Sorted values (singular values, eigenvalues) against their rank, each series of its own length.

    Give a law as a series with ``reference=True``, and its edges as ``edges``: values above are beyond chance.
    """

    series: tuple[Line, ...]
    edges: tuple[float, float] | None = None
    log_y: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        made = []
        for line in self.series:
            values = self._numbers(f"{line.name!r}", line.y, 1)
            made.append(Line(str(line.name), np.sort(values[~np.isnan(values)])[::-1], reference=line.reference))
        if not made:
            raise self._bad("it has no series")
        self._set("series", tuple(made))
        if self.edges is not None:
            low, high = (float(e) for e in self.edges)
            if not low <= high:
                raise self._bad(f"its edges are {low:g} and {high:g}")
            self._set("edges", (low, high))


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Table(Figure):
    """Rows of cells: text, numbers, or None for nothing."""

    columns: Iterable[str]
    rows: Iterable[Iterable[Any]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        columns = tuple(str(c) for c in self.columns)
        rows = tuple(tuple(_cell(c) for c in row) for row in self.rows)
        for number, row in enumerate(rows):
            if len(row) != len(columns):
                raise self._bad(f"row {number} has {len(row)} cells for {len(columns)} columns")
        self._set("columns", columns)
        self._set("rows", rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts(Figure):
    """Texts side by side, as what each variant generates."""

    texts: tuple[Text, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set("texts", tuple(Text(str(t.name), str(t.text)) for t in self.texts))


def _cell(value: Any) -> Cell:
    """A plain Python value, also where numpy's was given."""
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | None) else str(plain)
