"""How a row of REPRODUCTION.md becomes numbers and a verdict: read as the store has them, judged as its data say."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.resampling import delete_group_error

HERE = Path(__file__).parents[2] / "docs/reproduction"


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def reading() -> ModuleType:
    import reading

    return reading


@pytest.fixture
def judging() -> ModuleType:
    import judging

    return judging


class Run:
    """A run as far as numbers are read of it: one label, its groups of prompts, and draws of two nulls."""

    variants = ("before", "spectrum", "trained")
    rungs = {"before": "training", "spectrum": "spectrum"}  # noqa: RUF012

    def __init__(self) -> None:
        draw = np.random.default_rng(0)
        heads = draw.normal(3.0, 0.1, (2, 4))
        without = heads + draw.normal(0, 0.01, (10, 2, 4))
        dims = ("layer", "head")
        of = {"x": (dims, heads), "x_without": (("left_out", *dims), without)}
        self.data = {
            "trained": xr.Dataset(of, coords={"layer": [0, 7]}),
            "before": xr.Dataset({"x": (("draw", *dims), draw.normal(0, 0.1, (8, 2, 4)))}, coords={"layer": [0, 7]}),
            "spectrum": xr.Dataset({"x": (("draw", *dims), draw.normal(3, 0.1, (8, 2, 4)))}, coords={"layer": [0, 7]}),
        }

    def manifest(self) -> Any:
        return SimpleNamespace(resolved={"variants": {"trained": [], "before": {}, "spectrum": {}}})

    def __getitem__(self, name: tuple[str, str]) -> xr.Dataset:
        return self.data[name[0]]

    def nulls(self, variant: str, label: str) -> tuple[str, ...]:
        return ("before", "spectrum") if (variant, label) == ("trained", "a.b") else ()


def test_a_number_is_selected_and_reduced_and_so_are_its_groups_and_twins(reading: ModuleType) -> None:
    run = Run()
    x, without, twins = (
        run.data[v][n].values for v, n in (("trained", "x"), ("trained", "x_without"), ("before", "x"))
    )
    spec = {"most": {"of": "a.b.x", "at": {"layer": 7}, "by": {"head": "max"}}}
    found = reading.read_numbers(spec, run)["most"]
    assert found["value"] == pytest.approx(x[1].max(), rel=1e-5)
    assert found["error"] == pytest.approx(float(delete_group_error(without[:, 1].max(-1))), rel=1e-5)
    assert found["nulls"]["before"]["mean"] == pytest.approx(twins[:, 1].max(-1).mean(), rel=1e-5)
    assert found["nulls"]["before"]["sd"] == pytest.approx(twins[:, 1].max(-1).std(ddof=1), rel=1e-5)
    assert found["nulls"]["before"]["p"] < 0.05
    assert found["rung"] == "spectrum"


def test_expressions_over_numbers_are_of_each_sample(reading: ModuleType) -> None:
    run = Run()
    by = {"head": "mean"}
    spec = {
        "low": {"of": "a.b.x", "at": {"layer": 0}, "by": by},
        "high": {"of": "a.b.x", "at": {"layer": -1}, "by": by},
        "ratio": {"is": "high / low"},
        "each": {"of": "a.b.x", "by": {**by, "layer": "each"}},
    }
    found = reading.read_numbers(spec, run)
    means = run.data["trained"]["x_without"].values.mean(-1)
    assert found["ratio"]["value"] == pytest.approx(found["high"]["value"] / found["low"]["value"], rel=1e-5)
    assert found["ratio"]["error"] == pytest.approx(float(delete_group_error(means[:, 1] / means[:, 0])), rel=1e-5)
    assert found["each"]["value"] == [found["low"]["value"], found["high"]["value"]]


def test_a_number_may_be_less_what_a_null_has_and_a_share_of_all(reading: ModuleType) -> None:
    run = Run()
    x, twins = run.data["trained"]["x"].values, run.data["spectrum"]["x"].values.mean(0)
    run.data["spectrum"]["most"] = run.data["spectrum"]["x"].max("head")
    run.data["trained"]["x"][0, 0] = np.nan
    layers = {"head layer": "share > 0"}
    spec = {
        "above": {"of": "a.b.x", "less": "a.b.x", "less_of": "spectrum", "by": layers},
        "beyond_most": {"of": "a.b.x", "less": "a.b.most", "less_of": "spectrum", "by": layers},
        "far": {"of": "a.b.x", "by": {"head layer": "share beyond 3"}, "nulls": False},
    }
    found = {name: one["value"] for name, one in reading.read_numbers(spec, run).items()}
    seen = np.isfinite(x)
    assert found["above"] == pytest.approx((x > twins)[seen].mean(), rel=1e-5)
    most = run.data["spectrum"]["x"].values.max(-1).mean(0)[:, None]
    assert found["beyond_most"] == pytest.approx((x > most)[seen].mean(), rel=1e-5)
    assert found["far"] == pytest.approx((abs(x) > 3)[seen].mean(), rel=1e-5)


@pytest.mark.parametrize(
    ("number", "said"),
    [
        ({"of": "a.b.y"}, "has no variable y: x"),
        ({"of": "a.b.x", "by": {"head": "mean"}}, "left are the dimensions layer"),
        ({"of": "a.b.x", "by": {"head": "average", "layer": "mean"}}, "no reduction 'average'"),
        ({"of": "a.b.x", "at": {"layer": 3}, "by": {"head": "mean"}}, "layer has no 3: 0, 7"),
    ],
)
def test_a_number_that_cannot_be_read_is_told(reading: ModuleType, number: dict[str, Any], said: str) -> None:
    with pytest.raises(reading.UnreadableNumber, match=r"^it: ") as told:
        reading.read_numbers({"it": number}, Run())
    assert said in str(told.value)


def test_the_share_is_of_what_is_positive(reading: ModuleType) -> None:
    cells = xr.DataArray([[0.0, 0.05, 0.1], [0.5, 0.0, np.nan]], dims=("query", "key"))
    by = {"by": {"query": "each", "key": "share <= 0.1"}}
    assert reading.reduced(cells, by).tolist() == [1.0, 0.0]


def test_several_dimensions_are_reduced_together(reading: ModuleType) -> None:
    cells = xr.DataArray([[0.05, 0.05, 0.05], [0.5, 0.0, 0.0]], dims=("query", "key"))
    assert reading.reduced(cells, {"by": {"query key": "share <= 0.1"}}).item() == pytest.approx(3 / 4)
    assert reading.reduced(-cells, {"by": {"query key": "largest"}}).item() == 0.5


def test_text_is_read_as_it_is_and_another_label_is_taken_off_cell_by_cell(reading: ModuleType) -> None:
    run = Run()
    said = (("prompt", "sample"), np.array([["an  ant"], ["a bee"]], dtype=object))
    run.data["trained"] = run.data["trained"].assign(said=said).assign_coords(prompt=["Ant", "Bee"])
    by = {"layer head": "largest"}
    spec = {"ant": {"of": "a.b.said", "at": {"prompt": "Ant"}}, "gap": {"of": "a.b.x", "less": "c.x", "by": by}}
    found = reading.read_numbers(spec, run)
    assert found["ant"] == {"value": "an ant", "error": None, "nulls": {}}
    assert found["gap"]["value"] == 0.0, "the same result under another label"
    with pytest.raises(reading.UnreadableNumber, match="is text: `at` takes one of prompt"):
        reading.read_numbers({"all": {"of": "a.b.said"}}, run)


numbers = st.floats(-100, 100).map(lambda x: round(x, 3))


@given(a=numbers, b=numbers, c=numbers)
def test_expressions_are_arithmetic(a: float, b: float, c: float) -> None:
    from judging import evaluated

    names = {"it": {"a": a, "b": b}, "c": c}
    for text in ("it.a + it.b * c", "it.a < it.b < c", "abs(it.a) >= it.b or not c > 0", "-it.a - (it.b - c) ** 2"):
        plain = SimpleNamespace(a=a, b=b)
        expected = eval(text, {"it": plain, "c": c, "abs": abs})
        assert evaluated(text, names) == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "it.__class__",
        "open('x')",
        "[1 for x in it]",
        "it.a if 1 else 2",
        "f'{it}'",
        "it.c",
        "1 +",
        "it.a in it",
    ],
)
def test_nothing_else_is_evaluated(judging: ModuleType, text: str) -> None:
    with pytest.raises(judging.BadExpression):
        judging.evaluated(text, {"it": {"a": 1.0}})


def _numbers(value: float, chance: float) -> dict[str, Any]:
    return {
        "x": {"value": value, "error": 0.1, "nulls": {"chance": {"mean": chance, "sd": 0.1, "draws": 8, "p": 0.01}}}
    }


def test_the_first_rule_that_holds_says_its_sentence(judging: ModuleType) -> None:
    rules = [
        {"each": "it.x > 2 * it.chance.x + 2 * it.error.x", "says": "more than twice chance: {builtin.x:.1f}"},
        {"when": "smollm2.x > 0", "says": "in the large one"},
        {"when": "builtin.x < builtin.chance.x", "says": "less than chance"},
    ]
    assert judging.verdict(rules, {"builtin": _numbers(3.0, 1.0)}) == "more than twice chance: 3.0"
    assert judging.verdict(rules, {"builtin": _numbers(1.0, 2.0)}) == "less than chance"
    both = {"builtin": _numbers(3.0, 1.0), "smollm2": _numbers(1.0, 1.0)}
    assert judging.verdict(rules, both) == "in the large one"
    with pytest.raises(judging.VerdictBroken, match=r"(?s)none of these holds.*chance"):
        judging.verdict(rules, {"builtin": _numbers(1.5, 1.0)})
    with pytest.raises(judging.BadExpression, match="rests on nothing"):
        judging.verdict([{"says": "yes"}], {"builtin": _numbers(1.5, 1.0)})


@pytest.mark.full
def test_a_row_is_run_read_and_written_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import remake

    monkeypatch.delenv("GAUSSLENS_MODELS", raising=False)
    kept = json.loads(remake.NUMBERS.read_text(encoding="utf-8"))
    for name in ("PAGE", "NUMBERS"):
        copied = tmp_path / getattr(remake, name).name
        copied.write_text(getattr(remake, name).read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(remake, name, copied)
    asked = ["--store", str(tmp_path / "stores"), "--rows", "embeddings"]
    assert remake.main(asked) == 0
    assert "builtin: embeddings.yaml" in capsys.readouterr().out
    read = json.loads(remake.NUMBERS.read_text(encoding="utf-8"))
    assert set(read) == set(kept)
    assert read["embeddings"]["builtin"]["numbers"]["length"]["value"] == pytest.approx(
        kept["embeddings"]["builtin"]["numbers"]["length"]["value"], rel=1e-3
    )
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "stores").rglob("parts/**/*.h5")}
    assert parts
    assert remake.main([*asked, "--no-run", "--check"]) == 0
    assert remake.main(asked) == 0
    assert {path: path.stat().st_mtime_ns for path in parts} == parts
    read["embeddings"]["builtin"]["numbers"]["length"]["value"] *= 1.5
    remake.NUMBERS.write_text(json.dumps(read), encoding="utf-8")
    capsys.readouterr()
    assert remake.main([*asked, "--no-run"]) == 1
    assert "embeddings on builtin differs: length: " in capsys.readouterr().err


def test_expressions_of_all_rows_are_expressions() -> None:
    import remake

    for row in remake.rows():
        for rule in row["verdict"] if "numbers" in row else ():
            for key in ("when", "each"):
                ast.parse(rule.get(key, "1"), mode="eval")


class Seeds(Run):
    """A run whose first variant is swept over seeds and steps; twins are of no step, or of each."""

    def __init__(self) -> None:
        draw = np.random.default_rng(1)
        steps = np.asarray([0, 10, 20, 40])
        falls = np.asarray([4.0, 2.0, 0.5, 0.4]) + draw.normal(0, 0.01, (3, 4))
        coords = {"seed": ["a", "b", "c"], "step": steps}
        dims = ("seed", "step")
        other = falls - draw.uniform(0, 0.1, (3, 4))
        self.data = {
            "trained": xr.Dataset({"x": (dims, falls), "y": (dims, other)}, coords=coords),
            "before": xr.Dataset({n: ("draw", draw.normal(4, 0.1, 8)) for n in "xy"}),
            "spectrum": xr.Dataset({n: (("draw", *dims), draw.normal(3, 0.1, (8, 3, 4))) for n in "xy"}, coords=coords),
        }
        table = xr.DataArray([[10.0, np.nan, 20.0]], dims=("layer", "seed"), coords={"layer": [0]})
        self.onset = SimpleNamespace(
            statistic=SimpleNamespace(variant="trained", label="a.b", null="before", variable="x"),
            columns=lambda: {"onset": table},
        )

    def onsets(self) -> list[Any]:
        return [self.onset]


def test_repeats_give_a_mean_with_their_error_and_twins_of_no_step_stand_beside_each(reading: ModuleType) -> None:
    """A mean of n repeats has the standard error sd / sqrt(n); differences of equal seeds are taken in pairs."""
    run = Seeds()
    x, y = (run.data["trained"][name].values for name in "xy")
    spec = {
        "x": {"of": "a.b.x", "by": {"step": "each"}, "over": "seed"},
        "y": {"of": "a.b.y", "by": {"step": "each"}, "over": "seed"},
        "gain": {"is": "x - y"},
    }
    found = reading.read_numbers(spec, run)
    assert found["x"]["value"] == pytest.approx(x.mean(0), rel=1e-5)
    assert found["x"]["error"] == pytest.approx(x.std(0, ddof=1) / np.sqrt(3), rel=1e-4)
    assert found["gain"]["error"] == pytest.approx((x - y).std(0, ddof=1) / np.sqrt(3), rel=1e-4)
    twins = run.data["before"]["x"].values.mean()
    assert found["x"]["nulls"]["before"]["mean"] == pytest.approx([twins] * 4, rel=1e-5)
    drawn = run.data["spectrum"]["x"].values.mean(1)
    assert found["x"]["nulls"]["spectrum"]["sd"] == pytest.approx(drawn.std(0, ddof=1), rel=1e-5)


def test_a_step_that_comes_to_stay_and_one_that_never_comes(reading: ModuleType, judging: ModuleType) -> None:
    run = Seeds()
    first = {"of": "a.b.x", "over": "seed", "nulls": False}
    spec = {
        "low": first | {"by": {"step": "first <= 1.0"}},
        "never": first | {"by": {"step": "first <= 0.1"}},
        "onset": {"of": "a.b.x", "onset": "before", "at": {"layer": 0}, "by": {"seed": "min"}},
        "all": {"of": "a.b.x", "onset": "before", "at": {"layer": 0}, "over": "seed"},
        "later": {"is": "all - low"},
    }
    found = reading.read_numbers(spec, run)
    assert {name: one["value"] for name, one in found.items()} == {
        "low": 20.0, "never": None, "onset": 10.0, "all": None, "later": None,
    }  # fmt: skip
    assert found["low"]["error"] == 0.0
    rules = [{"each": "it.later > 0", "says": "later"}, {"each": "not it.later > 0", "says": "not in all"}]
    assert judging.verdict(rules, {"builtin": found}) == "not in all"
    run.data["trained"]["x"][0, 3] = 2.0  # low in between, not to stay
    assert reading.read_numbers({"low": spec["low"]}, run)["low"]["value"] is None


def test_other_numbers_must_be_finite(reading: ModuleType) -> None:
    run = Seeds()
    run.data["trained"]["x"][0, 0] = np.nan
    with pytest.raises(reading.UnreadableNumber, match="is not finite"):
        reading.read_numbers({"x": {"of": "a.b.x", "at": {"step": 0}, "over": "seed", "nulls": False}}, run)
