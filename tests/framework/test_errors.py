"""Errors over prompts: against leaving groups out by separate runs, their cost and keys, and where there are none."""

from __future__ import annotations

import copy
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import probe_analyses
import probes
import pytest
import xarray as xr

import gausslens
from gausslens import mean_over_prompts, plugins
from gausslens.__main__ import main
from gausslens.maths.resampling import dealt, delete_group_error
from gausslens.measuring.errors import CONDITIONAL, leave_one_out, merged, with_errors
from gausslens.perform import perform
from gausslens.runs.plan import PlanError
from gausslens.runs.resources import needs, pass_seconds, states_held, together
from gausslens.spreading.prepare import prepare
from gausslens.testing import TinyEngine, wiring

LINES = [f"{'word ' * (n % 5)}number {n} of these lines" for n in range(23)]
TOO_FEW = ["one two three", "four", "five six"]


def study(*uses: dict[str, Any], lines: list[str] = LINES, **more: Any) -> dict[str, Any]:
    return {
        "name": "errors",
        "seed": 3,
        "model": {"path": "builtin:testing", "planted": [[1, 2, 3.0]]},
        "prompts": {"source": "lines", "lines": lines},
        "analyses": list(uses or ({"use": "probe.power"},)),
        "report": False,
    } | more


def host() -> plugins.Host:
    return plugins.load(only=[], extra={"tiny": wiring, "probe": probes})


def ran(whole: dict[str, Any], store: Path) -> gausslens.Results:
    made = perform(whole, store=store, host=host())
    assert not made.outcome.failed, made.failures_in_words()
    return gausslens.open(made.path)


def test_errors_are_those_of_leaving_groups_out_by_separate_runs(tmp_path):
    # In float64: of float32, products of other batches differ in the last digits on some processors.
    exact = {"model": study()["model"] | {"dtype": "float64"}}
    result = ran(study(**exact), tmp_path / "store")["trained", "probe.power"].load()
    tokens = prepare(study(**exact), host=host())[3].steps[0].tokens
    group = dealt(tokens.ids, 10)
    apart = []
    for g in range(10):
        kept = [line for line, of in zip(LINES, group, strict=True) if of != g]
        alone = ran(study(lines=kept, errors=False, **exact), tmp_path / str(g))["trained", "probe.power"].load()
        apart.append(alone["value"].values)
    np.testing.assert_allclose(result["value_without"].values, apart, rtol=1e-12)
    np.testing.assert_allclose(result["value_se"].values, delete_group_error(apart), rtol=1e-6)
    whole = ran(study(errors=False, **exact), tmp_path / "off")["trained", "probe.power"]
    np.testing.assert_allclose(result["value"].values, whole["value"].values, rtol=1e-12)
    assert "value_se" not in whole
    assert result["value_without"].dims == ("left_out", *result["value"].dims)
    assert result["value_se"].attrs["of"] == result["value_without"].attrs["of"] == "value"
    assert result["value_se"].attrs["groups"] == 10


class Counted:
    """What was merged, in order, and how often; states are known by their group."""

    merges = 0
    most = 0
    alive = 0

    def __init__(self, seen: tuple[int, ...]) -> None:
        self.seen = seen
        self._born()

    def _born(self) -> None:
        Counted.alive += 1
        Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        Counted.alive -= 1

    def __deepcopy__(self, memo: object) -> Counted:
        return Counted(self.seen)

    def merge(self, other: Counted) -> None:
        Counted.merges += 1
        self.seen += other.seen


@pytest.mark.parametrize("groups", [2, 3, 5, 8, 10, 16, 23])
def test_merges_and_states_are_few(groups: int) -> None:
    Counted.merges = Counted.most = Counted.alive = 0
    states = [Counted((g,)) for g in range(groups)]
    for left_out, state in enumerate(leave_one_out(states, copy.deepcopy)):
        assert sorted(state.seen) == [g for g in range(groups) if g != left_out]
    assert [state.seen for state in states] == [(g,) for g in range(groups)]
    del state
    # A state outlives its turn until the next one is asked for: one more than are needed.
    assert Counted.most <= states_held(groups) + 1
    assert merged(states).seen == tuple(range(groups))
    assert Counted.merges <= groups * math.log2(groups) + groups
    if groups == 10:
        assert Counted.merges == 32 + 9


