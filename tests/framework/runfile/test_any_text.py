"""Whatever a file holds, there is a study or there are mistakes; never another exception."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gausslens.plugins.host import Host
from gausslens.runfile import RunFileErrors, read
from gausslens.runfile.problems import Problems
from gausslens.runfile.text import compose

RICH = (Path(__file__).parent / "rich.yaml").read_text(encoding="utf-8")
MARKS = ["a: ", "- ", "[", "]", "{", "}", "? ", ": ", "&a ", "*a", "!", "|", ">", "'", '"', "\n", "  ", "\t", "#", "%"]
WORDS = ["---", "...", "<<", "1e-5", "no", "~", ".inf", "gausslens: 1\n", "use: probe.norms"]
PIECES = [*MARKS, *WORDS, "\ufeff", "\u2028", "\x85"]


def told_or_read(source: Any, host: Host) -> None:
    try:
        read(source, host)
    except RunFileErrors as errors:
        told = errors
    else:
        return
    assert told.problems
    # A probe that raises is not used here: what cannot be checked would be our own failure.
    assert not [p for p in told.problems if "cannot be checked" in p.message]
    assert all(line.isprintable() for line in str(told).splitlines())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("any") / "run.yaml"


@given(data=st.binary(max_size=300))
def test_any_bytes(data: bytes, path: Path, host: Host) -> None:
    path.write_bytes(data)
    told_or_read(path, host)


@given(text=st.text(max_size=300))
@example(text="\u2028a: [")
@example(text="a: &a\n*a: *a")
@example(text="- &a\n- ? *a\n  : *a")
def test_any_text(text: str, path: Path, host: Host) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    told_or_read(path, host)


@settings(max_examples=400)
@given(pieces=st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=40))
def test_any_yaml(pieces: list[str], path: Path, host: Host) -> None:
    path.write_bytes("".join(pieces).encode("utf-8", "surrogatepass"))
    told_or_read(path, host)


@settings(max_examples=400)
@given(seed=st.integers(0, 2**32))
def test_a_run_file_with_pieces_cut_out_and_put_in(seed: int, path: Path, host: Host) -> None:
    chance = random.Random(seed)
    text = RICH
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text))
        end = start + chance.choice([0, 0, 1, 3, 30])
        inserted = chance.choice(["", *PIECES, text[start : start + chance.randint(1, 60)]])
        text = text[:start] + inserted + text[end:]
    path.write_text(text, encoding="utf-8")
    told_or_read(path, host)


@given(text=st.lists(st.sampled_from(MARKS + WORDS), max_size=30).map("".join))
def test_both_parsers_agree_on_what_they_both_read(text: str) -> None:
    found = []
    for loader in (yaml.Loader, getattr(yaml, "CLoader", yaml.Loader)):
        problems = Problems("x")
        try:
            node = compose(text, "x", problems, loader=loader)
        except RunFileErrors:
            return
        found.append((node.plain() if node else None, [(p.path, p.message) for p in problems]))
    assert repr(found[0]) == repr(found[1])


TOP = st.sampled_from(["gausslens", "model", "prompts", "variants", "analyses", "against", "name", "seed", "report"])
KEYS = st.sampled_from(["path", "use", "with", "edits", "draws", "edit", "sweep", "alpha", "keep", "source", "text"])
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(
    ["builtin:tiny", "probe.moments", "probe.scale", "probe.redraw", "trained"]
)  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.text(max_size=3), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300)
@given(source=st.dictionaries(TOP | KEYS, TREES, max_size=6))
def test_any_dict(source: dict[str, Any], host: Host) -> None:
    told_or_read(source, host)


@settings(max_examples=300)
@given(tree=TREES, where=st.integers(0, 10_000))
def test_any_value_in_any_place(tree: Any, where: int, host: Host) -> None:
    whole = yaml.safe_load(RICH)
    places: list[tuple[Any, Any]] = []

    def collect(node: Any) -> None:
        for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
            places.append((node, key))
            collect(value)

    collect(whole)
    node, key = places[where % len(places)]
    node[key] = tree
    told_or_read(whole, host)
