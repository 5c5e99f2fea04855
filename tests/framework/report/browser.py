"""A headless Chromium, driven through chromedriver in the words of the WebDriver protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM, CHROMEDRIVER = shutil.which("chromium"), shutil.which("chromedriver")
# The marks of tests that use a browser.
IN_A_BROWSER = [
    pytest.mark.full,
    pytest.mark.skipif(CHROMIUM is None or CHROMEDRIVER is None, reason="chromium and chromedriver are not installed"),
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
# A busy machine starts a browser slowly.
PATIENCE = 120.0
KEYS = {
    "right": "\ue014",
    "left": "\ue012",
    "tab": "\ue004",
    "escape": "\ue00c",
    "end": "\ue010",
    "home": "\ue011",
    "down": "\ue015",
    "up": "\ue013",
    "enter": "\ue007",
}
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,1000")


class Browser:
    """One session: pages, scripts, keys, the pointer, and what the browser logged."""

    def __init__(self, address: str, session: str) -> None:
        self.address = f"{address}/session/{session}"

    def open(self, page: Path) -> None:
        """Go to a file."""
        _ask(f"{self.address}/url", {"url": page.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script of the test returns."""
        return _ask(f"{self.address}/execute/sync", {"script": script, "args": list(arguments)})

    def later(self, script: str, *arguments: Any) -> Any:
        """What a script of the test hands to the function that it is given last."""
        return _ask(f"{self.address}/execute/async", {"script": script, "args": list(arguments)})

    def find(self, selector: str) -> str:
        """The first element of a selector."""
        found = _ask(f"{self.address}/element", {"using": "css selector", "value": selector})
        return str(found[ELEMENT])

    def point_at(self, selector: str) -> None:
        """Move the pointer onto an element, scrolled into view."""
        scroll = "document.querySelector(arguments[0]).scrollIntoView({block: 'center'});"
        frames = "requestAnimationFrame(() => requestAnimationFrame(() => arguments[1]()))"
        _ask(f"{self.address}/execute/async", {"script": scroll + frames, "args": [selector]})
        move = {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": {ELEMENT: self.find(selector)}}
        pointer = {"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"}, "actions": [move]}
        _ask(f"{self.address}/actions", {"actions": [pointer]})

    def press(self, selector: str, *keys: str) -> None:
        """Give an element the focus and press keys."""
        self.run("document.querySelector(arguments[0]).focus()", selector)
        self.type(*keys)

    def type(self, *keys: str) -> None:
        """Press keys wherever the focus is."""
        actions = [{"type": t, "value": KEYS[key]} for key in keys for t in ("keyDown", "keyUp")]
        _ask(f"{self.address}/actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def until(self, there: Callable[[], Any]) -> Any:
        """What there is, as soon as there is anything."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            found = there()
            if found:
                return found
            time.sleep(0.05)
        raise AssertionError("nothing came")

    @contextmanager
    def inside(self, selector: str) -> Iterator[None]:
        """Meanwhile scripts run in a frame, as no page could let them."""
        _ask(f"{self.address}/frame", {"id": {ELEMENT: self.find(selector)}})
        try:
            yield
        finally:
            _ask(f"{self.address}/frame", {"id": None})

    def shown_as(self, media: str = "", scheme: str = "light") -> None:
        """As on a screen or in print, light or dark."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        told = {"cmd": "Emulation.setEmulatedMedia", "params": {"media": media, "features": features}}
        _ask(f"{self.address}/goog/cdp/execute", told)

    def resized(self, width: int, height: int = 1000) -> None:
        """As on a screen of this size."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        told = {"cmd": "Emulation.setDeviceMetricsOverride", "params": size}
        _ask(f"{self.address}/goog/cdp/execute", told)

    def log(self, kind: str) -> list[dict[str, Any]]:
        """Entries of the log since it was last read: "browser" is the console, "performance" the network."""
        found: list[dict[str, Any]] = _ask(f"{self.address}/se/log", {"type": kind})
        return found

    def requests(self) -> list[str]:
        """Addresses that were asked for since this was last read; not those of the browser's own first tab.

        Its first tab asks for chrome:// addresses and data: pictures, neither of which leaves the machine.
        """
        told = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        asked = [m["params"]["request"]["url"] for m in told if m["method"] == "Network.requestWillBeSent"]
        return [address for address in asked if not address.startswith(("chrome://", "chrome-untrusted://", "data:"))]


@contextmanager
def browser(chromedriver: str, chromium: str, scratch: Path) -> Iterator[Browser]:
    """A browser that is gone afterwards, with a profile of its own."""
    driver = subprocess.Popen(
        [chromedriver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=scratch
    )
    try:
        address = f"http://127.0.0.1:{_port(driver)}"
        options = {"args": [*ARGUMENTS, f"--user-data-dir={scratch / 'profile'}"], "binary": chromium}
        logs = {"browser": "ALL", "performance": "ALL"}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": logs}
        session = _ask(f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        try:
            yield Browser(address, session)
        finally:
            _ask(f"{address}/session/{session}", None, "DELETE")
    finally:
        driver.terminate()
        driver.wait(30)
        if driver.stdout is not None:
            driver.stdout.close()


def _port(driver: subprocess.Popen[str]) -> int:
    assert driver.stdout is not None
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        line = driver.stdout.readline()
        if "started successfully on port" in line:
            return int(line.rstrip().rstrip(".").rsplit(" ", 1)[1])
        if not line:
            break
    raise RuntimeError("chromedriver did not start")


def _ask(address: str, body: dict[str, Any] | None, method: str = "POST") -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=PATIENCE) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from None
