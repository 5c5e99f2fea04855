"""The names that plugins and notebooks use: listed once, importable, documented."""

from __future__ import annotations

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import gausslens


def test_both_lists_of_public_names_agree(root: Path) -> None:
    """mypy reads the imports under TYPE_CHECKING, Python the table: they are the same."""
    tree = ast.parse((root / "framework/gausslens/__init__.py").read_text(encoding="utf-8"))
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    seen_by_mypy = {
        alias.asname or alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen_by_mypy == gausslens._HOMES


@pytest.mark.parametrize("name", sorted(set(gausslens.__all__) - {"__version__"}))
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    thing = getattr(gausslens, name)
    if inspect.isclass(thing) or inspect.isroutine(thing):
        assert (thing.__doc__ or "").strip(), f"gausslens.{name} has no docstring"
        assert not thing.__doc__.startswith(f"{name}("), f"gausslens.{name} has only the docstring that dataclass makes"
    assert name in dir(gausslens)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        gausslens.no_such_name  # noqa: B018


def test_the_package_itself_imports_nothing_heavy() -> None:
    module = importlib.import_module("gausslens")
    tree = ast.parse(inspect.getsource(module))
    tops = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)} | {
        alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names
    }
    assert tops == {"__future__", "typing", "importlib", "version"}
