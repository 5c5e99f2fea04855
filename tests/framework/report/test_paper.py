"""Figures for a paper: as wide as they are asked for, read at that size, no word over another, under lasting names."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gausslens
from gausslens import InputError
from gausslens.__main__ import main
from gausslens.figures import Dial, Figure, Heatmap, Source, Table, TokenMap
from gausslens.report.figure_files import named
from gausslens.report.markup import visible
from gausslens.report.matplotlib_figures import still
from gausslens.report.paper import Sheet, inches, sheet, style, usual, written
from gausslens.report.written_tables import as_csv, as_latex, escaped_latex

from . import sections
from .conftest import host_with

HERE = sections.__name__
ABOUT = {"caption": "What is seen.", "sources": (Source("trained", "scores", "score"),), "units": "nat"}


def token_map(layers: int, heads: int, tokens: int) -> Figure:
    names = [f"token{i}" for i in range(tokens)]
    values = np.random.default_rng(0).random((layers, heads, tokens, tokens))
    dials = (Dial("layer", range(layers), layers - 1), Dial("head", range(heads), min(1, heads - 1)))
    return TokenMap(title="attention", **ABOUT, values=values, queries=names, keys=names, dials=dials)


def wide_table() -> Figure:
    words = ["spectra", "of", "a", "result", "whose", "name", "is", "long,", "layer 3,", "tensor W_K"]
    columns = ["result", "where_it_is_furthest_from_the_null", "value", "null", "effect", "explained by"]
    rows = [[words[i % 9], " ".join(words[: i + 3]), i * 1.5e-4, -1e7 / (i + 1), None, "arrangement"] for i in range(9)]
    return Table(title="wide", **ABOUT, columns=columns, rows=rows)


def texts_of(made: Sheet) -> list[tuple[str, Any]]:
    """Every text that is seen, with its box."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = made.canvas
    FigureCanvasAgg(canvas).draw()
    ticks = {
        id(label)
        for axes in canvas.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in axis._update_ticks()  # those within the axes, which alone are drawn
        for label in (tick.label1, tick.label2)
    }
    every = {
        id(label)
        for axes in canvas.axes
        for axis in (axes.xaxis, axes.yaxis)
        for tick in (*axis.majorTicks, *axis.minorTicks)
        for label in (tick.label1, tick.label2)
    }
    shown = [t for t in canvas.findobj(Text) if t.get_visible() and t.get_text().strip()]
    off = {id(t) for axes in canvas.axes if not axes.axison for t in (axes.xaxis.label, axes.yaxis.label)}
    kept = [t for t in shown if (id(t) not in every or id(t) in ticks) and id(t) not in off]
    hidden = {
        id(t)
        for axes in canvas.axes
        if not axes.axison
        for axis in (axes.xaxis, axes.yaxis)
        for t in axis.findobj(Text)
    }
    return [(t.get_text(), t.get_window_extent()) for t in kept if id(t) not in hidden]


def assert_legible(made: Sheet) -> None:
    """No word over another, none cut off at the edge, none in letters of less than 5 points."""
    texts = texts_of(made)
    edge = made.canvas.bbox
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        across = min(a.x1, b.x1) - max(a.x0, b.x0)
        up = min(a.y1, b.y1) - max(a.y0, b.y0)
        assert across <= 1 or up <= 1, f"{one!r} over {other!r}"
    for text, box in texts:
        assert box.x0 >= edge.x0 - 1.5, text
        assert box.x1 <= edge.x1 + 1.5, text
        assert box.y0 >= edge.y0 - 1.5, text
        assert box.y1 <= edge.y1 + 1.5, text


