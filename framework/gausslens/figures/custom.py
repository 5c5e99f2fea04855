"""A view of a plugin's own, in JavaScript, with a figure that stands in for it."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from .drawing import View
from .figure import Figure

# Pixels of the frame, which does not grow with what is in it.
LOWEST, HIGHEST = 80, 1200
# Bytes of arrays: what goes onto a page is a few millions at most.
MOST_BYTES = 1 << 26
# JavaScript's numbers are doubles: integers beyond are rounded.
LARGEST_INTEGER = 1 << 53
DEEPEST = 50
_RESOURCE = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):((?:[\w-][\w.-]*/)*[\w-][\w.-]*\.m?js)")
_TYPED = {
    "b1": "Uint8Array",
    "f2": "Float32Array",
    "f4": "Float32Array",
    "f8": "Float64Array",
    "i1": "Int8Array",
    "i2": "Int16Array",
    "i4": "Int32Array",
    "i8": "Float64Array",
    "u1": "Uint8Array",
    "u2": "Uint16Array",
    "u4": "Uint32Array",
    "u8": "Float64Array",
}
_STORED = {"Float32Array": "<f4", "Float64Array": "<f8"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Custom(Figure):
    """A view of your own: a JavaScript module draws ``data`` in a frame that can do nothing else.

    ``module`` is ``"package:view.js"``, a file of your distribution, or the text of a module. It defines a function
    ``draw(element, data, theme)``, which may be async. ``data`` are arrays (of numpy or xarray) or plain values, by
    name. The frame is ``height`` pixels high and as wide as its column, or as the page with ``wide``.

    ``fallback`` is any other figure: it stands there in print, in notebooks, in PNG files, where there is no script,
    where the view fails, and where the page has no room for the data.
    """

    data: Mapping[str, Any]
    module: str
    fallback: Figure
    height: int = 360
    wide: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sources:
            raise self._bad("it names no source: say which arrays of the store its data are made from")
        if not isinstance(self.height, int) or not LOWEST <= self.height <= HIGHEST:
            raise self._bad(f"its height is {self.height!r}: give pixels between {LOWEST} and {HIGHEST}")
        if not isinstance(self.fallback, Figure) or isinstance(self.fallback.drawing(), View):
            raise self._bad("its fallback is no figure that print and PNG files can show: give any of the other kinds")
        self._set("_text", self._read())
        self._set("_json", self._written())

    def drawing(self) -> View:
        """The module, its data as JSON, and what stands in for it."""
        texts = vars(self)
        return View(
            module=texts["_text"],
            data=texts["_json"],
            height=self.height,
            fallback=self.fallback.drawing(),
            about=self.fallback.caption,
            wide=self.wide,
        )

    def _read(self) -> str:
        """The text of the module."""
        found = _RESOURCE.fullmatch(self.module) if isinstance(self.module, str) else None
        text = self.module if found is None else self._resource(*found.groups())
        if not isinstance(text, str) or not re.search(r"\bdraw\b", text):
            which = f"the module {self.module!r}" if found else "its module is no 'package:file.js', and as a module it"
            raise self._bad(f"{which} defines no function draw(element, data, theme)")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise self._bad("its module holds half of a surrogate pair, which UTF-8 cannot write") from None
        return text

    def _resource(self, package: str, path: str) -> str:
        try:
            return files(package).joinpath(path).read_text(encoding="utf-8")
        except ModuleNotFoundError as error:
            raise self._bad(f"its module is {self.module!r}, and there is no package {error.name}") from None
        except OSError:
            raise self._bad(
                f"the package {package} holds no {path}: where the file is there and is not installed, "
                "name it under [tool.setuptools.package-data]"
            ) from None
        except UnicodeDecodeError:
            raise self._bad(f"its module {self.module!r} is not UTF-8") from None

    def _written(self) -> str:
        """The data as JSON of ASCII letters, none of which could end an element or an attribute of a page."""
        if not isinstance(self.data, Mapping):
            raise self._bad(f"its data are a {type(self.data).__name__}: give a dict, arrays and values by name")
        plain: dict[str, Any] = {}
        arrays: dict[str, Any] = {}
        room = MOST_BYTES
        for name, value in self.data.items():
            if not isinstance(name, str):
                raise self._bad(f"its data {name!r}: names are text")
            if not hasattr(value, "__array__") or isinstance(value, np.generic):
                plain[name] = self._plain(f"data {name!r}", value)
                continue
            values = np.asarray(value)
            room -= values.nbytes
            if room < 0:
                raise self._bad(f"its data take more than {MOST_BYTES >> 20} MB: select or average what is to be seen")
            arrays[name] = self._array(f"data {name!r}", values) | self._axes(name, value)
        text = json.dumps({"plain": plain, "arrays": arrays}, allow_nan=False, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def _array(self, what: str, values: np.ndarray) -> dict[str, Any]:
        """Numbers as the bytes of a typed array, little-endian; text as a list; flat, the last dimension fastest."""
        shape = list(values.shape)
        if values.dtype.kind in "UTO":
            texts = values.ravel().tolist()
            if not all(isinstance(text, str) for text in texts):
                raise self._bad(f"{what} holds objects: give numbers or text")
            return {"values": texts, "shape": shape}
        kind = "f8" if values.dtype.kind == "f" and values.itemsize > 8 else values.dtype.str[1:]
        if kind not in _TYPED:
            raise self._bad(f"{what} is of type {values.dtype}, which JavaScript has not: give real numbers or text")
        if kind in ("i8", "u8") and values.size and (values.max() > LARGEST_INTEGER or values.min() < -LARGEST_INTEGER):
            raise self._bad(f"{what} holds integers beyond 2^53, which JavaScript rounds: give them as text")
        typed = _TYPED[kind]
        stored = np.ascontiguousarray(values, dtype=_STORED.get(typed, f"<{kind}"))
        return {"type": typed, "base64": base64.b64encode(stored.tobytes()).decode(), "shape": shape}

    def _axes(self, name: str, value: Any) -> dict[str, Any]:
        """Dimensions and their coordinates, where xarray gave them."""
        dims = [str(dim) for dim in getattr(value, "dims", ())]
        held = getattr(value, "coords", {}) if dims else {}
        coords = {dim: self._labels_of(f"{dim} of {name!r}", held[dim]) for dim in dims if dim in held}
        return {"dims": dims, "coords": coords}

    def _labels_of(self, what: str, held: Any) -> list[Any]:
        labels = np.asarray(held)
        given = labels.tolist() if labels.dtype.kind in "biufUT" else list(map(str, labels.ravel()))
        return [self._plain(what, label) for label in given]

    def _plain(self, what: str, value: Any, depth: int = 0) -> Any:
        """A value as JSON has it; NaN is missing, as in every figure."""
        value = value.item() if isinstance(value, np.generic) else value
        if depth > DEEPEST:
            raise self._bad(f"{what} is nested more than {DEEPEST} deep")
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, int):
            if abs(value) > LARGEST_INTEGER:
                raise self._bad(f"{what} holds an integer beyond 2^53, which JavaScript rounds: give it as text")
            return int(value)
        if isinstance(value, float):
            if math.isinf(value):
                raise self._bad(f"{what} is infinite, which JSON has not: give it in an array")
            return None if math.isnan(value) else float(value)
        if isinstance(value, list | tuple):
            return [self._plain(what, each, depth + 1) for each in value]
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: self._plain(what, each, depth + 1) for key, each in value.items()}
        inside = ": arrays have names of their own in data" if hasattr(value, "__array__") else ""
        raise self._bad(f"{what} holds a {type(value).__name__}, which JSON has not{inside}")
