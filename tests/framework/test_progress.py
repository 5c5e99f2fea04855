"""What is told while something is computed: the time left, lines of a log, and a bar where someone looks."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import gausslens
from gausslens.contract.errors import InputError
from gausslens.progress import Bar, TimeLeft, before, clock, log_seconds, progress

FACTORS = st.floats(0.01, 100)
PARTS = st.lists(st.floats(0.1, 10), min_size=1, max_size=12)
RUN = {
    "gausslens": 1,
    "name": "told",
    "model": {"path": "builtin:tiny"},
    "variants": {"trained": [], "before": {"edits": [{"edit": "reinit.config"}], "draws": 3}},
    "analyses": [{"use": "bilinear.spectrum"}],
    "report": False,
}


@given(PARTS, PARTS, FACTORS, FACTORS)
def test_time_left_is_exact_where_estimates_of_a_kind_are_off_by_one_factor(
    twins: list[float], results: list[float], first: float, second: float
) -> None:
    left = TimeLeft({"twins": sum(twins), "results": sum(results)}, 100.0)
    assert left.seconds(100.0) is None
    now = 100.0
    for done, estimate in enumerate(twins, 1):
        now += first * estimate
        left.part("twins", estimate, now)
        # Of the other kind nothing is known but how far off estimates were until now.
        assert left.seconds(now) == pytest.approx(first * (sum(twins[done:]) + sum(results)), rel=1e-6, abs=1e-6)
    for done, estimate in enumerate(results, 1):
        now += second * estimate
        left.part("results", estimate, now)
        assert left.seconds(now) == pytest.approx(second * sum(results[done:]), rel=1e-6, abs=1e-4 * second)
    assert left.share() == pytest.approx(1.0)


@given(PARTS, FACTORS)
def test_what_is_found_tells_nothing_of_how_long_a_part_takes(parts: list[float], factor: float) -> None:
    assume(len(parts) > 2)
    left = TimeLeft({"": sum(parts)}, 0.0)
    left.part("", parts[0], 1000.0, found=True)
    left.part("", parts[1], 1000.0 + factor * parts[1])
    assert left.seconds(1000.0 + factor * parts[1]) == pytest.approx(factor * sum(parts[2:]), rel=1e-6, abs=1e-6)


def test_time_passes_within_a_part() -> None:
    left = TimeLeft({"": 10.0}, 0.0)
    left.part("", 5.0, 10.0)
    assert left.seconds(10.0) == pytest.approx(10.0)
    assert left.seconds(14.0) == pytest.approx(6.0)
    # Longer than was thought: it is not told as done.
    assert left.seconds(60.0) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(0.2, "5 s"), (41, "40 s"), (94, "95 s"), (100, "2 min"), (3600, "60 min"), (12000, "3 h 20 min")],
)
def test_seconds_in_words(seconds: float, told: str) -> None:
    assert clock(seconds) == told


def test_a_log_gets_a_line_although_nothing_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUSSLENS_LOG_SECONDS", "0.05")
    with progress("long", 3, {"": 3.0}) as bar:
        time.sleep(0.2)
        first = capsys.readouterr().err.splitlines()
        bar("layer 2 of \x1b[31mtwin", 1.0)
        bar.step("layer 2 of \x1b[31mtwin")
        time.sleep(0.2)
    then = capsys.readouterr().err.splitlines()
    assert first[0] == "long: 0 %, 0 of 3, begins"
    assert then[-1].startswith("long: 33 %, 1 of 3, 5 s left, layer 2 of \\x1b[31mtwin")
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def test_what_comes_before_the_first_step_is_told_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAUSSLENS_LOG_SECONDS", "0.05")
    with before("long", "opens models and plans"):
        time.sleep(0.2)
    assert capsys.readouterr().err.splitlines()[0] == "long: opens models and plans"
    with before("long", "opens models and plans", shown=False):
        time.sleep(0.2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("told", ["soon", "0", "-1", "nan"])
def test_seconds_of_the_log_are_checked(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUSSLENS_LOG_SECONDS", told)
    with pytest.raises(InputError, match="more than 0, or inf"):
        log_seconds()


def test_a_bar_is_drawn_where_someone_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress("seen", 4) as bar:
        bar.one("the first")
        time.sleep(0.3)
        bar.say("[red]a line")
    shown = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert "25 %, 1 of 4" in shown
    assert "the first" in shown
    assert "[red]a line\n" in shown


def test_all_of_a_run_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates that progress hands out are those that the bar was told of at first, and every step is settled."""
    made = []

    class Kept:
        def __init__(self, title, steps, estimates, shown):
            self.inner = progress(title, steps, estimates, False)

        def __enter__(self):
            made.append(self.inner.__enter__())
            return made[0]

        def __exit__(self, *given):
            return self.inner.__exit__(*given)

    monkeypatch.setattr("gausslens.perform.progress", Kept)
    gausslens.run(RUN, store=tmp_path)
    [bar] = made
    assert bar.settled == bar.steps == 4
    assert bar.left.share() == pytest.approx(1.0)


def test_what_is_computed_is_named_while_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    class Telling(Bar):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "doing":
                told.append(str(value))
            super().__setattr__(name, value)

    monkeypatch.setattr("gausslens.progress.Bar", Telling)
    gausslens.run(RUN | {"against": "before"}, store=tmp_path)
    last = told.index("bilinear.spectrum on before, draw 2")
    assert told.index("before, draw 2: begins") < last
    comparing = "bilinear.spectrum.against.before on trained"
    # It is told when it begins, when it is done, and when it is in the store.
    assert next(at for at, text in enumerate(told) if text == comparing) > last
