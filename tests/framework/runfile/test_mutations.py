"""A valid run file, wrong in one place: told at the right line, once, with exit code 2."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from runfile_mutations import Mutation, Mutations

from gausslens import plugins
from gausslens.__main__ import main
from gausslens.plugins.host import Host

RICH = (Path(__file__).parent / "rich.yaml").read_text(encoding="utf-8")
ALL = Mutations(RICH).all()

# What the lines of the file refer to each other for, and to what plugins offer.
REFERENCES = [
    ("path: builtin:tiny", "path: builtin:absent"),
    ("path: builtin:tiny", "path: hub:no-owner"),
    ("path: builtin:tiny", "path: ./absent"),
    ("path: builtin:tiny", "path: live:Model"),
    ("loader: auto", "loader: tinny"),
    ("dtype: float32", "dtype: float23"),
    ("device: cpu", "device: gpu"),
    ("source: text", "source: texts"),
    ("source: few-shot", "source: many-shot"),
    ("  role: user", "  role: robot"),
    ("    - edit: probe.scale", "    - edit: probe.scald"),
    ("edit: probe.redraw", "edit: probe.moments"),
    ("matrices: [W_Q, W_K]", "matrices: [W_Q, W_Z]"),
    ("matrices: [W_Q, W_K]", "matrices: []"),
    ("keep: moments", "keep: moment"),
    ("alpha: [0.25, 0.5, 1.0, 2.0]", "alpha: [0.25, 0.5, 0.5, 2.0]"),
    ("alpha: [0.25, 0.5, 1.0, 2.0]", "alpha: [0.25, -0.5, 1, 2]"),
    ("alpha: [0.25, 0.5, 1.0, 2.0]", "alpha: []"),
    ("alpha: [0.25, 0.5, 1.0, 2.0]", "alpha: [0.25, [0.5], 1, 2]"),
    ("alpha: [0.25, 0.5, 1.0, 2.0]", "alpha: [0.25, true, 1, 2]"),
    ("alpha: [0.25, 0.5, 1.0, 2.0]", "alpha: [0.25, 0.5, 1.0, 2.0], layers: [0, 1]"),
    ("alpha: 2.0", "alpha: 0"),
    ("draws: 8", "draws: 0"),
    ("  trained: []", "  trained: [probe.scale]"),
    ("  trained: []", "  trained: []\n  all: []"),
    ("  trained: []", "  trained: []\n  a b: []"),
    ("    as: values", "    as: probe.moments"),
    ("    as: values", "    as: a.against.b"),
    ("    as: values", "    as: a/b"),
    ("      site: v", "      site: z"),
    ("      keep: 16", "      keep: 65"),
    ("      tolerance: 1e-6", "      tolerance: 0"),
    ("        start: 2", "        start: -2"),
    ("        length: 5", "        length: 0"),
    ("        - {length: 3}", "        - {}"),
    ("      range: [1, 3]", "      range: [1, 3, 5]"),
    ("        shape: box", "        shape: cube"),
    ("    layers: [0, 1]\n    heads: [2]", "    layers: [0, -1]\n    heads: [2]"),
    ("    variants: [trained, chance]", "    variants: [trained, chants]"),
    ("    variants: [trained, chance]", "    variants: [trained, trained]"),
    ("    variants: [trained, chance]", "    variants: []"),
    ("use: probe.norms, variants", "use: probe.norm, variants"),
    ("use: probe.norms, variants", "use: probe.norms, prompts: {source: text, text: [a]}, variants"),
    ("  - use: probe.replace", "  - use: probe.scale"),
    ("  - use: probe.replace", "  - use: gaussian.moments"),
    ("  - use: probe.replace", "  - use: probe.wrong-prompts\n  - probe.replace"),
    ("  - use: probe.summary", "  - use: probe.absent"),
    ("  - use: probe.summary", "  - use: probe.alien"),
    ("  - chance\n", "  - chants\n"),
    ("  - chance\n", "  - trained\n"),
    ("  - chance\n", "  - dose\n"),
    ("gausslens: 1", "gausslens: 2"),
    ("gausslens: 1", "gausslens: 0"),
    ("name: rich", "name: rich and poor"),
    ("seed: 3", "seed: -3"),
    ("seed: 3", "seed: *three"),
    ("seed: 3", "seed: [3"),
    ("seed: 3", "seed: 'three"),
    ("seed: 3", "seed: @3"),
    ("seed: 3", "seed: 3: 4"),
    ("seed: 3", "seed: &three [*three]"),
    ("seed: 3", "seed:"),
    ("seed: 3", "---\nseed: 3"),
]


def _reference(old: str, new: str) -> Mutation:
    """The mistake is on the first line in which the two differ."""
    assert old in RICH
    before = RICH[: RICH.index(old)].count("\n") + 1
    pairs = zip(old.splitlines(), new.splitlines(), strict=False)
    same = next((n for n, (a, b) in enumerate(pairs) if a != b), len(old.splitlines()))
    special = {"  - use: probe.wrong-prompts\n  - probe.replace": 1}  # prompts of the run stand in for its own
    return Mutation(f"{old.strip()} -> {new.strip()}", RICH.replace(old, new, 1), before + special.get(new, same))


Checked = Callable[[str], tuple[int, list[int], str]]


@pytest.fixture
def code_and_lines(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Checked:
    """Runs `gausslens check` on a text: its exit code, the lines of the mistakes, and all that it said."""
    monkeypatch.setattr(plugins, "load", lambda **_: host)
    path = tmp_path / "run.yaml"

    def checked(text: str) -> tuple[int, list[int], str]:
        path.write_text(text, encoding="utf-8")
        code = main(["check", "--quick", str(path)])
        told = capsys.readouterr().err
        return code, [int(line) for line in re.findall(rf"^{re.escape(str(path))}:(\d+):\d+: ", told, re.M)], told

    return checked


def test_the_file_itself_is_right(code_and_lines: Checked) -> None:
    assert code_and_lines(RICH) == (0, [], "")


def test_there_are_enough_of_every_kind() -> None:
    assert len(ALL) + len(REFERENCES) > 500
    assert len({mutation.text for mutation in ALL}) == len(ALL)
    nested = [m for m in ALL if "with." in m.what or "sweep." in m.what]
    assert len(nested) > 100


# One mistake, of which a second follows that no reader could have kept silent about.
FOLLOWED = {
    "analyses[1].as as sa",  # too short to be near: the label is then given twice
    "variants.chance.draws = .nan",
    "variants.chance.draws = 99999999999999999999",
}


@pytest.mark.parametrize("mutation", ALL, ids=lambda m: m.what)
def test_a_mutation_is_told_at_its_line(mutation: Mutation, code_and_lines: Checked) -> None:
    code, lines, told = code_and_lines(mutation.text)
    assert code == 2, told
    if mutation.what.endswith("twice") or mutation.what in FOLLOWED:  # the key that was put in is wrong as well
        assert mutation.line in lines, told
    else:
        assert set(lines) == {mutation.line}, told


@pytest.mark.parametrize("mutation", [_reference(*pair) for pair in REFERENCES], ids=lambda m: m.what)
def test_a_bad_reference_is_told_at_its_line(mutation: Mutation, code_and_lines: Checked) -> None:
    code, lines, told = code_and_lines(mutation.text)
    assert code == 2, told
    assert lines[0] == mutation.line, told
