"""What the report shows of attention.swap: what is enough, what each setting costs, and which heads bear it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Heatmap, Scatter, Source, Table

from .drawing import averaged, shown

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
_NO_LOSS = " The model gives no loss on these prompts, so the change of its last residual stream is the judge."


def swaps(results: Results) -> list[Figure]:
    """For each step: what keeps the model as it is, what each setting costs, and which heads bear it."""
    figures: list[Figure] = []
    for label, found in results.of("attention.swap").items():
        first = next(iter(found.values()))
        judge = str(first.attrs["judge"])
        several = shown(results, label, found)
        if judge in first:
            figures.append(_enough(label, judge, found))
            figures += [_price(label, variant, judge, data) for variant, data in several]
            figures.append(_costs(label, judge, several))
        if f"{judge}_each" in first:
            for variant, data in several:
                if "draw" not in data.dims:
                    figures += _bearing(label, variant, judge, data)
    return figures


def _enough(label: str, judge: str, found: dict[str, xr.Dataset]) -> Figure:
    """The cheapest setting of each kind within the tolerance."""
    tolerance = float(next(iter(found.values())).attrs["tolerance"])
    rows: list[tuple[Any, ...]] = []
    for variant, data in found.items():
        change, scalars = (averaged(data[name], "setting") for name in (judge, "scalars"))
        of_kind = data["setting_kind"].values
        for kind in dict.fromkeys(of_kind.tolist()):
            here = np.flatnonzero((of_kind == kind) & (change <= tolerance))
            if not len(here):
                nearest = np.flatnonzero(of_kind == kind)
                least = float(change[nearest].min())
                rows.append((variant, str(kind), "none", None, least, None))
                continue
            best = int(here[scalars[here].argmin()])
            error = averaged(data["loss_change_se"], "setting")[best] if judge == "loss_change" else np.nan
            setting = str(data["setting"].values[best])
            rows.append((variant, str(kind), setting, scalars[best], change[best], None if np.isnan(error) else error))
    return Table(
        title=f"What keeps {_WORDS[judge]} within {tolerance:.2g}: {label}",
        caption="Of each kind the setting with the fewest stored scalars that changes it by at most that, all heads at "
        "once; none: no setting of the run does, and the least change that one makes. The standard error is over "
        "prompts." + (_NO_LOSS if judge == "hidden_change" else ""),
        sources=tuple(Source(variant, label, judge) for variant in found),
        columns=("variant", "kind", "setting", "scalars", judge.replace("_", " "), "standard error"),
        rows=rows,
    )


def _costs(label: str, judge: str, several: list[tuple[str, xr.Dataset]]) -> Figure:
    """A row for each setting; all measures of the first variant, the judge of the others."""
    first = several[0][1]
    names = [n for n in ("loss_change", "kl", "agreement", "hidden_change") if n in first]
    columns = [(several[0][0], n) for n in names] + [(variant, judge) for variant, _ in several[1:]]
    data = dict(several)
    values = [averaged(data[variant][n], "setting") for variant, n in columns]
    scalars = averaged(first["scalars"], "setting")
    return Table(
        title=f"What the model loses: {label}",
        caption="All heads in view run on the approximation at once. Loss change: relative to its own loss; kl: "
        "divergence of next-token distributions, in nats; agreement: share of tokens whose likeliest successor stays; "
        "hidden change: that of the last residual stream, relative." + (_NO_LOSS if judge == "hidden_change" else ""),
        sources=tuple(Source(variant, label, n) for variant, n in columns),
        columns=("setting", "scalars", *(f"{n.replace('_', ' ')}, {variant}" for variant, n in columns)),
        rows=[(str(setting), scalars[i], *(v[i] for v in values)) for i, setting in enumerate(first["setting"].values)],
    )


def _price(label: str, variant: str, judge: str, data: xr.Dataset) -> Figure:
    return Scatter(
        title=f"Cost against storage: {label}, {variant}",
        caption=f"Relative change of {_WORDS[judge]} with all heads swapped, against the scalars that a head's map "
        f"stores; what is below {_FLOOR:g}, gains too, is drawn there.",
        sources=(Source(variant, label, judge),),
        units=data[judge].attrs["units"],
        x=averaged(data["scalars"], "setting"),
        y=np.maximum(averaged(data[judge], "setting"), _FLOOR),
        x_name="stored scalars of a map",
        y_name=judge.replace("_", " "),
        labels=data["setting"].values,
        groups=data["setting_kind"].values,
        log_x=True,
        log_y=True,
    )


def _bearing(label: str, variant: str, judge: str, data: xr.Dataset) -> list[Figure]:
    name = f"{judge}_each"
    return [
        Heatmap(
            title=f"Heads that bear {setting}: {label}, {variant}",
            caption=f"Relative change of {_WORDS[judge]} when this head alone runs on the approximation.",
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
