"""The page in a browser: it is drawn, asks for nothing, runs nothing that it shows; hover, keys and sliders work."""

from __future__ import annotations

from pathlib import Path

import pytest

from gausslens.report import write

from . import sections
from .browser import IN_A_BROWSER, Browser
from .conftest import host_with

pytestmark = IN_A_BROWSER
HERE = sections.__name__
CELL = "figure.TokenMap svg .cell"


def opened(driven: Browser, store: Path, section: str) -> Path:
    page = write(store, host_with(f"{HERE}:{section}"))
    driven.requests()
    driven.log("browser")
    driven.open(page)
    return page


def tip(driven: Browser) -> str | None:
    found = driven.run("const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent")
    return None if found is None else str(found)


def test_figures_are_drawn_with_a_silent_console_and_no_request(driven: Browser, study: Path) -> None:
    page = opened(driven, study, "every_kind")
    boxes = driven.run(
        "return [...document.querySelectorAll('figure')].map(f => ["
        "f.querySelectorAll('svg .cell, svg polyline, svg .dot, td, .texts p').length,"
        "f.getBoundingClientRect().width, f.getBoundingClientRect().height])"
    )
    assert len(boxes) == 9
    assert all(marks > 0 and width > 200 and height > 60 for marks, width, height in boxes)
    assert driven.run("return document.documentElement.scrollWidth <= innerWidth")
    # The colours of cells are those that were meant, not a policy's or a style sheet's default.
    fills = driven.run("return [...document.querySelectorAll('.Heatmap .cell')].map(c => getComputedStyle(c).fill)")
    assert len(set(fills)) > 6
    assert driven.log("browser") == []
    assert driven.requests() == [page.as_uri()]


@pytest.mark.parametrize("section", ["hostile", "hostile_dials"])
def test_markup_in_prompts_and_names_is_inert(driven: Browser, study: Path, section: str) -> None:
    page = opened(driven, study, section)
    for slider in range(driven.run("return document.querySelectorAll('input').length")):
        driven.run("document.querySelectorAll('input')[arguments[0]].setAttribute('id', 'turned')", slider)
        driven.press("#turned", "right")
        driven.run("document.getElementById('turned').removeAttribute('id')")
    driven.point_at(CELL)
    assert "<script>" in (tip(driven) or "")
    assert driven.run("return document.title") != "owned"
    assert driven.run("return document.querySelectorAll('script').length") == 1
    assert driven.run("return document.querySelectorAll('img').length") == 0
    assert driven.log("browser") == []
    assert driven.requests() == [page.as_uri()]


def test_the_pointer_shows_tokens_and_values(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    driven.point_at(CELL)
    assert tip(driven) == "query ·a, key b: 0"
    driven.point_at("h1")
    assert tip(driven) is None
    # What it showed is still there for those without a pointer.
    assert driven.run("return document.querySelector(arguments[0] + ' > title').textContent", CELL) == (
        "query ·a, key b: 0"
    )


def test_arrow_keys_go_from_value_to_value(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    driven.press("figure.TokenMap > svg", "right")
    assert tip(driven) == "query ·a, key b: 0"
    driven.type("right")
    assert tip(driven) == "query ·a, key c: 1"
    driven.type("end")
    assert tip(driven) == "query d, key c: 3"
    driven.type("escape")
    assert tip(driven) is None


def test_everything_that_can_be_used_is_reached_by_tab(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    reached = []
    for _ in range(40):
        driven.type("tab")
        reached.append(driven.run("const e = document.activeElement; return e.tagName + ' ' + (e.ariaLabel || '')"))
    assert {"A ", "SUMMARY ", "INPUT layer", "INPUT head", "svg turned", "DIV steps"} <= set(reached)


def test_sliders_turn_to_each_map(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    first = "figure.TokenMap label:nth-child(1) input"
    second = "figure.TokenMap label:nth-child(2) input"
    titles = "return [...document.querySelectorAll('figure.TokenMap svg .cell > title')].map(t => t.textContent)"
    assert driven.run("return [...document.querySelectorAll('output')].map(o => o.textContent)") == ["5", "0"]
    for layer, head in ((5, 0), (5, 1), (6, 1), (6, 2)):
        if head:
            driven.press(second, "home", *["right"] * head)
        driven.press(first, "home", *["right"] * (layer - 5))
        shown = [float(t.rsplit(": ", 1)[1]) for t in driven.run(titles)]
        expected = sections.DIALS[layer - 5, head].ravel()
        assert shown == pytest.approx(expected, abs=sections.DIALS.max() / 60_000)
    assert driven.run("return [...document.querySelectorAll('output')].map(o => o.textContent)") == ["6", "2"]
    fills = driven.run(
        "return [...document.querySelectorAll('figure.TokenMap .cell')].map(c => getComputedStyle(c).fill)"
    )
    assert len(set(fills)) == 4
    assert driven.log("browser") == []


def test_sliders_turn_to_each_plot(driven: Browser, study: Path) -> None:
    opened(driven, study, "every_kind")
    seen = (
        "return [...document.querySelectorAll('figure.Panels .turn')].filter(t => t.offsetHeight > 60)"
        ".map(t => [...t.querySelectorAll('.dot > title')].pop().textContent)"
    )
    assert driven.run(seen) == ["one, step 100: 2 nat"]
    first, second = (f"figure.Panels label:nth-child({i}) input" for i in (1, 2))
    for layer, part in ((0, 0), (0, 1), (2, 0), (2, 1)):
        driven.press(first, "home", *["right"] * layer)
        driven.press(second, "home", *["right"] * part)
        assert driven.run(seen) == [f"one, step 100: {2 * layer + part} nat"]
    assert driven.run("return [...document.querySelectorAll('.Panels output')].map(o => o.textContent)") == ["7", "b"]
    driven.press("figure.Panels .turn:not([hidden]) > svg", "right")
    assert tip(driven) == "one, step 0: 0 nat"
    assert driven.log("browser") == []


def test_a_turned_slider_gives_the_colours_that_the_page_would_have_drawn(driven: Browser, study: Path) -> None:
    colours = "return [...document.querySelectorAll('figure.TokenMap .cell')].map(c => getComputedStyle(c).fill)"
    opened(driven, study, "dials")
    drawn = driven.run(colours)
    first = "figure.TokenMap label:nth-child(1) input"
    driven.press(first, "right")
    assert driven.run(colours) != drawn
    driven.press(first, "left")
    assert driven.run(colours) == drawn


def test_a_link_to_the_data_leads_to_its_step(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    found = driven.run(
        "const a = document.querySelector('figure.TokenMap details a'); a.closest('details').open = true; a.click();"
        "return document.querySelector('tr:target').textContent"
    )
    assert "trained, scores" in found
    assert "parts/probe.scores/" in found
