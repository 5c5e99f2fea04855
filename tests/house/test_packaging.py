"""setup.cfg against the disk, in both directions; and the wheel, built and imported outside the tree."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import subprocess
import sys
import zipfile
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

# Used by the libraries that we call, not by us: accelerate is what transformers spreads a model over devices with,
# h5netcdf what xarray opens a part with, matplotlib what it plots with.
INDIRECT = {"accelerate", "h5netcdf", "matplotlib"}


def _is_foreign(directory: Path, root: Path) -> bool:
    """Whether a directory belongs to another distribution, as examples/third_party does."""
    within = [parent for parent in (directory, *directory.parents) if parent.is_relative_to(root) and parent != root]
    return any((parent / "pyproject.toml").exists() for parent in within)


def _listed(section: configparser.SectionProxy, key: str) -> list[str]:
    return [line.strip() for line in section[key].strip().splitlines() if not line.strip().startswith("#")]


def test_every_package_on_disk_is_listed_and_every_listed_one_is_there(root: Path, packages: dict[str, Path]) -> None:
    tops = {path for name, path in packages.items() if "." not in name}
    on_disk = {init.parent for top in tops for init in top.rglob("__init__.py") if not _is_foreign(init.parent, root)}
    assert set(packages.values()) == on_disk


def test_a_directory_bears_its_import_name(packages: dict[str, Path]) -> None:
    named_otherwise = {name: path.name for name, path in packages.items() if path.name != name.rsplit(".", 1)[-1]}
    assert named_otherwise == {"gausslens_schemas": "schemas", "gausslens_examples": "examples"}


def test_every_data_file_is_shipped_and_every_pattern_ships_one(
    root: Path, packages: dict[str, Path], setup_cfg: configparser.ConfigParser, tracked: list[Path]
) -> None:
    patterns = {
        name: [pattern.strip() for pattern in value.replace("\n", ",").split(",") if pattern.strip()]
        for name, value in setup_cfg["options.package_data"].items()
    }
    homes = sorted(packages.items(), key=lambda item: -len(item[1].parts))
    shipped: set[tuple[str, str]] = set()
    forgotten = []
    for path in tracked:
        owner = next((item for item in homes if path.is_relative_to(item[1])), None)
        if owner is None or _is_foreign(path.parent, root) or (path.suffix == ".py" and path.parent == owner[1]):
            continue
        within = path.relative_to(owner[1])
        matching = [p for p in patterns.get(owner[0], []) if _glob_matches(within, p)]
        shipped |= {(owner[0], pattern) for pattern in matching}
        if not matching:
            forgotten.append(str(path.relative_to(root)))
    assert forgotten == []
    assert {(name, pattern) for name, listed in patterns.items() for pattern in listed} == shipped


def _glob_matches(path: Path, pattern: str) -> bool:
    parts, wanted = path.parts, Path(pattern).parts
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatch, parts, wanted))


def test_every_plugin_of_the_house_is_an_entry_point(
    root: Path, setup_cfg: configparser.ConfigParser, packages: dict[str, Path]
) -> None:
    listed = dict(line.split(" = ") for line in _listed(setup_cfg["options.entry_points"], "gausslens"))
    plugins = {name for name, path in packages.items() if path.parent == root / "plugins"}
    assert {name.removeprefix("gausslens_"): f"{name}.plugin" for name in plugins} == listed
    installed = {e.name: e.value for e in distribution("gausslens").entry_points if e.group == "gausslens"}
    assert installed == listed, "what is installed is older than setup.cfg: make clean, or pip install -e ."


@pytest.mark.parametrize("group", ["console_scripts", "gausslens", "pytest11"])
def test_entry_points_resolve(group: str) -> None:
    points = [e for e in distribution("gausslens").entry_points if e.group == group]
    assert points
    for point in points:
        assert point.load() is not None


def test_plugins_are_known_to_mypy_and_import_linter(
    root: Path, setup_cfg: configparser.ConfigParser, packages: dict[str, Path]
) -> None:
    code = {name for name, path in packages.items() if "." not in name and path.parent.name in ("framework", "plugins")}
    assert set(setup_cfg["mypy"]["packages"].replace(",", " ").split()) == code
    assert set(setup_cfg["importlinter"]["root_packages"].split()) == code


def test_what_is_imported_is_required_and_what_is_required_is_imported(
    sources: list[Path], setup_cfg: configparser.ConfigParser, packages: dict[str, Path]
) -> None:
    required = {canonicalize_name(Requirement(r).name) for r in _listed(setup_cfg["options"], "install_requires")}
    ours = {name.split(".")[0] for name in packages}
    providers = packages_distributions()
    imported: dict[str, Path] = {}
    for path in sources:
        for top in _imports(path) - ours - set(sys.stdlib_module_names):
            for provider in providers.get(top, [top]):
                imported.setdefault(canonicalize_name(provider), path)
    in_tests_only = {"pytest"}
    # What an extra brings is imported by a function, where it is needed.
    extras = setup_cfg["options.extras_require"]
    listed = [*_listed(extras, "columns"), *_listed(extras, "cluster")]
    extra = {canonicalize_name(Requirement(r).name) for r in listed}
    at_once = {top: path for path in sources for top in _imports(path, at_once=True)}
    assert not extra & set(at_once), at_once
    assert set(imported) - in_tests_only - extra - required == set(), {k: str(v) for k, v in imported.items()}
    assert required - set(imported) - INDIRECT == set()


def _imports(path: Path, at_once: bool = False) -> set[str]:
    """The top-level names that a file imports at run time or for types; ``at_once``: outside its functions."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if at_once else ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            found.add(node.module.split(".")[0])
    return found


@pytest.fixture(scope="module")
def wheel(root: Path, tracked: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the tree: nothing that an earlier build left behind can hide a mistake."""
    copy = tmp_path_factory.mktemp("tree")
    for path in tracked:
        target = copy / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(out),
        ".",
    ]
    built = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return next(out.glob("*.whl"))


def test_the_wheel_holds_what_the_packages_hold(
    wheel: Path, root: Path, packages: dict[str, Path], tracked: list[Path]
) -> None:
    expected = {
        str(Path(name.replace(".", "/"), path.relative_to(directory)))
        for name, directory in packages.items()
        for path in tracked
        if path.is_relative_to(directory) and not _is_foreign(path.parent, root)
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == expected


def test_the_wheel_works_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = (
        "import gausslens, importlib, sys\n"
        "from importlib.metadata import distribution\n"
        f"assert gausslens.__file__.startswith({str(site)!r}), gausslens.__file__\n"
        "points = distribution('gausslens').entry_points\n"
        "[point.load() for point in points if point.group == 'gausslens']\n"
        "[getattr(gausslens, name) for name in gausslens.__all__]\n"
        "from gausslens.__main__ import main\n"
        "sys.exit(main(['plugins']))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "models" in ran.stdout