FIGURES = [
    *sections.every_kind({("trained", "scores"): {"score": type("Held", (), {"values": np.eye(3, 4)})}}),
    token_map(2, 3, 30),
    token_map(1, 1, 60),
    wide_table(),
    Heatmap(
        title="names",
        **ABOUT,
        values=np.eye(12, 3) * 9,
        rows=[f"a statistic ({i}) of a result" for i in range(12)],
        columns=["before", "scale", "the spectrum"],
        row_name="statistic",
        column_name="null",
        centre=0.0,
    ),
]


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: f"{type(figure).__name__}-{figure.title}")
@pytest.mark.parametrize("wide", ["column", "page"])
def test_no_word_lies_over_another_and_none_is_cut_off(figure: Figure, wide: str) -> None:
    with style():
        made = sheet(still(figure)[0], figure.title, inches(wide))
        assert_legible(made)
    width, height = made.canvas.get_size_inches()
    assert width == pytest.approx(inches(wide)) or isinstance(figure, Table)
    assert height <= 9.5


def test_files_are_as_wide_as_asked_with_fonts_embedded_and_the_same_each_time() -> None:
    figure = FIGURES[0]

    def made(form: str) -> bytes:
        with style():
            return written(sheet(still(figure)[0], figure.title, 3.25), form)

    pdf, svg, png = made("pdf"), made("svg").decode(), made("png")
    assert re.search(rb"/MediaBox \[ 0 0 234 ", pdf)
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf
    assert 'width="234pt"' in svg
    assert "<text" not in svg
    assert int.from_bytes(png[16:20], "big") == 975
    assert (made("pdf"), made("svg").decode(), made("png")) == (pdf, svg, png)


def test_settings_of_matplotlib_are_as_before() -> None:
    import matplotlib

    before = matplotlib.rcParams["font.size"]
    with style():
        assert matplotlib.rcParams["pdf.fonttype"] == 42
    assert matplotlib.rcParams["font.size"] == before


def test_dials_are_panels_where_these_fit_else_where_the_figure_opens() -> None:
    with style():
        small = sheet(token_map(2, 3, 6).drawing(), "A map", 6.75)
        large = sheet(token_map(30, 9, 6).drawing(), "A map", 3.25)
        one = sheet(token_map(30, 9, 6).drawing(), "A map", 3.25, {"layer": ["3"], "head": ["2"]})
        two = sheet(token_map(30, 9, 6).drawing(), "A map", 6.75, {"layer": ["3"], "head": ["2", "5"]})
    assert small.places == "every layer of 2, every head of 3"
    assert len([axes for axes in small.canvas.axes if axes.images]) == 6
    assert large.places == "layer 29, head 1"
    assert any("One of 270 places" in note for note in large.notes)
    assert one.places == "layer 3, head 2"
    shown = one.canvas.axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown, token_map(30, 9, 6).drawing().values[3, 2])  # type: ignore[attr-defined]
    assert two.places == "layer 3, head 2 and 5"
    with style(), pytest.raises(InputError, match="layer '30' is none of 0, 1, 2"):
        sheet(token_map(30, 9, 6).drawing(), "A map", 3.25, {"layer": ["30"]})
    with style(), pytest.raises(InputError, match="panels do not fit on a page"):
        sheet(token_map(30, 9, 6).drawing(), "A map", 3.25, {"layer": [str(i) for i in range(30)]})


def test_widths() -> None:
    assert (inches("column"), inches("page")) == (3.25, 6.75)
    assert inches("85mm") == pytest.approx(85 / 25.4)
    assert inches("234pt") == inches("3.25in") == 3.25
    assert tuple(usual(figure.drawing()) for figure in (FIGURES[0], token_map(4, 8, 80), token_map(1, 1, 12))) == (
        "column",
        "page",
        "page",
    )
    for wrong in ("85", "wide", "-3in", "1mm", "9m"):
        with pytest.raises(InputError, match="width"):
            inches(wrong)


def test_names_are_short_plain_and_each_its_own() -> None:
    figures = [("loss", FIGURES[0]), ("loss", FIGURES[0]), ("loss.loss", FIGURES[0]), ("x", sections.hostile({})[0])]
    long = Table(title="on and on " * 40, **ABOUT, columns=["a"])
    names = [each.name for each in named([*figures, ("a", long)])]
    assert names[:3] == ["loss-map-trained-scores", "loss-map-trained-scores-2", "loss-map-trained-scores-3"]
    assert len(set(names)) == 5
    assert all(re.fullmatch(r"[a-z0-9-]{1,110}", name) for name in names)
    assert [each.name for each in named(figures[:1], run="first")] == ["first-loss-map"]


