"""Drawing any figure: its picture, caption, what was thinned, where its numbers are and what makes it again."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import Any

from .. import figures
from .grids import draw_heatmap, draw_token_map
from .markup import Markup, element, joined
from .plots import draw_lines, draw_scatter, draw_spectrum
from .steps import anchor
from .tables import draw_table, draw_texts
from .thin import FINE, Most

_HOW: dict[type[figures.Figure], Callable[[Any, Most], tuple[Markup, str]]] = {
    figures.Heatmap: draw_heatmap,
    figures.TokenMap: draw_token_map,
    figures.Lines: draw_lines,
    figures.Spectrum: draw_spectrum,
    figures.Scatter: draw_scatter,
    figures.Table: draw_table,
    figures.Texts: draw_texts,
}
_WRITTEN = (figures.Table, figures.Texts)
# With more columns, or more tokens, a figure has the page's whole width.
FEW, TOKENS = 5, 32


def checked(figure: object) -> figures.Figure:
    """The figure, if it is one."""
    if type(figure) not in _HOW:
        known = ", ".join(sorted(kind.__name__ for kind in _HOW))
        raise figures.BadFigure(f"a section returns figures ({known}), not {type(figure).__name__}")
    assert isinstance(figure, figures.Figure)
    return figure


def draw(figure: object, store: str = "store", again: str = "", most: Most = FINE) -> Markup:
    """The figure as an element of the page; ``again`` is the line of Python that makes it again."""
    known = checked(figure)
    picture, note = _HOW[type(known)](known, most)
    return _whole(known, picture, note, store, again)


def left_out(figure: object, store: str, again: str) -> Markup:
    """The place of a figure for which the page has no room left."""
    note = "Left out, for the page is full: the lines under 'data' draw it."
    return _whole(checked(figure), Markup(""), note, store, again)


def _whole(figure: figures.Figure, picture: Markup, note: str, store: str, again: str) -> Markup:
    # Drawings name the unit at an axis or a colour bar.
    units = f" Units: {figure.units}." if isinstance(figure, _WRITTEN) and figure.units not in ("", "1") else ""
    caption = element(
        "figcaption",
        element("p", figure.caption, units),
        element("p", note, class_="note") if note else None,
        _sources(figure.sources, store, again),
    )
    kind = f"wide {type(figure).__name__}" if _wide(figure) else type(figure).__name__
    return element("figure", element("h3", figure.title), picture, caption, class_=kind)


def _wide(figure: figures.Figure) -> bool:
    """Whether it needs the whole width: many columns, several texts, many tokens."""
    if isinstance(figure, figures.Table):
        return len(tuple(figure.columns)) > FEW
    if isinstance(figure, figures.Texts):
        return len(figure.texts) > 2
    return isinstance(figure, figures.TokenMap) and len(tuple(figure.keys)) > TOKENS


def _sources(sources: Iterable[figures.Source], store: str, again: str) -> Markup | None:
    """Links to the steps that the numbers come from, and the lines that get the numbers and the figure back."""
    given = tuple(dict.fromkeys(sources))
    if not given:
        return None
    links = [
        element("a", f"{variant}, {label}", href=f"#{anchor(variant, label)}")
        for variant, label in dict.fromkeys((s.variant, s.label) for s in given)
    ]
    arrays = ", ".join(dict.fromkeys(s.array for s in given))
    steps = element("p", "Step ", *(x for link in links for x in (link, "; ")), f"array {arrays}")
    label = given[0].label.split(".against.")[0]
    where = [shlex.quote(word) for word in (store, label)]
    code = ["import gausslens", f"store = gausslens.open({store!r})", *dict.fromkeys(s.line for s in given)]
    python = joined(element("code", f"{line}\n") for line in [*code, *([again] if again else [])])
    shell = element("code", f"gausslens show {' '.join(where)} --png figures.png\n")
    return element("details", element("summary", "data"), steps, element("pre", python), element("pre", shell))
