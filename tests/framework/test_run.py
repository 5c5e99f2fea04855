"""Whole runs on the tiny model: resume, keys, sharing, failures, comparisons."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import probes
import pytest
import xarray as xr

import gausslens
from gausslens import plugins
from gausslens.perform import perform
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyEngine, wiring

Run = dict[str, Any]
EXTRA = {"tiny": wiring, "probe": probes}


def host(**more: Any) -> plugins.Host:
    return plugins.load(only=[], extra=EXTRA | more)


def study(**changes: Any) -> Run:
    whole = {
        "gausslens": 1,
        "name": "probe-run",
        "seed": 3,
        "model": {"path": "builtin:testing", "planted": [[1, 2, 3.0]]},
        "prompts": {"source": "lines"},
        "variants": {
            "trained": [],
            "dose": [{"edit": "probe.scale", "sweep": {"alpha": [0.5, 2.0]}}],
            "chance": {"edits": [{"edit": "probe.redraw"}], "draws": 4},
        },
        "analyses": [
            {"use": "probe.power"},
            {"use": "probe.spread", "variants": ["trained", "chance"]},
            {"use": "probe.norm"},
            {"use": "probe.norm", "as": "keys", "with": {"matrix": "W_K"}, "layers": [1], "heads": [3]},
            {"use": "probe.next"},
            {"use": "probe.doubled"},
            {"use": "probe.mean", "with": {"of": "probe.power"}},
        ],
        "against": "chance",
        "report": False,
    }
    return whole | changes


def do(whole: Run, store: Path, **more: Any) -> Any:
    return perform(whole, store=store, host=host(), **more)


def parts(store: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in (store / "parts").rglob("*.h5")}


def by_label(ran: Any) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for step in ran.plan.steps:
        found.setdefault(f"{step.ref.label}/{step.ref.variant}", set()).add(step.key)
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return do(study(), tmp_path_factory.mktemp("whole") / "store")


def read(ran: Any, variant: str, label: str, **where: Any) -> xr.Dataset:
    return gausslens.open(ran.path)[variant, label].sel(**where)


def test_every_shape_gives_its_result(ran):
    assert str(ran.outcome) == f"{len(ran.plan.steps)} computed"
    power = read(ran, "dose", "probe.power")
    assert power["value"].dims == ("alpha", "layer", "head")
    trained = read(ran, "trained", "probe.power")["value"]
    # q is linear in W_Q: alpha scales its mean square by alpha^2.
    np.testing.assert_allclose(power["value"].sel(alpha=2.0)[0], 4 * trained[0], rtol=1e-5)
    norm = read(ran, "trained", "probe.norm")["norm"]
    assert norm.dims == ("layer", "head")
    assert float(norm.sel(layer=1, head=2)) > 4 * float(norm.sel(layer=0, head=2))
    np.testing.assert_allclose(read(ran, "trained", "probe.doubled")["value"], 2 * trained)
    assert read(ran, "chance", "probe.spread")["variance"].dims == ("draw", "layer")
    loss = read(ran, "chance", "probe.next")
    assert (loss["loss"] != loss["base"]).all()
    np.testing.assert_array_equal(loss["base"][0], read(ran, "trained", "probe.next")["loss"])


def test_layers_and_heads_are_narrowed_by_the_host(ran):
    keys = read(ran, "trained", "keys")
    assert keys.layer.values.tolist() == [1]
    assert keys.kv_head.values.tolist() == [1]
    assert keys["norm"].shape == (1, 1)


def test_the_planted_head_departs_from_its_null(ran):
    frame = gausslens.open(ran.path).frame("trained", "probe.norm")
    strongest = frame.loc[frame["effect"].idxmax()]
    assert (strongest["layer"], strongest["head"]) == (1, 2)
    assert strongest["difference"] > 2 * frame["null_mean"].max()
    # Four draws tell no probability.
    assert frame["q"].isna().all()
    assert not frame["called"].any()


def test_comparison_is_that_of_the_draws(ran):
    found = read(ran, "trained", "probe.norm.against.chance")
    draws = read(ran, "chance", "probe.norm")["norm"]
    np.testing.assert_allclose(found["norm_null_mean"], draws.mean("draw"), rtol=1e-12)
    np.testing.assert_allclose(found["norm_null_sd"], draws.std("draw", ddof=1), rtol=1e-10)


def test_whole_run_results_are_under_all(ran):
    mean = read(ran, "all", "probe.mean")["value"]
    twins = [read(ran, v, "probe.power")["value"] for v in ("trained", "dose", "chance")]
    each = np.concatenate([twins[0].values[None], twins[1].values, twins[2].values])
    np.testing.assert_allclose(mean, each.mean(0), rtol=1e-12)


def test_the_same_run_again_writes_nothing(ran):
    before = parts(ran.path)
    again = do(study(), ran.path)
    assert str(again.outcome) == f"{len(ran.plan.steps)} found in the store"
    assert parts(ran.path) == before


@pytest.mark.parametrize(
    "change",
    [
        {"name": "renamed"},
        {"report": False},
        {"against": ["chance"]},
        {"variants": {"base": [], "other": study()["variants"]["dose"], "luck": study()["variants"]["chance"]}},
    ],
)
def test_names_recompute_nothing(ran, tmp_path, change):
    whole = study(**change)
    if "variants" in change:
        whole |= {"against": "luck"}
        whole["analyses"][1]["variants"] = ["base", "luck"]
    renamed = perform(whole, store=ran.path, host=host())
    assert renamed.outcome.computed == []
    assert renamed.outcome.failed == []


def test_a_label_recomputes_nothing(ran):
    whole = study()
    whole["analyses"][0]["as"] = "strength"
    whole["analyses"][5]["with"] = whole["analyses"][6]["with"] = {"of": "strength"}
    again = do(whole, ran.path)
    assert again.outcome.computed == []


def test_a_parameter_recomputes_only_what_depends_on_it(ran):
    whole = study()
    whole["analyses"][0]["with"] = {"scale": 2.0}
    before, after = by_label(ran), by_label(do(whole, ran.path))
    changed = {label for label in after if after[label] != before[label]}
    assert {c.split("/")[0] for c in changed} == {
        "probe.power",
        "probe.power.against.chance",
        "probe.doubled",
        "probe.doubled.against.chance",
        "probe.mean",
    }


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        ({"seed": 4}, {"chance"}),
        ({"prompts": {"source": "lines", "lines": ["other"]}}, None),
        ({"model": {"path": "builtin:testing", "planted": [[1, 2, 4.0]]}}, None),
    ],
)
def test_what_a_key_depends_on(ran, change, touched):
    before = by_label(ran)
    _, _, _, plan = prepare(study(**change), host=host())
    after: dict[str, set[str]] = {}
    for step in plan.steps:
        after.setdefault(f"{step.ref.label}/{step.ref.variant}", set()).add(step.key)
    changed = {label for label in after if after[label] != before[label]}
    if touched:  # the seed: draws, what reads them, and nothing of the untouched variants
        plain = {c for c in changed if ".against." not in c and not c.endswith("/all")}
        assert {c.split("/")[1] for c in plain} == touched
    elif "prompts" in change:
        assert not {c for c in changed if c.startswith(("probe.norm", "keys"))}
        assert {c for c in changed if c.startswith(("probe.power", "probe.next"))}
    else:
        assert changed == set(after)


def test_raising_a_version_recomputes_only_what_depends_on_it(ran, monkeypatch):
    import dataclasses

    newer = dataclasses.replace(probes.POWER, version=2)
    monkeypatch.setattr(probes, "POWER", newer)
    again = do(study(), ran.path)
    assert {s.ref.label.split(".against.")[0] for s in again.outcome.computed} == {
        "probe.power",
        "probe.doubled",
        "probe.mean",
    }


def test_order_of_plugins_changes_no_plan_and_no_result(ran, tmp_path):
    names = list(EXTRA)
    random.Random(1).shuffle(names)
    turned = plugins.load(only=[], extra={n: EXTRA[n] for n in reversed(list(EXTRA))})
    again = perform(study(), store=tmp_path / "store", host=turned)
    assert again.plan.digest == ran.plan.digest
    here, there = gausslens.open(ran.path), gausslens.open(again.path)
    for variant, label in (("trained", "probe.power"), ("chance", "probe.next"), ("dose", "probe.spread")):
        if (variant, label) != ("dose", "probe.spread"):
            xr.testing.assert_identical(here[variant, label].load(), there[variant, label].load())


def test_twins_are_the_same_in_weights_and_in_passes(ran):
    """The norm of W_Q read alone scales as q captured in a pass does, draw by draw, for layer 0 (same input)."""
    norm = read(ran, "chance", "probe.norm")["norm"]
    assert len(np.unique(norm.values)) == norm.size


def test_one_pass_is_shared_by_all_analyses_of_a_twin(tmp_path, monkeypatch):
    calls: list[Any] = []
    real = TinyEngine.run

    def counted(self: Any, twin: Any, tokens: Any, shard: Any, request: Any, sink: Any) -> None:
        calls.append((len(twin.edits), twin.draw))
        real(self, twin, tokens, shard, request, sink)

    monkeypatch.setattr(TinyEngine, "run", counted)
    do(study(analyses=[{"use": "probe.power"}, {"use": "probe.rows"}, {"use": "probe.layers"}]), tmp_path / "store")
    assert len(calls) == 1 + 2 + 4


def test_announcements_come_in_order(tmp_path):
    probes.SEEN.clear()
    uses = [{"use": "probe.power"}, {"use": "probe.fails"}]
    do(study(analyses=uses, variants={"trained": []}, against=[]), tmp_path / "store")
    seen = [what for what, _ in probes.SEEN]
    assert seen[0] == "run_started"
    assert seen[-1] == "run_finished"
    assert seen.count("step_started") == 2
    assert seen.count("step_finished") == seen.count("run_failed") == 1
    assert probes.SEEN[-1][1] == {"computed": 1, "found": 0, "failed": 1}


def test_bulk_arrays_are_written_as_they_come(tmp_path):
    ran = do(study(analyses=[{"use": "probe.copy"}], variants={"trained": []}, against=[]), tmp_path / "store")
    site = read(ran, "trained", "probe.copy")["site"]
    assert site.dims == ("layer", "prompt", "position", "d_model")
    lengths = read(ran, "trained", "probe.copy")["tokens"].values
    filled = np.isfinite(site.values).all(-1).sum(-1)
    np.testing.assert_array_equal(filled, np.broadcast_to(lengths, filled.shape))


def test_seeds_pair_the_variants(tmp_path):
    ran = do(study(analyses=[{"use": "probe.draws"}], against=[]), tmp_path / "store")
    drawn = read(ran, "chance", "probe.draws")["drawn"].values
    assert len(set(drawn.tolist())) == 1
    assert float(read(ran, "trained", "probe.draws")["drawn"]) == drawn[0]
    other = do(study(analyses=[{"use": "probe.draws"}], against=[], seed=9), tmp_path / "store")
    assert float(read(other, "trained", "probe.draws")["drawn"]) != drawn[0]


def test_provenance_tells_with_what_it_was_made(ran):
    import h5py

    path = next((ran.path / "parts" / "probe.next").glob("*.h5"))
    with h5py.File(path) as part:
        [group] = [part[part.attrs["entry"]]]
        told = json.loads(group.attrs["provenance"])
    assert told["model"]["family"] == "tiny"
    assert told["run_file"]["name"] == "probe-run"
    assert told["wall_seconds"] >= 0
    assert told["model"]["kv_of_head"] == [0, 0, 1, 1]
    assert told["peak_memory_bytes"] > 1e6
    assert "gausslens" in told["distributions"]


def test_a_note_where_the_null_does_not_have_the_analysis(tmp_path):
    whole = study(analyses=[{"use": "probe.norm", "variants": ["trained"]}])
    ran = do(whole, tmp_path / "store")
    assert any("is not computed on chance: it has no null columns" in n for n in ran.notes)


def test_layers_without_attention_are_skipped_with_the_reason(tmp_path):
    uses = [{"use": "probe.power"}, {"use": "probe.spread"}, {"use": "probe.norm"}, {"use": "probe.rows"}]
    hybrid = {"path": "builtin:testing", "layers": 3, "attention_free": [1]}
    ran = do(study(model=hybrid, analyses=uses), tmp_path / "store")
    assert ran.outcome.failed == []
    for label, layers in (("probe.power", [0, 2]), ("probe.spread", [0, 1, 2]), ("probe.norm", [0, 2])):
        found = read(ran, "trained", label)
        assert found.layer.values.tolist() == layers
        assert found.attrs.get("skipped_layers") == (None if 1 in layers else "layer 1: this layer has no attention")
    assert "probe.norm skips layer 1: this layer has no attention" in ran.notes
