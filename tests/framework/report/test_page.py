"""The page: whole, self-contained, inert, and standing when a section is not."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gausslens import perform
from gausslens.contract.errors import StoreError
from gausslens.figures import TokenMap
from gausslens.progress import TimeLeft
from gausslens.report import write
from gausslens.report.page import page
from gausslens.report.page_figures import draw as drawn
from gausslens.store.layout import NotAStore
from gausslens.store.read_results import open as open_store

from . import large, sections
from .conftest import PROVENANCE, Page, Written, host_with, measured
from .large import key_value_study
from .sections import HOSTILE

HERE = sections.__name__


def shown(store: Path, section: str = "every_kind", analyses: tuple[str, ...] = ("probe.scores",)) -> Page:
    return Page(write(store, host_with(f"{HERE}:{section}", analyses)).read_text(encoding="utf-8"))


def test_it_opens_with_what_was_run_on_what_when_and_how_long(study: Path) -> None:
    text = shown(study).text
    for words in ("study", "<b>tiny</b>", "float32", "fingerprint ffffffffffff", "trained, chance × 8"):  # noqa: RUF001
        assert words in text
    assert "10 results" in text
    # 75 s for each of nine twins; the comparison counts by itself.
    assert "12 min 30 s" in text
    assert "3.0 GiB at most" in text


def test_it_opens_with_what_was_found_and_shows_the_largest_departures_first(study: Path) -> None:
    page = shown(study)
    said = next(text for text in page.texts if text.startswith("Of 2 statistics 1 departs from chance (8 draws). "))
    assert "The largest effect: a score, 40 nat at layer 1, head 2 (in scores; chance: -2.52 to 1.44)." in said
    assert page.text.index(said) < page.text.index("fingerprint")
    # Of each variable that departs one row, its cell of the largest effect, before the sections.
    assert "The 1 largest of 1" in page.text
    rows = page.text[page.text.index("The largest departures from chance") : page.text.index("What is seen.")]
    assert "layer 1, head 2" in rows
    assert "mass" not in rows


def test_without_a_null_it_says_so(written: Written) -> None:
    store = written.result("trained", "scores", measured(0)).planned()
    assert "Nothing was compared with a null" in shown(store).text


def test_what_a_null_keeps_is_no_departure(written: Written) -> None:
    trained, chance = measured(0, shift=1000.0), [measured(d) for d in range(1, 9)]
    for dataset in (trained, *chance):
        dataset["mass"][:] = 1.0
    for number, dataset in enumerate(chance):
        dataset["mass"] += 1e-9 * number
    trained["mass"][:] = 1.5
    page = shown(written.result("trained", "scores", trained).compared("trained", "scores", trained, chance).planned())
    assert "The 1 largest of 1" in page.text
    cells = page.text[page.text.index("The largest departures") : page.text.index("The 1 largest")]
    assert "score" in cells
    assert "mass" not in cells


def test_where_nothing_departs_it_says_so(written: Written) -> None:
    trained, chance = measured(0), [measured(d) for d in range(1, 9)]
    written.result("trained", "scores", trained).compared("trained", "scores", trained, chance)
    page = shown(written.planned())
    assert "Of 2 statistics none departs from chance (8 draws)" in page.text
    assert "Nothing departs." in page.text


def test_unfinished_results_are_counted_and_the_rest_is_shown(written: Written) -> None:
    trained, chance = measured(0), [measured(d) for d in (1, 2)]
    written.result("trained", "scores", trained).compared("trained", "scores", trained, chance)
    written.result("chance", "scores", chance[0], 0).result("chance", "scores", None, 1)
    page = shown(written.planned())
    assert "3 results, 1 not finished: the table Steps names them" in page.text


def test_what_failed_altogether_is_among_the_steps(written: Written) -> None:
    page = shown(written.result("trained", "scores", measured(0)).result("trained", "lost", None).planned())
    steps = page.text[page.text.index("and the files of the store that hold it") :]
    assert "trained, lost" in steps
    assert "0 of 1" in steps
    assert page.all("figure")


def test_every_kind_of_figure_is_drawn(study: Path) -> None:
    page = shown(study)
    figures = [f["class"] for f in page.all("figure")]
    # The largest departures, the table of heads, and the plugin's own map of them beside its z.
    by_head = ["wide Table", "Table", "Heatmap", "Heatmap"]
    assert figures[len(by_head) :] == ["TokenMap", "Lines", "Spectrum", "Scatter", "Table", "Texts", "Panels"]
    assert len([r for r in page.all("rect") if "cell" in str(r.get("class"))]) == 12 + 12
    assert "store['trained', 'scores']['score']" in page.text
    assert {"\N{MIDDLE DOT}b", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}"} <= set(page.texts)
    assert any("layer 1, head 2: 40 nat" in t for t in page.texts)


def test_a_plugin_may_bring_a_kind_of_its_own(study: Path) -> None:
    page = shown(study, "of_its_own_kind")
    assert page.all("figure")[-1]["class"] == "Steps"
    assert "steps, step 2: 1 nat" in page.texts


def test_nothing_is_loaded_and_only_its_own_script_runs(study: Path) -> None:
    page = shown(study)
    policy = next(m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert "default-src 'none'" in policy
    assert len(page.scripts) == 1
    digest = base64.b64encode(hashlib.sha256(page.scripts[0].encode()).digest()).decode()
    assert re.search(r"script-src 'sha256-([^']+)'", policy)[1] == digest  # type: ignore[index]
    for _, attributes in page.elements:
        assert not {"srcset", "data", "action"} & set(attributes)
        assert str(attributes.get("src", "data:image/png;base64,")).startswith("data:image/png;base64,")
        assert all(not name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_markup_in_any_text_is_shown_and_not_run(study: Path) -> None:
    plain, hostile = shown(study), shown(study, "hostile")
    assert len(hostile.scripts) == 1
    assert {str(picture.get("src"))[:22] for picture in hostile.all("img")} == {"data:image/png;base64,"}
    assert {name for name, _ in hostile.elements} <= {name for name, _ in plain.elements}
    assert all(not name.startswith("on") for _, attributes in hostile.elements for name in attributes)
    # Seen, as text: in titles, captions, labels, cells and texts.
    beginning = HOSTILE[:40]
    assert sum(beginning in text for text in hostile.texts) > 30
    assert "\x00" not in hostile.text
    assert "\u202e" not in hostile.text


def test_names_from_the_store_are_escaped(written: Written) -> None:
    # The model's name, in the provenance, is <b>tiny</b>.
    page = shown(written.result("trained", "scores", measured(0)).planned(model={"path": HOSTILE}))
    assert not page.all("b")


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ("raises", "ZeroDivisionError: <i>it broke</i>"),
        ("leaves", "SystemExit: 3"),
        (
            "html",
            "(CategoryMap, Custom, Heatmap, Lines, Panels, Scatter, Spectrum, Table, Texts, TokenMap), not str",
        ),
        ("undrawn", "Undrawn 'undrawn': its drawing() gives no Drawing"),
        ("unfit", "Lines 'unfit': y of 'one' has 3 values, x has 2"),
        ("absent", "has no 'absent'"),
        ("nothing", "a section returns a list of figures, or yields them, not NoneType"),
        ("text", "a section returns a list of figures, or yields them, not str"),
    ],
)
def test_a_section_that_fails_is_a_note_with_its_plugins_name(study: Path, section: str, words: str) -> None:
    page = shown(study, section)
    failed = next(t for t in page.texts if "could not be drawn" in t)
    assert "he section probe.section of the plugin probe (" in failed
    assert words in failed
    assert "The largest departures" in page.text
    assert any("failed" in str(a.get("class")) for _, a in page.elements)


def parts(store: Path, section: str) -> list[str]:
    """Of one section in the order of the page: the titles of its figures, and what could not be drawn."""
    text = write(store, host_with(f"{HERE}:{section}")).read_text(encoding="utf-8")
    inside = text[text.index('id="section-probe.section"') : text.index('id="steps"')]
    return [a or html.unescape(b) for a, b in re.findall(r'<h3>(.*?)</h3>|<p class="failed">(.*?)</p>', inside)]


WHOSE = "of the plugin probe ((given) )"


def test_what_a_section_gave_before_it_failed_stays(study: Path) -> None:
    said = f"The section probe.section {WHOSE} could not be drawn beyond figure"
    broke = "ZeroDivisionError: <i>it broke</i>"
    assert parts(study, "halfway") == ["scores", "steps", f"{said} 2: {broke}"]
    assert parts(study, "stops") == ["scores", f"{said} 1: Stop: no more"]


def test_a_malformed_figure_is_told_at_its_place_and_costs_no_other(study: Path) -> None:
    of = f"of the section probe.section {WHOSE} could not be drawn:"
    told = parts(study, "some_malformed")
    assert told[0].startswith(f"Figure 1 {of} BadFigure: a section returns figures (")
    assert told[1:3] == ["steps", f"Figure 3 {of} BadFigure: Undrawn 'undrawn': its drawing() gives no Drawing"]
    assert told[3].startswith(f"'unfinished' {of} AttributeError: 'NoneType' object")
    assert told[4:] == ["steps"]


def test_who_calls_is_told_all_that_could_not_be_drawn(written: Written) -> None:
    from gausslens.report import Undrawn
    from gausslens.store.read_results import open as open_store

    told: list[Undrawn] = []
    host = host_with(f"{HERE}:some_malformed")
    page(open_store(two_runs(written)).run("first"), host, tell=told.append)
    assert [type(each.error).__name__ for each in told] == ["BadFigure", "BadFigure", "AttributeError"]
    assert str(told[0]).startswith("Figure 1 of the section")
    told.clear()
    page(open_store(written.path), host, every=True, tell=told.append)
    assert [str(each)[:13] for each in told] == ["Run second: F"] * 2 + ["Run second: '"] + ["Run first: Fi"] * 2 + [
        "Run first: 'u"
    ]


def test_an_interrupt_is_heard(study: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(study, host_with(f"{HERE}:interrupted"))


def test_a_section_without_results_is_not_called(study: Path) -> None:
    page = shown(study, "raises", ("other.analysis",))
    assert "probe.section" not in page.text


def test_large_figures_are_thinned_and_say_so(study: Path) -> None:
    page = shown(study, "large")
    notes = [t for t in page.texts if t.startswith("Thinned")]
    assert notes == [
        "Thinned: each cell is the mean of a block of 4 by 3, of 300 by 200 in all.",
        "Thinned: 6 of 9 curves are shown.",
        "Thinned: 2,000 of 5,000 points are shown.",
        "Thinned: 1,000 of 1,500 rows are shown.",
        "Thinned: of 1 text(s) the first 4,000 letters are shown.",
    ]
    assert (study / "report.html").stat().st_size < 2_000_000


def test_figures_of_nothing_are_drawn_empty(study: Path) -> None:
    page = shown(study, "empty")
    assert not [t for t in page.texts if "could not be drawn" in t]
    assert len([r for r in page.all("rect") if r.get("class") == "cell none"]) == 4


def test_it_is_told_that_the_page_is_drawn(study: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("GAUSSLENS_LOG_SECONDS", "0.02")
    monkeypatch.setattr("gausslens.report.write", lambda *_, **__: time.sleep(0.3))
    left = TimeLeft({"twins": 3.0, "page": 1.0}, time.monotonic() - 30)
    left.part("twins", 3.0, time.monotonic())
    perform._report(study, "study", host_with(f"{sections.__name__}:nothing"), print, None, (12, 12), left)
    assert "study: 75 %, 12 of 12, 10 s left, drawing the page\n" in capsys.readouterr().err


def test_the_page_is_replaced_whole_and_nothing_else_is_left(study: Path) -> None:
    host = host_with(f"{HERE}:every_kind")
    before = {p.name for p in study.iterdir()}
    first = write(study, host)
    text = first.read_text(encoding="utf-8")
    assert {p.name for p in study.iterdir()} == before | {"report.html"}
    first.write_text("old", encoding="utf-8")
    assert write(study, host).read_text(encoding="utf-8") == text
    assert text.startswith("<!doctype html>\n<html")
    assert text.count("</html>") == 1


def test_a_failure_leaves_the_old_page(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_with(f"{HERE}:every_kind")
    old = write(study, host).read_bytes()

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(StoreError, match=r"cannot write .*report\.html: no space left"):
        write(study, host)
    monkeypatch.undo()
    assert (study / "report.html").read_bytes() == old
    assert not list(study.glob(".*.tmp"))


def test_it_can_be_written_elsewhere(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert write(study, host_with(f"{HERE}:every_kind"), out) == out
    assert out.is_file()
    assert not (study / "report.html").exists()


def test_the_same_store_gives_the_same_page(study: Path) -> None:
    from gausslens.store.read_results import Results, open_reader

    host = host_with(f"{HERE}:every_kind")
    assert page(Results(open_reader(study)), host) == page(Results(open_reader(study)), host)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        write(tmp_path / "nowhere", host_with(f"{HERE}:every_kind"))


def test_a_page_is_of_one_run_and_names_the_others(written: Written) -> None:
    written.result("trained", "scores", measured(0))
    written.planned("first", "2026-01-02T00:00:00+00:00")
    store = written.planned("second", "2026-01-01T00:00:00+00:00")  # planned later, by a clock that went back
    page = shown(store)
    assert (
        page.texts[
            page.texts.index("This page is of run second alone. Other runs in this store: first (model builtin:made). ")
            + 1
        ]
        == "gausslens report store --run NAME"
    )
    assert "store = gausslens.open('store').run('second')" in page.text
    assert "gausslens show store scores --run second --png figures.png" in page.text
    assert "first" not in "".join(page.texts).replace("store: first (model", "")


def test_infinite_values_do_not_break_a_figure(written: Written) -> None:
    data = measured(0)
    data["score"][0, 0] = np.inf
    page = shown(written.result("trained", "scores", data).planned())
    assert any("layer 0, head 0: ∞ nat" in t for t in page.texts)


def two_runs(written: Written) -> Path:
    """Two runs of one label; the effect of the second is a hundred times larger."""
    for run, effect in (("first", 40.0), ("second", 4000.0)):
        trained, chance = measured(0), [measured(draw + 1) for draw in range(8)]
        trained["score"][1, 2] = effect
        written.steps = []
        for label in (f"{run}-scores",):
            written.result("trained", label, trained).compared("trained", label, trained, chance)
            for draw, dataset in enumerate(chance):
                written.result("chance", label, dataset, draw)
        written.planned(run)
    return written.path


def test_a_page_of_all_runs_has_each_under_its_own_heading_and_a_column(written: Written) -> None:
    from gausslens.store.read_results import open as open_store

    store, host = two_runs(written), host_with(f"{HERE}:first_result")
    everything = Page(page(open_store(store), host, every=True))
    assert everything.texts.index("Run second") < everything.texts.index("Run first")
    table = everything.texts[everything.texts.index("run") :]
    assert table.index("second-scores") < table.index("first-scores")
    anchors = [a["id"] for _, a in everything.elements if "id" in a]
    assert len(anchors) == len(set(anchors))
    assert {str(a["href"])[1:] for a in everything.all("a")} <= set(anchors)
    assert "store.run('second')['trained', 'second-scores.against.chance']['score']" in everything.text
    assert "gausslens.draw(store.run('first'), section='probe.section')[0].plot()" in everything.text
    for run, other in (("first", "second"), ("second", "first")):
        alone = Page(page(open_store(store).run(run), host))
        assert f"{other}-scores" not in alone.text
        assert "run" not in alone.texts
        assert f"store = gausslens.open('store').run('{run}')" in alone.text
        anchors = [a["id"] for _, a in alone.elements if "id" in a]
        assert {str(a["href"])[1:] for a in alone.all("a")} <= set(anchors)


def test_a_page_of_a_plan_that_its_run_does_not_show_names_the_plan(written: Written) -> None:
    from gausslens.store.read_results import open as open_store

    written.result("trained", "old", measured(0)).planned(created="2026-01-01T00:00:00+00:00")
    written.steps = []
    written.result("trained", "new", measured(1)).planned(created="2026-01-02T00:00:00+00:00")
    results = open_store(written.path)
    plan = results.manifests()[0].plan
    text = Page(page(results.named(plan), host_with(f"{HERE}:first_result"))).text
    assert f"store = gausslens.open('store').run('study', plan='{plan[:8]}')" in text
    assert f"gausslens show store old --run {plan[:8]} --png figures.png" in text
    assert "store['trained', 'new']" not in text


@pytest.mark.parametrize(("tokens", "every"), [(65, 1), (66, 2), (100, 2), (300, 5)])
def test_long_maps_name_fewer_tokens_in_print_and_say_so(tokens: int, every: int) -> None:
    names = [f"t{i}" for i in range(tokens)]
    made = TokenMap(title="map", **sections.ABOUT, values=np.eye(tokens), queries=names, keys=names)
    found = Page(str(drawn(made)))
    spans = [attrs.get("class") for attrs in found.all("span") if attrs.get("class") in (None, "nth")][-2 * tokens :]
    assert len(found.texts) >= 2 * tokens  # none is dropped
    named = [i for i, class_ in enumerate(spans[:tokens]) if class_ == "nth"]
    assert named == ([] if every == 1 else list(range(0, tokens, every)))
    assert spans[:tokens] == spans[tokens:]
    said = f"Printed, the first of every {every} tokens is named at each side."
    assert (said in found.texts) == (every > 1)


def test_the_page_knows_which_key_value_head_a_head_reads_where_all_models_say_so(written: Written) -> None:
    def reads() -> str | None:
        found = Page(page(open_store(written.path), host_with(f"{large.__name__}:of_key_heads")))
        assert {attrs["data-heads"] for attrs in found.all("svg") if "data-heads" in attrs} == {"head", "kv_head"}
        (choose,) = (attrs for attrs in found.all("div") if attrs.get("id") == "choose")
        return choose.get("data-reads")

    key_value_study(written)
    assert json.loads(reads() or "") == {str(head): str(head // 3) for head in range(9)}
    # Another model of the run says nothing, or has other groups: there is no one choice for both.
    for place, told in enumerate([{}, {"kv_of_head": [0] * 9}, {"kv_of_head": ["<b>"]}]):
        written.model = {**PROVENANCE["model"], "fingerprint": "0" * 64, **told}
        written.result("other", f"more-{place}", measured(0))
        written.planned(f"study-{place}", rungs={"before": "before", "spectrum": "spectrum"})
        assert reads() is None
        written.steps.pop()
