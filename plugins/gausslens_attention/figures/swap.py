"""What the report shows of attention.swap: what is enough, what each setting costs, and which heads bear it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gausslens.figures import Figure, Heatmap, Scatter, Source, Table, pooled_over

from . import averaged, other_keys, too_short

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
_ERRORS = {"loss_change_se": "standard error", "hidden_change_se": "standard error", "kl_se": "kl, standard error"}
_OF_TWINS = (
    " A twin that predicts nothing has no loss to lose, and may gain: what the setting does to each variant is told by "
    "kl, the divergence of next-token distributions from the variant's own, in nats."
)
_DRAWN = (
    " Sd over draws: how far draws of what is random, for each head by itself, are apart; 0 where nothing is drawn, "
    "and the others are means over draws."
)
_JUDGED = (
    "All heads at once. Enough is what changes {what} by at most that, up or down{kl}, each with its 95 % interval "
    "over prompts: a gain is a change. Of each kind the setting with the fewest stored scalars that is enough; where "
    "none is, the one that changes the model least: no, or undecided, where an interval is too wide to tell and more "
    "prompts would. Smallest that is enough: {smallest}."
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
    """The cheapest setting of each kind that is enough, and how far it takes every variant from itself."""
    tolerance = float(several[0].data.attrs["tolerance"])
    name = _comparable(several[0].data)
    points = _points(several)
    apart = [averaged(data[name], "setting") for _, _, data in points]
    told = [name for name in (f"{judge}_se", "kl_se") if name in several[0].data]
    rows: list[tuple[Any, ...]] = []
    smallest = []
    for result, variant, data in points:
        if result.draws is not None and result is not several[0]:
            continue
        scalars, change = (averaged(data[n], "setting") for n in ("scalars", judge))
        verdicts = _verdicts(data)
        met = np.flatnonzero(verdicts == "yes")
        best = f"{data['setting'].values[met[scalars[met].argmin()]]!s}" if len(met) else "none"
        smallest.append(f"{variant} {best}")
        of_kind = data["setting_kind"].values
        for kind in dict.fromkeys(of_kind.tolist()):
            here = np.flatnonzero(of_kind == kind)
            enough = here[verdicts[here] == "yes"]
            chosen = enough[scalars[enough].argmin()] if len(enough) else _least(data, judge, here)
            numbers = [_known(averaged(data[n], "setting")[chosen]) for n in told]
            row = (variant, kind, str(data["setting"].values[chosen]), str(verdicts[chosen]))
            rows.append((*row, scalars[chosen], _known(change[chosen]), *numbers, *(_known(a[chosen]) for a in apart)))
    bound = several[0].data.attrs.get("kl_tolerance")
    kl = (
        "" if bound is None else f", and predictions by a divergence (kl) of at most {bound:.3g} nats in {points[0][1]}"
    )
    return Table(
        title=f"What keeps {_WORDS[judge]} within {100 * tolerance:.3g} %: {label}",
        caption=_JUDGED.format(what=_WORDS[judge], kl=kl, smallest=", ".join(smallest))
        + too_short(*several)
        + (_NO_LOSS if judge == "hidden_change" else _OF_TWINS)
        + pooled_over(*several, swept=False),
        sources=tuple(Source(result.variant, label, n) for result in several for n in dict.fromkeys((judge, name))),
        columns=(
            *("variant", "kind", "setting", "enough", "scalars", _NAMES[judge], *(_ERRORS.get(n, n) for n in told)),
            *(f"{_NAMES.get(name, name)}, {variant}" for _, variant, _ in points),
        ),
        rows=rows,
    )


def _verdicts(data: xr.Dataset) -> np.ndarray:
    """Yes, no or undecided for each setting; over draws and swept values, yes where all are."""
    met = data["enough"]
    others = [dim for dim in met.dims if dim != "setting"]
    all_of, none = (met == 1).all(others).values, (met == 0).any(others).values
    return np.where(all_of, "yes", np.where(none, "no", "undecided"))


def _least(data: xr.Dataset, judge: str, here: np.ndarray) -> int:
    """Of these settings the one that changes the model least."""
    change = np.abs(averaged(data[_comparable(data) if judge == "loss_change" else judge], "setting")[here])
    return int(here[np.where(np.isnan(change), np.inf, change).argmin()])


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _costs(label: str, judge: str, several: list[Result]) -> Figure:
    """A row for each setting; all measures of the first variant, those that are comparable of the others."""
    points = _points(several)
    first = points[0][2]
    measures = ("loss_change", "kl", "agreement", "hidden_change")
    names = [n for measure in measures for n in (measure, f"{measure}_draws_sd") if n in first]
    columns = [(points[0], n) for n in names] + [(point, _comparable(first)) for point in points[1:]]
    values = [averaged(data[n], "setting") for (_, _, data), n in columns]
    scalars = averaged(first["scalars"], "setting")
    return Table(
        title=f"What the model loses: {label}",
        caption="All heads in view run on the approximation at once. Loss change: relative to its own loss; kl: "
        "divergence of next-token distributions, in nats; agreement: share of tokens whose likeliest successor stays; "
        "hidden change: that of the last residual stream, relative."
        + (_DRAWN if "hidden_change_draws_sd" in first else "")
        + other_keys(*several)
        + too_short(*several)
        + (_NO_LOSS if judge == "hidden_change" else "")
        + pooled_over(*several, swept=False),
        sources=tuple(dict.fromkeys(Source(result.variant, label, n) for (result, _, _), n in columns)),
        columns=("setting", "scalars", *(f"{_named(n)}, {variant}" for (_, variant, _), n in columns)),
        rows=[(str(setting), scalars[i], *(v[i] for v in values)) for i, setting in enumerate(first["setting"].values)],
    )


def _named(name: str) -> str:
    measure = name.removesuffix("_draws_sd")
    return _NAMES.get(measure, measure) + (" sd over draws" if measure != name else "")


def _price(result: Result, judge: str) -> Figure:
    data = result.data
    return Scatter(
        title=f"Cost against storage: {result.label}, {result.variant}",
        caption=f"Size of the relative change of {_WORDS[judge]}, up or down, with all heads swapped, against the "
        f"scalars that a head's map stores; what is below {_FLOOR:g} is drawn there." + pooled_over(result),
        sources=(Source(result.variant, result.label, judge),),
        units=data[judge].attrs["units"],
        x=averaged(data["scalars"], "setting"),
        y=np.maximum(np.abs(averaged(data[judge], "setting")), _FLOOR),
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
