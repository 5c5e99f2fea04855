"""attention.members: the exact nearest members against plain sums, no draw nearer, and what was published beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import gausslens
from gausslens import Context, GausslensError
from gausslens.testing import TinyModel, TinyParameters, host_of
from gausslens_attention.analyses.members import MOST_WINDOWS, Members, nearest_by_set, needed
from gausslens_attention.maths.measures import cumulative_map_spectrum
from gausslens_attention.parameters import MembersParameters, RolesParameters

from .maps import softmax_maps

SMALL: dict[str, Any] = {"w": [1, 3], "windows": [1, 2], "draws": 3, "steps": 2, "repeats": 2}


def results_of(maps: np.ndarray, directory: Path, *analyses: dict[str, Any]) -> Any:
    """What a run on saved maps [layer, head, n, n] gives."""
    np.savez(directory / "maps.npz", pattern=maps[None])
    study = {
        "name": "maps",
        "prompts": {"source": "matrices", "path": str(directory / "maps.npz"), "causal": True},
        "analyses": list(analyses),
    }
    host = host_of("models", "attention", "matrices")
    return gausslens.run(study, store=directory / "store", host=host, shown=False)


def test_exact_distances_are_twice_what_a_member_leaves_out() -> None:
    """By plain sums: what is off the band, less the n largest cells there; no set is farther than its diagonal."""
    n = 12
    P = softmax_maps(n, heads=3, causal=True, sharp=2.0, seed=3)
    found = nearest_by_set(P, [0, 2, 5, n], [1, 2])["by_set"]
    behind = np.abs(np.arange(n)[:, None] - np.arange(n))
    for i, w in enumerate((0, 2, 5, n)):
        off = -np.sort(-np.where(behind > w, P, 0.0).reshape(len(P), -1), axis=1)
        np.testing.assert_allclose(found[:, i, 0, 1], 2 * off[:, n:].sum(axis=1), atol=1e-9)
    np.testing.assert_allclose(found[..., 0], np.broadcast_to(found[:, :1, :1, 1], found.shape[:-1]))
    assert (found[..., 2] <= found[..., 0] + 1e-9).all()
    assert (np.diff(found[..., 1], axis=1) <= 1e-9).all(), "bands are nested"


def test_what_a_map_needs_is_planted() -> None:
    """Rows that look at three columns, with a twentieth elsewhere, need three windows, or as wide a band."""
    n, far = 14, np.array([0, 1, 2, 2, 2, 2, 2, 2, 8, 8, 8, 11, 11, 11])
    H = np.tril(np.ones((n, n)))
    H = 0.05 * H / H.sum(axis=1, keepdims=True)
    H[np.arange(n), far] += 0.95
    assert needed(H[None], 0.95)["windows_needed"] == 3
    assert needed(H[None], 0.95)["width_needed"] == 5
    assert needed(np.eye(n)[None], 0.99) == {"width_needed": 0, "windows_needed": 0}
    even = np.tril(np.ones((40, 40)))
    found = needed((even / even.sum(axis=1, keepdims=True))[None], 0.9)
    assert found["windows_needed"] == MOST_WINDOWS + 1
    assert found["width_needed"] > 15


def test_no_draw_is_nearer_and_the_published_stands_beside(tmp_path: Path) -> None:
    maps = softmax_maps(16, heads=3, causal=True, sharp=3.0, seed=0)
    published = {"3, 2": [17.0, 16.5, 21.0]}
    asked = {"use": "attention.members", "as": "members", "with": SMALL | {"published": published}}
    results = results_of(maps[None], tmp_path, asked)
    data = results["trained", "members"]
    assert (data["drawn"] > data["exact"]).all()
    assert (data["drawn_sd"] > 0).all()
    drawn = [each.figure for each in gausslens.draw(results, section="attention.members")]
    table = next(figure for figure in drawn if "each head" in figure.title)
    assert table.columns == ("w", "windows", "layer", "head", "published", "exact", "drawn", "sd of searches")
    assert [row[4] for row in table.rows] == [*[None] * 9, *published["3, 2"]]


def test_published_distances_are_of_one_map_a_head(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="none of the grid: 3, 1; 3, 2"):
        MembersParameters(w=[3], windows=[1, 2], published={"4, 1": [1.0]})
    parameters = MembersParameters(w=[3], windows=[1], draws=0, published={"3, 1": [1.0, 2.0, 3.0]})
    maps = np.eye(4)[None].repeat(2, axis=0)
    found = Members(parameters, Context(TinyModel(TinyParameters(heads=2)).info, 0))
    found.by_prompt[0, 0] = nearest_by_set(maps, [3], [1]) | needed(maps, 0.8)
    with pytest.raises(GausslensError, match="are 3, one a head of one map; here are 1 maps of 2 heads"):
        found.result()


def test_the_cumulative_curve_has_all_values() -> None:
    """At k of r values it is the sum of the k largest over that of all; without it keys are those of before."""
    P = softmax_maps(8, heads=3, causal=True, sharp=2.0, seed=5)
    s = np.linalg.svd(P, compute_uv=False)
    found = cumulative_map_spectrum(P, 4, parts=16)["cumulative"]
    assert found.shape == (len(P), 17)
    np.testing.assert_allclose(found[:, ::2], np.c_[np.zeros(len(P)), np.cumsum(s, axis=1)] / s.sum(axis=1)[:, None])
    np.testing.assert_allclose(found[:, 1], s[:, 0] / 2 / s.sum(axis=1))
    assert "cumulative" not in cumulative_map_spectrum(P, 4)
    assert "parts" not in RolesParameters().canonical()
    assert RolesParameters(parts=8).canonical()["parts"] == 8
