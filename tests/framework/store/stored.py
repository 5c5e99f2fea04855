"""What the tests of the store put into it; child processes import this too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from gausslens.store import Store

META = {
    "plugin": "probe",
    "plugin_version": "1.0",
    "version": 1,
    "object_id": "0" * 32,
    "created": "2026-01-02T03:04:05+00:00",
    "provenance": {"threads": 1, "name": "naïve"},
}
NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")


def key(name: object) -> str:
    """A key as the host makes them."""
    return hashlib.sha256(str(name).encode()).hexdigest()


def small(seed: int, layers: int = 3) -> xr.Dataset:
    """A result as most are: two small arrays over layers and heads."""
    rng = np.random.default_rng(seed)
    return xr.Dataset(
        {
            "score": (("layer", "head"), rng.normal(size=(layers, 4)), {"units": "nat", "long_name": "a score"}),
            "mass": ((), np.float32(seed), {"units": "1", "long_name": "a mass"}),
        },
        coords={"layer": ("layer", np.arange(layers)), "name": ("head", list("abcd"))},
    )


def every_type() -> xr.Dataset:
    """Every type that the store takes, with text that HDF5 cannot hold, ragged lists, scalars, NaN and infinities."""
    arrays: dict[str, Any] = {}
    for name in NUMBERS:
        kind = np.dtype(name)
        ends = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        arrays[name] = ("x", np.array([0, 1, ends.max, ends.min], dtype=kind), {"units": "1"})
    arrays["special"] = ("x", np.array([np.nan, np.inf, -np.inf, -0.0]), {"units": "nat", "long_name": "NaN and ∞"})
    arrays["single"] = ("x", np.array([np.nan, np.inf, -np.inf, 1e-45], dtype="f4"))
    arrays["flag"] = ("x", np.array([True, False, True, True]))
    arrays["eigenvalue"] = (("x", "y"), np.array([[1 + 2j, np.nan]] * 4, dtype="c16"))
    arrays["phase"] = ("y", np.array([1j, -1j], dtype="c8"))
    arrays["text"] = (("x", "y"), np.array([["", "a"], ["ü", "日本"], ["\u202e", "🦎"], ["a b", "\t"]]))
    arrays["strange"] = ("y", np.array(["a\0b", "x\ud800y"]), {"long_name": "NUL and a lone surrogate"})
    arrays["value"] = ("flat", np.arange(6, dtype="i4"))
    arrays["offset"] = ("bound", np.array([0, 2, 2, 6]), {"long_name": "ragged: where each list begins and ends"})
    arrays["one"] = ((), 3.5, {"units": "bit"})
    arrays["word"] = ((), "Ω")
    arrays["truth"] = ((), True)
    arrays["nothing"] = (("none", "x"), np.zeros((0, 4), dtype="f4"))
    arrays["sixth"] = (tuple("abcdef"), np.arange(64.0).reshape((2,) * 6))
    coords = {"x": [0.5, 1.5, 2.5, 3.5], "y": ["left", "right"], "token": ("x", ["<s>", "Ġthe", "\n", "é"]), "at": 7}
    return xr.Dataset(arrays, coords, {"title": "every type", "list": [1, None, {"a": float("inf")}]})


def step(variant: str, label: str, made: str, **more: Any) -> dict[str, Any]:
    """An entry of a manifest; ``made`` names its key."""
    whole = {"draw": None, "sweep": {}, "against": None, "ingredients": {"made": made}}
    return {"variant": variant, "label": label, "analysis": "probe.score", "key": key(made), **whole, **more}


def manifest(plan: str, steps: Iterable[Mapping[str, Any]], created: str = META["created"]) -> dict[str, Any]:
    """A manifest of these steps."""
    return {"plan": key(plan), "created": created, "resolved": {"gausslens": 1}, "distributions": {}, "steps": [*steps]}


def null_of(dataset: xr.Dataset) -> xr.Dataset:
    """A comparison as the host stores it, with numbers made up."""
    columns = {"": 0.0, "_null_mean": 1.0, "_null_sd": 2.0, "_z": 3.0, "_p": 0.1, "_p_empirical": 0.2, "_q": 0.3}
    return xr.Dataset({f"score{name}": dataset["score"] * 0 + value for name, value in columns.items()})


def fill(root: Path) -> Store:
    """A store with a run of four variants: no draws, draws, draws and swept values, and draws of unlike shapes."""
    store = Store(root).create()
    steps = [step("trained", "score", "t"), step("trained", "score.against.chance", "ta", against="chance")]
    made = {"t": small(0), "ta": null_of(small(0))}
    for draw in range(3):
        steps.append(step("chance", "score", f"c{draw}", draw=draw))
        made[f"c{draw}"] = small(10 + draw)
        steps.append(step("uneven", "score", f"u{draw}", draw=draw))
        made[f"u{draw}"] = small(20 + draw, layers=3 + draw)
        for alpha in (0.5, 2):
            steps.append(step("dose", "score", f"d{draw}-{alpha}", draw=draw, sweep={"alpha": alpha}))
            made[f"d{draw}-{alpha}"] = small(100 * draw + int(10 * alpha))
    store.manifest("first", manifest("p1", steps))
    for name, dataset in made.items():
        assert store.commit("probe.score", key(name), dataset, META)
    store.reindex()
    return store
