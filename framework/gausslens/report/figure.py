"""Drawing any figure: its picture, caption, what was thinned, and where its numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .. import figures
from .grids import draw_heatmap, draw_token_map
from .markup import Markup, element, joined
from .plots import draw_lines, draw_scatter, draw_spectrum
from .tables import draw_table, draw_texts

_HOW: dict[type[figures.Figure], Callable[[Any], tuple[Markup, str]]] = {
    figures.Heatmap: draw_heatmap,
    figures.TokenMap: draw_token_map,
    figures.Lines: draw_lines,
    figures.Spectrum: draw_spectrum,
    figures.Scatter: draw_scatter,
    figures.Table: draw_table,
    figures.Texts: draw_texts,
}
_WIDE = (figures.Table, figures.Texts)


def draw(figure: object) -> Markup:
    """The figure as an element of the page."""
    if type(figure) not in _HOW:
        known = ", ".join(sorted(kind.__name__ for kind in _HOW))
        raise figures.BadFigure(f"a section returns figures ({known}), not {type(figure).__name__}")
    assert isinstance(figure, figures.Figure)
    picture, note = _HOW[type(figure)](figure)
    # Drawings name the unit at an axis or a colour bar.
    units = f" Units: {figure.units}." if isinstance(figure, _WIDE) and figure.units not in ("", "1") else ""
    caption = element(
        "figcaption",
        element("p", figure.caption, units),
        element("p", note, class_="note") if note else None,
        _sources(figure),
    )
    kind = f"wide {type(figure).__name__}" if isinstance(figure, _WIDE) else type(figure).__name__
    return element("figure", element("h3", figure.title), picture, caption, class_=kind)


def _sources(figure: figures.Figure) -> Markup | None:
    """The lines of Python that get the numbers back."""
    if not figure.sources:
        return None
    lines = joined(element("code", f"{line}\n") for line in dict.fromkeys(s.line for s in figure.sources))
    return element("details", element("summary", "data"), element("pre", lines))
