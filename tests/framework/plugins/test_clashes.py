"""Equal names: ours stays, outside ones are set aside, all of them, and each is told of the other."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from gausslens.plugins import load

if TYPE_CHECKING:
    from conftest import Shelf

SOURCE = """
from gausslens import Analysis, Edit, Loader, PromptSource, hookimpl

@hookimpl
def prompt_sources():
    return [PromptSource(name=name, version=1, summary="Texts.", prompts="m:texts") for name in {names!r}]
"""
OTHER_KIND = """
from gausslens import Loader, hookimpl

@hookimpl
def loaders():
    return [Loader(name="shared", version=1, summary="Opens.", claims="m:claims", open="m:open")]
"""


def source(*names: str) -> str:
    return SOURCE.format(names=names)


def causes(*only: str) -> dict[str, str]:
    return {b.plugin: b.cause for b in load(only=only).broken}


def test_two_outside_ones_are_both_set_aside(shelf: Shelf) -> None:
    shelf.plugin("red", source("shared", "red-own"))
    shelf.plugin("blue", source("shared"), version="2.1")
    shelf.plugin("green", source("green-own"))
    host = load(only=("red", "blue", "green"))
    assert list(host.sources) == ["green-own"]
    assert {b.plugin: b.cause for b in host.broken} == {
        "red": "PromptSource 'shared' is in gausslens-blue 2.1 (plugin blue) too",
        "blue": "PromptSource 'shared' is in gausslens-red 1.0 (plugin red) too",
    }
    assert [b.plugin for b in host.would_provide("red-own")] == ["red"]
    assert [b.plugin for b in host.would_provide("shared")] == ["blue", "red"]


def test_leaving_one_of_them_out_gives_the_other_back(shelf: Shelf) -> None:
    shelf.plugin("red", source("shared"))
    shelf.plugin("blue", source("shared"))
    host = load(without=["red"], only=("red", "blue"))
    assert not host.broken
    assert host.left_out == ("red",)
    assert host.sources["shared"].owner.distribution == "gausslens-blue"


def test_kinds_have_names_of_their_own(shelf: Shelf) -> None:
    shelf.plugin("red", source("shared"))
    shelf.plugin("blue", OTHER_KIND)
    host = load(only=("red", "blue"))
    assert not host.broken
    assert list(host.sources) == list(host.loaders) == ["shared"]


@pytest.fixture
def house(shelf: Shelf) -> Shelf:
    """A shelf on which the distribution gausslens has a plugin with a source named ``taken``."""
    shelf.install("gausslens", {"own": "own_plugin"}, {"own_plugin": source("taken")}, version="0.0")
    return shelf


def test_ours_stays(house: Shelf) -> None:
    house.plugin("aaa", source("taken", "more"))
    host = load(only=("own", "aaa"))
    assert list(host.sources) == ["taken"]
    assert host.sources["taken"].owner.plugin == "own"
    [broken] = host.broken
    assert broken.plugin == "aaa"
    assert broken.cause.startswith("PromptSource 'taken' is in gausslens ")


def test_who_clashes_with_ours_takes_nobody_along(house: Shelf) -> None:
    """red clashes with ours and with blue: without red, blue clashes with nobody."""
    house.plugin("red", source("taken", "shared"))
    house.plugin("blue", source("shared"))
    host = load(only=("own", "red", "blue"))
    assert [b.plugin for b in host.broken] == ["red"]
    assert list(host.sources) == ["shared", "taken"]


def test_plugins_of_one_name(house: Shelf) -> None:
    house.install("gausslens-thief", {"own": "thief_plugin"}, {"thief_plugin": source("a")})
    house.plugin("twin", source("b"), distribution="gausslens-one")
    house.install("gausslens-two", {"twin": "two_plugin"}, {"two_plugin": source("c")}, version="3.0")
    host = load(only=("own", "twin"))
    assert list(host.sources) == ["taken"]
    told = {b.distribution: (b.cause, b.switch) for b in host.broken}
    assert told["gausslens-thief"][0].startswith("another plugin is named 'own' too, in gausslens ")
    assert told["gausslens-thief"][1] == "--without gausslens-thief"
    assert told["gausslens-one"] == (
        "another plugin is named 'twin' too, in gausslens-two 3.0",
        "--without gausslens-one",
    )
    freed = load(only=("own", "twin"), without=["gausslens-one"])
    assert list(freed.sources) == ["c", "taken"]


def test_one_module_is_one_plugin(house: Shelf) -> None:
    house.install("gausslens-red", {"red": "red_plugin", "zed": "red_plugin"}, {"red_plugin": source("a")})
    house.install("gausslens-thief", {"aaa": "own_plugin"})
    host = load(only=("own", "red", "zed", "aaa"))
    assert {b.plugin: b.cause for b in host.broken} == {
        "zed": "red_plugin is already loaded, as plugin 'red'",
        "aaa": "own_plugin is already loaded, as plugin 'own'",
    }
    assert list(host.sources) == ["a", "taken"]


def test_it_does_not_matter_who_is_given_first() -> None:
    """The same host, whatever the order in which plugins are registered."""
    import types

    modules = {}
    for name, names in {"d": ("x", "y"), "a": ("x",), "c": ("z",), "b": ("w",)}.items():
        modules[name] = types.ModuleType(name)
        exec(source(*names), modules[name].__dict__)
    hosts = [load(only=(), extra={name: modules[name] for name in order}) for order in permutations(modules)]
    assert all(host == hosts[0] for host in hosts)
    assert list(hosts[0].sources) == ["w", "z"]
    called = [[i.plugin_name for i in reversed(h.hook.prompt_sources.get_hookimpls())] for h in hosts]
    assert all(order == ["b", "c"] for order in called)  # pluggy calls from the end


def test_it_does_not_matter_where_they_are_installed(tmp_path, monkeypatch: pytest.MonkeyPatch, shelf: Shelf) -> None:
    import sys

    shelf_type = type(shelf)
    names = {"d": ("x", "y"), "a": ("x",), "c": ("z",)}
    directories = []
    for name, sources in names.items():
        directories.append(tmp_path / f"place-{name}")
        shelf_type(directories[-1]).plugin(name, source(*sources))
    before = list(sys.path)
    hosts = []
    for order in permutations(directories):
        monkeypatch.setattr(sys, "path", [*map(str, order), *before])
        hosts.append(load(only=names))
        for name in names:
            sys.modules.pop(f"{name}_plugin", None)
    assert all(host == hosts[0] for host in hosts)
    assert {b.plugin for b in hosts[0].broken} == {"a", "d"}
