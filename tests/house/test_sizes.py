"""A module is read in one sitting, a function on one screen, and each is named for what it is or does."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

MODULE_LINES = 500
FUNCTION_LINES = 50
FOLDER_MODULES = 14
# A module shorter than this, which only one other imports, belongs into that other.
CRUMB_LINES = 80
# A module of which so much is one literal is a table of data, as long as it needs to be.
DATA_SHARE = 0.7
NAMES_THAT_SAY_NOTHING = {"util", "common", "base", "core", "helper", "manager", "misc", "tool"}


def _functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _is_data(tree: ast.Module, lines: int) -> bool:
    """Whether the module is nearly all assignments at its top: a table."""
    assigned = (ast.Assign, ast.AnnAssign)
    return sum(_lines(node) for node in tree.body if isinstance(node, assigned)) > DATA_SHARE * lines


def test_modules_are_short(root: Path, tracked: list[Path]) -> None:
    long = {}
    for path in tracked:
        if path.suffix != ".py":
            continue
        text = path.read_text(encoding="utf-8")
        lines = len(text.splitlines())
        if lines > MODULE_LINES and not _is_data(ast.parse(text), lines):
            long[str(path.relative_to(root))] = lines
    assert long == {}


def test_functions_are_short(root: Path, tracked: list[Path]) -> None:
    long = {}
    for path in tracked:
        if path.suffix == ".py":
            for function in _functions(ast.parse(path.read_text(encoding="utf-8"))):
                if _lines(function) > FUNCTION_LINES:
                    long[f"{path.relative_to(root)}:{function.name}"] = _lines(function)
    assert long == {}


def test_folders_hold_few_modules(root: Path, sources: list[Path]) -> None:
    held = Counter(str(path.parent.relative_to(root)) for path in sources if path.stem != "__init__")
    assert {folder: count for folder, count in held.items() if count > FOLDER_MODULES} == {}


def test_there_are_no_crumbs(root: Path, sources: list[Path]) -> None:
    """Pure mathematics may be a module of any length, and so may what strings name: commands, plugins, parameters."""
    names = {path: _module(path, root) for path in sources}
    packages = {name for path, name in names.items() if path.stem == "__init__"}
    importers: dict[str, set[str]] = {name: set() for name in names.values()}
    for path, name in names.items():
        for imported in _imported_modules(path, name) & importers.keys() - {name}:
            importers[imported].add(name)
    crumbs = {}
    for path, name in names.items():
        # What a package's __init__ hands on is public: anyone may import it.
        public = any(importer in packages for importer in importers[name])
        exempt = path.stem == "__init__" or "maths" in name.split(".") or public
        if (
            not exempt
            and len(importers[name]) == 1
            and len(path.read_text(encoding="utf-8").splitlines()) < CRUMB_LINES
        ):
            crumbs[str(path.relative_to(root))] = importers[name]
    assert crumbs == {}


def _module(path: Path, root: Path) -> str:
    parts = path.relative_to(root).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_modules(path: Path, name: str) -> set[str]:
    """The modules that a module imports, at run time or for types; of ``from a import b`` both a and a.b."""
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            of = ".".join([*above, *([node.module] if node.module else [])])
            found |= {of} | {f"{of}.{alias.name}" for alias in node.names}
    return found


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
