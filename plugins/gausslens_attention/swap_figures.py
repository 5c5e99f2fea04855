"""What the report shows of attention.swap: what the model loses, and which heads bear it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens.figures import Figure, Heatmap, Scatter, Source, Table

from .drawing import averaged, shown

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

# Settings of which all heads are drawn; more make a page that nobody reads.
_SETTINGS = 6


def swaps(results: Results) -> list[Figure]:
    """For each step: what each setting costs, against its storage, and which heads bear it."""
    figures: list[Figure] = []
    for label, found in results.of("attention.swap").items():
        first = next(iter(found.values()))
        judge = str(first.attrs["judge"])
        if judge in first:
            figures += [_costs(label, found), _price(label, judge, found)]
        if f"{judge}_each" in first:
            for variant, data in shown(results, label, found):
                if "draw" not in data.dims:
                    figures += _bearing(label, variant, judge, data)
    return figures


def _costs(label: str, found: dict[str, xr.Dataset]) -> Figure:
    first = next(iter(found.values()))
    names = [n for n in ("loss_change", "kl", "agreement", "hidden_change") if n in first]
    rows = []
    for variant, data in found.items():
        for number, setting in enumerate(data["setting"].values):
            one = data.isel(setting=number)
            rows.append((variant, str(setting), *(float(averaged(one[n])) for n in ("scalars", *names))))
    return Table(
        title="What the model loses",
        caption="All heads in view run on the approximation at once: change of the loss relative to the model's own, "
        "divergence of next-token distributions in nats, share of tokens whose likeliest successor stays, and relative "
        "change of the last residual stream.",
        sources=tuple(Source(variant, label, names[0]) for variant in found),
        columns=("variant", "setting", "scalars", *(n.replace("_", " ") for n in names)),
        rows=rows,
    )


def _price(label: str, judge: str, found: dict[str, xr.Dataset]) -> Figure:
    x: list[float] = []
    y: list[float] = []
    labels: list[str] = []
    groups: list[str] = []
    for variant, data in found.items():
        x += list(averaged(data["scalars"], "setting"))
        y += list(averaged(data[judge], "setting"))
        labels += [f"{setting}, {variant}" for setting in data["setting"].values]
        groups += [f"{kind}, {variant}" for kind in data["setting_kind"].values]
    units = next(iter(found.values()))[judge].attrs["units"]
    return Scatter(
        title="Loss against storage" if judge == "loss_change" else "Change against storage",
        caption="What the model loses with all heads swapped, against the scalars that a head's map stores.",
        sources=tuple(Source(variant, label, judge) for variant in found),
        units=units,
        x=x,
        y=y,
        x_name="stored scalars of a map",
        y_name=judge.replace("_", " "),
        labels=labels,
        groups=groups,
        log_x=True,
    )


def _bearing(label: str, variant: str, judge: str, data: xr.Dataset) -> list[Figure]:
    name = f"{judge}_each"
    return [
        Heatmap(
            title=f"Heads that bear {setting}, {variant}",
            caption="What the model loses when this head alone runs on the approximation.",
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
