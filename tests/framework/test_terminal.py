"""Tables and text on a terminal: nothing wider than it, no number broken."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens.__main__ import main
from gausslens.terminal import cell_len, table

WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs"], exclude_characters="\u00a0"), max_size=40)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False).map(str)
RUN = """
gausslens: 1
name: narrow
model: {path: builtin:tiny}
prompts: {source: text, text: [A cat sat on the mat., The dog did not.]}
variants:
  trained: []
  before: {edits: [{edit: reinit.config}], draws: 5}
  halved: [{edit: spectrum.drop, sweep: {k: [1, 2]}}]
analyses:
- {use: model.loss, as: a-long-name-for-the-loss-of-the-model}
- {use: bilinear.spectrum}
- {use: gaussian.moments}
against: before
"""


@given(rows=st.lists(st.tuples(WORDS, NUMBERS, WORDS), min_size=1, max_size=5), width=st.integers(60, 140))
def test_a_table_fits_and_keeps_every_number_and_letter(rows: list[tuple[str, str, str]], width: int) -> None:
    lines = table(("name", "number", "what it is"), rows, right=(1,), width=width)
    assert max(map(cell_len, lines)) <= width
    shown = "\n".join(lines)
    assert all(number in shown for _, number, _ in rows)
    wide = "\n".join(table(("name", "number", "what it is"), rows, right=(1,)))
    assert sorted("".join(shown.split())) == sorted("".join(wide.split()))


class Terminal(io.StringIO):
    """Takes what is printed, and says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("narrow")
    (folder / "narrow.yaml").write_text(RUN, encoding="utf-8")
    assert main(["run", str(folder / "narrow.yaml")]) == 0
    return folder


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "command",
    [
        ("plan", "narrow.yaml"),
        ("run", "narrow.yaml"),
        ("check", "narrow.yaml"),
        ("show", "store"),
        ("show", "store", "a-long-name-for-the-loss-of-the-model"),
        ("show", "store", "bilinear.spectrum"),
        ("show", "store", "bilinear.spectrum", "maximum"),
        ("runs", "store"),
        ("model", "builtin:tiny"),
        ("plugins", "bilinear.spectrum"),
    ],
    ids=lambda command: " ".join(command) if isinstance(command, tuple) else None,
)
def test_no_number_is_broken(
    command: tuple[str, ...],
    columns: int,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    assert main(list(command)) == 0
    wide = capsys.readouterr().out
    terminal = Terminal()
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", terminal)
    assert main(list(command)) == 0
    shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal.getvalue())
    numbers = set(re.findall(r"(?<![\w.-])-?\d+\.?\d*(?:e[+-]?\d+)?(?![\w.])", wide))
    assert numbers
    there = set(re.findall(r"(?<![\w.-])-?\d+\.?\d*(?:e[+-]?\d+)?(?![\w.])", shown))
    assert numbers <= there, sorted(numbers - there)
    longest = max((line for line in shown.split("\n")), key=cell_len)
    assert cell_len(longest) <= columns or " " not in longest.strip(), longest
