"""Attention beside its tokens: every token at both sides, the pixels as one small picture, all heads to choose from.

The first map stands in the page as a picture. All maps stand beside it as numbers of two bytes, compressed; the script
draws the one that the sliders reach, and all heads of its layer small.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import zlib
from typing import TYPE_CHECKING

import numpy as np

from ..colours import scale_of, stops
from ..markup import Markup, element, joined
from ..numbers import number
from .maps import slider

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ...figures import ColourMap
    from ..colours import Scale

# Steps of a stored value, from 1; 0 is none.
STEPS = 4095
# Of the palette of the picture; one more is what is missing, through which the grey is seen.
SHADES = 255
# On paper a map is at most about so many pixels wide, and a label that can be read needs so many of them.
PAPER, LABEL = 590, 9


def token_sheet(drawing: ColourMap, title: str) -> tuple[Markup, str]:
    """The map with its sliders and tokens, and what was said of cells beyond the ends of the colours."""
    over = scale_of(drawing)
    dials = element("div", *map(slider, drawing.dials), class_="dials", hidden="hidden") if drawing.dials else None
    shape = drawing.values.shape
    every = _every(shape[-1])
    keys, queries = (
        element("div", *_labels(names, every), class_=class_)
        for names, class_ in ((drawing.columns, "keys"), (drawing.rows, "queries"))
    )
    size = f"--across:{shape[-1]};--down:{shape[-2]};--every:{every}"
    corner = f"{drawing.row_name} \N{DOWNWARDS ARROW} {drawing.column_name} \N{RIGHTWARDS ARROW}"
    picture = element("img", alt="", src=f"data:image/png;base64,{_png(drawing.first, over)}")
    sheet = element(
        "div",
        element("div", corner, class_="corner"),
        keys,
        queries,
        element("div", picture, class_="pixels"),
        class_="sheet few" if every > 1 else "sheet",
        tabindex=0,
        role="img",
        aria_label=f"{title}: arrow keys go from cell to cell",
        style=size,
    )
    told = {
        "data_maps": _stored(drawing.values, over),
        "data_shape": json.dumps(shape),
        "data_range": json.dumps([over.low, over.high, over.power]),
        "data_colours": " ".join(stops(over.diverging)),
        "data_units": drawing.units,
        "data_missing": drawing.missing,
    }
    heads = element("div", class_="thumbs", hidden="hidden") if drawing.dials else None
    said = f"Printed, the first of every {every} tokens is named at each side."
    note = element("p", said, class_="printed") if every > 1 else None
    return element("div", dials, heads, _key(drawing, over), sheet, note, class_="tokens", **told), over.note


def _every(across: int) -> int:
    """Of how many tokens of a row one is named on paper, where the cells of many are smaller than letters."""
    return max(1, math.ceil(across * LABEL / PAPER))


def _labels(names: Sequence[str], every: int) -> list[Markup]:
    """The tokens of a side; those that are named on paper are marked, where not all of them can be read there."""
    return [
        element("span", name, class_="nth" if every > 1 and i % every == 0 else None) for i, name in enumerate(names)
    ]


def _key(drawing: ColourMap, over: Scale) -> Markup:
    """Which colour is which value, and why a cell is grey."""
    levels = np.linspace(0.0, 1.0, 24) ** (1 / over.power)
    colours = [over.colour(over.low + (over.high - over.low) * float(level)) for level in levels]
    bar = [element("rect", x=4 * i, y=0, width=4.5, height=12, fill=colour) for i, colour in enumerate(colours)]
    picture = element("svg", joined(bar), viewBox="0 0 96 12", class_="bar", aria_hidden="true")
    ends = [number(float(f"{value:.3g}")) for value in (over.low, over.high)]
    told = [element("span", ends[0], picture, f"{ends[1]} {drawing.units}".rstrip())]
    if np.isnan(drawing.values).any():
        grey = element(
            "svg", element("rect", class_="none", width=26, height=12), viewBox="0 0 26 12", aria_hidden="true"
        )
        told.append(element("span", grey, drawing.missing or "no value"))
    return element("div", *told, class_="key")


def _shares(values: NDArray[np.float64], over: Scale) -> NDArray[np.float64]:
    """Where values lie between the ends of the colours, 0 to 1, as the colours have it; NaN stays."""
    if not over.high > over.low:
        return np.where(np.isnan(values), np.nan, 0.5)
    inside = np.clip(values, over.low, over.high)
    shares: NDArray[np.float64] = ((inside - over.low) / (over.high - over.low)) ** over.power
    return shares


def _stored(values: NDArray[np.float64], over: Scale) -> str:
    """All maps as text: shares in steps of two bytes, low bytes behind high ones, compressed."""
    shares = _shares(values, over)
    steps = np.where(np.isnan(shares), 0, 1 + np.round(np.nan_to_num(shares) * (STEPS - 1))).astype("<u2")
    planes = np.ascontiguousarray(steps).view(np.uint8).reshape(-1, 2)[:, ::-1].T
    return base64.b64encode(zlib.compress(np.ascontiguousarray(planes).tobytes(), 9)).decode("ascii")


def _png(values: NDArray[np.float64], over: Scale) -> str:
    """A map as a picture of one pixel a cell (PNG with a palette, RFC 2083)."""
    shares = _shares(values, over)
    pixels = np.where(np.isnan(shares), SHADES, np.round(np.nan_to_num(shares) * (SHADES - 1))).astype(np.uint8)
    levels = (np.arange(SHADES) / (SHADES - 1)) ** (1 / over.power)
    palette = [over.colour(over.low + (over.high - over.low) * float(level)) for level in levels] + ["#000000"]
    rows = np.concatenate([np.zeros((len(pixels), 1), dtype=np.uint8), pixels], axis=1)  # a filter byte begins each
    parts = (
        (b"IHDR", struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], 8, 3, 0, 0, 0)),
        (b"PLTE", bytes.fromhex("".join(colour[1:] for colour in palette))),
        (b"tRNS", b"\xff" * SHADES + b"\x00"),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    written = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + written).decode("ascii")
