"""Elements of HTML and SVG. What was not made here is text, and text is escaped: no markup gets in by accident."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable


class Markup(str):
    """Text that was made by ``element``: it is not escaped again."""

    __slots__ = ()


# Controls would be lost or would reorder what is around them; lone surrogates cannot be written as UTF-8.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_SHOWN = {"\n": "\n", "\t": "\t"}


def visible(text: str) -> str:
    """The text with its control characters made visible; tabs and new lines stay."""

    def shown(found: re.Match[str]) -> str:
        character = found[0]
        if character in _SHOWN:
            return character
        code = ord(character)
        return (
            chr(0x2400 + code)
            if code < 0x20
            else f"\N{LEFT-POINTING ANGLE BRACKET}U+{code:04X}\N{RIGHT-POINTING ANGLE BRACKET}"
        )

    return _CONTROL.sub(shown, text)


def escaped(text: str) -> Markup:
    """Text as it may stand in an element or an attribute."""
    return text if isinstance(text, Markup) else Markup(html.escape(visible(text), quote=True))


def joined(parts: Iterable[str]) -> Markup:
    """Several pieces behind each other, escaped where they are text."""
    return Markup("".join(escaped(p) for p in parts))


def element(name: str, /, *children: str | None, **attributes: str | float | None) -> Markup:
    """``<name attribute="...">children</name>``: ``stroke_width`` becomes stroke-width, ``class_`` class; None goes."""
    written = []
    for key, value in attributes.items():
        if value is not None:
            text = f"{value:.6g}" if isinstance(value, float) else str(value)
            written.append(f' {key.rstrip("_").replace("_", "-")}="{escaped(text)}"')
    inside = joined(c for c in children if c is not None)
    if not inside and name in _ALONE:
        return Markup(f"<{name}{''.join(written)}/>")
    return Markup(f"<{name}{''.join(written)}>{inside}</{name}>")


_ALONE = frozenset({"rect", "line", "path", "circle", "polyline", "stop", "meta", "input", "img"})
