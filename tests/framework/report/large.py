"""A made study of the shape of a real model: layers by heads, two nulls on the ladder, attention maps of every head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from gausslens.contract.digests_and_seeds import digest
from gausslens.figures import (
    Dial,
    Figure,
    Heatmap,
    Line,
    Lines,
    Scatter,
    Source,
    Spectrum,
    Table,
    Text,
    Texts,
    TokenMap,
)
from gausslens.runs.compare import against

from .conftest import CREATED, Written

TRAINED, BEFORE, SPECTRUM = 2, 0, 1
DRAWS = 8
WORDS = ["the", "cat", "sat", "on", "a", "longish", "mat", "and", "\n", "then", "internationalization", "slept", " ."]


def numbers(kind: int, seed: int, layers: int, heads: int) -> xr.Dataset:
    """Scores that only the model has, sizes that the spectrum gives too, noise that all have, a mean by layer."""
    rng = np.random.default_rng(100 * kind + seed)
    shape = (layers, heads)
    score, size, noise = (rng.normal(size=shape) for _ in range(3))
    score = 0.1 * score
    size = 0.001 * size
    if kind == TRAINED:
        score[1, 2] += 40.0
        score[::2, 0] += 4.0
    if kind in (TRAINED, SPECTRUM):
        size += 5.0 + np.arange(heads)
    by_head = ("layer", "head")
    told = {
        "score": (by_head, score, {"long_name": "a score of how far this head is from even", "units": "nat"}),
        "size": (by_head, size, {"long_name": "a size", "units": "1"}),
        "noise": (by_head, noise, {"long_name": "what all have", "units": "1"}),
        "mass": (("layer",), rng.normal(size=layers), {"long_name": "a mass", "units": "1"}),
    }
    return xr.Dataset(told, coords={"layer": np.arange(layers), "head": np.arange(heads)})


def large_study(written: Written, layers: int = 30, heads: int = 9, **names: Any) -> Path:
    """A run with two nulls, which its manifest places on the ladder."""
    label = names.get("label", "scores")
    trained = numbers(TRAINED, 0, layers, heads)
    written.result("trained", label, trained)
    for kind, null in ((BEFORE, "before"), (SPECTRUM, "spectrum")):
        draws = [numbers(kind, draw, layers, heads) for draw in range(DRAWS)]
        for draw, dataset in enumerate(draws):
            written.result(null, label, dataset, draw)
        written.result("trained", f"{label}.against.{null}", against(trained, draws), null=null)
    return planned(written)


def key_value_study(written: Written, layers: int = 4, heads: int = 9, kv_heads: int = 3) -> Path:
    """A run in which three heads read each key/value head, with numbers of both."""
    written.model = written.model | {"kv_of_head": [head * kv_heads // heads for head in range(heads)]}
    each = [numbers(0, draw, layers, kv_heads).rename(head="kv_head", score="key") for draw in range(DRAWS + 1)]
    written.result("trained", "keys", each[0])
    for draw, dataset in enumerate(each[1:]):
        written.result("before", "keys", dataset, draw)
    written.result("trained", "keys.against.before", against(each[0], each[1:]), null="before")
    return large_study(written, layers, heads)


def of_key_heads(results: Any) -> list[Figure]:
    """Figures of key/value heads: curves of each, a slider over them, and a row for each."""
    data = results["trained", "keys"]
    layers, heads = data.sizes["layer"], data.sizes["kv_head"]
    about: dict[str, Any] = {"caption": "What is seen.", "sources": (Source("trained", "keys", "key"),)}
    ramp = np.arange(5.0)
    curves = [Line(f"layer {i}, kv_head {j}", ramp + i, faint=True) for i in range(layers) for j in range(heads)]
    values = np.arange(heads * 12.0).reshape(heads, 3, 4)
    turned = (Dial("kv_head", range(heads), 2),)
    rows = [(i, j, float(i * j)) for i in range(layers) for j in range(heads)]
    return [
        Lines(title="Curves of keys", **about, x=ramp, x_name="rank", series=curves),
        Heatmap(
            title="Turned",
            **about,
            values=values,
            rows="abc",
            columns="abcd",
            row_name="query",
            column_name="key",
            dials=turned,
        ),
        Table(title="Keys", **about, columns=("layer", "kv_head", "size"), rows=rows),
    ]


def planned(written: Written, name: str = "study") -> Path:
    """Write the manifest with the places of the nulls on the ladder."""
    resolved = {"model": {"path": "builtin:made"}, "prompts": {"source": "text"}}
    manifest = {"format": "gausslens-run", "version": 1, "run": name, "plan": digest([name, CREATED])}
    manifest |= {"created": CREATED, "resolved": resolved, "distributions": {}, "steps": written.steps}
    manifest["nulls"] = [{"name": null, "rung": null} for null in ("before", "spectrum")]
    written.store.manifest(name, manifest)
    written.store.reindex()
    return written.path


def everything(results: Any) -> list[Figure]:
    """Attention of every head, spectra, many curves, points, a table and texts, as the sections of a real run have."""
    data = results["trained", "scores"]
    layers, heads = data.sizes["layer"], data.sizes["head"]
    rng = np.random.default_rng(0)
    tokens = WORDS * 2
    about = {"caption": "What is seen, in a sentence that is long enough to be broken.", "units": "nat"}
    source = (Source("trained", "scores", "score"),)
    maps = np.tril(rng.dirichlet(np.ones(len(tokens)), (layers, heads, len(tokens))))
    maps[..., ~np.tri(len(tokens), dtype=bool)] = np.nan
    dials = (Dial("layer", range(layers), 1), Dial("head", range(heads), 2))
    ramp = np.arange(1.0, 31.0)
    curves = [Line(f"variant {i}, mean of 8 twins", ramp ** (1 + i / 9)) for i in range(6)]
    many = [Line(f"layer {i}, head {j}", rng.normal(size=30), faint=True) for i in range(3) for j in range(heads)]
    at = [(i, j) for i in range(layers) for j in range(heads)]
    return [
        TokenMap(title="Attention", **about, sources=source, values=maps, queries=tokens, keys=tokens, dials=dials),
        Lines(title="Curves", **about, sources=source, x=ramp, x_name="layer", series=(*curves, *many)),
        Spectrum(title="Spectrum", **about, sources=source, series=(Line("one", ramp),), edges=(2.0, 2.1)),
        Scatter(
            title="Points",
            **about,
            sources=source,
            x=rng.normal(size=len(at)),
            y=rng.normal(size=len(at)),
            x_name="entropy",
            y_name="distance",
            labels=[f"layer {i}, head {j}, trained" for i, j in at],
            groups=["trained", "before", "spectrum"] * (len(at) // 3),
        ),
        Table(
            title="Heads",
            **about,
            sources=source,
            columns=("variant", "layer", "head", "family", "share"),
            rows=[("trained", i, j, ("band", "rare", "diagonal")[(i + j) % 3], float(i - j) / 7) for i, j in at],
        ),
        Texts(title="Texts", **about, sources=source, texts=(Text("trained", "a text"), Text("before", "another"))),
    ]
