"""Any figure on the page: its picture, caption, what was thinned, where its numbers are and what makes it again."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import shlex
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ..figures import ColourMap, Passages, Plot, Plots, TableRows, View
from .colours import NAMED, SERIES_LIGHT, colours_style, stops
from .markup import Markup, element, joined
from .numbers import written_cell
from .runs import step_anchor
from .svg.maps import map_picture
from .svg.plots import plot_picture, plots_picture
from .svg.token_sheets import token_sheet
from .thinning import FINE, Most, thinned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..figures import Drawing, Figure, Source
    from ..store.read_results import Results


_FRAME_STYLE = """*{box-sizing:border-box}html,body{height:100%;margin:0}
body{background:var(--card);color:var(--ink);font:13px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{height:100%;overflow:auto}:focus-visible{outline:2px solid var(--accent);outline-offset:-2px}
"""


def draw(
    figure: Figure,
    store: Results | str = "store",
    again: str = "",
    most: Most = FINE,
    framed: set[str] | None = None,
    **place: str | None,
) -> Markup:
    """The figure as an element of the page; ``again`` is the line of Python that makes it again.

    ``store`` is the run that it was drawn from, or of several runs the name of their store. ``framed`` takes the
    digests of the scripts that a frame in it runs, which the policy of the page must name. ``place`` are attributes of
    the element: its anchor, and the null that it is about.
    """
    drawing, note = thinned(figure.drawing(), most)
    if isinstance(drawing, View) and framed is not None:
        framed |= {hashed(_frame_script()), hashed(_whole_module(drawing))}
    picture, said = _picture(drawing, figure.title)
    return _whole(figure, drawing, picture, " ".join(words for words in (note, said) if words), store, again, **place)


def of_run(figure: Figure, run: str) -> Figure:
    """The same figure, its sources with their run: for a page of several runs."""
    made = copy.copy(figure)
    object.__setattr__(made, "sources", tuple(replace(source, run=run) for source in figure.sources))
    return made


def left_out(figure: Figure, store: Results | str, again: str, **place: str | None) -> Markup:
    """The place of a figure for which the page has no room left."""
    note = "Left out, for the page is full: the lines under 'data' draw it."
    return _whole(figure, figure.drawing(), Markup(""), note, store, again, **place)


def _picture(drawing: Drawing, title: str) -> tuple[Markup, str]:
    """The picture, and what is to be said of it."""
    match drawing:
        case Plot():
            return plot_picture(drawing, title), ""
        case Plots():
            return plots_picture(drawing, title), ""
        case ColourMap(shares=True):
            return token_sheet(drawing, title)
        case ColourMap():
            return map_picture(drawing, title)
        case TableRows():
            return _table(drawing), ""
        case Passages():
            cards = [element("div", element("h4", each.name), element("p", each.text)) for each in drawing.texts]
            return element("div", *cards, class_="texts"), ""
        case View():
            return _view(drawing, title), ""
    raise TypeError(f"there is no picture of a {type(drawing).__name__}")


def _whole(
    figure: Figure,
    drawing: Drawing,
    picture: Markup,
    note: str,
    store: Results | str,
    again: str,
    **place: str | None,
) -> Markup:
    # Plots and maps name the unit at an axis or a colour bar.
    unsaid = isinstance(drawing, TableRows | Passages | View) and figure.written_units
    caption = element(
        "figcaption",
        element("p", figure.caption, f" Units: {figure.units}." if unsaid else ""),
        element("p", note, class_="note") if note else None,
        _sources(figure.sources, store, again),
    )
    kind = f"wide {type(figure).__name__}" if drawing.wide else type(figure).__name__
    return element("figure", element("h3", figure.title), picture, caption, class_=kind, **place)


def _view(drawing: View, title: str) -> Markup:
    """A view in its frame, which the page's script makes when it comes near, and what stands in for it meanwhile.

    The frame has no origin: it reads nothing of the page, stores nothing and goes nowhere. Its policy lets it load
    nothing and run these two scripts alone. What it is given is JSON, in which nothing can end an element.
    """
    picture, said = _picture(drawing.fallback, title)
    about = element("p", " ".join(words for words in (drawing.about, said) if words))
    frame = element(
        "iframe", sandbox="allow-scripts", title=title, srcdoc=_frame_page(drawing), referrerpolicy="no-referrer"
    )
    instead = element("div", picture, about, class_="instead")
    return element("div", element("template", frame), instead, class_="view", style=f"--height:{drawing.height}px")


def _frame_page(drawing: View) -> str:
    """The document in the frame, as text."""
    scripts = f"{hashed(_frame_script())} {hashed(_whole_module(drawing))}"
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src {scripts}; base-uri 'none'; form-action 'none'"
    )
    scales = {"scale": stops(False), "diverging": stops(True)}
    theme = {"colours": NAMED, "series": [f"s{i}" for i in range(len(SERIES_LIGHT))], **scales}
    module = json.dumps(_whole_module(drawing)).replace("<", "\\u003c")
    given = f'{{"module":{module},"data":{drawing.data},"theme":{json.dumps(theme)}}}'
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", **{"http-equiv": "Content-Security-Policy", "content": policy}),
        element("meta", name="color-scheme", content="light dark"),
        element("style", Markup(colours_style() + _FRAME_STYLE)),
    )
    body = element(
        "body",
        element("main", id="view", tabindex="0"),
        element("script", Markup(given), id="given", type="application/json"),
        element("script", _frame_script()),
    )
    return f"<!doctype html>{element('html', head, body, lang='en')}"


def _whole_module(drawing: View) -> str:
    """The module between two statements: it runs nowhere but behind the script of its frame, and is drawn then.

    In a frame that it makes itself it could run without that script, for its digest is in the policy: it does not.
    ``draw`` is known in the last line, exported or not.
    """
    first = 'if (globalThis.gausslensReady !== true) throw new Error("no frame of the page"); '
    return f"{first}{drawing.module}\n;gausslensView(draw);\n"


@cache
def _frame_script() -> Markup:
    return Markup((files(__package__) / "frame.js").read_text(encoding="utf-8"))


def hashed(script: str) -> str:
    """A script as a policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _table(drawing: TableRows) -> Markup:
    """A table; columns of numbers are aligned to the right."""
    rows, places = drawing.rows, range(len(drawing.columns))
    kinds = ["n" if rows and all(isinstance(row[i], int | float | None) for row in rows) else None for i in places]
    names = (element("th", name, scope="col", class_=kind) for name, kind in zip(drawing.columns, kinds, strict=True))
    body = [
        element("tr", *(element("td", written_cell(c), class_=kind) for c, kind in zip(row, kinds, strict=True)))
        for row in rows
    ]
    table = element("table", element("thead", element("tr", *names)), element("tbody", *body))
    return element("div", table, class_="scroll", tabindex="0")


def _sources(sources: Iterable[Source], store: Results | str, again: str) -> Markup | None:
    """Links to the steps that the numbers come from, and the lines that get the numbers and the figure back."""
    given = tuple(dict.fromkeys(sources))
    if not given:
        return None
    links = [
        element("a", f"{variant}, {label}", href=f"#{step_anchor(variant, label, run)}")
        for variant, label, run in dict.fromkeys((s.variant, s.label, s.run) for s in given)
    ]
    arrays = ", ".join(dict.fromkeys(s.array for s in given))
    steps = element("p", "Step ", *(x for link in links for x in (link, "; ")), f"array {arrays}")
    label = given[0].label.split(".against.")[0]
    opened, named = _opened(store, given[0].run)
    where = [shlex.quote(word) for word in (named[0], label, *named[1:])]
    code = ["import gausslens", f"store = {opened}", *dict.fromkeys(s.line for s in given)]
    python = joined(element("code", f"{line}\n") for line in [*code, *([again] if again else [])])
    shell = element("code", f"gausslens show {' '.join(where)} --png figures.png\n")
    return element("details", element("summary", "data"), steps, element("pre", python), element("pre", shell))


def _opened(store: Results | str, run: str) -> tuple[str, list[str]]:
    """The Python that opens a run, and what `gausslens show` is given to find it; ``run`` where sources name it."""
    if isinstance(store, str):
        return f"gausslens.open({store!r})", [store, *(["--run", run] if run else [])]
    name, plan = Path(store.path).name, store.plan_to_name
    if run or not store.name:
        return _opened(name, run)
    of = f"{store.name!r}, plan={plan!r}" if plan else repr(store.name)
    return f"gausslens.open({name!r}).run({of})", [name, "--run", plan or store.name]
