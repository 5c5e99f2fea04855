"""What the report shows of attention: layers by heads beside chance, and maps of the first prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Dial, Figure, Heatmap, Source, TokenMap, z_caption

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Result, Results

# Prompts of which maps are shown; the store has them all.
PROMPTS = 2
TOKENS = ("query", "key")
HEADS = {
    "entropy_deficit": (
        "Entropy deficit",
        "How far rows are from even attention to all that they can see, in nats: 0 is flat.",
    ),
    "to_previous": ("To the position before", "Mean attention to the token or word before."),
    "to_first": ("To the first position", "A head that rests there looks at nothing."),
}


def attention(results: Results) -> list[Figure]:
    """Layer by head, beside chance, and the maps of one layer."""
    figures: list[Figure] = []
    for label, found in results.by_label("model.attention").items():
        for result in [r for r in found if not r.is_null] or found:
            variant = result.variant
            for name, (title, caption) in HEADS.items():
                if name not in result.data:
                    continue  # keys of another stack have no position before a query's
                source = Source(variant, label, name)
                figures.append(
                    _by_head(result.data[name], result.swept, f"{title}, {variant} ({label})", caption, source)
                )
            for null in result.nulls:
                compared = results.against(variant, label, null)
                said = z_caption("Entropy deficit", variant, null, compared, "entropy_deficit")
                title = f"Entropy deficit of {variant}, z against {results.named_null(null)} ({label})"
                source = Source(variant, f"{label}.against.{null}", "entropy_deficit_z")
                figures.append(_by_head(compared["entropy_deficit_z"], result.swept, title, said, source, centre=0.0))
            if "pattern" in result.data:
                figures += _maps(result)
    return figures


def _by_head(
    values: xr.DataArray, swept: Sequence[str], title: str, caption: str, source: Source, centre: float | None = None
) -> Figure:
    """Layer by head, the mean over twins; a slider for each swept value, from the last."""
    dials = [dim for dim in swept if dim in values.dims]
    ordered = values.transpose(*dials, "layer", "head", ...)
    return Heatmap(
        title=title,
        caption=caption,
        sources=(source,),
        units="z" if centre is not None else values.attrs["units"],
        values=ordered.values.reshape(*ordered.shape[: len(dials) + 2], -1).mean(axis=-1),
        rows=ordered["layer"].values,
        columns=ordered["head"].values,
        row_name="layer",
        column_name="head",
        centre=centre,
        dials=tuple(Dial(d, values[d].values, values.sizes[d] - 1) for d in dials),
    )


def _maps(result: Result) -> list[Figure]:
    """A map for each of the first prompts, with a slider over layers, heads if they were kept, and swept values."""
    data, variant, label = result.data, result.variant, result.label
    pattern, deficit = data["pattern"], data["entropy_deficit"]
    dials: list[str] = [d for d in ("layer", "head") if d in pattern.dims]
    dials += result.swept
    others = [str(d) for d in pattern.dims if d not in (*dials, "prompt", "query", "key")]
    # It opens where attention is farthest from even.
    flat = deficit.mean([d for d in deficit.dims if d not in dials]).transpose(*dials)
    start = np.unravel_index(int(np.nanargmax(flat.values)), flat.shape)
    figures: list[Figure] = []
    for place in range(min(PROMPTS, pattern.sizes["prompt"])):
        chosen = pattern.isel({"prompt": place} | dict.fromkeys(others, 0)).transpose(*dials, "query", "key").values
        texts = {d: data[f"{d}_text"].isel({"prompt": place} | _twin(data[f"{d}_text"])).values for d in TOKENS}
        flattened = chosen.reshape(-1, *chosen.shape[-2:])
        seen = ~np.isnan(flattened).all(axis=0)
        chosen = np.where((flattened == 0).all(axis=0), np.nan, chosen)
        rows, columns = seen.any(axis=1), seen.any(axis=0)
        name = str(data.prompt.values[place])
        named = f"prompt {name}" if name.isdigit() else name
        figures.append(
            TokenMap(
                title=f"Attention, {named}, {variant} ({label})",
                caption=("" if "head" in dials else f"{_averaged(pattern)}. ")
                + "It opens where attention is farthest from "
                "even; a row is what one token looks at, and grey is what none can see.",
                sources=(Source(variant, label, "pattern"),),
                units="1",
                values=chosen[..., rows, :][..., columns],
                queries=texts["query"][rows],
                keys=texts["key"][columns],
                dials=tuple(Dial(d, data[d].values, int(at)) for d, at in zip(dials, start, strict=True)),
            )
        )
    return figures


def _averaged(pattern: xr.DataArray) -> str:
    """How a map without heads is one of all: "Mean over heads", as the variable says it."""
    said = str(pattern.attrs.get("long_name", "")).partition(", ")[2] or "mean over heads"
    return said[:1].upper() + said[1:]


def _twin(values: xr.DataArray) -> dict[str, int]:
    """The first twin, where there are several."""
    return {str(d): 0 for d in values.dims if d not in ("prompt", "query", "key")}
