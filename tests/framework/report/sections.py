"""Sections for the tests: each is named by a string, as a plugin's is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gausslens.figures import (
    Axis,
    Curve,
    Dial,
    Figure,
    Heatmap,
    Line,
    Lines,
    Panels,
    Plot,
    Scatter,
    Source,
    Spectrum,
    Table,
    Text,
    Texts,
    TokenMap,
)

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>&\"'`</style></svg>\x00\x1b[31m\u202e\ud800"
)
ABOUT = {"caption": "What is seen.", "sources": (Source("trained", "scores", "score"),), "units": "nat"}


def every_kind(results: Any) -> list[Figure]:
    values = results["trained", "scores"]["score"].values
    ramp = np.arange(1.0, 6.0)
    return [
        Heatmap(
            title="map", **ABOUT, values=values, rows=range(3), columns=range(4), row_name="layer", column_name="head"
        ),
        TokenMap(title="tokens", **ABOUT, values=np.eye(2), queries=["a", " b"], keys=["a", "\n"], centre=0.0),
        Lines(title="lines", **ABOUT, x=ramp, x_name="layer", series=(Line("one", ramp, ramp - 1, ramp + 1),)),
        Spectrum(
            title="spectrum", **ABOUT, series=(Line("one", ramp), Line("law", ramp, reference=True)), edges=(1, 4)
        ),
        Scatter(title="scatter", **ABOUT, x=ramp, y=ramp, x_name="predicted", y_name="measured", diagonal=True),
        Table(title="table", **ABOUT, columns=["name", "n"], rows=[["x", 1.5], [None, 2]]),
        Texts(title="texts", **ABOUT, texts=(Text("plain", "said"),)),
        panels(),
    ]


def panels() -> Figure:
    """Curves from 0 on a logarithmic axis, a panel for each layer and part: their last value is which it is."""
    curves = [
        (Line("one", [0.0, 0.0, place], [0.0, -1.0, place], [0.0, 1.0, place]), Line("many", [1.0] * 3, faint=True))
        for place in range(6)
    ]
    turned = (Dial("layer", (5, 6, 7), 1), Dial("part", "ab"))
    about = {"title": "panels", **ABOUT, "x": [0, 10, 100], "x_name": "step", "log_x": True}
    return Panels(**about, panels=tuple(curves), dials=turned)


def first_result(results: Any) -> list[Figure]:
    """The first array of the first result of the run that it is given."""
    label, found = next(iter(results.of("probe.scores").items()))
    source = Source("trained", label, "mass")
    line = Line("trained", found["trained"]["mass"].values)
    return [
        Lines(title=label, caption="Mass.", sources=(source,), x=range(3), x_name="layer", series=(line,)),
    ]


def hostile(results: Any) -> list[Figure]:
    about = {
        "title": HOSTILE,
        "caption": HOSTILE,
        "sources": (Source(HOSTILE, HOSTILE, HOSTILE),),
        "units": HOSTILE,
    }
    eye, two = np.eye(2), [HOSTILE, HOSTILE]
    lines = (Line(HOSTILE, [1.0, 2.0]),)
    return [
        Heatmap(**about, values=eye, rows=two, columns=two, row_name=HOSTILE, column_name=HOSTILE),
        TokenMap(**about, values=eye, queries=two, keys=two),
        Lines(**about, x=[1.0, 2.0], x_name=HOSTILE, series=lines),
        Panels(
            **about,
            x=[0.0, 2.0],
            x_name=HOSTILE,
            panels=((*lines, Line(HOSTILE, [1.0, 1.0], faint=True)),) * 2,
            dials=(Dial(HOSTILE, two),),
            log_x=True,
        ),
        Spectrum(**about, series=lines),
        Scatter(**about, x=[1, 2], y=[1, 2], x_name=HOSTILE, y_name=HOSTILE, labels=two, groups=two),
        Table(**about, columns=two, rows=[two]),
        Texts(**about, texts=(Text(HOSTILE, HOSTILE),)),
    ]


def raises(results: Any) -> list[Figure]:
    raise ZeroDivisionError("<i>it broke</i>")


def leaves(results: Any) -> list[Figure]:
    raise SystemExit(3)


def halfway(results: Any) -> Iterator[Figure]:
    """Two figures, and an error in place of the third."""
    yield from first_result(results)
    yield of_its_own_kind(results)[0]
    raise ZeroDivisionError("<i>it broke</i>")


def some_malformed(results: Any) -> list[Any]:
    """Good figures between one that is none, one whose drawing is none, and one whose drawing cannot be drawn."""
    good = of_its_own_kind(results)[0]
    return ["<h1>mine</h1>", good, *undrawn(results), Unfinished(title="unfinished", **ABOUT, counts=[1]), good]


def stops(results: Any) -> Iterator[Figure]:
    """An end that is neither an error nor an interrupt."""
    yield from first_result(results)
    raise Stop("no more")


class Stop(BaseException):
    """What is no Exception."""


def nothing(results: Any) -> None:
    """A section that forgets to return its figures."""


def text(results: Any) -> str:
    return "<h1>my own</h1>"


def interrupted(results: Any) -> Iterator[Figure]:
    yield from first_result(results)
    raise KeyboardInterrupt


def html(results: Any) -> list[Any]:
    return ["<h1>my own</h1>"]


def unfit(results: Any) -> list[Figure]:
    return [Lines(title="unfit", **ABOUT, x=[1, 2], x_name="layer", series=(Line("one", [1, 2, 3]),))]


def large(results: Any) -> list[Figure]:
    rng = np.random.default_rng(0)
    many = rng.normal(size=5000)
    curves = tuple(Line(f"curve {i}", many) for i in range(9))
    big = rng.normal(size=(300, 200))
    return [
        Heatmap(title="map", **ABOUT, values=big, rows=range(300), columns=range(200), row_name="a", column_name="b"),
        Lines(title="lines", **ABOUT, x=np.arange(5000), x_name="n", series=curves),
        Scatter(title="scatter", **ABOUT, x=many, y=many, x_name="a", y_name="b"),
        Table(title="table", **ABOUT, columns=["n"], rows=[[i] for i in range(1500)]),
        Texts(title="texts", **ABOUT, texts=(Text("long", "a" * 9000),)),
    ]


def empty(results: Any) -> list[Figure]:
    nothing = np.full((2, 2), np.nan)
    return [
        Heatmap(title="map", **ABOUT, values=nothing, rows="ab", columns="cd", row_name="a", column_name="b"),
        Lines(title="lines", **ABOUT, x=[0, 1], x_name="n", series=(Line("none", [np.nan, np.inf]),), log_y=True),
        Spectrum(title="spectrum", **ABOUT, series=(Line("zero", [0.0, 0.0]),)),
        Scatter(title="scatter", **ABOUT, x=[], y=[], x_name="a", y_name="b", diagonal=True),
        Table(title="table", **ABOUT, columns=[], rows=[]),
        Texts(title="texts", **ABOUT, texts=()),
    ]


# Two layers, three heads, two queries, two keys: every value is another.
DIALS = np.arange(24.0).reshape(2, 3, 2, 2)


def dials(results: Any) -> list[Figure]:
    turned = (Dial("layer", [5, 6]), Dial("head", range(3)))
    about = ABOUT | {"units": ""}
    return [TokenMap(title="turned", **about, values=DIALS, queries=[" a", "d"], keys=["b", "c"], dials=turned)]


def hostile_dials(results: Any) -> list[Figure]:
    two = [HOSTILE, HOSTILE]
    about = ABOUT | {"units": HOSTILE}
    turned = (Dial(HOSTILE, two), Dial(HOSTILE, two))
    return [TokenMap(title="turned", **about, values=np.ones((2, 2, 2, 2)), queries=two, keys=two, dials=turned)]


def many_maps(results: Any) -> list[Figure]:
    rng = np.random.default_rng(0)
    turned = (Dial("layer", range(48), 40), Dial("head", range(64)))
    held = rng.random((48, 64, 40, 40), dtype=np.float32)
    tokens = [f"t{i}" for i in range(40)]
    return [TokenMap(title="many", **ABOUT, values=held, queries=tokens, keys=tokens, dials=turned)]


def heavy(results: Any) -> list[Figure]:
    tokens = [f"token {i}" for i in range(96)]
    values = np.random.default_rng(0).random((96, 96))
    return [TokenMap(title=f"map {n}", **ABOUT, values=values, queries=tokens, keys=tokens) for n in range(60)]


@dataclass(frozen=True, kw_only=True, eq=False)
class Steps(Figure):
    """A kind of figure that the host does not have, as an outside plugin may bring it."""

    counts: Any

    def drawing(self) -> Plot:
        counts = self._numbers("counts", self.counts, 1)
        steps = Curve("steps", np.arange(1.0, len(counts) + 1), counts)
        units = self.written_units
        return Plot(x=Axis("step", whole=True), y=Axis(units, holds=(0.0,)), units=units, curves=(steps,))


class Undrawn(Steps):
    """A kind whose drawing is none."""

    def drawing(self) -> Any:
        return "<svg/>"


class Unfinished(Steps):
    """A kind whose drawing is one, and holds what cannot be drawn."""

    def drawing(self) -> Plot:
        return replace(super().drawing(), curves=(None,))


def of_its_own_kind(results: Any) -> list[Figure]:
    return [Steps(title="steps", **ABOUT, counts=[3, 1, 2])]


def undrawn(results: Any) -> list[Figure]:
    return [Undrawn(title="undrawn", **ABOUT, counts=[3, 1, 2])]
