"""Twins of a null are computed once: the store is the cache for all analyses, variants and runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import gausslens
import gausslens_gaussian.plugin
import gausslens_models.plugin
import gausslens_reinit.plugin
import gausslens_spectrum.plugin
from gausslens import plugins
from gausslens.perform import perform
from gausslens.testing import wiring

EFFECT = {"use": "spectrum.effect", "with": {"tokens": 0}}
QUERIES = {"use": "gaussian.moments", "with": {"site": "q"}}
DRAWS = 3


def run(store: Path, name: str, analyses: list[dict[str, Any]], **changes: Any) -> Any:
    study = {
        "gausslens": 1,
        "name": name,
        "seed": 1,
        "model": {"path": "builtin:testing"},
        "prompts": {"source": "text", "text": ["one and one", "two and two", "three and three"]},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": DRAWS}},
        "analyses": analyses,
        "against": "chance",
        "report": False,
    }
    extra = {
        "tiny": wiring,
        "models": gausslens_models.plugin,
        "gaussian": gausslens_gaussian.plugin,
        "spectrum": gausslens_spectrum.plugin,
        "reinit": gausslens_reinit.plugin,
    }
    return perform(study | changes, store=store, host=plugins.load(only=[], extra=extra))


def computed(ran: Any) -> list[tuple[str, str, int | None]]:
    return sorted((s.ref.variant, s.ref.label, s.ref.draw) for s in ran.outcome.computed)


def parts(store: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in (store / "parts").rglob("*.h5")}


def test_another_analysis_against_the_same_null_computes_its_own_steps_alone(tmp_path: Path) -> None:
    first = run(tmp_path, "first", [EFFECT])
    assert len(computed(first)) == 1 + DRAWS + 1
    before = parts(tmp_path)

    second = run(tmp_path, "second", [EFFECT, QUERIES])
    twins = [("chance", "gaussian.moments", draw) for draw in range(DRAWS)]
    own = [("trained", "gaussian.moments", None), ("trained", "gaussian.moments.against.chance", None)]
    assert computed(second) == sorted([*twins, *own])
    assert {name: at for name, at in parts(tmp_path).items() if name in before} == before

    # Both runs read the same twins.
    results = gausslens.open(tmp_path)
    one, other = (results.run(name)["trained", "spectrum.effect.against.chance"] for name in ("first", "second"))
    np.testing.assert_array_equal(one["kl_null_mean"], other["kl_null_mean"])


def test_another_variant_is_compared_with_the_twins_that_are_there(tmp_path: Path) -> None:
    run(tmp_path, "first", [EFFECT])
    null = {"edits": [{"edit": "reinit.config"}], "draws": DRAWS}
    sharp = [{"edit": "spectrum.scale", "alpha": 2.0}]
    again = run(tmp_path, "other", [EFFECT], variants={"sharp": sharp, "luck": null}, against="luck")
    assert computed(again) == [
        ("sharp", "spectrum.effect", None),
        ("sharp", "spectrum.effect.against.luck", None),
    ]


def test_more_draws_cost_those_draws_and_the_comparison(tmp_path: Path) -> None:
    run(tmp_path, "first", [EFFECT])
    null = {"edits": [{"edit": "reinit.config"}], "draws": DRAWS + 1}
    more = run(tmp_path, "more", [EFFECT], variants={"trained": [], "chance": null})
    assert computed(more) == [
        ("chance", "spectrum.effect", DRAWS),
        ("trained", "spectrum.effect.against.chance", None),
    ]


def test_another_seed_or_series_is_another_null(tmp_path: Path) -> None:
    run(tmp_path, "first", [EFFECT])
    heldout = {"edits": [{"edit": "reinit.config", "series": 1}], "draws": DRAWS}
    for changes in ({"seed": 2}, {"variants": {"trained": [], "chance": heldout}}):
        other = run(tmp_path, "other", [EFFECT], **changes)
        assert {c for c in computed(other) if c[0] == "chance"} == {
            ("chance", "spectrum.effect", draw) for draw in range(DRAWS)
        }
