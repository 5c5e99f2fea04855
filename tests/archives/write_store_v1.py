"""Writes the store that version 1 of the format leaves behind, for later versions to open: write_store_v1.py DIRECTORY.

An archive is written once, when a version of the format is new, and never again: a test opens each for ever.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import xarray as xr

from gausslens.store import Store
from gausslens.store.pack import pack

META = {
    "plugin": "probe",
    "plugin_version": "1.0",
    "version": 1,
    "object_id": "00000000-0000-0000-0000-000000000000",
    "created": "2026-11-18T12:00:00+00:00",
    "provenance": {"threads": 1, "name": "naïve"},
}
KEYS = {"whole": "a" * 64, "draw 0": "b" * 64, "draw 1": "c" * 64, "bulk": "d" * 64, "null": "e" * 64}


def whole() -> xr.Dataset:
    """One of every type."""
    ends = {name: np.iinfo(name) for name in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8")}
    arrays = {name: ("x", np.array([0, kind.min, kind.max], dtype=name)) for name, kind in ends.items()}
    arrays |= {name: ("x", np.array([np.nan, np.inf, -0.0], dtype=name)) for name in ("f4", "f8", "c8", "c16")}
    arrays |= {
        "flag": ("x", np.array([True, False, True])),
        "text": ("x", np.array(["", "日本", "a b"])),
        "strange": ("x", np.array(["a\0b", "\ud800", "plain"])),
        "one": ((), 3.5, {"units": "bit", "long_name": "a scalar", "valid": True}),
        "nothing": (("none", "x"), np.zeros((0, 3))),
        "value": ("flat", np.arange(5)),
        "offset": ("bound", np.array([0, 2, 2, 5])),
    }
    return xr.Dataset(arrays, {"x": [0.5, 1.5, 2.5], "token": ("x", ["<s>", "Ġthe", "\n"])}, {"title": "an archive"})


def drawn(draw: int) -> xr.Dataset:
    """A result of a draw."""
    values = np.arange(6.0).reshape(2, 3) + 10 * draw
    return xr.Dataset(
        {"score": (("layer", "head"), values, {"units": "nat", "long_name": "a score"})}, {"layer": [0, 1]}
    )


def bulk() -> np.ndarray:
    """Activations, each of which bfloat16 holds exactly."""
    return np.arange(24, dtype="f4").reshape(2, 3, 4) / 8


def comparison() -> xr.Dataset:
    """A comparison with a null, numbers made up."""
    names = ("", "_null_mean", "_null_sd", "_z", "_p", "_p_empirical", "_q")
    return xr.Dataset({f"score{n}": drawn(0)["score"] + i for i, n in enumerate(names)})


def write(root: Path) -> None:
    """Write the store, and a pack of it beside it."""
    store = Store(root).create()
    steps = [
        _step("trained", "whole", "whole"),
        _step("trained", "bulk", "bulk"),
        _step("trained", "score", "draw 0"),
        _step("trained", "score.against.chance", "null", against="chance"),
        *(_step("chance", "score", f"draw {i}", draw=i, sweep={"alpha": 0.5}) for i in range(2)),
    ]
    body = {"plan": "f" * 64, "created": META["created"], "resolved": {"gausslens": 1}, "steps": steps}
    store.manifest("archive", body)
    store.commit("probe.score", KEYS["whole"], whole(), META)
    store.commit("probe.score", KEYS["null"], comparison(), META)
    for i in range(2):
        store.commit("probe.score", KEYS[f"draw {i}"], drawn(i), META)
    writer = store.begin("probe.score", KEYS["bulk"], META)
    for dtype in ("bfloat16", "float16", "float32"):
        writer.create(dtype, ("prompt", "position", "d_model"), bulk().shape, dtype)
        writer.write(dtype, (slice(0, 1),), bulk()[:1])
    writer.commit(xr.Dataset({}, {"token": (("prompt", "position"), np.full((2, 3), "é"))}))
    store.reindex()
    pack(root, root.with_name(f"{root.name}.pack.h5"))


def _step(variant: str, label: str, made: str, **more: object) -> dict[str, object]:
    return {"variant": variant, "label": label, "analysis": "probe.score", "key": KEYS[made], **more}


if __name__ == "__main__":
    write(Path(sys.argv[1]))