def test_who_computes_and_with_what_beside_it_changes_no_bit(tmp_path, monkeypatch):
    uses = ({"use": "probe.power"}, {"use": "probe.rows"}, {"use": "probe.layers"})
    together = ran(study(*uses), tmp_path / "together")
    alone = ran(study(), tmp_path / "alone")["trained", "probe.power"]
    xr.testing.assert_identical(together["trained", "probe.power"].load(), alone.load())
    assert {"value_se", "value_without"} <= set(together["trained", "probe.rows"])
    assert {"value_se", "value_without"} <= set(together["trained", "probe.layers"])
    real, left = TinyEngine.run, [4]

    def killed(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            signal.raise_signal(signal.SIGINT)
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(TinyEngine, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            ran(study(), tmp_path / "killed")
    again = ran(study(), tmp_path / "killed")["trained", "probe.power"]
    xr.testing.assert_identical(again.load(), alone)


def plan_of(whole: dict[str, Any]) -> Any:
    return prepare(whole, host=host())[3]


def test_keys_know_errors_only_where_they_are_on():
    on, off = plan_of(study()).steps[0], plan_of(study(errors=False)).steps[0]
    assert (on.groups, off.groups) == (10, None)
    assert set(on.ingredients) - set(off.ingredients) == {"errors"}
    assert plan_of(study(lines=TOO_FEW)).steps[0].key == plan_of(study(lines=TOO_FEW, errors=False)).steps[0].key
    assert plan_of(study(errors={"groups": 10})).steps[0].key == on.key
    assert plan_of(study(errors={"groups": 5})).steps[0].key not in (on.key, off.key)
    for shape in ("probe.norm", "probe.next", "probe.copy"):
        assert plan_of(study({"use": shape})).steps[0].key == plan_of(study({"use": shape}, errors=False)).steps[0].key
    mixed = plan_of(study({"use": "probe.power"}, {"use": "probe.rows", "errors": False}, errors={"groups": 4}))
    assert [step.groups for step in mixed.steps] == [4, None]
    assert mixed.study.resolved["errors"] == {"groups": 4}
    assert [entry["errors"] for entry in mixed.study.resolved["analyses"]] == [None, False]


def test_what_was_asked_for_and_cannot_be_is_told():
    assert plan_of(study(lines=TOO_FEW)).notes == ()
    # Where nulls are compared with it is told unasked, for a claim about prompts in general needs them.
    noise = {"edits": [{"edit": "probe.redraw"}], "draws": 2}
    variants = {"trained": [], "chance": noise, "other": {"prompts": {"source": "lines", "lines": TOO_FEW}}}
    (without, apart) = plan_of(study(lines=TOO_FEW, variants=variants, against=["chance"])).notes
    assert without.startswith("streamed numbers have no errors over prompts: 10 groups need as many different prompts")
    assert apart == "other reads prompts of its own, chance the run's: it differs from them by both"
    few = "probe.power has no errors over prompts: 10 groups need as many different prompts, there are 3"
    assert plan_of(study(lines=TOO_FEW, errors={"groups": 10})).notes[0].startswith(few)
    with pytest.raises(PlanError, match="there are 3"):
        plan_of(study({"use": "probe.power", "errors": {"groups": 10}}, lines=TOO_FEW))
    assert plan_of(study({"use": "probe.copy"})).notes == ()
    asked = plan_of(study({"use": "probe.copy"}, errors={"groups": 4}))
    assert asked.notes == ("probe.copy has no errors over prompts: probe.copy writes arrays as they come",)
    for use, why in (("probe.copy", "writes arrays"), ("probe.norm", "shape weights"), ("probe.next", "shape forward")):
        with pytest.raises(gausslens.InputError, match=rf"analyses\[0\].errors: {use} .*{why}"):
            plan_of(study({"use": use, "errors": {"groups": 4}}))
        plan_of(study({"use": use, "errors": False}))


def test_of_two_passes_the_error_is_conditional(tmp_path):
    result = ran(study({"use": "probe.spread", "with": {"site": "q"}}), tmp_path)["trained", "probe.spread"]
    assert result["variance_se"].attrs["conditional"] == CONDITIONAL
    assert (result["variance_se"] > 0).all()
    assert result.attrs["no_errors"] == "mean: it comes from an earlier pass"
    assert np.isnan(result["mean_se"]).all()


def test_a_result_that_needs_all_prompts_costs_its_errors_alone(tmp_path, monkeypatch):
    real = probe_analyses.MeanSquare.result

    seen: list[int] = []

    def needs_all(self: Any) -> xr.Dataset:
        seen.append(next(iter(self.count.values())))
        if seen == seen[:1]:  # the first to be asked is without a group
            raise KeyError("prompt 7")
        return real(self)

    monkeypatch.setattr(probe_analyses.MeanSquare, "result", needs_all)
    made = perform(study(), store=tmp_path, host=host())
    result = gausslens.open(made.path)["trained", "probe.power"]
    assert np.isfinite(result["value"]).all()
    assert np.isnan(result["value_se"]).all()
    assert np.isnan(result["value_without"]).all()
    why = "value: without some prompts there is no result: KeyError: 'prompt 7'"
    assert result.attrs["no_errors"] == why
    assert f"probe.power has no errors over prompts of {why}" in made.notes
    assert seen[0] < seen[1]


TWINS = {"trained": [], "chance": {"edits": [{"edit": "probe.redraw"}], "draws": 4}}


def test_a_comparison_has_the_error_of_the_difference(tmp_path, capsys):
    store = ran(study(variants=TWINS, against="chance"), tmp_path / "store")
    against = store.against("trained", "probe.power")
    mine = store["trained", "probe.power"]["value_without"].values
    theirs = store["chance", "probe.power"]["value_without"].values
    np.testing.assert_allclose(against["value_difference_se"], delete_group_error(mine - theirs.mean(axis=0)))
    np.testing.assert_array_equal(against["value_se"], store["trained", "probe.power"]["value_se"])
    assert not [name for name in against if str(name).endswith("_without") or "_se_" in str(name)]
    frame = store.frame("trained", "probe.power")
    assert set(frame["variable"]) == {"value"}
    columns = list(frame)
    assert columns.index("se") == columns.index("value") + 1
    np.testing.assert_array_equal(frame["se"], against["value_se"].values.ravel())
    np.testing.assert_array_equal(frame["difference_se"], against["value_difference_se"].values.ravel())
    capsys.readouterr()
    assert main(["show", str(tmp_path / "store"), "probe.power", "--variant", "trained"]) == 0
    shown = capsys.readouterr().out
    assert "value_se" in shown
    assert "value_without" not in shown
    assert main(["show", str(tmp_path / "store"), "probe.power", "--variant", "trained", "--csv"]) == 0
    assert ",value,se,null_mean," in capsys.readouterr().out.splitlines()[0]
    whole = store.frame("trained", "probe.power", variables="value_without")
    assert len(whole) == mine.size


def dataset(values: Any, **attributes: Any) -> xr.Dataset:
    return xr.Dataset({"x": ("layer", values, {"long_name": "x", "units": "m"} | attributes)})


def test_notes_say_which_errors_are_unsure():
    one_owns = [dataset([1.0 + (g == 3), np.cos(g)]) for g in range(10)]
    found = with_errors(dataset([1.0, 2.0], order=4), one_owns, 10, "digest", conditional=False)
    assert found["x_se"].attrs["se_note"] == "one group of prompts makes most of the error in 1 of 2 cells"
    assert found["x_se"].attrs["lower_bound"].startswith("a lower bound")
    calm = with_errors(dataset([1.0, 2.0]), [dataset([np.sin(g), np.cos(g)]) for g in range(10)], 10, "digest", False)
    assert {"se_note", "lower_bound", "conditional"} & set(calm["x_se"].attrs) == set()
    assert calm["x_without"].attrs["prompts"] == "digest"


def test_an_error_that_the_analysis_gives_is_kept_and_other_cells_have_none():
    own = dataset([1.0, 2.0]).assign(x_se=("layer", [5.0, 5.0], {"long_name": "its own", "units": "m", "against": 0}))
    found = with_errors(own, [own + g for g in range(4)], 4, "digest", False)
    np.testing.assert_array_equal(found["x_se"], [5.0, 5.0])
    assert "x_without" in found
    short = with_errors(dataset([1.0, 2.0]), [dataset([1.0, 2.0]), dataset([1.0])], 2, "digest", False)
    assert np.isnan(short["x_se"]).all()
    assert short.attrs["no_errors"] == "x: without some prompts it has other cells"


def test_a_mean_over_prompts_brings_its_error():
    values = np.array([[1.0, 2.0], [3.0, np.nan], [5.0, 6.0]])
    found = xr.Dataset(mean_over_prompts("loss", "layer", values, "loss", "nat"))
    np.testing.assert_allclose(found["loss"], [3, 4])
    np.testing.assert_allclose(found["loss_se"], [2 / np.sqrt(3), np.sqrt(8) / np.sqrt(2)])
    assert found["loss_se"].attrs["of"] == "loss"
    assert found["loss_se"].attrs["against"] == 0


def test_the_plan_counts_the_states_that_are_held(capsys):
    from gausslens_gaussian import plugin

    whole = study({"use": "gaussian.moments"})
    with_moments = plugins.load(only=[], extra={"tiny": wiring, "probe": probes, "gaussian": plugin})
    on = prepare(whole, host=with_moments)[3]
    off = prepare(whole | {"errors": False}, host=with_moments)[3]
    info = on.steps[0].info
    state = 8 * info.n_layers * info.d_model**2
    more = needs(on.steps[0], info).memory - needs(off.steps[0], info).memory
    assert more == (10 + 4 - 1) * state


def test_the_plan_counts_a_shared_pass_once_and_a_result_of_each_group():
    from gausslens_gaussian import plugin

    two = {
        "analyses": [{"use": "gaussian.moments"}, {"use": "gaussian.moments", "as": "values", "with": {"site": "v"}}]
    }
    whole = study({"use": "gaussian.moments"}) | two
    with_moments = plugins.load(only=[], extra={"tiny": wiring, "probe": probes, "gaussian": plugin})
    plan, off = (prepare(each, host=with_moments)[3] for each in (whole, whole | {"errors": False}))
    first, second = (step for step in plan.steps if not step.inputs)
    seconds = [needs(step, step.info, 1e9).seconds for step in (first, second)]
    of_pass = pass_seconds(first.info, first.tokens, 1e9)
    assert of_pass > 0
    assert together([first, second], 1e9) == pytest.approx(sum(seconds) - of_pass)
    result = needs(off.steps[0], first.info, 1e9).seconds - of_pass
    assert result > 0
    assert seconds[0] == pytest.approx(of_pass + (1 + first.groups) * result)
