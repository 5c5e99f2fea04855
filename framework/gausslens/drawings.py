"""The figures of a store in Python: each shows itself in a notebook, is drawn on matplotlib, and saved for a paper."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from .contract.errors import InputError, did_you_mean
from .terminal import html_table

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from .figures import Figure
    from .plugins.host import Host
    from .report import Undrawn
    from .store.read_results import Results


@dataclass(frozen=True)
class Drawn:
    """A figure of the report: its data are ``.figure``, a notebook shows it, ``plot()`` draws it on matplotlib."""

    figure: Figure
    section: str

    def plot(self, axes: Axes | None = None, **places: Any) -> Canvas:
        """Draw it, on ``axes`` if they are given; sliders of the page are arguments here: ``plot(layer=3)``."""
        from .report.matplotlib_figures import canvas, paint

        if axes is None:
            return canvas([(self.figure, places)])
        paint(self.figure, axes, places)
        return axes.figure  # type: ignore[return-value]

    def _repr_png_(self) -> bytes:
        from .report.matplotlib_figures import png

        return png(self.plot())

    def __repr__(self) -> str:
        sources = ", ".join(dict.fromkeys(source.line for source in self.figure.sources))
        return f"<{type(self.figure).__name__} {self.figure.title!r} from {sources}>"


class Figures(list[Drawn]):
    """Figures in the order of the page: ``figures[0]``, or ``figures["entropy"]``, the one whose title has the word."""

    @overload
    def __getitem__(self, which: SupportsIndex | str) -> Drawn: ...
    @overload
    def __getitem__(self, which: slice) -> list[Drawn]: ...
    def __getitem__(self, which: SupportsIndex | slice | str) -> Drawn | list[Drawn]:
        """By number, by part of the title, or several."""
        if not isinstance(which, str):
            return super().__getitem__(which)
        titles = [each.figure.title for each in self]
        if which in titles:
            return super().__getitem__(titles.index(which))
        meant = [each for each in self if which.lower() in each.figure.title.lower()]
        if len(meant) == 1:
            return meant[0]
        if meant:
            several = "; ".join(each.figure.title for each in meant)
            raise InputError(f"{len(meant)} figures have {which!r} in their titles: {several}")
        raise InputError(f"no figure has {which!r} in its title{did_you_mean(which, titles)}")

    def _ipython_key_completions_(self) -> list[str]:
        return [each.figure.title for each in self]

    def save(
        self,
        out: str | os.PathLike[str],
        formats: str | Sequence[str] = "pdf",
        width: str | None = None,
        at: Mapping[str, Any] | None = None,
        titles: bool = False,
        replace: bool = False,
    ) -> list[Path]:
        """Write them into a folder as for a paper: each under a stable name, tables as CSV and LaTeX too, an index.

        ``formats`` are pdf, svg, png; ``width`` is column (82.5 mm), page (171 mm) or a length as "85mm", by default a
        page for what is wide and else a column. ``at`` chooses places of sliders: ``{"layer": 3, "head": [0, 1]}``.
        Files that were not made so, or were changed since, are an error without ``replace``. What could not be drawn
        is a warning.
        """
        from .report.figure_files import Look, chosen, named, write_figures

        asked = {name: _labels(places) for name, places in (at or {}).items()}
        forms = [formats] if isinstance(formats, str) else list(formats)
        look = Look(formats=forms, width=width, at=asked, titles=titles)
        found = chosen(named([(each.section, each.figure) for each in self]), (), asked)
        made = write_figures(
            found,
            Path(out),
            look,
            replace,
            lambda place, error: warnings.warn(f"{self[place].figure.title!r} is not drawn: {error}", stacklevel=4),
        )
        return [Path(out) / name for each in made for name in each.files]

    def _repr_html_(self) -> str:
        rows = ((n, each.section, type(each.figure).__name__, each.figure.title) for n, each in enumerate(self))
        return html_table(f"{len(self)} figures", rows, ("", "section", "kind", "title"))


def _labels(places: Any) -> list[str]:
    return [
        str(place) for place in ([places] if isinstance(places, str) or not isinstance(places, Iterable) else places)
    ]


def draw(
    store: Results | xr.Dataset | str | os.PathLike[str],
    label: str | None = None,
    variant: str | None = None,
    section: str | None = None,
    host: Host | None = None,
) -> Figures:
    """The figures of a store: those of the plugins' report sections, in the order of the page, and what was found.

    What was found are the sections ``ladder`` and ``heads``, where results are compared with nulls. ``label`` and
    ``variant`` keep those made from a result, ``section`` those of one section. What could not be drawn
    is a warning; where it leaves nothing to draw, an error.

    Of what ``Model.run`` gives, the maps of attention beside their tokens: ``draw(model.run("The cat", "pattern"))``.
    """
    capture: Any = store
    if hasattr(capture, "data_vars"):
        from .figures.of_captures import maps_of_tokens

        return Figures(Drawn(figure, "capture") for figure in maps_of_tokens(capture))
    found, undrawn = drawn(capture, label, variant, section, host)
    for each in undrawn:
        warnings.warn(str(each), stacklevel=2)
    return found


def drawn(
    store: Results | str | os.PathLike[str],
    label: str | None,
    variant: str | None,
    section: str | None,
    host: Host | None,
) -> tuple[Figures, Sequence[Undrawn]]:
    """The figures, and what could not be drawn; an error where that leaves none."""
    from .plugins import load
    from .report.findings.as_figures import HEADS, LADDER, findings
    from .report.sections import sections
    from .store.read_results import Results
    from .store.read_results import open as open_store

    results = store if isinstance(store, Results) else open_store(store)
    if label is not None and label not in results.labels:
        raise InputError(f"{results.path} has no finished result {label!r}{did_you_mean(label, results.labels)}")
    found = sections(results, load() if host is None else host)
    found += findings(results, found)
    if section is not None:
        names = [each.name for each in found]
        if section not in names:
            raise InputError(f"{results.path} has no section {section!r}{did_you_mean(section, names)}")
        found = [each for each in found if each.name == section]
    figures = Figures(Drawn(figure, each.name) for each in found for figure in each.made_from(label, variant))
    undrawn = [failure for each in found for failure in each.undrawn]
    if undrawn and all(each.section in (LADDER, HEADS) for each in figures):
        raise InputError("\n".join(map(str, undrawn)))
    return figures, undrawn
