"""The whole plugin through a run: results in a store, null columns, and figures of every section."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
import gausslens_bilinear.plugin
import gausslens_models.plugin
import gausslens_reinit.plugin
from gausslens.figures import Figure, Heatmap, Lines, Scatter, Spectrum, Table
from gausslens.testing import check_references, host_of
from gausslens_bilinear.figures.alignment import alignment
from gausslens_bilinear.figures.angles import angles
from gausslens_bilinear.figures.energy import energy
from gausslens_bilinear.figures.head_roles import head_roles
from gausslens_bilinear.figures.logits import logits
from gausslens_bilinear.figures.noise import noise
from gausslens_bilinear.figures.slerp import slerp
from gausslens_bilinear.figures.spectrum import spectrum
from gausslens_bilinear.plugin import SECTIONS

WORDS = ["".join(chr(97 + (7 * i + 3 * j) % 26) for j in range(18 + i % 4)) for i in range(24)]
ALL = {
    "bilinear.spectrum": {"per_head": True},
    "bilinear.alignment": {},
    "bilinear.logits": {"lags": [1, 3], "sample": 32},
    "bilinear.angles": {},
    "bilinear.head-roles": {"positions": 8},
    "bilinear.noise": {"samples": 2},
    "bilinear.slerp": {"sizes": [4], "pairs": 8},
    "bilinear.energy": {},
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    run = {
        "gausslens": 1,
        "name": "all",
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "text", "text": WORDS},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 5}},
        "analyses": [{"use": name, "with": parameters} for name, parameters in ALL.items()],
        "against": "chance",
    }
    host = host_of(bilinear=gausslens_bilinear.plugin, models=gausslens_models.plugin, reinit=gausslens_reinit.plugin)
    return gausslens.run(run, store=Path(tmp_path_factory.mktemp("store")), host=host, shown=False)


SHOWN = {
    spectrum: Heatmap,
    alignment: Spectrum,
    logits: Scatter,
    angles: Scatter,
    head_roles: Heatmap,
    noise: Spectrum,
    slerp: Lines,
    energy: Heatmap,
}


def test_everything_that_the_plugin_names_exists() -> None:
    host = check_references(gausslens_bilinear.plugin)
    assert set(host.analyses) >= set(ALL)


@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__)
def test_every_section_gives_figures_whose_sources_are_there(show: Any, results: Any) -> None:
    figures = show(results)
    assert any(isinstance(figure, SHOWN[show]) for figure in figures)
    titles = [figure.title for figure in figures]
    assert len(set(titles)) == len(titles)
    for figure in figures:
        assert isinstance(figure, Figure)
        for source in figure.sources:
            assert source.array in results[source.variant, source.label], source
            assert source.variant == "trained" or show is spectrum


def test_every_section_is_wired() -> None:
    wired = {one.section.split(":")[1] for one in SECTIONS}
    assert wired == {show.__name__ for show in SHOWN} | {"difference"}  # which has a test of its own, on one


def test_laws_need_no_draws_and_the_rest_is_compared(results: Any) -> None:
    compared = results.against("trained", "bilinear.alignment")
    assert "qk_balance_z" in compared
    assert "qk_trace_z_z" not in compared
    logits = results.against("trained", "bilinear.logits")
    assert "score_variance_measured_z" in logits
    assert "score_variance_predicted_z" not in logits
    roles = results.against("trained", "bilinear.head-roles")
    assert np.isfinite(roles["previous_z"]).any()
    # The tiny model is its own null, so that hardly anything departs from it.
    assert (np.abs(roles["previous_z"]) < 30).all()


def test_the_table_of_errors_holds_every_family_and_lag(results: Any) -> None:
    table = next(f for f in logits(results) if isinstance(f, Table))
    assert len(list(table.rows)) == 3 * 3


def test_composing_heads_are_told_strongest_first(results: Any) -> None:
    table = next(f for f in alignment(results) if isinstance(f, Table))
    rows = [list(row) for row in table.rows]
    for kind in "QKV":
        z = [row[-1] for row in rows if row[0] == kind]
        assert len(z) == 8
        assert z == sorted(z, reverse=True)
        assert all(row[1] < row[3] for row in rows)


def test_layers_without_attention_are_left_out(tmp_path: Path) -> None:
    run = {
        "gausslens": 1,
        "name": "hybrid",
        "model": {"path": "builtin:testing", "layers": 3, "attention_free": [1]},
        "prompts": {"source": "text", "text": WORDS[:8]},
        "analyses": [{"use": name, "with": parameters} for name, parameters in ALL.items()],
    }
    host = host_of(bilinear=gausslens_bilinear.plugin, models=gausslens_models.plugin)
    found = gausslens.run(run, store=tmp_path, host=host, shown=False)
    for name in set(ALL) - {"bilinear.noise", "bilinear.slerp"}:  # which tell nothing of layers
        assert found["trained", name]["layer"].values.tolist() == [0, 2], name


def test_the_power_law_by_rank_is_that_of_its_exponent() -> None:
    import xarray as xr

    from gausslens_bilinear.figures.spectrum import _tail

    # The r-th largest of n values with survival (x/least)^(1-a) at r/n.
    one = xr.Dataset({"tail_alpha": 3.0, "tail_least": 2.0, "tail_count": 4.0})
    line = _tail(one)
    assert line is not None
    assert line.reference
    np.testing.assert_allclose(np.sort(line.y)[::-1], [4.0, 2 * 2**0.5, 2 * (4 / 3) ** 0.5, 2.0])
    assert _tail(one.assign(tail_alpha=np.inf)) is None
