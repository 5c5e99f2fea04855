"""What YAML allows and a run file does not: each is told by name, at its place, by both parsers of PyYAML."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from gausslens.runfile.problems import Problems, RunFileErrors
from gausslens.runfile.text import compose

LOADERS = [pytest.param(yaml.Loader, id="python"), pytest.param(getattr(yaml, "CLoader", yaml.Loader), id="libyaml")]


def told(text: str, loader: Any) -> list[tuple[int, str]]:
    """Line and sentence of each problem."""
    problems = Problems("x")
    try:
        compose(text, "x", problems, loader=loader)
    except RunFileErrors as errors:
        return [(p.mark.line, p.message) for p in errors.problems]
    return [(p.mark.line, p.message) for p in problems]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a: 1\nb: 2\na: 3", 3, "this key is given twice, first on line 1"),
        ("a:\n  b: 1\n  'b': 2", 3, "this key is given twice, first on line 2"),
        ("1: a\n'1': b", 2, "this key is given twice, first on line 1"),
        ("a: {b: 1, c: 2,\n  b: 3}", 2, "this key is given twice, first on line 1"),
        ("a: 1\n<<: {b: 1}", 2, "merge keys (<<) are not read"),
        ("a: &a {b: 1}\nc:\n  <<: *a", 3, "merge keys (<<) are not read"),
        ("a: !!python/object/apply:os.system [ls]", 1, "the tag '!!python/object/apply:os.system' is not read"),
        ("a: 1\nb: !!int '3'", 2, "the tag '!!int' is not read"),
        ("a: !mine {b: 1}", 1, "the tag '!mine' is not read"),
        ("a: ! 1", 1, "the tag '!' is not read"),
        ("a: !<tag:example.org,2024:x> 1", 1, "the tag 'tag:example.org,2024:x' is not read"),
        ("%TAG !e! tag:example.org,2024:\n---\na: !e!x 1", 3, "the tag 'tag:example.org,2024:x' is not read"),
        ("a: !e!x 1", 1, "tags are not read"),
        ("a: 1\n---\nb: 2", 2, "a second document starts here"),
        ("a: 1\n...\n---\nb: 2", 3, "a second document starts here"),
        ("? [1, 2]\n: 3", 1, "a key is a text, this is a list"),
        ("? {a: 1}\n: 3", 1, "a key is a text, this is a table"),
        ("a: *b", 1, "the alias *b stands for no anchor above it"),
        ("a: &a [1]\nb: *A", 2, "the alias *A stands for no anchor above it"),
        ("a: .inf", 1, "is not a finite number"),
        ("a:\n- 1\n- .nan", 3, "is not a finite number"),
        ('a: "\\0"', 1, "holds a zero character"),
    ],
)
def test_each_is_told_by_name(text: str, line: int, said: str, loader: Any) -> None:
    found = told(text, loader)
    assert len(found) == 1
    assert found[0][0] == line
    assert found[0][1].startswith(said)


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("a:\n\t- b", 2, "a tab indents this line"),
        ("a:\n  b: 1\n\tc: 2", 3, "a tab indents this line"),
        ("\ta: 1", 1, "a tab indents this line"),
        ("a: b: c", 1, "a ':' is not expected here"),
        ("a: 1\n b: 2", 2, "a ':' is not expected here"),
        ("a: [1, 2\nb: 3", 1, "this '[' is never closed"),
        ("a:\n  - {b: 1, c: [1, 2]\n  - d", 2, "this '{' is never closed"),
        ("a: 'x\nb: 1\n", 1, "this quote is never closed"),
        ('a: "x\nb: 1\n', 1, "this quote is never closed"),
        ("a: 1\nb: @x", 2, "a value cannot start with '@'"),
        ("a: `x`", 1, "a value cannot start with '`'"),
        ("a: %x", 1, "a value cannot start with '%'"),
        ('a: "C:\\dir"', 1, "an escape that YAML does not have"),
        ("- a\nb: 1", 2, "this line is not at the indentation of the list"),
        ("a: 1\n- b", 2, "this line is not at the indentation of the keys"),
        ("a: {b:1}}", 1, ""),
        ("a: ]", 1, ""),
        ('a: "\\UFFFFFFFF"', 1, ""),
        ("%YAML 9.9\n---\na: 1", 1, ""),
        ("&", 1, ""),
        ("a: *", 1, ""),
    ],
)
def test_what_is_not_yaml_is_told_in_words(text: str, line: int, said: str, loader: Any) -> None:
    [(at, message)] = told(text, loader)
    assert at == line
    assert message.startswith(said)


@pytest.mark.parametrize("loader", LOADERS)
def test_what_stands_above_a_syntax_error_is_told_too(loader: Any) -> None:
    found = told("a: 1\na: 2\nb: !x 1\nc: [", loader)
    assert [line for line, _ in found] == [2, 3, 4]


@pytest.mark.parametrize("loader", LOADERS)
def test_anchors_are_read(loader: Any) -> None:
    problems = Problems("x")
    node = compose(
        "a: &a {b: [1, &two 2]}\nc: *a\nd: [*two, *two]\ne: &two 3\nf: *two\n*two : 4", "x", problems, loader=loader
    )
    assert node is not None
    assert not len(problems)
    assert node.plain() == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}, "d": [2, 2], "e": 3, "f": 3, "3": 4}
    copy = node.value["c"].value["b"].value[1]
    assert (copy.path, copy.mark.line) == (("c", "b", 1), 1)


@pytest.mark.parametrize("loader", LOADERS)
def test_every_node_knows_its_place(loader: Any) -> None:
    node = compose("a: 1\nb:\n  - x\n  - {c: 'y'}\n", "f", Problems("f"), loader=loader)
    assert node is not None
    item = node.value["b"].value[1]
    leaf = item.value["c"]
    assert (str(node.value["b"].key), str(item.mark), str(leaf.key), str(leaf.mark)) == (
        "f:2:1",
        "f:4:5",
        "f:4:6",
        "f:4:9",
    )
    assert (leaf.path, leaf.text, node.value["a"].text) == (("b", 1, "c"), None, "1")


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: 1\nname d\nmodel: {b: 1}", 2),
        ("a: 1\nmodel\n  path: x\nz: 1", 2),
        ("a: 1\nb:\n  - use: x\n    with\n      c: 3", 4),
        ("a: 1\nb:\n  - use x\n\n    with: 3", 3),
        ("a: 1\nb\n  - x\n", 2),
        ("a\nb: 1", 1),
    ],
)
def test_a_missing_colon_is_told_where_it_is_missing(text: str, line: int, loader: Any) -> None:
    [(at, said)] = told(text, loader)
    assert at == line
    assert said.startswith("a key without its ':'")
