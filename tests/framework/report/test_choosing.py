"""One choice of layer, head and null turns the whole page; tables are sorted and sifted, by pointer and by keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gausslens.report import write

from . import large
from .browser import IN_A_BROWSER, Browser
from .conftest import Written, host_with
from .large import key_value_study, large_study

pytestmark = IN_A_BROWSER
SCORE = "#heads-trained-scores-score"
RINGS = (
    "return [...document.querySelectorAll(arguments[0] + ' svg .ring')].map(r => "
    "['x', 'y', 'width', 'height'].map(name => Number(r.getAttribute(name))))"
)
SHOWN = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].filter(r => !r.hidden).map(r => r.innerText)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = large_study(Written(tmp_path_factory.mktemp("chosen") / "store"), layers=6, heads=9)
    return write(store, host_with(f"{large.__name__}:everything"))


@pytest.fixture
def opened(driven: Browser, page: Path) -> Browser:
    driven.log("browser")
    driven.open(page)
    ready = (
        "document.querySelector('.tokens').scrollIntoView(); return document.querySelector('.tokens.ready') !== null"
    )
    driven.until(lambda: driven.run(ready))
    return driven


def choose(driven: Browser, **wanted: str) -> None:
    for name, label in wanted.items():
        driven.run(
            "const s = document.querySelector(`[data-choose=${arguments[0]}]`); s.value = arguments[1];"
            "s.dispatchEvent(new Event('change'))",
            name,
            label,
        )


def state(driven: Browser) -> Any:
    """What the choice, the sliders, the small maps and a table say of layer and head."""
    return driven.run(
        "const list = name => document.querySelector(`[data-choose=${name}]`).value;"
        "const outputs = [...document.querySelectorAll('.TokenMap .dials output')].map(o => o.textContent);"
        "return [list('layer'), list('head'), outputs,"
        "[...document.querySelectorAll('.thumbs [aria-pressed=true]')].map(b => b.textContent)]"
    )


def test_a_choice_turns_sliders_maps_curves_points_and_tables(opened: Browser) -> None:
    assert state(opened) == ["", "", ["1", "2"], ["head 2"]]
    choose(opened, layer="4", head="7")
    assert state(opened) == ["4", "7", ["4", "7"], ["head 7"]]
    # A ring about the head in each map of layers by heads: the value, z beside each null, and what explains it.
    rings = opened.run(RINGS, SCORE)
    cells = opened.run(
        "return [...document.querySelectorAll(arguments[0] + ' svg[data-rows]')].map(s => { const c = "
        "s.querySelectorAll('.cell')[4 * 9 + 7]; return ['x', 'y', 'width', 'height'].map(n => +c.getAttribute(n)) })",
        SCORE,
    )
    assert len(rings) == 4
    np.testing.assert_allclose(rings, cells)
    titles = "return [...document.querySelectorAll('.chosen > title')].map(t => t.textContent)"
    # Faint curves are of the first three layers; of points one is that head.
    assert [t.split(":")[0] for t in opened.run(titles)] == ["layer 4, head 7, trained"]
    choose(opened, layer="2")
    assert [t.split(":")[0] for t in opened.run(titles)] == ["layer 2, head 7", "layer 2, head 7, trained"]
    (row,) = opened.run(SHOWN, "#figure-probe.section-4".replace(".", "\\."))
    assert row.split("\t")[:3] == ["trained", "2", "7"]
    assert opened.log("browser") == []


def test_a_slider_and_a_cell_choose_too_and_clear_undoes_it(opened: Browser) -> None:
    opened.press(".TokenMap label:nth-child(2) input", "home", *["right"] * 5)
    assert state(opened)[1] == "5"
    opened.run(
        "document.querySelectorAll(arguments[0] + ' svg[data-rows]')[0].querySelectorAll('.cell')[3 * 9 + 8]"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        SCORE,
    )
    assert state(opened) == ["3", "8", ["3", "8"], ["head 8"]]
    # By keys: the first cell of a map, and Enter.
    opened.press(f"{SCORE} svg[data-rows]", "home", "enter")
    assert state(opened)[:2] == ["0", "0"]
    opened.run("document.querySelector('#choose button').click()")
    assert state(opened)[:2] == ["", ""]
    assert opened.run(RINGS, SCORE) == []


def test_z_stands_beside_the_null_that_is_chosen_or_led_to(opened: Browser) -> None:
    shown = (
        "return [...document.querySelectorAll(arguments[0] + ' figure')].filter(f => f.offsetHeight)"
        ".map(f => f.querySelector('h3').textContent)"
    )
    before, spectrum = (f"z against {words}" for words in NULLS)
    assert opened.run(shown, SCORE) == ["score, trained (scores)", before, "What explains score"]
    choose(opened, null="spectrum")
    assert opened.run(shown, SCORE) == ["score, trained (scores)", spectrum, "What explains score"]
    # A cell of the ladder leads to its null.
    opened.run("document.querySelector('.ladder a[href$=score-before]').click()")
    assert opened.run(shown, SCORE)[1] == before
    assert opened.run("return document.querySelector('[data-choose=null]').value") == "before"
    assert opened.until(
        lambda: opened.run("return document.querySelector(':target').getBoundingClientRect().top < 300")
    )


NULLS = ("the model before training (before)", "twins with its singular values (spectrum)")


def column(driven: Browser, table: str, place: int) -> list[str]:
    script = (
        "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(r => r.cells[arguments[1]].innerText)"
    )
    return [str(text) for text in driven.run(script, table, place)]


def test_a_columns_name_sorts_its_rows_and_again_the_other_way(opened: Browser) -> None:
    table = "#figure-probe\\.section-4"
    button = f"{table} th:nth-child({{}}) button"
    opened.press(button.format(5), "enter")
    shares = [float(text.replace("\N{MINUS SIGN}", "-")) for text in column(opened, table, 4)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(5 / 7, abs=1e-4)
    opened.press(button.format(5), "enter")
    assert column(opened, table, 4)[0].startswith("\N{MINUS SIGN}1.14")
    opened.press(button.format(4), "enter")
    assert column(opened, table, 3)[0] == "band"
    said = "return [...document.querySelectorAll(arguments[0] + ' th')].map(h => h.ariaSort)"
    assert opened.run(said, table) == [None, None, None, "ascending", None]


def test_rows_are_kept_by_words_and_by_lists_and_counted(opened: Browser) -> None:
    table = "#figure-probe\\.section-4"
    assert len(opened.run(SHOWN, table)) == 54
    opened.run(
        "const i = document.querySelector(arguments[0] + ' input'); i.value = 'RARE';"
        "i.dispatchEvent(new Event('input'))",
        table,
    )
    assert all("rare" in row for row in opened.run(SHOWN, table))
    count = "return document.querySelector(arguments[0] + ' .sift output').textContent"
    assert opened.run(count, table) == "18 of 54 rows"
    choose(opened, layer="1")
    assert opened.run(count, table) == "3 of 54 rows"


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = key_value_study(Written(tmp_path_factory.mktemp("keyed") / "store"))
    return write(store, host_with(f"{large.__name__}:of_key_heads"))


def test_figures_of_key_value_heads_follow_the_head_that_reads_them(driven: Browser, keyed: Path) -> None:
    driven.log("browser")
    driven.open(keyed)
    cells = (
        "return [...document.querySelectorAll(arguments[0] + ' svg[data-rows]')].map(s => { const c = "
        "s.querySelectorAll('.cell')[arguments[1]];"
        "return ['x', 'y', 'width', 'height'].map(n => Number(c.getAttribute(n))) })"
    )
    choose(driven, layer="1", head="5")
    for place, cell in (("#heads-trained-keys-key", 1 * 3 + 1), (SCORE, 1 * 9 + 5)):
        rings = driven.run(RINGS, place)
        assert rings
        np.testing.assert_allclose(rings, driven.run(cells, place, cell))
    turned = "return document.querySelector('.dials input[aria-label=kv_head]').nextElementSibling.textContent"
    assert driven.run(turned) == "1"
    titles = "return [...document.querySelectorAll('.chosen > title')].map(t => t.textContent)"
    assert driven.run(titles) == ["layer 1, kv_head 1"]
    (row,) = driven.run(SHOWN, "#figure-probe\\.section-2")
    assert row.split("\t")[:2] == ["1", "1"]
    told = "return document.querySelector('[data-choose=head]').selectedOptions[0].text"
    assert driven.run(told) == "5 (key/value head 1)"
    # A key/value head that is chosen is the choice of a head that reads it: of the first, unless one is chosen.
    head = "return document.querySelector('[data-choose=head]').value"
    driven.press(".dials input[aria-label=kv_head]", "right")
    assert driven.run(head) == "6"
    driven.run(
        "document.querySelector(arguments[0] + ' svg[data-rows]').querySelectorAll('.cell')[3 * 3 + 2]"
        ".dispatchEvent(new MouseEvent('click', {bubbles: true}))",
        "#heads-trained-keys-key",
    )
    assert driven.run(head) == "6"
    assert driven.run("return document.querySelector('[data-choose=layer]').value") == "3"
    assert driven.log("browser") == []
