"""What the report shows of attention.members: distances by width and number of windows, drawn beside exact."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING, Any

from gausslens.figures import Figure, Line, Lines, Source, Table, head_map, pooled_over

from . import averaged

if TYPE_CHECKING:
    from gausslens import Result, Results

# Rows of the table of heads; more make a page that nobody reads.
_MOST_ROWS = 144
_NEEDED = {
    "width_needed": "Width that a band needs",
    "windows_needed": "Windows that rare tokens need",
}


def members(results: Results) -> list[Figure]:
    """For each step: distances by width, by head, and what each head's map asks for."""
    figures: list[Figure] = []
    for several in results.by_label("attention.members").values():
        for result in several:
            figures.append(_by_width(result))
            if result.draws is None and not result.swept:
                figures.append(_by_head(result))
                figures += [_needed(result, name, title) for name, title in _NEEDED.items()]
    return figures


def _by_width(result: Result) -> Figure:
    data = result.data
    series = []
    for count in data["windows"].values:
        one = data.sel(windows=count)
        series.append(Line(f"exact, windows {count}", averaged(one["exact"], "w")))
        if "drawn" in data:
            mean, sd = averaged(one["drawn"], "w"), averaged(one["drawn_sd"], "w")
            series.append(Line(f"drawn, windows {count}", mean, mean - sd, mean + sd))
    searched = f" of {data.attrs['searched']:,} matrices" if "drawn" in data else ""
    return Lines(
        title=f"Distance to the nearest member, {result.variant}",
        caption="Sum of |p - x| over a map to the nearest diagonal, band or rare-token member, each with as many "
        "errors as the map has rows; mean over heads and prompts. Exact members are the nearest there are: a wider "
        f"band holds every narrower one, so their distance never rises. Drawn: the nearest{searched} by random search, "
        "with one standard deviation between searches; where it rises, it is what is filled in at random that does."
        + pooled_over(result),
        sources=(Source(result.variant, result.label, "exact"),),
        units="1",
        x=data["w"].values,
        x_name="width w",
        series=tuple(series),
    )


def _by_head(result: Result) -> Figure:
    data = result.data
    told = [name for name in ("exact", "drawn", "drawn_sd") if name in data]
    published = json.loads(data.attrs.get("published", "{}"))
    columns = (["published"] if published else []) + [name.replace("drawn_sd", "sd of searches") for name in told]
    arrays = {name: data[name].transpose("w", "windows", "layer", "head").values for name in told}
    places = list(product(*(enumerate(data[dim].values) for dim in ("w", "windows", "layer", "head"))))
    rows: list[tuple[Any, ...]] = []
    for place in places[:_MOST_ROWS]:
        at = tuple(number for number, _ in place)
        w, windows, layer, head = (int(value) for _, value in place)
        numbers: list[float | None] = [float(arrays[name][at]) for name in told]
        if published:
            of_pair = published.get(f"{w}, {windows}")
            numbers = [None if of_pair is None else of_pair[at[-1]], *numbers]
        rows.append((w, windows, layer, head, *numbers))
    left = f" The first {_MOST_ROWS} of {len(places)} rows." if len(places) > _MOST_ROWS else ""
    return Table(
        title=f"Distance of each head's map, {result.variant}",
        caption="Sum of |p - x| to the nearest member: what was published of these maps, where it is given; exact; "
        "and by random search, mean and standard deviation of searches. A map's entries sum to its number of rows: so "
        "far is a map of zeros." + left,
        sources=(Source(result.variant, result.label, "exact"),),
        columns=("w", "windows", "layer", "head", *columns),
        rows=rows,
    )


def _needed(result: Result, name: str, title: str) -> Figure:
    """What each head's map asks for."""
    share = float(result.data.attrs["holds"])
    caption = f"The least that holds {share:.0%} of the attention, without errors; mean over prompts."
    source = Source(result.variant, result.label, name)
    return head_map(result.data[name], f"{title}, {result.variant}", caption, source)
