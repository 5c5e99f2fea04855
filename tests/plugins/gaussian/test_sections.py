"""The whole plugin through a run: results in a store, null columns, and figures of every section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
import gausslens_gaussian.plugin
import gausslens_models.plugin
import gausslens_reinit.plugin
import gausslens_spectrum.plugin
from gausslens import Result
from gausslens.figures import Figure, Lines, Table
from gausslens.testing import host_of
from gausslens_gaussian.figures.collapse import collapse
from gausslens_gaussian.figures.distances import distances
from gausslens_gaussian.figures.joint import joint
from gausslens_gaussian.figures.moments import moments, warnings
from gausslens_gaussian.figures.propagate import propagate
from gausslens_gaussian.plugin import SECTIONS

WORDS = ["".join(chr(97 + (7 * i + 3 * j) % 26) for j in range(12 + i % 4)) for i in range(40)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = {
        "gausslens": 1,
        "name": "all",
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "text", "text": WORDS},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 5}},
        "analyses": [
            {"use": "gaussian.moments", "with": {"principal": 2, "robust": True}},
            {"use": "gaussian.moments", "as": "queries", "with": {"site": "q", "tokens": "all"}},
            {"use": "gaussian.moments", "as": "sketched", "with": {"sketch": 8, "keep": 4}},
            {"use": "gaussian.moments", "as": "embedded", "with": {"site": "embed"}},
            {"use": "gaussian.joint", "with": {"window": 4, "dims": 2, "permutations": 3}},
            {
                "use": "gaussian.joint",
                "as": "own",
                "with": {"window": 4, "dims": 2, "reduce": "pca", "permutations": 3},
            },
            {"use": "gaussian.joint", "as": "keys", "with": {"site": "k", "window": 4, "dims": 2, "permutations": 0}},
            {"use": "gaussian.propagate", "with": {"dims": 2}},
            {"use": "gaussian.collapse"},
            {"use": "gaussian.compare", "with": {"of": "gaussian.moments", "between": ["trained", "chance"]}},
            {"use": "gaussian.between-layers", "with": {"of": "gaussian.moments"}},
        ],
        "against": "chance",
    }
    host = host_of(gaussian=gausslens_gaussian.plugin, models=gausslens_models.plugin, reinit=gausslens_reinit.plugin)
    return gausslens.run(run, store=Path(tmp_path_factory.mktemp("store")), host=host, shown=False)


SHOWN = [moments, joint, propagate, collapse, distances]


@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__)
def test_every_section_gives_figures_whose_sources_are_there(show: Any, results: Any) -> None:
    figures = show(results)
    assert figures
    for figure in figures:
        assert isinstance(figure, Figure)
        assert figure.sources
        for source in figure.sources:
            assert source.array in results[source.variant, source.label]


def test_every_section_that_is_named_was_shown() -> None:
    assert len(SECTIONS) == len(SHOWN)


def test_every_analysis_has_null_columns(results: Any) -> None:
    for label, variable in {
        "gaussian.moments": "effective_rank",
        "gaussian.joint": "mutual_information",
        "gaussian.propagate": "covariance_error_own",
        "gaussian.collapse": "entropy_deficit",
        "gaussian.between-layers": "frechet",
    }.items():
        against = results.against("trained", label)
        assert np.isfinite(against[f"{variable}_z"]).any(), label
    # In axes of each variant's own there is nothing to compare.
    assert not results.against("trained", "own").data_vars
    # Infinite divergences, booleans and numbers of a law have no place in a comparison with twins.
    assert "owned_z" not in results.against("trained", "gaussian.moments")


def test_the_collapse_of_twins_stands_beside_that_of_the_model(results: Any) -> None:
    table = next(f for f in collapse(results) if isinstance(f, Table))
    assert [row[0] for row in table.rows] == ["trained", "chance"]
    assert all(np.isfinite(value) for row in table.rows for value in row[1:])


def test_the_page_says_which_frame_is_a_variants_own_and_which_vectors_are_few(results: Any) -> None:
    told = {figure.sources[0].label: figure.caption for figure in joint(results) if isinstance(figure, Lines)}
    assert "own principal directions" in told["own"]
    assert "own principal directions" not in told["gaussian.joint"]
    shapes = [
        figure for figure in distances(results) if isinstance(figure, Lines) and "Distance of shape" in figure.title
    ]
    assert [line.name.split(",")[0] for line in shapes[0].series] == [
        "as they are",
        "after the best rotation",
        "equal Gaussians of so many vectors",
    ]
    few = results["all", "gaussian.compare"]
    few = Result("all", "gaussian.compare", few.assign_attrs(warning="few vectors"))
    assert warnings("gaussian.compare", [few], "vectors_per_dimension")[0].sources[0].array in few.data


def test_warnings_are_shown(results: Any) -> None:
    found = results["trained", "gaussian.moments"].assign_attrs(warning="<b>sinks</b>")
    table = warnings("gaussian.moments", [Result("trained", "gaussian.moments", found)])[0]
    assert isinstance(table, Table)
    assert table.rows == (("trained", "<b>sinks</b>"),)


def test_swept_values_have_curves_of_their_own(tmp_path: Path) -> None:
    edit = {"edit": "spectrum.scale", "matrices": ["W_Q", "W_K"], "sweep": {"alpha": [0.5, 2.0]}}
    run = {
        "gausslens": 1,
        "name": "swept",
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "text", "text": WORDS},
        "variants": {"dose": [edit]},
        "analyses": [{"use": "gaussian.moments"}, {"use": "gaussian.collapse"}],
    }
    host = host_of(
        gaussian=gausslens_gaussian.plugin, models=gausslens_models.plugin, spectrum=gausslens_spectrum.plugin
    )
    found = gausslens.run(run, store=tmp_path, host=host, shown=False)
    wanted = found["dose", "gaussian.moments"]["length_mean"]
    lengths = next(f for f in moments(found) if f.title.startswith("Length"))
    assert isinstance(lengths, Lines)
    assert [line.name for line in lengths.series] == ["dose, alpha 0.5", "dose, alpha 2.0"]
    for line, alpha in zip(lengths.series, (0.5, 2.0), strict=True):
        np.testing.assert_array_equal(line.y, wanted.sel(alpha=alpha))
    curves = [f for f in collapse(found) if isinstance(f, Lines)]
    assert curves
    assert all("alpha 2.0" in f.series[-1].name for f in curves)
