"""What the documents say is so: commands exist, versions agree, run files are valid, links lead somewhere."""

from __future__ import annotations

import configparser
import itertools
import re
import shutil
from importlib.metadata import distribution, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import gausslens
from gausslens.__main__ import main
from gausslens.command import COMMANDS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *ROOT.glob("examples/**/*.md"),
        *ROOT.glob("framework/*.md"),
        *ROOT.glob("docs/*.md"),
    )
    if path.is_file()
)
RUN_FILES = sorted([*ROOT.glob("examples/*.yaml"), ROOT / "examples/third_party/sinks.yaml"])


def _targets() -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"`([^`\n]+)`", text) + re.findall(r"^(?: {4}|\$ )(.+)$", text, flags=re.MULTILINE))
    for target in re.findall(r"\bmake ([a-z]+)", code):
        assert target in _targets(), f"make {target}"
    for command in re.findall(r"(?<!from )\bgausslens ([a-z][a-z-]*)", code):
        assert command in COMMANDS, f"gausslens {command}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_path_that_a_document_names_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)\)", text) if "://" not in link]
    links += re.findall(r'(?:src|href)="([^"#:]+)"', text)
    assert [link for link in links if not (path.parent / link).exists()] == []
    named = re.findall(r"`((?:framework|plugins|schemas|tests|examples|benchmarks|docs)/[\w./-]*)`", text)
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_shows_run_files_that_are_valid(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = [block for block in re.findall(r"```yaml\n(.+?)```", text, flags=re.DOTALL) if "gausslens: 1" in block]
    assert shown
    for number, block in enumerate(shown):
        (tmp_path / f"{number}.yaml").write_text(block, encoding="utf-8")
        assert main(["check", "--quick", str(tmp_path / f"{number}.yaml")]) == 0


def _lay_checkpoints(path: Path) -> None:
    """Beside a run file, one checkpoint and one table of each name that it gives."""
    told = yaml.safe_load(path.read_text(encoding="utf-8"))
    for place in [told, *(v for v in told["variants"].values() if isinstance(v, dict))]:
        if name := place.get("model", {}).get("path"):
            every = {"seed": ["seed-1"], "step": ["0"]}
            lists = [asked if isinstance(asked, list) else every[of] for of, asked in place.get("sweep", {}).items()]
            for values in itertools.product(*lists):
                named = dict(zip(place.get("sweep", {}), values, strict=True))
                directory = path.parent / re.sub(r"{(\w+)}", lambda found, at=named: str(at[found[1]]), name)
                directory.mkdir(parents=True, exist_ok=True)
                (directory / "config.json").write_text('{"model_type": "mistral"}', encoding="utf-8")
        if table := place.get("prompts", {}).get("path"):
            (path.parent / table).write_text("task,answer\n1 2,3\n", encoding="utf-8")


@pytest.mark.parametrize("path", [p for p in RUN_FILES if p.parent.name == "examples"], ids=lambda path: path.name)
def test_example_run_files_are_valid(path: Path, tmp_path: Path) -> None:
    made = yaml.safe_load((ROOT / "docs/reproduction/made.yaml").read_text(encoding="utf-8"))
    if path.name in made:  # its checkpoints are made first; that they are there is all that is checked
        path = Path(shutil.copy(path, tmp_path))
        _lay_checkpoints(path)
    assert main(["check", "--quick", str(path)]) == 0


@pytest.mark.parametrize("path", RUN_FILES, ids=lambda path: path.name)
def test_example_run_files_say_what_they_are(path: Path) -> None:
    comments = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")]
    assert next(line for line in comments if "yaml-language-server" not in line).endswith(".")


def test_the_changelog_and_the_citation_have_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## ([\w.]+)", changelog, flags=re.MULTILINE)
    assert newest
    assert newest[1] == gausslens.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == gausslens.__version__
    assert version("gausslens") == gausslens.__version__


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): pinned for name, pinned in pins.items()}


def test_constraints_pin_all_that_we_need_and_what_they_need(setup_cfg: configparser.ConfigParser) -> None:
    wanted = setup_cfg["options"]["install_requires"] + setup_cfg["options.extras_require"]["dev"]
    queue = [Requirement(line) for line in wanted.strip().splitlines() if line.strip()]
    seen: set[str] = set()
    pins = _pins()
    unpinned = set()
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in pins:
            assert requirement.specifier.contains(pins[name], prereleases=True), requirement
        else:
            unpinned.add(name)
        if name not in seen:
            seen.add(name)
            below = [Requirement(line) for line in distribution(name).requires or []]
            queue += [r for r in below if r.marker is None or r.marker.evaluate({"extra": ""})]
    assert unpinned == set()


def test_what_is_installed_is_what_is_pinned() -> None:
    other = {name: version(name) for name in _pins() if version(name).split("+")[0] != _pins()[name]}
    assert other == {}


def test_pre_commit_runs_local_hooks_alone() -> None:
    settings = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    assert [repository["repo"] for repository in settings["repos"]] == ["local"]
    hooks = [hook for repository in settings["repos"] for hook in repository["hooks"]]
    assert all(hook["entry"].startswith(".venv/bin/") for hook in hooks)
    assert {"ruff", "ruff-format", "mypy", "lint-imports"} <= {hook["id"] for hook in hooks}


def test_ci_can_be_run() -> None:
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111
    assert script.read_text(encoding="utf-8").startswith("#!/usr/bin/env bash\n")
