"""Plugins are found by metadata, whatever other distributions look like."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gausslens import InputError
from gausslens.plugins import load, loading_troubles
from gausslens.plugins.discover import candidates

if TYPE_CHECKING:
    from conftest import Shelf

EMPTY = "from gausslens import hookimpl\n\n@hookimpl\ndef analyses():\n    return []\n"


def found(distribution: str) -> list[tuple[str, str, str]]:
    return [(c.plugin, c.version, c.entry_point) for c in candidates()[0] if c.distribution == distribution]


def test_name_version_and_entry_point_come_from_metadata(shelf: Shelf) -> None:
    shelf.install("some-plugins", {"b": "no.such:thing", "a": "mod [extra]"}, version="2.0.dev1")
    assert found("some-plugins") == [("a", "2.0.dev1", "mod [extra]"), ("b", "2.0.dev1", "no.such:thing")]


def test_ours_come_first_then_by_name(shelf: Shelf) -> None:
    shelf.install("z", {"aaa": "m"})
    shelf.install("a", {"zzz": "m"})
    order = [(c.distribution, c.plugin) for c in candidates()[0]]
    ours = [plugin for distribution, plugin in order if distribution == "gausslens"]
    assert order[: len(ours)] == [("gausslens", plugin) for plugin in sorted(ours)]
    assert [o for o in order if o[0] in "az"] == [("z", "aaa"), ("a", "zzz")]


def test_the_first_on_the_path_is_the_one_that_python_imports(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf.install("Some.Plugins", {"old": "m"}, version="1.0")
    front = type(shelf)(tmp_path / "front")
    front.install("some_plugins", {"new": "m"}, version="2.0")
    monkeypatch.syspath_prepend(str(front.directory))
    assert found("some_plugins") == [("new", "2.0", "m")]
    assert found("Some.Plugins") == []


@pytest.mark.parametrize("broken", ["binary", "no metadata", "a bad line", "an empty name", "a directory"])
def test_a_strangers_metadata_hides_nobody(broken: str, shelf: Shelf) -> None:
    shelf.plugin("good", EMPTY)
    shelf.install("stranger", {"stranger": "m"})
    metadata = shelf.directory / "stranger-1.0.dist-info"
    points = metadata / "entry_points.txt"
    if broken == "binary":
        points.write_bytes(b"[gausslens]\n\xff\xfe\x00")
    elif broken == "no metadata":
        (metadata / "METADATA").unlink()
    elif broken == "a bad line":
        points.write_text("[gausslens]\nthis is no entry point\n# nor this\nok = m\n")
    elif broken == "an empty name":
        points.write_text("[gausslens]\n = m\n")
    else:
        points.unlink()
        points.mkdir()
    assert found("gausslens-good") == [("good", "1.0", "good_plugin")]
    troubles = candidates()[1]
    if broken in ("a bad line", "an empty name"):
        [trouble] = troubles
        assert trouble.startswith("stranger 1.0: its entry_points.txt holds a line that is none: ")
        assert ("ok", "1.0", "m") in found("stranger") or broken == "an empty name"
        assert any(trouble in warning for warning in load(only=("good",)).warnings)
    else:
        assert troubles == []


def test_a_group_of_like_name_is_another(shelf: Shelf) -> None:
    shelf.install("stranger", {"x": "m"})
    points = shelf.directory / "stranger-1.0.dist-info" / "entry_points.txt"
    points.write_text("[gausslens.more]\na = m\n[other]\n[gausslens]\nb = m\n[gausslensx]\nc = m\n")
    assert [plugin for plugin, _, _ in found("stranger")] == ["b"]


def test_leaving_out(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("red", "blue", "green"):
        shelf.plugin(name, EMPTY)
    names = {"red", "blue", "green"}

    def loaded(**how: object) -> set[str]:
        return {p.plugin for p in load(**how).plugins} & names  # type: ignore[arg-type]

    assert loaded() == names
    assert loaded(without=["red"]) == {"blue", "green"}
    assert loaded(without=["gausslens-red", "blue"]) == {"green"}
    assert loaded(only=["red"]) == {"red"}
    monkeypatch.setenv("GAUSSLENS_WITHOUT", " red , gausslens-green,")
    assert loaded() == {"blue"}
    assert load().left_out == ("green", "red")


def test_leaving_out_who_is_not_there(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf.plugin("purple", EMPTY)
    for how in ({"without": ["purpel"]}, {"only": ["purpel"]}):
        with pytest.raises(InputError, match=r"there is no plugin 'purpel': did you mean purple\?"):
            load(**how)  # type: ignore[arg-type]
    # A shell's setting outlives what was installed when it was made.
    monkeypatch.setenv("GAUSSLENS_WITHOUT", "purpel")
    assert load().warnings == ("GAUSSLENS_WITHOUT: there is no plugin 'purpel': did you mean purple?",)


def test_what_is_passed_from_python(shelf: Shelf) -> None:
    import types

    shelf.plugin("mine", "raise RuntimeError('the installed one')\n")
    module = types.ModuleType("notebook")
    exec("from gausslens import *\n" + EMPTY, module.__dict__)
    host = load(only=("mine",), extra={"mine": module})
    [plugin] = host.plugins
    assert (plugin.plugin, plugin.distribution) == ("mine", "(given)")
    assert not host.broken
    broken = load(only=(), extra={"mine": types.SimpleNamespace(api_version=99)})
    assert "set aside: plugin mine of (given) (entry point SimpleNamespace)" in loading_troubles(broken)
    assert "--without" not in loading_troubles(broken)


def test_our_own_module_stays_ours_when_it_is_passed() -> None:
    import gausslens_gaussian.plugin as ours

    host = load(only=(), extra={"another-name": ours})
    assert not host.broken
    assert host.analyses["gaussian.moments"].owner.distribution == "gausslens"


def test_what_is_told(shelf: Shelf) -> None:
    shelf.plugin("mine", "import no_such_module_anywhere\n", version="1.2")
    host = load(only=("mine",))
    place = shelf.directory / "mine_plugin.py"
    assert loading_troubles(host) == (
        "set aside: plugin mine of gausslens-mine 1.2 (entry point mine_plugin)\n"
        f"  ModuleNotFoundError: No module named 'no_such_module_anywhere' ({place}:1)\n"
        "  leave it out with --without mine or GAUSSLENS_WITHOUT=mine"
    )
    assert "Traceback (most recent call last):" in loading_troubles(host, debug=True)
    assert loading_troubles(load(only=())) == ""
