"""The commands show, diff and store, as users call them."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from store.attacks import rewrite
from store.stored import META, key, manifest, small, step

from gausslens.__main__ import main
from gausslens.store import Store


def said(capsys: pytest.CaptureFixture[str], *argv: object, code: int = 0) -> str:
    found = main([str(a) for a in argv])
    out, err = capsys.readouterr()
    assert found == code, out + err
    assert "Traceback" not in out + err
    return out if code in (0, 1) and out else err


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_show_lists_what_there_is(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    text = said(capsys, "show", filled_once)
    assert text.splitlines()[0] == str(filled_once)
    assert "first   planned 2026-01-02T03:04:05" in text
    assert ["dose", "score", "probe.score", "3", "draws,", "alpha", "0.5", "2", "6", "of", "6"] in rows(text)
    table = json.loads(said(capsys, "show", filled_once, "--json"))
    assert len(table) == 14
    assert table[0]["draw"] is None
    assert {r["alpha"] for r in table if r["variant"] == "dose"} == {0.5, 2}
    assert len(list(csv.reader(io.StringIO(said(capsys, "show", filled_once, "--csv"))))) == 15


def test_show_tells_of_unfinished_steps(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    (filled.path / "parts/probe.score" / f"{key('c1')}.h5").unlink()
    assert ["chance", "score", "probe.score", "3", "draws", "2", "of", "3"] in rows(said(capsys, "show", filled.path))
    for more in ([], ["mass"], ["mass", "--csv"]):
        assert main(["show", str(filled.path), "score", *more]) == 0
        told = capsys.readouterr()
        assert "not finished: chance, score: draw 1" in told.err
        assert "not finished" not in told.out


def test_show_one_result(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    text = said(capsys, "show", filled_once, "score")
    assert "z to +3, q < 0.05 in 0 of 12" in text
    assert "layer 3, head 4" in text
    assert "a score" in text
    assert "uneven, score, draw 2" in text  # of unlike shapes: one after another
    one = said(capsys, "show", filled_once, "score", "--variant", "chance")
    assert "trained" not in one
    assert "10 11 12" in one  # few values are printed themselves


def test_show_one_array_with_the_null_beside_it(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    text = said(capsys, "show", filled_once, "score", "score", "--variant", "trained")
    head, first, *_ = rows(text)
    assert head == ["variant", "layer", "head", "name", "value", "null", "mean", "±", "sd", "z", "q"]
    assert first == ["trained", "0", "0", "a", f"{float(small(0)['score'][0, 0]):.5g}", "1", "±", "2", "+3", "0.3"]
    assert text.splitlines()[-1] == "--csv and --json have also: p, p_empirical"
    assert "more rows of score; --csv prints them all" in said(capsys, "show", filled_once, "score", "score")
    whole = list(csv.DictReader(io.StringIO(said(capsys, "show", filled_once, "score", "score", "--csv"))))
    assert len(whole) == 12 + 36 + 48 + 72
    assert float(whole[0]["value"]) == float(small(0)["score"][0, 0])  # every digit
    assert [whole[i]["draw"] for i in (0, 12)] == ["", "0"]
    cells = json.loads(said(capsys, "show", filled_once, "score", "score", "--json", "--variant", "trained"))
    assert cells[0]["value"] == float(small(0)["score"][0, 0])
    assert cells[0]["z"] == 3


def test_show_of_a_run_and_of_a_null(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    filled.manifest("second", manifest("p2", [step("trained", "score", "s")], "2026-02-01T00:00:00+00:00"))
    filled.commit("probe.score", key("s"), small(7), META)
    newest = said(capsys, "show", filled.path, "score", "mass", "--variant", "trained")
    assert rows(newest)[1] == ["trained", "7"]
    first = said(capsys, "show", filled.path, "score", "mass", "--variant", "trained", "--run", "first")
    assert rows(first)[1] == ["trained", "0"]
    compared = said(capsys, "show", filled.path, "score", "score", "--run", "first", "--null", "chance")
    assert "z" in rows(compared)[0]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["scor"], 2, "no finished result 'scor': did you mean score?"),
        (["score", "scoer"], 1, "no variable 'scoer': did you mean score?"),
        (["score", "--variant", "traind"], 1, "no variant 'traind': did you mean trained?"),
        (["--run", "firts"], 1, "no run 'firts': did you mean first?"),
        (["score", "--null", "chanc", "--variant", "trained"], 1, "not compared with 'chanc': did you mean chance?"),
    ],
)
def test_what_is_misspelt_is_told(
    capsys: pytest.CaptureFixture[str], filled_once: Path, argv: list[str], code: int, words: str
) -> None:
    assert words in said(capsys, "show", filled_once, *argv, code=code)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--variant", "traind"], "no variant 'traind': did you mean trained?"),
        (["--variant", "traind", "--json"], "no variant 'traind': did you mean trained?"),
        (["--null", "chanc"], "nothing is compared with 'chanc': did you mean chance?"),
        (["--null", "chanc", "--csv"], "nothing is compared with 'chanc': did you mean chance?"),
        (["score", "--null", "chanc"], "score is not compared with 'chanc': did you mean chance?"),
        (["score", "score", "--null", "chanc"], "score is not compared with 'chanc': did you mean chance?"),
        (["score", "--csv", "--null", "chanc"], "score is not compared with 'chanc': did you mean chance?"),
        (["score", "score", "--null", "chance", "--variant", "dose"], "dose, score is compared with no null"),
    ],
)
def test_a_variant_or_null_that_is_not_there_is_told(
    capsys: pytest.CaptureFixture[str], filled_once: Path, argv: list[str], words: str
) -> None:
    assert words in said(capsys, "show", filled_once, *argv, code=1)


def test_variant_and_null_choose_of_the_tree(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    table = json.loads(said(capsys, "show", filled_once, "--json", "--variant", "chance"))
    assert [row["variant"] for row in table] == ["chance"] * 3
    text = said(capsys, "show", filled_once, "--variant", "chance")
    assert "chance" in text
    assert "dose" not in text
    table = json.loads(said(capsys, "show", filled_once, "--json", "--null", "chance"))
    assert [(row["variant"], row["label"]) for row in table] == [("trained", "score.against.chance")]
    assert [row[:2] for row in rows(said(capsys, "show", filled_once, "--null", "chance"))[3:]] == [
        ["variant", "label"],
        ["trained", "score.against.chance"],
    ]


def test_a_null_chooses_what_is_compared_with_it(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    cells = json.loads(said(capsys, "show", filled_once, "score", "score", "--json", "--null", "chance"))
    assert {cell["variant"] for cell in cells} == {"trained"}
    assert "trained, score" in said(capsys, "show", filled_once, "score", "--null", "chance")


def test_options_may_stand_between_the_rest(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    expected = said(capsys, "show", filled_once, "score", "score", "--csv", "--variant", "trained")
    for argv in (
        [filled_once, "--variant", "trained", "score", "--csv", "score"],
        ["--variant=trained", filled_once, "score", "--csv", "score"],
        ["--csv", "--variant", "trained", "--", filled_once, "score", "score"],
    ):
        assert said(capsys, "show", *argv) == expected


def test_a_picture_is_a_png_of_a_label(capsys: pytest.CaptureFixture[str], filled_once: Path, tmp_path: Path) -> None:
    def told(*argv: object) -> str:
        return said(capsys, "show", filled_once, "score", *argv, code=2)

    assert "call the file x.png, not x.jpg" in told("--png", tmp_path / "x.jpg")
    assert "takes no ARRAY and no --null" in told("score", "--png", tmp_path / "x.png")
    assert "takes no ARRAY and no --null" in told("--null", "chance", "--png", tmp_path / "x.png")
    assert "where the store keeps its own files" in told("--png", filled_once / "parts/x.png")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", [["show"], ["store", "verify"], ["store", "gc"], ["store", "reindex"]])
def test_what_is_no_store_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: list[str]) -> None:
    assert "no store here; the path does not exist" in said(capsys, *command, tmp_path / "none", code=2)
    (tmp_path / "text").write_text("dear")
    if command[0] == "show":
        assert "refused" in said(capsys, *command, tmp_path / "text", code=1)


def test_names_from_a_store_send_the_terminal_nothing(capsys: pytest.CaptureFixture[str], store: Store) -> None:
    dataset = small(0).assign_coords(name=("head", ["\x1b[31mred", "\x9b31m", "\x07", "\u202eevil"]))
    dataset["score"].attrs["long_name"] = "\x1b]0;title\x07"
    store.manifest("run", manifest("p", [step("v", "x", "k", sweep={"a": "\x1b[2J"})]))
    store.commit("probe.score", key("k"), dataset, META)
    for argv in (["show", store.path], ["show", store.path, "x"], ["show", store.path, "x", "score"]):
        text = said(capsys, *argv)
        assert all(c.isprintable() or c == "\n" for c in text), text
    assert "\\x1b[31mred" in text
    assert "\x1b[31mred" in said(capsys, "show", store.path, "x", "score", "--csv")  # a file has it as it is
    assert "\x1b" not in said(capsys, "show", store.path, "x", "score", "--json")


def test_on_a_terminal_the_head_stands_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, filled_once: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    text = said(capsys, "show", filled_once)
    assert "\033[1mvariant  label" in text
    assert "probe.score" in text


def test_diff_says_which_ingredient(capsys: pytest.CaptureFixture[str], store: Store) -> None:
    def plan(run: str, rank: int, seed: int, extra: bool) -> None:
        made = {
            "analysis": {"name": "probe", "parameters": {"rank": rank, "sites": ["q", "k"]}},
            "edits": [{"seed": seed}],
        }
        steps = [step("trained", "same", "same"), step("trained", "rank", f"r{rank}", ingredients=made)]
        steps += [step("chance", "rank", f"c{rank}{i}", ingredients=made, draw=i) for i in range(3)]
        inputs = [key(f"r{rank}"), key(f"c{rank}0")]
        steps.append(
            step("trained", "rank.against.chance", f"a{rank}", ingredients={"of": inputs[0], "null": inputs[1:]})
        )
        steps += [step("trained", "new", "new")] if extra else []
        store.manifest(run, manifest(f"p{rank}{seed}", steps))

    plan("one", 1, 0, extra=False)
    plan("two", 2, 7, extra=True)
    text = said(capsys, "diff", store.path, "one", "two")
    assert text.startswith("one and two: 1 steps are the same, 6 differ")
    assert "analysis.parameters.rank: 1 -> 2" in text
    assert "edits.0.seed: 0 -> 7" in text
    assert "only in two: trained, new" in text
    assert "trained, rank; chance, rank, draw 0; chance, rank, draw 1; chance, rank, draw 2" in text  # told once
    assert "  reads rank on trained; rank on chance draw 0\n" in text  # why they differ is told where they are
    data = json.loads(said(capsys, "diff", store.path, "one", "two", "--json"))
    assert data["same"] == 1
    assert {"path": "edits.0.seed", "one": {"value": 0}, "other": {"value": 7}} in data["different"][0]["changes"]
    assert said(capsys, "diff", store.path, "one", "one").startswith("one and one: 6 steps are the same, 0 differ")
    by_plan = said(capsys, "diff", store.path, key("p10")[:10], "two")
    assert "6 differ" in by_plan
    short = said(capsys, "diff", store.path, key("p10")[:4], "two", code=2)
    assert f"no run '{key('p10')[:4]}'" in short
    assert f"give 6 digits or more: {key('p10')[:8]}" in short
    assert "no run 'tow': did you mean two?" in said(capsys, "diff", store.path, "one", "tow", code=1)


def test_diff_tells_an_absent_ingredient_from_null(capsys: pytest.CaptureFixture[str], store: Store) -> None:
    store.manifest("one", manifest("p1", [step("v", "x", "a", ingredients={"k": None, "list": [1, 2], "t": 1})]))
    store.manifest("two", manifest("p2", [step("v", "x", "b", ingredients={"list": [1, 2, 3], "t": True})]))
    text = said(capsys, "diff", store.path, "one", "two")
    assert "k: null -> (absent)" in text
    assert "list: [1, 2] -> [1, 2, 3]" in text
    assert "t: 1 -> true" in text


def test_verify(capsys: pytest.CaptureFixture[str], filled: Store) -> None:
    assert "16 files checked, 0 findings" in said(capsys, "store", "verify", filled.path)
    part = filled.path / "parts/probe.score" / f"{key('t')}.h5"
    part.chmod(0o644)
    part.write_bytes(part.read_bytes()[:-7])
    text = said(capsys, "store", "verify", filled.path, code=1)
    assert f"parts/probe.score/{key('t')}.h5: it has no seal: it was cut short" in text
    assert "1 findings" in text
    found = json.loads(said(capsys, "store", "verify", filled.path, "--json", code=1))
    assert [f["harmless"] for f in found] == [False]


def test_verify_reports_what_cannot_be_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, filled: Store
) -> None:
    real = os.scandir
    closed: set[Path] = set()

    def scandir(path: Any) -> Any:
        if Path(path) in closed:
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    for below in ("runs", "parts", "parts/probe.score"):
        closed = {filled.path / below}
        text = said(capsys, "store", "verify", filled.path, code=1)
        assert f"{below}: cannot be read: permission denied" in text
        assert "note: store.h5: cannot be compared with the results" in text
        assert ", 1 findings" in text
    broken = next((filled.path / "runs/first").iterdir())
    broken.chmod(0o644)
    broken.write_text("{}")
    text = said(capsys, "store", "verify", filled.path, code=1)
    assert "is not the manifest of a run" in text  # and goes on with the rest


def test_a_name_too_long_is_told(capsys: pytest.CaptureFixture[str], filled_once: Path, tmp_path: Path) -> None:
    long = tmp_path / ("n" * 300)
    for argv in (
        ["show", long],
        ["store", "verify", long],
        ["store", "pack", filled_once, long],
        ["diff", long, "first", "first"],
        ["report", long],
    ):
        assert "name is too long" in said(capsys, *argv, code=2), argv


def test_an_option_of_another_action_is_refused(capsys: pytest.CaptureFixture[str], filled_once: Path) -> None:
    assert "only verify takes --json" in said(capsys, "store", "gc", filled_once, "--json", code=2)
    assert "only gc takes --yes" in said(capsys, "store", "verify", filled_once, "--yes", code=2)


@pytest.mark.parametrize("place", ["parts/p.h5", "parts/probe.score/p.h5", "runs/p.h5", "tmp/p.h5", "store.h5"])
def test_a_pack_is_not_written_among_the_stores_own_files(
    capsys: pytest.CaptureFixture[str], filled: Store, tmp_path: Path, place: str
) -> None:
    (tmp_path / "link").symlink_to(filled.path)
    for root in (filled.path, tmp_path / "link"):
        assert "keeps its own files" in said(capsys, "store", "pack", filled.path, root / place, code=2)
    assert "14 results" in said(capsys, "store", "pack", filled.path, filled.path / "p.h5")
    assert "0 findings" in said(capsys, "store", "verify", filled.path)


def test_pack_and_reindex(capsys: pytest.CaptureFixture[str], filled: Store, tmp_path: Path) -> None:
    target = tmp_path / "p.h5"
    assert "14 results" in said(capsys, "store", "pack", filled.path, target)
    assert "1 files checked, 0 findings" in said(capsys, "store", "verify", target)
    assert (
        said(capsys, "show", target, "score").split("\n", 1)[1]
        == said(capsys, "show", filled.path, "score").split("\n", 1)[1]
    )
    assert "exists: choose another name" in said(capsys, "store", "pack", filled.path, target, code=1)
    assert "pack needs a FILE" in said(capsys, "store", "pack", filled.path, code=2)
    assert "only pack takes a FILE" in said(capsys, "store", "gc", filled.path, target, code=2)
    assert "works on a store's directory" in said(capsys, "store", "reindex", target, code=2)
    (filled.path / "store.h5").unlink()
    assert "note: store.h5: is missing" in said(capsys, "store", "verify", filled.path)
    assert said(capsys, "store", "reindex", filled.path).strip() == str(filled.path / "store.h5")


def test_gc_shows_and_asks(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, filled: Store) -> None:
    assert said(capsys, "store", "gc", filled.path).strip() == "nothing is superseded"
    later = "2026-02-01T00:00:00+00:00"
    whole = json.loads(next((filled.path / "runs/first").iterdir()).read_text())["steps"]
    whole[0]["key"] = key("other")
    filled.manifest("first", manifest("p2", whole, later))
    filled.commit("probe.score", key("other"), small(3), META)
    part = filled.path / "parts/probe.score" / f"{key('t')}.h5"
    assert "say --yes where nobody can answer" in said(capsys, "store", "gc", filled.path, code=2)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: "n")
    text = said(capsys, "store", "gc", filled.path)
    assert "first: trained, score" in text
    assert "1 plans and 1 results" in text
    assert "nothing was removed" in text
    assert part.exists()
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert "removed 2 files" in said(capsys, "store", "gc", filled.path)
    assert not part.exists()
    assert "0 findings" in said(capsys, "store", "verify", filled.path)
    assert "nothing is superseded" in said(capsys, "store", "gc", filled.path, "--yes")


def test_a_damaged_run_is_told_and_the_others_shown(
    capsys: pytest.CaptureFixture[str], filled: Store, tmp_path: Path
) -> None:
    shutil.copytree(filled.path, tmp_path / "copy")
    rewrite(tmp_path / "copy", lambda body: body.update(plan="../x"))
    with pytest.warns(UserWarning, match="a run is left out"):
        assert "no run yet" in said(capsys, "show", tmp_path / "copy")
