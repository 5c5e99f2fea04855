"""What the report shows of attention.swap: what is enough, what each setting costs, and which heads bear it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Heatmap, Scatter, Source, Table

from .drawing import averaged, points, pooled_over, shown, variants

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

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


def swaps(results: Results) -> list[Figure]:
    """For each step: what keeps the model as it is, what each setting costs, and which heads bear it."""
    figures: list[Figure] = []
    for label, found in results.of("attention.swap").items():
        first = next(iter(found.values()))
        judge = str(first.attrs["judge"])
        several = shown(results, label, found)
        if judge in first:
            each = points(several)
            figures.append(_enough(label, judge, each))
            figures += [_price(label, variant, judge, data) for variant, data in several if "draw" not in data.dims]
            figures += [_apart(label, each)] if len(each) > 1 else []
            figures.append(_costs(label, judge, each))
        if f"{judge}_each" in first:
            for variant, data in several:
                if "draw" not in data.dims:
                    figures += _bearing(label, variant, judge, data)
    return figures


def _enough(label: str, judge: str, several: list[tuple[str, xr.Dataset]]) -> Figure:
    """The cheapest setting of each kind within the tolerance, and how far it takes every variant from itself."""
    first = several[0][1]
    tolerance = float(first.attrs["tolerance"])
    name = _comparable(first)
    apart = [averaged(data[name], "setting") for _, data in several]
    rows: list[tuple[Any, ...]] = []
    for variant, data in several:
        if "draw" in data.dims and variant.split(",")[0] != variants(several)[0]:
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
            told = ("yes" if len(enough) else "no", scalars[best], change[best])
            sure = None if np.isnan(error[best]) else error[best]
            rows.append((variant, kind, str(data["setting"].values[best]), *told, sure, *(a[best] for a in apart)))
    return Table(
        title=f"What keeps {_WORDS[judge]} within {100 * tolerance:.3g} %: {label}",
        caption="All heads at once. Of each kind the setting with the fewest stored scalars that changes it by at most "
        "that; no: none of the run does, and the one that changes it least is shown."
        + (_NO_LOSS if judge == "hidden_change" else _OF_TWINS)
        + pooled_over(*(data for _, data in several)),
        sources=tuple(Source(variant, label, n) for variant in variants(several) for n in dict.fromkeys((judge, name))),
        columns=(
            *("variant", "kind", "setting", "enough", "scalars", _NAMES[judge], "standard error"),
            *(f"{_NAMES.get(name, name)}, {variant}" for variant, _ in several),
        ),
        rows=rows,
    )


def _costs(label: str, judge: str, several: list[tuple[str, xr.Dataset]]) -> Figure:
    """A row for each setting; all measures of the first variant, those that are comparable of the others."""
    first = several[0][1]
    names = [n for n in ("loss_change", "kl", "agreement", "hidden_change") if n in first]
    columns = [(several[0][0], n) for n in names] + [(variant, _comparable(first)) for variant, _ in several[1:]]
    data = dict(several)
    values = [averaged(data[variant][n], "setting") for variant, n in columns]
    scalars = averaged(first["scalars"], "setting")
    return Table(
        title=f"What the model loses: {label}",
        caption="All heads in view run on the approximation at once. Loss change: relative to its own loss; kl: "
        "divergence of next-token distributions, in nats; agreement: share of tokens whose likeliest successor stays; "
        "hidden change: that of the last residual stream, relative."
        + (_NO_LOSS if judge == "hidden_change" else "")
        + pooled_over(*data.values()),
        sources=tuple(
            Source(variant, label, n)
            for variant in variants(several)
            for n in dict.fromkeys(n for name, n in columns if name.split(",")[0] == variant)
        ),
        columns=("setting", "scalars", *(f"{_NAMES.get(n, n)}, {variant}" for variant, n in columns)),
        rows=[(str(setting), scalars[i], *(v[i] for v in values)) for i, setting in enumerate(first["setting"].values)],
    )


def _price(label: str, variant: str, judge: str, data: xr.Dataset) -> Figure:
    return Scatter(
        title=f"Cost against storage: {label}, {variant}",
        caption=f"Relative change of {_WORDS[judge]} with all heads swapped, against the scalars that a head's map "
        f"stores; what is below {_FLOOR:g}, gains too, is drawn there." + pooled_over(data),
        sources=(Source(variant, label, judge),),
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


def _apart(label: str, several: list[tuple[str, xr.Dataset]]) -> Figure:
    """All variants beside each other, by what can be compared between a model and a twin that predicts nothing."""
    name = _comparable(several[0][1])
    first = several[0][1][name]
    dots = [(v, d, i) for v, d in several for i in range(d.sizes["setting"])]
    return Scatter(
        title=f"Variants beside each other: {label}",
        caption=f"With all heads swapped: {first.attrs['long_name']}, against the scalars that a head's map stores; "
        f"what is below {_FLOOR:g} is drawn there. Where random twins fare as well, the method owes nothing to what "
        "training put there." + pooled_over(*(data for _, data in several)),
        sources=tuple(Source(variant, label, name) for variant in variants(several)),
        units=first.attrs["units"],
        x=np.concatenate([averaged(d["scalars"], "setting") for _, d in several]),
        y=np.maximum(np.concatenate([averaged(d[name], "setting") for _, d in several]), _FLOOR),
        x_name="stored scalars of a map",
        y_name=_NAMES.get(name, name),
        labels=[f"{d['setting'].values[i]}, {v}" for v, d, i in dots],
        groups=[v.split(",")[0] for v, _, _ in dots],
        log_x=True,
        log_y=True,
    )


def _comparable(data: xr.Dataset) -> str:
    return "kl" if "kl" in data else "hidden_change"


def _bearing(label: str, variant: str, judge: str, data: xr.Dataset) -> list[Figure]:
    name = f"{judge}_each"
    return [
        Heatmap(
            title=f"Heads that bear {setting}: {label}, {variant}",
            caption=f"Relative change of {_WORDS[judge]} when this head alone runs on the approximation."
            + pooled_over(data),
            sources=(Source(variant, label, name),),
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
