"""What the report shows of attention.swap: what is enough, what each setting costs, and which heads bear it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Heatmap, Scatter, Source, Table, pooled_over

from . import averaged

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results

# Settings of which all heads are drawn; more make a page that nobody reads.
_SETTINGS = 6
# On a logarithmic scale what costs less, or nothing, is drawn here.
_FLOOR = 1e-4
_WORDS = {
    "loss_change": "the loss",
    "hidden_change": "the last residual stream",
}
_NAMES = {"loss_change": "loss change", "hidden_change": "hidden change"}
_OF_TWINS = (
    " A twin that predicts nothing has no loss to lose, and may gain: what the setting does to each variant is told by "
    "kl, the divergence of next-token distributions from the variant's own, in nats."
)
_NO_LOSS = " The model gives no loss on these prompts, so the change of its last residual stream is the judge."


def swap(results: Results) -> list[Figure]:
    """For each step: what keeps the model as it is, what each setting costs, and which heads bear it."""
    figures: list[Figure] = []
    for label, several in results.by_label("attention.swap").items():
        first = several[0].data
        judge = str(first.attrs["judge"])
        single = [result for result in several if result.draws is None]
        if judge in first:
            figures.append(_enough(label, judge, several))
            figures += [_price(result, judge) for result in single]
            figures += [_apart(label, several)] if len(_points(several)) > 1 else []
            figures.append(_costs(label, judge, several))
        if f"{judge}_each" in first:
            figures += [figure for result in single for figure in _bearing(result, judge)]
    return figures


def _points(several: list[Result]) -> list[tuple[Result, str, xr.Dataset]]:
    """Every variant at each of its swept values, with the name and the data of that."""
    return [(result, name, data) for result in several for name, data in result.points()]


def _enough(label: str, judge: str, several: list[Result]) -> Figure:
    """The cheapest setting of each kind within the tolerance, and how far it takes every variant from itself."""
    tolerance = float(several[0].data.attrs["tolerance"])
    name = _comparable(several[0].data)
    points = _points(several)
    apart = [averaged(data[name], "setting") for _, _, data in points]
    rows: list[tuple[Any, ...]] = []
    for result, variant, data in points:
        if result.draws is not None and result is not several[0]:
            continue
        scalars, change = (averaged(data[n], "setting") for n in ("scalars", judge))
        error = (
            averaged(data["loss_change_se"], "setting") if "loss_change_se" in data else np.full(len(change), np.nan)
        )
        of_kind = data["setting_kind"].values
        for kind in dict.fromkeys(of_kind.tolist()):
            here = np.flatnonzero(of_kind == kind)
            enough = here[change[here] <= tolerance]
            best = enough[scalars[enough].argmin()] if len(enough) else here[change[here].argmin()]
            row = (variant, kind, str(data["setting"].values[best]), "yes" if len(enough) else "no")
            sure = None if np.isnan(error[best]) else error[best]
            rows.append((*row, scalars[best], change[best], sure, *(a[best] for a in apart)))
    return Table(
        title=f"What keeps {_WORDS[judge]} within {100 * tolerance:.3g} %: {label}",
        caption="All heads at once. Of each kind the setting with the fewest stored scalars that changes it by at most "
        "that; no: none of the run does, and the one that changes it least is shown."
        + (_NO_LOSS if judge == "hidden_change" else _OF_TWINS)
        + pooled_over(*several, swept=False),
        sources=tuple(Source(result.variant, label, n) for result in several for n in dict.fromkeys((judge, name))),
        columns=(
            *("variant", "kind", "setting", "enough", "scalars", _NAMES[judge], "standard error"),
            *(f"{_NAMES.get(name, name)}, {variant}" for _, variant, _ in points),
        ),
        rows=rows,
    )


def _costs(label: str, judge: str, several: list[Result]) -> Figure:
    """A row for each setting; all measures of the first variant, those that are comparable of the others."""
    points = _points(several)
    first = points[0][2]
    names = [n for n in ("loss_change", "kl", "agreement", "hidden_change") if n in first]
    columns = [(points[0], n) for n in names] + [(point, _comparable(first)) for point in points[1:]]
    values = [averaged(data[n], "setting") for (_, _, data), n in columns]
    scalars = averaged(first["scalars"], "setting")
    return Table(
        title=f"What the model loses: {label}",
        caption="All heads in view run on the approximation at once. Loss change: relative to its own loss; kl: "
        "divergence of next-token distributions, in nats; agreement: share of tokens whose likeliest successor stays; "
        "hidden change: that of the last residual stream, relative."
        + (_NO_LOSS if judge == "hidden_change" else "")
        + pooled_over(*several, swept=False),
        sources=tuple(dict.fromkeys(Source(result.variant, label, n) for (result, _, _), n in columns)),
        columns=("setting", "scalars", *(f"{_NAMES.get(n, n)}, {variant}" for (_, variant, _), n in columns)),
        rows=[(str(setting), scalars[i], *(v[i] for v in values)) for i, setting in enumerate(first["setting"].values)],
    )


def _price(result: Result, judge: str) -> Figure:
    data = result.data
    return Scatter(
        title=f"Cost against storage: {result.label}, {result.variant}",
        caption=f"Relative change of {_WORDS[judge]} with all heads swapped, against the scalars that a head's map "
        f"stores; what is below {_FLOOR:g}, gains too, is drawn there." + pooled_over(result),
        sources=(Source(result.variant, result.label, judge),),
        units=data[judge].attrs["units"],
        x=averaged(data["scalars"], "setting"),
        y=np.maximum(averaged(data[judge], "setting"), _FLOOR),
        x_name="stored scalars of a map",
        y_name=_NAMES[judge],
        labels=data["setting"].values,
        groups=data["setting_kind"].values,
        log_x=True,
        log_y=True,
    )


def _apart(label: str, several: list[Result]) -> Figure:
    """All variants beside each other, by what can be compared between a model and a twin that predicts nothing."""
    name = _comparable(several[0].data)
    first = several[0].data[name]
    points = _points(several)
    dots = [(result, variant, str(s)) for result, variant, data in points for s in data["setting"].values]
    return Scatter(
        title=f"Variants beside each other: {label}",
        caption=f"With all heads swapped: {first.attrs['long_name']}, against the scalars that a head's map stores; "
        f"what is below {_FLOOR:g} is drawn there. Where random twins fare as well, the method owes nothing to what "
        "training put there." + pooled_over(*several, swept=False),
        sources=tuple(Source(result.variant, label, name) for result in several),
        units=first.attrs["units"],
        x=np.concatenate([averaged(data["scalars"], "setting") for _, _, data in points]),
        y=np.maximum(np.concatenate([averaged(data[name], "setting") for _, _, data in points]), _FLOOR),
        x_name="stored scalars of a map",
        y_name=_NAMES.get(name, name),
        labels=[f"{setting}, {variant}" for _, variant, setting in dots],
        groups=[result.variant for result, _, _ in dots],
        log_x=True,
        log_y=True,
    )


def _comparable(data: xr.Dataset) -> str:
    return "kl" if "kl" in data else "hidden_change"


def _bearing(result: Result, judge: str) -> list[Figure]:
    data, name = result.data, f"{judge}_each"
    return [
        Heatmap(
            title=f"Heads that bear {setting}: {result.label}, {result.variant}",
            caption=f"Relative change of {_WORDS[judge]} when this head alone runs on the approximation."
            + pooled_over(result),
            sources=(Source(result.variant, result.label, name),),
            units=data[name].attrs["units"],
            values=averaged(data[name].isel(setting=number), "layer", "head"),
            rows=data["layer"].values,
            columns=data["head"].values,
            row_name="layer",
            column_name="head",
            centre=0.0 if judge == "loss_change" else None,
        )
        for number, setting in enumerate(data["setting"].values[:_SETTINGS])
    ]