texts = st.text(st.characters(exclude_categories=()), max_size=30)
cells = st.one_of(st.none(), st.integers(-(10**9), 10**9), st.floats(), texts, st.booleans())


@given(text=texts)
def test_escaped_text_is_read_as_it_was(text: str) -> None:
    assert unescaped(escaped_latex(text)) == visible(text).replace("\t", " ")


def unescaped(latex: str) -> str:
    """What LaTeX prints, read a token at a time; a character that it would obey is an error."""
    commands = {
        "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<", "textgreater": ">",
        "textbar": "|", "textasciigrave": "`", "textquotedbl": '"', "textquotesingle": "'", "dots": "…",
        "newline": "\n",
    }  # fmt: skip
    maths = {"$-$": "\N{MINUS SIGN}", r"$\pm$": "±", r"$\infty$": "∞"}
    if found := re.match(r"\{([\[*])\}", latex):
        return found[1] + unescaped(latex[3:])
    made, at = "", 0
    while at < len(latex):
        rest = latex[at:]
        if found := re.match(r"\\([a-z]+)\{\}", rest):
            made += commands[found[1]]
        elif found := re.match(r"\\([{}&%$#_])", rest):
            made += found[1]
        elif rest.startswith("--{}"):
            found = re.match("--{}", rest)
            made += "\N{EN DASH}"
        elif rest.startswith("-{}"):
            found = re.match("-{}", rest)
            made += "-"
        elif found := re.match(r"\$[^$]+\$", rest):
            made += maths[found[0]]
        else:
            assert rest[0] not in "\\{}&%$#_~^<>|`\"'-", rest
            found = re.match(r"[\s\S]", rest)
            made += rest[0]
        assert found is not None
        at += found.end()
    return made


@given(rows=st.lists(st.tuples(cells, cells, st.floats()), max_size=6), names=st.lists(texts, min_size=3, max_size=3))
def test_a_table_as_csv_and_latex_has_every_cell(rows: list[tuple[Any, ...]], names: list[str]) -> None:
    drawing = Table(title="t", **ABOUT, columns=names, rows=rows).drawing()
    read = list(csv.reader(io.StringIO(as_csv(drawing), newline="")))
    assert read[0] == [visible(name) for name in names]
    assert len(read) == len(rows) + 1
    for row, found in zip(drawing.rows, read[1:], strict=True):
        for cell, text in zip(row, found, strict=True):
            if cell is None or cell != cell:
                assert text == ""
            elif isinstance(cell, str):
                assert text == visible(cell)
            else:
                assert eval(text, {"inf": float("inf")}) == cell
    latex = as_latex(drawing, "a\ntitle")
    lines = latex.split("\\midrule\n")[1].split("\n\\bottomrule")[0]
    wide = [
        2 if shape == "r@{}l" else 1
        for shape in re.findall(r"r@\{\}l|l", latex.split("tabular}{")[1].split("\n")[0][:-1])
    ]
    assert len(wide) == 3
    ends = re.findall(r" \\\\(?=\n|$)", lines)
    assert len(ends) == len(rows)
    assert len(re.findall(r"(?<!\\)&", lines)) == len(rows) * (sum(wide) - 1)
    latex.encode("utf-8")


def test_numbers_are_aligned_at_their_points() -> None:
    table = Table(title="t", **ABOUT, columns=["n", "x_y"], rows=[[1.25, "50 % & more"], [-12345, None], [1e-7, "a"]])
    made = as_latex(table.drawing())
    assert r"\begin{tabular}{r@{}ll}" in made
    assert r"\multicolumn{2}{r}{n} & x\_y \\" in made
    assert r"1 & .25 & 50 \% \& more \\" in made
    assert "$-$12{,}345 &  &  \\\\" in made
    assert r"1 & $\times10^{-7}$ & a \\" in made


