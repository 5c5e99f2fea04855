"""gausslens new-plugin: what it writes installs, passes its tests and runs, with no change; bad names are refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from gausslens import InputError
from gausslens.__main__ import main
from gausslens.command.new_plugin import PLACES, new_plugin
from gausslens.testing import check_references

Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, python: Python) -> tuple[Path, Path]:
    """A new plugin with a dash in its name, and a directory that it is installed in."""
    place = tmp_path_factory.mktemp("new-plugin")
    directory, site = place / "gausslens-my-demo", place / "site"
    assert main(["new-plugin", "my-demo", "--to", str(directory)]) == 0
    pip = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), "."]
    ran = python(*pip, cwd=directory, path=site)
    assert ran.returncode == 0, ran.stderr
    return directory, site


def test_its_own_tests_pass(installed: tuple[Path, Path], python: Python) -> None:
    directory, site = installed
    ran = python("-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=directory, path=site)
    assert ran.returncode == 0, ran.stdout
    assert "4 passed" in ran.stdout


def test_a_run_with_it_has_null_columns(installed: tuple[Path, Path], tmp_path: Path, python: Python) -> None:
    directory, site = installed
    store = tmp_path / "store"
    run = ["-m", "gausslens", "run", "example.yaml", "--store", str(store), "--set", "variants.chance.draws=3"]
    ran = python(*run, cwd=directory, path=site)
    assert ran.returncode == 0, ran.stderr
    script = (
        "import gausslens, sys\n"
        "found = gausslens.open(sys.argv[1]).against('trained', 'my-demo.loudness')\n"
        "assert {'loudness', 'loudness_null_mean', 'loudness_z', 'loudness_p', 'loudness_q'} <= set(found), found\n"
    )
    read = python("-c", script, str(store), cwd=tmp_path, path=site)
    assert read.returncode == 0, read.stderr


def test_it_is_listed_with_its_parameters(installed: tuple[Path, Path], python: Python) -> None:
    directory, site = installed
    ran = python("-m", "gausslens", "plugins", "my-demo", cwd=directory, path=site)
    assert ran.returncode == 0, ran.stderr
    assert "my-demo.loudness" in ran.stdout
    assert "gausslens-my-demo 0.1.0" in ran.stdout
    assert "site" in ran.stdout


def test_it_is_in_order(installed: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(installed[1])
    import gausslens_my_demo.plugin

    check_references(gausslens_my_demo.plugin)


def test_the_linters_of_the_house_pass_on_it(installed: tuple[Path, Path], root: Path, python: Python) -> None:
    directory, site = installed
    for what in (["check"], ["format", "--check"]):
        ran = python("-m", "ruff", *what, "--config", str(root / "pyproject.toml"), "src", cwd=directory, path=site)
        assert ran.returncode == 0, ran.stdout


def test_every_template_has_its_place_and_every_place_its_template(root: Path) -> None:
    assert {path.name for path in (root / "framework/gausslens/template").iterdir()} == set(PLACES)


def test_no_placeholder_is_left(tmp_path: Path) -> None:
    for path in new_plugin("words", tmp_path / "words").rglob("*"):
        assert not path.is_file() or "@" not in path.read_text(encoding="utf-8").replace("@hookimpl", ""), path


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gaussian", "plugin of gausslens itself"),
        ("attention", "plugin of gausslens itself"),
        ("models", "something else already"),
        ("lambda", "something else already"),
        ("Loud", "small letters"),
        ("my_plugin", "small letters"),
        ("my plugin", "small letters"),
        ("../evil", "small letters"),
        ("a/b", "small letters"),
        ("", "small letters"),
        ("-x", "small letters"),
        ("x-", "small letters"),
        ("1st", "small letters"),
        ("é", "small letters"),
        ("x\n", "small letters"),
        ("x" * 41, "40 characters"),
    ],
)
def test_a_bad_name_is_refused(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        new_plugin(name, tmp_path / "there")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "gausslens-loud"
    there.mkdir()
    assert main(["new-plugin", "loud", "--to", str(there)]) == 2
    assert "is there already" in capsys.readouterr().err
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="is there already"):
        new_plugin("loud", dangling)
    assert list(there.iterdir()) == []


def test_a_place_that_cannot_be_written_is_an_input_error_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot write"):
        new_plugin("loud", tmp_path / "no" / "such" / "directory")
    assert list(tmp_path.iterdir()) == []
