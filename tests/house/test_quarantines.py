"""No test is skipped without a reason in QUARANTINES.md, and none is expected to fail."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SKIPPING = {"skip", "skipif", "importorskip"}


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            yield name, node


def _reason(name: str, call: ast.Call) -> str | None:
    given = next((k.value for k in call.keywords if k.arg in ("reason", "msg")), None)
    if given is None and name == "skip" and call.args:
        given = call.args[0]
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else None


def _skips(root: Path, tracked: list[Path]) -> list[tuple[str, str | None]]:
    found = []
    for path in tracked:
        if path.suffix == ".py" and path.is_relative_to(root / "tests"):
            for name, call in _calls(ast.parse(path.read_text(encoding="utf-8"))):
                if name in SKIPPING:
                    found.append((f"{path.relative_to(root)}:{call.lineno}", _reason(name, call)))
    return found


def _ledger(root: Path) -> set[str]:
    text = (root / "tests/QUARANTINES.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", text, flags=re.MULTILINE)
    return {reason for reason, *_ in rows}


def test_every_skip_gives_its_reason_as_plain_text(root: Path, tracked: list[Path]) -> None:
    assert [place for place, reason in _skips(root, tracked) if reason is None] == []


def test_the_ledger_holds_every_reason_and_no_other(root: Path, tracked: list[Path]) -> None:
    assert {reason for _, reason in _skips(root, tracked)} == _ledger(root)


def test_nothing_is_expected_to_fail(root: Path, tracked: list[Path]) -> None:
    expected = [
        f"{path.relative_to(root)}:{call.lineno}"
        for path in tracked
        if path.suffix == ".py" and path.is_relative_to(root / "tests")
        for name, call in _calls(ast.parse(path.read_text(encoding="utf-8")))
        if name == "xfail"
    ]
    assert expected == []
