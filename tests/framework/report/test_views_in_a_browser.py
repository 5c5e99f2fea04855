"""Views of a plugin's own in a browser: they draw what they are given, and can do nothing else."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gausslens.report import write
from gausslens.report.colours import SERIES_DARK, SERIES_LIGHT, stops

from . import views
from .browser import IN_A_BROWSER, Browser
from .conftest import host_with
from .sections import HOSTILE

pytestmark = IN_A_BROWSER
HERE = views.__name__
STILL = "return [...document.querySelectorAll('.instead')].map(e => e.offsetHeight > 60)"
FRAMES = "return [...document.querySelectorAll('.view')].map(v => v.querySelectorAll('iframe').length)"
SAID = "return [...document.querySelectorAll('.view')].map(v => v.querySelector('.failed')?.textContent ?? null)"
INSTEAD = "The view failed, and this stands in for it: "


def opened(driven: Browser, store: Path, section: str) -> Path:
    page = write(store, host_with(f"{HERE}:{section}"))
    driven.requests()
    driven.log("browser")
    driven.shown_as()
    driven.open(page)
    return page


def seen(driven: Browser) -> None:
    """Go to each view, as a reader does."""
    for place in range(driven.run("return document.querySelectorAll('.view').length")):
        driven.run("document.querySelectorAll('.view')[arguments[0]].scrollIntoView()", place)
        driven.until(lambda at=place: driven.run(FRAMES)[at] or driven.run(SAID)[at])


def text_in(driven: Browser, title: str) -> str:
    selector = f"iframe[title={json.dumps(title)}]"
    driven.until(lambda: driven.run("return document.querySelectorAll(arguments[0]).length", selector))
    with driven.inside(selector):
        return str(driven.until(lambda: driven.run("return document.getElementById('view').innerText.toWellFormed()")))


def test_a_view_draws_what_it_is_given_with_a_silent_console_and_no_request(driven: Browser, study: Path) -> None:
    page = opened(driven, study, "far_view")
    assert driven.run(FRAMES) == [0]
    seen(driven)
    text_in(driven, "far")
    assert driven.log("browser") == []
    assert driven.requests() == [page.as_uri()]
    assert driven.run("return document.documentElement.scrollWidth <= innerWidth")
    box = "const f = document.querySelector('iframe'); return [f.offsetHeight, f.offsetWidth > 300]"
    assert driven.run(box) == [360, True]


def test_it_has_every_type_of_data_and_those_that_fail_are_replaced(driven: Browser, study: Path) -> None:
    opened(driven, study, "views")
    seen(driven)
    lines = text_in(driven, "given").split("\n\n")
    assert lines[0] == f"text: {json.dumps(HOSTILE, ensure_ascii=False)}".replace("\x00", "\\u0000").replace(
        "\x1b", "\\u001b"
    ).replace("\ud800", "\\ud800")
    assert lines[1:3] == ['table: [1,2.5,null,null,{"a":true}]', '__proto__: "kept"']
    values = ",".join(map(str, range(3)))
    assert lines[3].startswith("scores: Float64Array 0.12573")
    assert lines[3].endswith('; layer,head; {"layer":[0,1,2],"head":[0,1,2,3]}; 3,4')
    assert lines[4] == f"mass: Float64Array {values}; ; {{}}; 3"
    assert lines[5:7] == ["flags: Uint8Array 1,0; ; {}; 2", "half: Float32Array 0.5,2; ; {}; 2"]
    assert lines[7].startswith("words: Array a,<script>")
    said = driven.until(lambda: [words for words in [driven.run(SAID)] if sum(map(bool, words)) == 5])[0]
    assert said[0] is None
    assert said[1] == f"{INSTEAD}TypeError: <b>no</b>"
    assert said[2].startswith(f"{INSTEAD}SyntaxError: ")
    assert said[3] == f"{INSTEAD}an error that cannot be written"
    assert said[4] is None  # it was drawn; what an event of its own throws later is its own affair
    assert said[5] == f"{INSTEAD}ReferenceError: draw is not defined"
    assert said[6] == f"{INSTEAD}its module imports another, which no frame may load"
    assert driven.run(FRAMES) == [1, 0, 0, 0, 1, 0, 0]
    assert driven.run(STILL) == [False, True, True, True, False, True, True]


def test_in_print_what_stands_in_is_there_and_no_frame(driven: Browser, study: Path) -> None:
    opened(driven, study, "views")
    seen(driven)
    text_in(driven, "given")
    frames = "return [...document.querySelectorAll('iframe')].map(f => f.offsetHeight)"
    assert max(driven.run(frames)) > 0
    driven.shown_as("print")
    assert set(driven.run(frames)) == {0}
    assert all(driven.run(STILL))
    driven.shown_as()


def test_its_colours_are_those_of_the_page_and_change_with_it(driven: Browser, study: Path) -> None:
    opened(driven, study, "far_view")
    seen(driven)
    text_in(driven, "far")
    told = "return [getComputedStyle(document.body).backgroundColor, document.getElementById('view').dataset.theme]"
    card = "return getComputedStyle(document.querySelector('figure')).backgroundColor"
    for scheme, series in (("light", SERIES_LIGHT), ("dark", SERIES_DARK)):
        driven.shown_as(scheme=scheme)

        def dark(at: str = scheme) -> bool:
            return bool(json.loads(driven.run(told)[1] or "{}").get("dark") is (at == "dark"))

        with driven.inside("iframe"):
            driven.until(dark)
            behind, theme = driven.run(told)
        assert behind == driven.run(card)
        theme = json.loads(theme)
        assert theme["series"] == list(series)
        assert theme["scale"] == stops(False)
        ink = "return getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()"
        assert theme["ink"] == driven.run(ink)
    driven.shown_as()


def test_text_that_would_break_out_does_not(driven: Browser, study: Path) -> None:
    page = opened(driven, study, "hostile_view")
    seen(driven)
    frame = "figure.Custom iframe"
    with driven.inside(frame):
        assert driven.until(lambda: driven.run("return document.getElementById('view').textContent")) == "the same"
        assert driven.run("return document.querySelectorAll('script').length") == 3
        assert driven.run("return document.querySelectorAll('img, iframe, a').length") == 0
    assert driven.run("return document.title") != "owned"
    assert driven.run("return document.querySelectorAll('script').length") == 1
    assert driven.run("return document.querySelectorAll('img').length") == 0
    assert driven.log("browser") == []
    assert driven.requests() == [page.as_uri()]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is asked of a server on this machine, over TCP and over UDP."""
    asked: list[str] = []

    class Counts(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Access-Control-Allow-Origin", "*")
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Counts) as made, socket.socket(type=socket.SOCK_DGRAM) as packets:
        packets.bind(made.server_address)  # type: ignore[arg-type]
        packets.settimeout(0)
        threading.Thread(target=made.serve_forever, daemon=True).start()
        monkeypatch.setenv("ADDRESS_OF_TEST", f"http://127.0.0.1:{made.server_port}")
        yield asked
        made.shutdown()
        with pytest.raises(BlockingIOError):
            packets.recv(1)


