"""What the report shows of loss, of what models write and of embeddings: tables and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens.figures import Figure, Source, Table, Text, Texts

if TYPE_CHECKING:
    import xarray as xr

    from gausslens import Results

# Prompts of which texts are shown; the store has them all.
SHOWN = 6


def loss(results: Results) -> list[Figure]:
    """A table for each step: what each variant makes of the prompts, and of their segments."""
    figures: list[Figure] = []
    for label, found in results.by_label("model.loss").items():
        # Of several runs in one store, the prompts may differ.
        segments = list(dict.fromkeys(str(s) for result in found for s in result.data["segment"].values))
        each = [point for result in found for point in result.points()]
        figures.append(
            Table(
                title=f"Loss ({label})",
                caption="How well the tokens of the prompts are predicted. Of several twins, the mean.",
                sources=tuple(Source(result.variant, label, "mean_loss") for result in found),
                columns=("variant", "nats per token", "bits per byte", "perplexity"),
                rows=[[name, *_measures(data)] for name, data in each],
            )
        )
        figures.append(
            Table(
                title=f"Bits per byte by segment ({label})",
                caption="The parts of the prompts, beside each other.",
                sources=tuple(Source(result.variant, label, "segment_bits_per_byte") for result in found),
                units="bit / byte",
                columns=("variant", *segments),
                rows=[[name, *(_of_segment(data, segment) for segment in segments)] for name, data in each],
            )
        )
    return figures


def seeds(results: Results) -> list[Figure]:
    """A table for each step: a row for each statistic, with the spread that each seed gives and its 95 % interval."""
    figures: list[Figure] = []
    for label, found in results.by_label("model.seeds").items():
        for result in found:
            data = result.data
            sources = [str(s) for s in data["source"].values]
            rows = [
                [str(name), *(_spread(data.sel(statistic=name, source=source)) for source in sources)]
                for name in data["statistic"].values
            ]
            figures.append(
                Table(
                    title=f"What seeds give ({label})",
                    caption=(
                        f"Standard deviations of the numbers of {data.attrs['of']} between trainings, the square roots "
                        "of variances that are means over cells, with their 95 % intervals. Heads are taken in the "
                        "order of their values. Where a variance comes out below 0 it is not to be told from none."
                    ),
                    sources=(Source(result.variant, label, "variance"),),
                    columns=("statistic", *sources),
                    rows=rows,
                )
            )
    return figures


def _spread(cell: xr.Dataset) -> str:
    """A variance and its interval as standard deviations."""
    low, value, high = (float(cell[name]) for name in ("low", "variance", "high"))
    interval = " to ".join(f"{max(side, 0.0) ** 0.5:.2g}" for side in (low, high))
    return f"{value**0.5:.2g} ({interval})" if value > 0 else f"none ({interval})"


def generate(results: Results) -> list[Figure]:
    """What each variant writes after the first prompts."""
    figures: list[Figure] = []
    for label, found in results.by_label("model.generate").items():
        each = [point for result in found for point in result.points()]
        first = found[0].data
        for place, prompt in enumerate(first.prompt.values[:SHOWN]):
            asked = _first(first["after"].isel(prompt=place))
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
                    sources=tuple(Source(result.variant, label, "text") for result in found),
                    texts=tuple(texts),
                )
            )
    return figures


def embeddings(results: Results) -> list[Figure]:
    """The neighbours of the prompts' tokens."""
    figures: list[Figure] = []
    for label, found in results.by_label("model.embeddings").items():
        for result in found:
            data = result.data
            if result.draws is not None or result.swept:
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
                    title=f"Nearest tokens, {result.variant} ({label})",
                    caption="The tokens whose embeddings point most nearly the same way.",
                    sources=(Source(result.variant, label, "nearest"),),
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
