"""What the report shows of spectrum.effect."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Figure, Heatmap, Line, Lines, Source, Table, Text, Texts, averaged

if TYPE_CHECKING:
    from typing import TypeAlias

    import xarray as xr

    from gausslens import Result, Results

    # The swept values of one variant: the name of each, and its data.
    Points: TypeAlias = list[tuple[str, xr.Dataset]]

ANALYSIS = "spectrum.effect"
CURVES = {
    "loss_change": ("Change of the loss", "How much worse each token is predicted than by the unedited model."),
    "kl": ("Divergence of predictions", "KL(unedited || edited) of next-token distributions, mean over tokens."),
    "agreement": ("Agreement on the first token", "The share of tokens where both models put the same one first."),
}
# So many variants and swept values have a map of their own; more make a page that nobody reads.
MOST = 8
# So many curves share a figure: the page has no colours for more.
MOST_CURVES = 6
# So many have their texts shown, after so many prompts.
MOST_TEXTS = 24
MOST_PROMPTS = 4


def effect(results: Results) -> list[Figure]:
    """For each step: a table, curves over swept values, entropies by layer, where attention moved, and the texts."""
    figures: list[Figure] = []
    for label, found in results.by_label(ANALYSIS).items():
        # In the order of the run file: here a null is an edit as any other.
        found.sort(key=lambda result: results.variants.index(result.variant))
        if any("loss_change" in result.data for result in found):
            figures.append(_table(label, found))
            figures += _curves(label, found)
        figures += _attention(label, [result for result in found if "entropy" in result.data])
        figures += _texts(label, [result for result in found if "text" in result.data])
    return figures


def _points(result: Result) -> Points:
    """Each swept value by itself, the mean over draws of its numbers and the first draw of its texts."""
    data = result.data
    if result.draws is not None:
        numbers = [n for n in data.data_vars if data[n].dtype.kind in "fiu"]
        data = data.isel(draw=0, drop=True).assign({n: data[n].mean("draw") for n in numbers})
    return replace(result, data=data).points()


def _spread(points: list[Points], most: int) -> dict[str, xr.Dataset]:
    """Every point, or at most so many: as many of each variant, from end to end of its swept values."""
    if sum(map(len, points)) > most:
        share = max(1, most // len(points))
        points = [[of[i] for i in np.unique(np.linspace(0, len(of) - 1, share).round().astype(int))] for of in points]
    return dict([point for of in points for point in of][:most])


def _note(shown: int, points: list[Points], what: str = "variants and swept values") -> str:
    """The sentence that says how many are shown; nothing if all are."""
    count = sum(map(len, points))
    return "" if shown == count else f" {shown} of {count} {what} are shown; the others are in the data."


def _table(label: str, found: list[Result]) -> Table:
    rows = []
    for result in found:
        for name, one in _points(result):
            cells = [float(one[n]) for n in ("loss", "loss_change", "loss_change_low", "loss_change_high")]
            rows.append([name, *cells, float(one["kl"]), float(one["agreement"])])
    level = f"{100 * found[0].data.attrs['level']:g} %"
    return Table(
        title=f"What the edits do to predictions, {label}",
        caption=f"Loss in nats a token; its change from the unedited model with its {level} interval over prompts; "
        "divergence of next-token distributions; share of tokens where both put the same one first. Means over draws.",
        sources=tuple(Source(result.variant, label, "loss_change") for result in found),
        columns=("variant", "loss", "change", "from", "to", "KL", "agreement"),
        rows=rows,
    )


def _curves(label: str, found: list[Result]) -> list[Figure]:
    """One figure for each swept parameter and number: variants that sweep the same values share it."""
    grouped: dict[tuple[str, tuple[float, ...]], list[Result]] = {}
    for result in found:
        data, swept = result.data, result.swept
        if len(swept) == 1 and data[swept[0]].dtype.kind in "fiu" and "loss_change" in data:
            values = tuple(map(float, data[swept[0]].values))
            grouped.setdefault((swept[0], values), []).append(result)
    return [
        _curve(label, name, values, group, number)
        for (name, values), group in grouped.items()
        for number in CURVES
        if len(values) > 1
    ]


def _curve(label: str, name: str, values: tuple[float, ...], group: list[Result], number: str) -> Lines:
    order = np.argsort(values)
    series = []
    for result in group:
        variables = (result.data[n] for n in (number, f"{number}_low", f"{number}_high"))
        y, low, high = (averaged(variable, name, skip_missing=True)[order] for variable in variables)
        series.append(Line(result.variant, y, low, high))
    title, caption = CURVES[number]
    return Lines(
        title=f"{title} over {name}, {label}",
        caption=f"{caption} Bands are intervals over prompts, means over draws.",
        sources=tuple(Source(result.variant, label, number) for result in group),
        units=group[0].data[number].attrs["units"],
        x=np.array(values)[order],
        x_name=name,
        series=tuple(series),
    )


def _attention(label: str, found: list[Result]) -> list[Figure]:
    """Entropies by layer, and a map for each point where attention moved."""
    if not found:
        return []
    points = [_points(result) for result in found]
    moved = [some for of in points if (some := [point for point in of if _moves(point[1])])]
    maps = _spread(moved, MOST)
    note = _note(len(maps), moved, "variants and swept values that move attention")
    return [
        _entropies(label, found, points),
        *(_moved(label, name.split(",")[0], name, data, note) for name, data in maps.items()),
    ]


def _entropies(label: str, found: list[Result], points: list[Points]) -> Lines:
    drawn = _spread(points, MOST_CURVES)
    first = next(iter(drawn.values()))
    lines = [Line(name, data["entropy"].mean("head").values) for name, data in drawn.items()]
    return Lines(
        title=f"Attention entropy by layer, {label}",
        caption="Mean over heads and rows; dashed is the unedited model. Lower is sharper." + _note(len(drawn), points),
        sources=tuple(Source(result.variant, label, "entropy") for result in found),
        units="nat",
        x=first["layer"].values,
        x_name="layer",
        series=(*lines, Line("unedited", first["base_entropy"].mean("head").values, reference=True)),
    )


def _moves(data: xr.Dataset) -> bool:
    return bool((data["divergence"] > 0).any())


def _moved(label: str, variant: str, name: str, data: xr.Dataset, note: str) -> Heatmap:
    return Heatmap(
        title=f"Where attention moved, {name}",
        caption="Jensen-Shannon divergence of attention rows from those of the unedited model; at most log 2 = 0.69."
        + note,
        sources=(Source(variant, label, "divergence"),),
        units="nat",
        values=data["divergence"].transpose("layer", "head").values,
        rows=data["layer"].values,
        columns=data["head"].values,
        row_name="layer",
        column_name="head",
    )


def _texts(label: str, found: list[Result]) -> list[Figure]:
    if not found:
        return []
    every = [_points(result) for result in found]
    points = _spread(every, MOST_TEXTS)
    first = next(iter(points.values()))
    count = first.sizes["prompt"]
    note = _note(len(points), every)
    if count > MOST_PROMPTS:
        note += f" {MOST_PROMPTS} of {count} prompts are shown; the others are in the data."
    # First, since what follows is the prompt's own.
    note = f"{note.strip()} " if note else ""
    figures: list[Figure] = []
    for prompt in range(min(MOST_PROMPTS, count)):
        after = str(first["after"].values[prompt])
        written = [Text("unedited", str(first["base_text"].values[prompt]))]
        written += [Text(name, str(d["text"].values[prompt])) for name, d in points.items()]
        figures.append(
            Texts(
                title=f"What is written after prompt {first['prompt'].values[prompt]}, {label}",
                caption=note + (f"After: {after[-200:]}" if after.strip() else "After a prompt of token numbers."),
                sources=tuple(Source(result.variant, label, "text") for result in found),
                texts=tuple(written),
            )
        )
    return figures
