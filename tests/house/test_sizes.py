"""A module is read in one sitting, a function on one screen, and each is named for what it is or does."""

from __future__ import annotations

import ast
from pathlib import Path

MODULE_LINES = 300
TEST_LINES = 400
FUNCTION_LINES = 50
NAMES_THAT_SAY_NOTHING = {"util", "common", "base", "core", "helper", "manager", "misc", "tool"}

# What is over the limits for now, with its length: it may shrink, never grow.
LONG_MODULES: dict[str, int] = {}
LONG_FUNCTIONS: dict[str, int] = {}


def _functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_modules_are_short(root: Path, tracked: list[Path]) -> None:
    long = {}
    for path in tracked:
        if path.suffix != ".py":
            continue
        name = str(path.relative_to(root))
        lines = len(path.read_text(encoding="utf-8").splitlines())
        limit = TEST_LINES if path.is_relative_to(root / "tests") else MODULE_LINES
        if lines > limit:
            long[name] = lines
    assert long == LONG_MODULES


def test_functions_are_short(root: Path, tracked: list[Path]) -> None:
    long = {}
    for path in tracked:
        if path.suffix == ".py":
            for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
                lines = (function.end_lineno or function.lineno) - function.lineno + 1
                if lines > FUNCTION_LINES:
                    long[f"{path.relative_to(root)}:{function.name}"] = lines
    assert long == LONG_FUNCTIONS


def test_modules_and_packages_are_named_for_what_they_are(root: Path, sources: list[Path]) -> None:
    named = {part for path in sources for part in (*path.relative_to(root).parts[:-1], path.stem)}
    words = {word.removesuffix("s") for name in named for word in name.split("_")}
    assert words & NAMES_THAT_SAY_NOTHING == set()


def test_a_plugin_has_wiring_and_parameters_that_import_nothing_heavy(root: Path, sources: list[Path]) -> None:
    """plugin.py imports gausslens alone; parameters.py pydantic besides. What they import inside functions is later."""
    allowed = {"plugin": {"__future__", "collections", "typing", "gausslens"}}
    allowed["parameters"] = allowed["plugin"] | {"pydantic", "enum", "math"}
    heavy = {}
    for path in sources:
        if path.is_relative_to(root / "plugins") and path.stem in allowed:
            tops = {
                name.split(".")[0]
                for node in ast.parse(path.read_text(encoding="utf-8")).body
                for name in _imported(node)
                if not name.startswith(path.parent.name)
            }
            if tops - allowed[path.stem]:
                heavy[str(path.relative_to(root))] = tops - allowed[path.stem]
    assert heavy == {}


def _imported(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