def test_a_view_can_do_nothing_but_draw(driven: Browser, study: Path, server: list[str]) -> None:
    page = opened(driven, study, "trying")
    before = driven.run("return document.title")
    seen(driven)
    went = json.loads(text_in(driven, "tries"))
    assert len(went) == 30
    assert {name for name, met in went.items() if met == "did"} == set()
    for name in ("parent's document", "parent's address", "page goes away", "local storage", "connection of a child"):
        assert went[name].startswith("SecurityError"), name
    assert went["connection"] == "TypeError: global.RTCPeerConnection is not a constructor"
    left = driven.until(lambda: [words for words in [driven.run(SAID)] if words[1] and words[2]])[0]
    assert left == [None, f"{INSTEAD}it went to another page", f"{INSTEAD}it went to another page"]
    assert server == []
    assert driven.run("return [location.href, document.title]") == [page.as_uri(), before]


def test_a_message_that_is_not_of_its_frame_is_not_heard(driven: Browser, study: Path) -> None:
    opened(driven, study, "far_view")
    seen(driven)
    text_in(driven, "far")
    driven.run("postMessage({ failed: 'forged' }, '*'); postMessage(null, '*'); postMessage('text', '*')")
    with driven.inside("iframe"):
        driven.run("parent.postMessage({ failed: { toString: null } }, '*'); parent.postMessage(7, '*')")
    driven.run("return new Promise((done) => setTimeout(done, 300))")
    assert driven.run(SAID) == [None]
    assert driven.log("browser") == []
    with driven.inside("iframe"):
        driven.run("parent.postMessage({ failed: '<b>its own</b>' }, '*')")
    assert driven.until(lambda: driven.run(SAID)[0]) == f"{INSTEAD}<b>its own</b>"


@pytest.mark.parametrize(("section", "title"), [("far_view", "far"), ("quiet_view", "quiet")])
def test_a_view_is_reached_by_tab_and_has_a_name(driven: Browser, study: Path, section: str, title: str) -> None:
    opened(driven, study, section)
    seen(driven)
    text_in(driven, title)
    driven.run("const all = document.querySelectorAll('figure svg[tabindex]'); all[all.length - 1].focus()")
    where = "const e = document.activeElement; return e.tagName + ' ' + (e.title || e.textContent)"
    driven.type("tab")
    while driven.run(where) == "SUMMARY data":
        driven.type("tab")
    assert driven.run(where) == f"IFRAME {title}"
    with driven.inside("iframe"):
        assert driven.run(where).startswith("MAIN ")
    driven.type("tab")
    if section == "far_view":
        with driven.inside("iframe"):
            assert driven.run(where) == "BUTTON press"
        driven.type("tab")
    assert driven.run(where) == "SUMMARY data"