def test_figures_are_saved_from_python(study: Path, tmp_path: Path) -> None:
    figures = gausslens.draw(study, section="probe.section", host=host_with(f"{HERE}:every_kind"))
    made = figures.save(tmp_path / "out", formats="svg", width="60mm", titles=True)
    assert [path.name for path in made][:2] == ["probe-section-map.svg", "probe-section-tokens.svg"]
    assert {path.suffix for path in made} == {".svg", ".csv", ".tex", ".txt"}
    assert all(path.is_file() for path in made)
    assert "8 figures" in figures._repr_html_()
    with pytest.raises(InputError, match="no figure has places of 'laier': did you mean layer"):
        figures.save(tmp_path / "out", at={"laier": 3})


def test_what_was_found_is_a_section_too(study: Path) -> None:
    figures = gausslens.draw(study, host=host_with(f"{HERE}:every_kind"))
    assert list(dict.fromkeys(each.section for each in figures)) == ["probe.section", "ladder", "heads"]
    ladder, table, *_ = gausslens.draw(study, section="ladder", host=host_with(f"{HERE}:every_kind"))
    effect = gausslens.open(study).against("trained", "scores", "chance")["score_effect"].values
    row = list(ladder.figure.rows).index("score (scores)")  # type: ignore[attr-defined]
    shown = np.asarray(ladder.figure.values)[row, 0]  # type: ignore[attr-defined]
    told = {each[0]: each for each in table.figure.rows}  # type: ignore[attr-defined]
    assert np.isnan(shown) or shown in effect
    assert told["score"][1] == "scores"
    assert float(f"{np.abs(effect).max():.3g}") == abs(told["score"][3])


def test_what_others_made_or_changed_is_not_written_over(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{HERE}:every_kind"))
    out = tmp_path / "out"
    command = ["figures", str(study), "--out", str(out), "--only", "ta*le", "--only", "spectrum"]
    assert main(command) == 0
    told = capsys.readouterr().out
    assert "probe-section-table" in told
    assert "pdf csv tex" in told
    assert f"2 figures in {out}" in told
    assert sorted(path.name for path in out.iterdir()) == [
        "captions.txt", "figures.json", "probe-section-spectrum.pdf", "probe-section-table.csv",
        "probe-section-table.pdf", "probe-section-table.tex",
    ]  # fmt: skip
    index = json.loads((out / "figures.json").read_text())["figures"]
    assert index["probe-section-table"]["sources"] == ["store['trained', 'scores']['score']"]
    assert "What is seen. Units: nat." in (out / "captions.txt").read_text()
    assert main(command) == 0  # its own are written again
    (out / "probe-section-table.tex").write_text("mine")
    capsys.readouterr()
    assert main(command) == 2
    assert "were changed since: probe-section-table.tex" in capsys.readouterr().err
    assert (out / "probe-section-table.tex").read_text() == "mine"
    assert main([*command, "--replace"]) == 0
    assert "tabular" in (out / "probe-section-table.tex").read_text()
    other = tmp_path / "other"
    other.mkdir()
    (other / "figures.json").write_text("{}")
    assert main([*command[:3], str(other)]) == 2
    assert (other / "figures.json").read_text() == "{}"


def test_a_wrong_choice_is_told(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{HERE}:dials"))
    command = ["figures", str(study), "--out", str(tmp_path / "out")]
    for more, said in (
        (["--only", "turnd"], "no figure is called 'turnd'"),
        (["--at", "layer"], "--at takes NAME=PLACE"),
        (["--at", "haed=1"], "no figure has places of 'haed': did you mean head"),
        (["--width", "85"], "the width '85' is none of column, page"),
    ):
        assert main([*command, *more]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert main([*command, "--at", "layer=6", "--at", "head=2"]) == 0
    assert "layer 6, head 2" in capsys.readouterr().out
    assert (tmp_path / "out" / "probe-section-turned-layer-6-head-2.pdf").is_file()


def test_one_that_cannot_be_drawn_costs_no_other(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{HERE}:some_malformed"))
    assert main(["figures", str(study), "--out", str(tmp_path / "out"), "--only", "probe"]) == 0
    told = capsys.readouterr()
    assert "2 figures in" in told.out
    assert "'unfinished' of the section probe.section could not be drawn" in told.err
