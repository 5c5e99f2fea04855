"""What the report shows of gaussian.joint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gausslens.figures import Figure, Heatmap, Lines, Source, Table

from .by_layer import averaged_over, finite_mean, some_layers

if TYPE_CHECKING:
    from gausslens import Result, Results


def joint(results: Results) -> list[Figure]:
    """For each step and variant: information between positions, and how it decays with distance."""
    figures: list[Figure] = []
    for found in results.by_label("gaussian.joint").values():
        for result in found:
            site = f"at {result.data.attrs['site']}, {result.variant}"
            figures += [_pairs(result, site), _decay(result, site)]
            if "bigram_trace" in result.data:
                figures.append(_bigrams(result))
    return figures


def _pairs(result: Result, site: str) -> Figure:
    values = result.data["mutual_information"]
    return Heatmap(
        title=f"Mutual information of positions {site}",
        caption="How much two positions tell of each other, as one Gaussian over all prompts; corrected for the number "
        f"of prompts, so independence is 0.{_frame(result)}{averaged_over(values, 'position', 'position_other')}",
        sources=(Source(result.variant, result.label, "mutual_information"),),
        units=values.attrs["units"],
        values=finite_mean(values, "position", "position_other"),
        rows=values["position"].values,
        columns=values["position_other"].values,
        row_name="position",
        column_name="position",
    )


def _frame(result: Result) -> str:
    own = result.data.attrs["reduced_by"] == "leading principal directions"
    return " In this variant's own principal directions: not to be held against another's." if own else ""


def _decay(result: Result, site: str) -> Figure:
    values = result.data["decay"]
    return Lines(
        title=f"Decay of information {site}",
        caption="Mean mutual information of two positions at a distance."
        f"{_frame(result)}{averaged_over(values, 'layer', 'lag')}",
        sources=(Source(result.variant, result.label, "decay"),),
        units=values.attrs["units"],
        x=values["lag"].values,
        x_name="distance in positions",
        series=some_layers(values, finite_mean(values, "layer", "lag"), result.variant),
    )


def _bigrams(result: Result) -> Figure:
    columns = ("bigram_times", "bigram_successors", "bigram_trace", "bigram_effective_rank")
    firsts = [str(token) for token in result.data["first"].values]
    table = [finite_mean(result.data[name], "first") for name in columns]
    return Table(
        title=f"What follows the most frequent tokens, {result.variant}",
        caption="The embeddings of the tokens that follow, as a weighted set of vectors: how many there are, how far "
        "they spread, how many directions they fill.",
        sources=tuple(Source(result.variant, result.label, name) for name in columns),
        columns=("token", "times followed", "different successors", "trace", "effective rank"),
        rows=[(token, *(float(column[i]) for column in table)) for i, token in enumerate(firsts)],
    )
