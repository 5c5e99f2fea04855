"""The part of the page on autoencoders: numbers beside their nulls, densities, training curves, top tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gausslens import Results
from gausslens.figures import Figure, Line, Lines, Source, Table

if TYPE_CHECKING:
    import xarray as xr

NUMBERS = {
    "sae.features": {
        "variance_explained": "variance explained",
        "l0": "features at once",
        "dead": "dead",
        "dense": "dense",
        "one_token": "of one token",
    },
    "sae.loss": {
        "loss": "loss",
        "delta": "reconstructed: more loss",
        "delta_removed": "removed: more loss",
        "recovered": "loss recovered",
        "kl_recovered": "KL recovered",
    },
}
TITLES = {"sae.features": "What autoencoders explain", "sae.loss": "What autoencoders cost the model"}
SPREAD = "± is the standard deviation over draws, of a single model the error over prompts."
CAPTIONS = {
    "sae.features": "Dead features fire at no token, dense ones at many; of one token is the largest share of one "
    f"token among a feature's top tokens. {SPREAD}",
    "sae.loss": "Loss in nats a token. Loss recovered is 1 where the reconstruction costs nothing and 0 where it costs "
    "as much as removing the site; none is given where removing costs less than two of its errors. KL is the "
    f"divergence from the model's clean predictions. {SPREAD}",
}
SHOWN = 12  # features in a table of top tokens
POINTS = 200  # of a training curve
LOWEST = -5.0  # log10 of a density


@dataclass(frozen=True)
class Found:
    """A finished step at one of its swept values: its data with a dimension ``draw`` in front."""

    name: str
    variant: str
    label: str
    data: xr.Dataset
    drawn: bool

    def draws(self, array: str) -> np.ndarray:
        """[draw, layer, ...] of one array."""
        return np.asarray(self.data[array].transpose("draw", "layer", ...).values)

    def source(self, array: str) -> Source:
        """Where an array is."""
        return Source(self.variant, self.label, array)


def section(results: Results) -> list[Figure]:
    """All figures of what the run holds of this plugin's analyses."""
    figures: list[Figure] = []
    for analysis in NUMBERS:
        figures += numbers(analysis, list(found(results, analysis)))
    features = list(found(results, "sae.features"))
    figures += densities(features)
    figures += curves(list(found(results, "sae.train")))
    for one in features:
        figures += top_tokens(one)
    return figures


def found(results: Results, analysis: str) -> Iterator[Found]:
    """All results of an analysis, one for each label, variant and swept value."""
    for label, several in results.by_label(analysis).items():
        for result in several:
            for name, data in result.points():
                drawn = "draw" in data.dims
                each = data if drawn else data.expand_dims("draw")
                yield Found(f"{label}, {name}", result.variant, label, each, drawn)


def numbers(analysis: str, several: Sequence[Found]) -> list[Figure]:
    """A row for each label, variant and layer."""
    shown = NUMBERS[analysis]
    rows = [
        (one.label, one.name.removeprefix(f"{one.label}, "), int(layer), *(cell(one, array, n) for array in shown))
        for one in several
        for n, layer in enumerate(one.data["layer"].values)
    ]
    if not rows:
        return []
    return [
        Table(
            title=TITLES[analysis],
            caption=CAPTIONS[analysis],
            sources=tuple(one.source(next(iter(shown))) for one in several),
            columns=("step", "variant", "layer", *shown.values()),
            rows=rows,
        )
    ]


def cell(one: Found, array: str, n: int) -> str | None:
    """A number with its spread: of draws their standard deviation, else its error over prompts."""
    values = one.draws(array)[:, n]
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    if one.drawn:
        spread = values.std(ddof=1) if len(values) > 1 else np.nan
    else:
        spread = one.draws(f"{array}_se")[0, n] if f"{array}_se" in one.data else np.nan
    said = f"{values.mean():.3f}"
    return f"{said} ± {spread:.3f}" if np.isfinite(spread) else said


def densities(several: Sequence[Found]) -> list[Figure]:
    """For each layer, how many features have which density: all steps and variants over one another."""
    figures: list[Figure] = []
    edges = np.linspace(LOWEST, 0, 26)
    for layer in sorted({int(n) for one in several for n in one.data["layer"].values}):
        here = [one for one in several if layer in one.data["layer"].values]
        series = []
        for one in here:
            n = list(one.data["layer"].values).index(layer)
            counts = np.stack([histogram(density, edges) for density in one.draws("density")[:, n]])
            band = {"low": counts.min(0), "high": counts.max(0)} if one.drawn else {}
            series.append(Line(one.name, counts.mean(0), **band))
        figures.append(
            Lines(
                title=f"How often features fire, layer {layer}",
                caption="The share of features by the share of tokens at which they fire. Dead features are not drawn. "
                "Draws of a variant are averaged; the band is from their least to their most.",
                sources=tuple(one.source("density") for one in here),
                x=(edges[1:] + edges[:-1]) / 2,
                x_name="log10 of the share of tokens",
                units="share of features",
                series=tuple(series),
            )
        )
    return figures


def histogram(density: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The share of features in each bin of log10 density."""
    alive = density[density > 0]
    counts, _ = np.histogram(np.clip(np.log10(alive), edges[0], edges[-1]), edges)
    return counts / max(len(density), 1)


def curves(several: Sequence[Found]) -> list[Figure]:
    """Training curves, those of one length in one figure; layers are averaged, and each draw is a faint line."""
    figures: list[Figure] = []
    for steps in sorted({one.data.sizes["step"] for one in several}):
        here = [one for one in several if one.data.sizes["step"] == steps]
        parts = np.array_split(np.arange(steps), min(POINTS, steps))
        series: list[Line] = []
        for one in here:
            each = one.draws("curve").mean(axis=1)  # [draw, step]
            thinned = np.stack([each[:, part].mean(axis=1) for part in parts], axis=1)
            series.append(Line(one.name, thinned.mean(axis=0)))
            if len(thinned) > 1:
                series += [Line(f"{one.name} {n}", line, faint=True) for n, line in enumerate(thinned)]
        figures.append(
            Lines(
                title="How training went",
                caption="Variance explained of each batch, before it was learnt from. Layers are averaged.",
                sources=tuple(one.source("curve") for one in here),
                x=[part.mean() for part in parts],
                x_name="step",
                units="1",
                series=tuple(series),
            )
        )
    return figures


def top_tokens(one: Found) -> list[Figure]:
    """For each layer, features from the densest that fire to the rarest, in equal ranks; of draws the first."""
    figures: list[Figure] = []
    for n, layer in enumerate(one.data["layer"].values):
        density, strength, texts = (one.draws(name)[0, n] for name in ("density", "strength", "top_text"))
        alive = np.flatnonzero(density > 0)
        if not len(alive):
            continue
        order = alive[np.argsort(-density[alive], kind="stable")]
        shown = order[np.unique(np.linspace(0, len(order) - 1, SHOWN).round().astype(int))]
        which = ", draw 0" if one.drawn else ""
        figures.append(
            Table(
                title=f"Top tokens, {one.name}{which}, layer {int(layer)}",
                caption="Some features, from the one that fires most often to the rarest, not chosen for what they "
                "say: the tokens at which each fires most, between « and ».",
                sources=(one.source("top_text"),),
                columns=("feature", "density", "mean strength", "top tokens"),
                rows=[
                    (int(f), f"{density[f]:.2g}", f"{strength[f]:.3g}", "  |  ".join(said(t) for t in texts[f] if t))
                    for f in shown
                ],
            )
        )
    return figures


def said(text: object) -> str:
    """A text in one line."""
    return str(text).replace("\n", "⏎")
