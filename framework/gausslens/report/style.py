"""The look of the page, its one script, and the policy that lets nothing else run or load."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from .colours import SERIES_DARK, SERIES_LIGHT
from .markup import Markup


@cache
def style() -> Markup:
    """The style sheet: page.css, and the colours of the series."""
    rules = "".join(f".s{i}{{--c:var(--s{i})}}\n" for i in range(len(SERIES_LIGHT)))
    dark = f"@media (prefers-color-scheme:dark){{:root{{{_series(SERIES_DARK)}}}}}\n"
    return Markup(f":root{{{_series(SERIES_LIGHT)}}}\n{dark}{_read('page.css')}{rules}")


@cache
def script() -> Markup:
    """The only script of the page."""
    return Markup(_read("page.js"))


def policy() -> str:
    """Content-Security-Policy: nothing is loaded, and only this script runs, by its digest."""
    digest = base64.b64encode(hashlib.sha256(script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _series(colours: tuple[str, ...]) -> str:
    return "".join(f"--s{i}:{c};" for i, c in enumerate(colours))


def _read(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
