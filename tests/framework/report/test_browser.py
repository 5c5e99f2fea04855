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
SHEET = "figure.TokenMap .sheet"
CELL = "figure.TokenMap .pixels"


def opened(driven: Browser, store: Path, section: str) -> Path:
    page = write(store, host_with(f"{HERE}:{section}"))
    driven.requests()
    driven.log("browser")
    driven.open(page)
    if driven.run("return document.querySelector(arguments[0]) !== null", SHEET):
        ready = "document.querySelector(arguments[0]).scrollIntoView(); return document.querySelector('.tokens.ready')"
        driven.until(lambda: driven.run(f"{ready} !== null", SHEET))
        driven.run("scrollTo(0, 0)")
    return page


def tip(driven: Browser) -> str | None:
    found = driven.run("const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent")
    return None if found is None else str(found)


def test_figures_are_drawn_with_a_silent_console_and_no_request(driven: Browser, study: Path) -> None:
    page = opened(driven, study, "every_kind")
    boxes = driven.run(
        "return [...document.querySelectorAll('figure')].map(f => ["
        "f.querySelectorAll('svg .cell, svg polyline, svg .dot, td, .texts p, .sheet span').length,"
        "f.getBoundingClientRect().width, f.getBoundingClientRect().height])"
    )
    assert len(boxes) == 11
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
    assert driven.run("return [...document.images].every(i => i.src.startsWith('data:image/png;base64,'))")
    assert driven.log("browser") == []
    assert driven.requests() == [page.as_uri()]


def test_the_pointer_shows_tokens_and_values(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    driven.point_at(CELL)  # the middle of two by two
    key, query = driven.run("return [...document.querySelectorAll('.sheet .at')].map(e => e.textContent)")
    value = 2 * ("\N{MIDDLE DOT}a", "d").index(query) + "bc".index(key)
    assert tip(driven) == f"query {query}, key {key}: {value}"
    driven.point_at("h1")
    assert tip(driven) is None


def test_arrow_keys_go_from_value_to_value(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    driven.press(SHEET, "right")
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
    for _ in range(60):
        driven.type("tab")
        reached.append(driven.run("const e = document.activeElement; return e.tagName + ' ' + (e.ariaLabel || '')"))
    sheet = "DIV turned: arrow keys go from cell to cell"
    assert {"A ", "SUMMARY ", "INPUT layer", "INPUT head", "SELECT ", "BUTTON ", sheet, "DIV steps"} <= set(reached)


def cells(driven: Browser, count: int) -> list[float]:
    """The values of a map of tokens, as the arrow keys tell them."""
    driven.press(SHEET, "home")
    told = [str(tip(driven))]
    across = 2
    for place in range(1, count):
        driven.type(
            "right" if place % across else "home", *(["down"] * (place // across) if not place % across else [])
        )
        told.append(str(tip(driven)))
    return [float(text.rsplit(": ", 1)[1]) for text in told]


def test_sliders_turn_to_each_map(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    first = "figure.TokenMap label:nth-child(1) input"
    second = "figure.TokenMap label:nth-child(2) input"
    outputs = "return [...document.querySelectorAll('.TokenMap output')].map(o => o.textContent)"
    assert driven.run(outputs) == ["5", "0"]
    for layer, head in ((5, 0), (5, 1), (6, 1), (6, 2)):
        if head:
            driven.press(second, "home", *["right"] * head)
        driven.press(first, "home", *["right"] * (layer - 5))
        expected = sections.DIALS[layer - 5, head].ravel()
        # Values have a square root of 4,095 steps, and are told with three digits.
        assert cells(driven, 4) == pytest.approx(expected, abs=sections.DIALS.max() / 2000, rel=5e-3)
    assert driven.run(outputs) == ["6", "2"]
    assert driven.log("browser") == []


def test_all_heads_of_a_layer_stand_beside_each_other_and_a_click_opens_one(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    heads = "return [...document.querySelectorAll('.thumbs button')].map(b => b.textContent + ' ' + b.ariaPressed)"
    assert driven.run(heads) == ["head 0 true", "head 1 false", "head 2 false"]
    pictures = driven.run("return [...document.querySelectorAll('.thumbs img')].map(i => i.src)")
    assert len(set(pictures)) == 3
    driven.run("document.querySelectorAll('.thumbs button')[2].click()")
    assert driven.run(heads) == ["head 0 false", "head 1 false", "head 2 true"]
    assert driven.run("return document.querySelector('.pixels img').src") == pictures[2]
    assert cells(driven, 2) == pytest.approx(sections.DIALS[0, 2].ravel()[:2], rel=5e-3)
    # The whole page follows: the choice above it, and maps of layers by heads.
    assert driven.run("return document.querySelector('[data-choose=head]').value") == "2"


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
    """What Python drew into the page is what the script draws of the stored numbers, but for a step of the palette."""
    page = write(study, host_with(f"{HERE}:dials"))
    drawn = page.read_text(encoding="utf-8").split('<div class="pixels"><img alt="" src="')[1].split('"')[0]
    opened(driven, study, "dials")
    pixels = (
        "const image = new Image(); image.src = arguments[0]; const done = arguments[1]; image.decode().then(() => {"
        "const c = document.createElement('canvas'); c.width = c.height = 2; const d = c.getContext('2d');"
        "d.drawImage(image, 0, 0); done([...d.getImageData(0, 0, 2, 2).data]); })"
    )
    now = driven.run("return document.querySelector('.pixels img').src")
    before, after = (driven.later(pixels, picture) for picture in (drawn, now))
    assert before == pytest.approx(after, abs=3)
    driven.press("figure.TokenMap label:nth-child(1) input", "right")
    assert driven.later(pixels, driven.run("return document.querySelector('.pixels img').src")) != after


def test_a_link_to_the_data_leads_to_its_step(driven: Browser, study: Path) -> None:
    opened(driven, study, "dials")
    found = driven.run(
        "const a = document.querySelector('figure.TokenMap details a'); a.closest('details').open = true; a.click();"
        "return document.querySelector('tr:target').textContent"
    )
    assert "trained, scores" in found
    assert "parts/probe.scores/" in found
