"""The report's figures on matplotlib: from Python, and from `gausslens show --png`."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens
from gausslens import InputError
from gausslens.__main__ import main
from gausslens.report.svg.axes import axes_of

from . import sections
from .conftest import host_with

HERE = sections.__name__


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", png[16:24])
    return width, height


@pytest.mark.parametrize(
    "section", ["every_kind", "hostile", "empty", "large", "dials", "hostile_dials", "of_its_own_kind"]
)
def test_every_figure_of_the_page_is_painted(study: Path, section: str) -> None:
    drawn = gausslens.draw(study, section="probe.section", host=host_with(f"{HERE}:{section}"))
    assert len(drawn) == len(getattr(sections, section)(gausslens.open(study)))
    for each in drawn:
        width, height = size(each._repr_png_())
        assert width > 300
        assert height > 200
        assert "store[" in repr(each)


def test_a_dial_is_an_argument(study: Path) -> None:
    (each,) = gausslens.draw(study, section="probe.section", host=host_with(f"{HERE}:dials"))
    shown = each.plot(layer=6, head=2).axes[0].images[0].get_array()
    np.testing.assert_array_equal(shown, sections.DIALS[1, 2])
    with pytest.raises(InputError, match="no dial 'haed': did you mean head"):
        each.plot(haed=1)
    with pytest.raises(InputError, match="layer '9' is none of 5, 6"):
        each.plot(layer=9)


def test_it_is_drawn_on_axes_that_are_given(study: Path) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    each = gausslens.draw(study, host=host_with(f"{HERE}:every_kind"))[2]
    assert each.plot(axes) is axes.figure
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), np.arange(1.0, 6.0))


def test_axes_reach_as_far_as_on_the_page(study: Path) -> None:
    spectrum = gausslens.draw(study, host=host_with(f"{HERE}:every_kind"))[3]
    axes = spectrum.plot().axes[0]
    across, up = axes_of(spectrum.figure.drawing())
    assert axes.get_xlim() == (across.low, across.high)
    assert axes.get_ylim() == (up.low, up.high)
    assert axes.get_yscale() == "log"


def test_figures_are_chosen_by_result_and_section(study: Path) -> None:
    host = host_with(f"{HERE}:every_kind")
    store = gausslens.open(study)
    assert len(gausslens.draw(store, label="scores", variant="trained", section="probe.section", host=host)) == 8
    assert gausslens.draw(store, variant="chance", host=host) == []
    assert len(gausslens.draw(store, section="probe.section", host=host)) == 8
    with pytest.raises(InputError, match=r"no section 'probe\.sektion': did you mean"):
        gausslens.draw(store, section="probe.sektion", host=host)
    with pytest.raises(InputError, match="no finished result 'score': did you mean scores"):
        gausslens.draw(store, label="score", host=host)


def test_a_section_that_fails_is_an_error_here(study: Path) -> None:
    with pytest.raises(InputError, match="could not be drawn: ZeroDivisionError"):
        gausslens.draw(study, host=host_with(f"{HERE}:raises"))


def test_figures_that_are_in_order_are_given_and_the_others_are_a_warning(study: Path) -> None:
    host = host_with(f"{HERE}:halfway")
    with pytest.warns(UserWarning, match=r"of the plugin probe \(.*\) could not be drawn beyond figure 2: Zero"):
        drawn = gausslens.draw(study, host=host)
    assert [each.figure.title for each in drawn if each.section == "probe.section"] == ["scores", "steps"]
    with pytest.raises(InputError, match="could not be drawn beyond figure 2"):
        gausslens.draw(study, variant="chance", host=host)


def test_show_draws_what_is_in_order_and_says_what_is_not(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{HERE}:halfway"))
    out = tmp_path / "figures.png"
    assert main(["show", str(study), "scores", "--png", str(out)]) == 0
    told = capsys.readouterr()
    assert told.out.strip() == str(out)
    assert told.err.startswith("The section probe.section of the plugin probe (")
    assert size(out.read_bytes())[0] > 1000


def test_a_malformed_figure_costs_a_picture_no_other(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{HERE}:some_malformed"))
    out = tmp_path / "figures.png"
    assert main(["show", str(study), "scores", "--png", str(out)]) == 0
    told = capsys.readouterr().err.splitlines()
    assert [line.split(" could")[0].split(" of the plugin")[0] for line in told[:3]] == [
        "Figure 1 of the section probe.section",
        "Figure 3 of the section probe.section",
        "'unfinished' of the section probe.section",
    ]
    assert size(out.read_bytes())[0] > 1000


def test_show_writes_a_picture(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("gausslens.plugins.load", lambda *_, **__: host_with(f"{HERE}:every_kind"))
    out = tmp_path / "figures.png"
    assert main(["show", str(study), "scores", "--png", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    width, height = size(out.read_bytes())
    assert width < 2000
    assert height > 1500


def test_show_says_what_it_draws(study: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "figures.png"
    assert main(["show", str(study), "--png", str(out)]) == 2
    assert "name its LABEL" in capsys.readouterr().err
    assert main(["show", str(study), "scores", "--png", str(out)]) == 2
    assert "no section of the report has a figure of 'scores'" in capsys.readouterr().err
    assert not out.exists()
