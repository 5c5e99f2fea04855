"""Whether a page can be read: no text over text, none cut off, contrast, keys; narrow, wide, light, dark, print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gausslens.report import write

from . import large
from .browser import IN_A_BROWSER, Browser
from .conftest import Written, host_with
from .large import large_study

pytestmark = IN_A_BROWSER
CHECKS = (Path(__file__).parent / "overlaps.js").read_text(encoding="utf-8")
MEDIA = [("", "light"), ("", "dark"), ("print", "light")]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 30 layers by 9 heads, with all kinds of figures."""
    store = large_study(Written(tmp_path_factory.mktemp("large") / "store"))
    return write(store, host_with(f"{large.__name__}:everything"))


@pytest.fixture
def sized(driven: Browser) -> Iterator[Browser]:
    yield driven
    driven.resized(1280)
    driven.shown_as()


def looked_at(driven: Browser, page: Path, width: int, media: str, scheme: str) -> None:
    driven.resized(width)
    driven.shown_as(media, scheme)
    driven.log("browser")
    driven.open(page)
    # What is drawn above a map moves it away again: it is looked for until it is drawn.
    next_one = "const box = document.querySelector('.tokens:not(.ready)'); box?.scrollIntoView(); return !box"
    driven.until(lambda: driven.run(next_one))
    driven.run("scrollTo(0, 0);" + CHECKS)


@pytest.mark.parametrize(("media", "scheme"), MEDIA, ids=["light", "dark", "print"])
@pytest.mark.parametrize("width", [400, 1280, 1920])
def test_all_text_can_be_read(sized: Browser, page: Path, width: int, media: str, scheme: str) -> None:
    looked_at(sized, page, width, media, scheme)
    assert sized.run("return overlaps()") == []
    assert sized.run("return outside()") == []
    assert sized.run("return faint()") == []
    assert sized.run("return document.documentElement.scrollWidth <= innerWidth")
    assert sized.log("browser") == []


def test_the_checks_find_what_cannot_be_read(sized: Browser, page: Path) -> None:
    looked_at(sized, page, 1280, "", "light")
    add: Any = sized.run(
        "const p = document.createElement('p'); p.textContent = 'one over the other';"
        "p.style = 'position:absolute;top:60px;left:40px;color:#bbb'; document.body.append(p);"
        "const text = document.querySelector('svg text.tick'); text.setAttribute('x', -90);"
        "return [overlaps(), outside(), faint()]"
    )
    over, out, faint = add
    assert any("one over the other" in pair for pair in over)
    assert len(out) == 1
    assert any(said.startswith("one over the other: ") for said in faint)


def test_every_control_is_reached_by_keys(sized: Browser, page: Path) -> None:
    looked_at(sized, page, 1280, "", "light")
    wanted = sized.run(
        "return [...document.querySelectorAll('a[href], button, input, select, summary, [tabindex]')]"
        ".filter(e => e.checkVisibility() && !e.closest('details:not([open]) > :not(summary)'))"
        ".map((e, i) => { e.dataset.wanted = i; return i; })"
    )
    reached = set()
    for _ in range(len(wanted) + 5):
        sized.type("tab")
        reached.add(sized.run("return document.activeElement.dataset?.wanted ?? null"))
    assert {str(i) for i in wanted} - reached == set()
    # Each has a name that can be read aloud.
    named = "e.ariaLabel || e.textContent.trim() || e.labels?.length"
    nameless = (
        "return [...document.querySelectorAll('button, input, select, [tabindex]')]"
        f".filter(e => e.checkVisibility() && !({named})).map(e => e.outerHTML.slice(0, 80))"
    )
    assert sized.run(nameless) == []
