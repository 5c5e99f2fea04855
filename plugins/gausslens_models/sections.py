"""What the report shows of loss, attention, embeddings and what models write."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.figures import Dial, Figure, Heatmap, Source, Table, Text, Texts, TokenMap

from .swept import points, swept

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

# Prompts of which texts and maps are shown; the store has them all.
SHOWN = 6
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


def loss(results: Results) -> list[Figure]:
    """A table for each step: what each variant makes of the prompts, and of their segments."""
    figures: list[Figure] = []
    for label, found in results.of("model.loss").items():
        # Of several runs in one store, the prompts may differ.
        segments = list(dict.fromkeys(str(s) for data in found.values() for s in data["segment"].values))
        each = [one for v, data in found.items() for one in points(data, v, swept(data["mean_loss"]))]
        figures.append(
            Table(
                title=f"Loss ({label})",
                caption="How well the tokens of the prompts are predicted. Of several twins, the mean.",
                sources=tuple(Source(variant, label, "mean_loss") for variant in found),
                columns=("variant", "nats per token", "bits per byte", "perplexity"),
                rows=[[name, *_measures(data)] for name, data in each],
            )
        )
        figures.append(
            Table(
                title=f"Bits per byte by segment ({label})",
                caption="The parts of the prompts, beside each other.",
                sources=tuple(Source(variant, label, "segment_bits_per_byte") for variant in found),
                units="bit / byte",
                columns=("segment", *(name for name, _ in each)),
                rows=[[segment, *(_of_segment(data, segment) for _, data in each)] for segment in segments],
            )
        )
    return figures


def attention(results: Results) -> list[Figure]:
    """Layer by head, beside chance, and the maps of one layer."""
    figures: list[Figure] = []
    for label, found in results.of("model.attention").items():
        nulls = {null for variant in found for null in results.nulls(variant, label)}
        for variant in [v for v in found if v not in nulls] or list(found):
            data = found[variant]
            for name, (title, caption) in HEADS.items():
                figures.append(
                    _by_head(data[name], f"{title}, {variant} ({label})", caption, Source(variant, label, name))
                )
            for null in results.nulls(variant, label):
                z = results.against(variant, label, null)["entropy_deficit_z"]
                said = f"Standard deviations of {null} from its mean; 0 is what chance gives."
                title = f"Entropy deficit of {variant}, z against {null} ({label})"
                source = Source(variant, f"{label}.against.{null}", "entropy_deficit_z")
                figures.append(_by_head(z, title, said, source, centre=0.0))
            if "pattern" in data:
                figures += _maps(data, variant, label)
    return figures


def generate(results: Results) -> list[Figure]:
    """What each variant writes after the first prompts."""
    figures: list[Figure] = []
    for label, found in results.of("model.generate").items():
        each = [p for v, data in found.items() for p in points(data, v, swept(data["text"], "prompt", "sample"))]
        for place, prompt in enumerate(next(iter(found.values())).prompt.values[:SHOWN]):
            asked = _first(next(iter(found.values()))["after"].isel(prompt=place))
            texts = [
                Text(name, _first(data["text"].isel(prompt=i)))
                for name, data in each
                for i in range(data.sizes["prompt"])
                if data.prompt.values[i] == prompt and _first(data["after"].isel(prompt=i)) == asked
            ]
            figures.append(
                Texts(
                    title=f"Written after {prompt} ({label})",
                    caption="The prompt ends: ..." + asked[-60:],
                    sources=tuple(Source(variant, label, "text") for variant in found),
                    texts=tuple(texts),
                )
            )
    return figures


def embeddings(results: Results) -> list[Figure]:
    """The neighbours of the prompts' tokens."""
    figures: list[Figure] = []
    for label, found in results.of("model.embeddings").items():
        for variant, data in found.items():
            if any(dim not in ("token", "rank") for dim in data["nearest"].dims):
                continue  # several twins: their neighbours cannot be averaged
            rows = [
                [
                    repr(str(data.token_text.values[i])),
                    float(data.norm[i]),
                    " ".join(repr(str(n)) for n in data.nearest.values[i]),
                ]
                for i in range(min(data.sizes["token"], 40))
            ]
            figures.append(
                Table(
                    title=f"Nearest tokens, {variant} ({label})",
                    caption="The tokens whose embeddings point most nearly the same way.",
                    sources=(Source(variant, label, "nearest"),),
                    columns=("token", "length", "nearest"),
                    rows=rows,
                )
            )
    return figures


def _measures(data: xr.Dataset) -> list[float]:
    return [_mean(data[name]) for name in ("mean_loss", "bits_per_byte", "perplexity")]


def _of_segment(data: xr.Dataset, segment: str) -> float | None:
    """Nothing where the prompts have no such segment."""
    there = segment in data["segment"].values
    return _mean(data["segment_bits_per_byte"].sel(segment=segment)) if there else None


def _mean(values: xr.DataArray) -> float:
    return float(values.mean())


def _first(texts: xr.DataArray) -> str:
    """The first sample of the first twin."""
    return str(texts.values.ravel()[0])


def _by_head(values: xr.DataArray, title: str, caption: str, source: Source, centre: float | None = None) -> Figure:
    """Layer by head, the mean over twins; a slider for each swept parameter."""
    dials = swept(values, "layer", "head")
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
        dials=tuple(Dial(d, values[d].values) for d in dials),
    )


def _maps(data: xr.Dataset, variant: str, label: str) -> list[Figure]:
    """A map for each of the first prompts, with a slider over layers, heads if they were kept, and swept values."""
    pattern, deficit = data["pattern"], data["entropy_deficit"]
    dials: list[str] = [d for d in ("layer", "head") if d in pattern.dims]
    dials += swept(pattern, *dials, "prompt", "query", "key")
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
        figures.append(
            TokenMap(
                title=f"Attention, {data.prompt.values[place]}, {variant} ({label})",
                caption=("" if "head" in dials else "Mean over heads. ") + "It opens where attention is farthest from "
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


def _twin(values: xr.DataArray) -> dict[str, int]:
    """The first twin, where there are several."""
    return {str(d): 0 for d in values.dims if d not in ("prompt", "query", "key")}
