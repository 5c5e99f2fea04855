"""Whatever one plugin does wrong, it alone is set aside, with the reason, and every other one is there."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from gausslens.plugins import Broken, Host, load

if TYPE_CHECKING:
    from conftest import Shelf

HOOK = "from gausslens import Analysis, Edit, hookimpl\n"
ONE = """
def one(name="mine.one", **changed):
    return Analysis(**({"name": name, "version": 1, "summary": "One.", "shape": "stream", "analysis": "m:M"} | changed))
OTHER = Edit(name="mine.other", version=1, summary="Edits.", edit="m:e", touches=("W_Q",))
"""
ANALYSES = f"{HOOK}{ONE}\n@hookimpl\ndef analyses():\n    return "


def hook(definition: str, options: str = "") -> str:
    return f"{HOOK}@hookimpl{options}\n{definition}\n"


def returns(expression: str) -> str:
    return f"{ANALYSES}{expression}\n"


# What the module of a plugin holds, and what is said of it.
CASES = {
    "import error": ("import no_such_module\n", r"ModuleNotFoundError: .*no_such_module.*_plugin.py:1\)"),
    "a name that gausslens does not have": ("from gausslens import Analisis\n", r"ImportError: cannot import name"),
    "syntax error": ("def :\n", r"SyntaxError: invalid syntax \(mine_plugin.py, line 1\)"),
    "SystemExit": ("import sys\nsys.exit(0)\n", r"SystemExit: 0 \(.*mine_plugin.py:2\)"),
    "an exception of its own": ("class Odd(BaseException): pass\nraise Odd('no')\n", r"Odd: no \(.*mine_plugin.py:2\)"),
    "recursion": ("def f(): f()\nf()\n", r"RecursionError: "),
    "misspelt hook": (hook("def analysises(): return []"), r"no hook 'analysises': did you mean analyses\?"),
    "foreign argument": (
        hook("def step_started(step, colour): pass"),
        r"step_started asks for 'colour', which is not there: it may ask for run, step",
    ),
    "an argument where there is none": (
        hook("def analyses(host): return []"),
        r"analyses asks for 'host', which is not there: it takes no arguments",
    ),
    "no decorator": (f"{HOOK}def analyses(): return []\n", r"analyses lacks the decorator @gausslens.hookimpl"),
    "a wrapper": (hook("def analyses(): return (yield)", "(wrapper=True)"), r"analyses is a hook wrapper"),
    "the same hook twice": (
        hook("def analyses(): return []") + hook("def more(): return []", "(specname='analyses')"),
        r"it implements analyses 2 times",
    ),
    "a hook that raises": (hook("def analyses(): return 1 / 0"), r"ZeroDivisionError: .*mine_plugin.py:3\)"),
    "a hook that exits": (hook("def analyses(): raise SystemExit"), r"SystemExit \(.*mine_plugin.py:3\)"),
    "None": (returns("None"), r"analyses\(\) returned None, not a list of Analysis"),
    "a generator": (returns("(one() for _ in '1')"), r"analyses\(\) returned a generator, not a list"),
    "a string": (returns("'mine.one'"), r"analyses\(\) returned 'mine.one', not a list"),
    "a dictionary among them": (returns("[one(), {}]"), r"returned a list with a dict in it, not only Analysis"),
    "another kind": (returns("[OTHER]"), r"returned a list with an Edit in it, not only Analysis"),
    "a field that there is not": (returns("[one(colour='red')]"), r"TypeError: .*'colour'"),
    "a field that is missing": (
        returns("[Analysis(name='mine.one', version=1, summary='.')]"),
        r"TypeError: .*'shape'",
    ),
    "a name twice": (returns("[one(), one()]"), r"Analysis 'mine.one': there are two of this name"),
    "our prefix": (returns("[one('gaussian.mine')]"), r"the prefix 'gaussian' is reserved for gausslens"),
    "a plain name": (returns("[one('mine')]"), r"its name is not of the form 'plugin.thing'"),
    "many mistakes": (
        returns("[one(version=0, shape='streem', analysis='m', summary='')]"),
        r"version is 0, not an integer from 1; .*; and 1 more$",
    ),
    "api_version too new": (
        f"api_version = 99\n{returns('[one()]')}",
        r"needs version 99 of the plugin interface, this gausslens has 2",
    ),
    "api_version of another type": (
        f"api_version = '1'\n{returns('[one()]')}",
        r"api_version is '1', not an integer",
    ),
}


def only_broken(host: Host) -> Broken:
    [broken] = host.broken
    return broken


@pytest.mark.parametrize("what", CASES)
def test_it_is_set_aside_and_the_others_stay(what: str, shelf: Shelf) -> None:
    source, cause = CASES[what]
    shelf.plugin("mine", source)
    shelf.good("neighbour")
    host = load(only=("mine", "neighbour"))
    broken = only_broken(host)
    assert re.search(cause, broken.cause), broken.cause
    assert (broken.plugin, broken.distribution, broken.version) == ("mine", "gausslens-mine", "1.0")
    assert broken.entry_point == "mine_plugin"
    assert broken.switch == "--without mine"
    assert list(host.analyses) == ["neighbour.count"]
    assert [p.plugin for p in host.plugins] == ["neighbour"]
    assert {i.plugin_name for c in vars(host.hook).values() for i in c.get_hookimpls()} == {"neighbour"}


def test_ctrl_c_while_a_plugin_is_imported_is_the_users(shelf: Shelf) -> None:
    shelf.plugin("mine", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load(only=("mine",))


def test_half_a_plugin_is_no_plugin(shelf: Shelf) -> None:
    """One hook in order, one not: nothing of it stays, whichever comes first."""
    good = f"{ANALYSES}[one()]\n"
    for name, bad in (
        ("after", "@hookimpl\ndef step_started(colour): pass\n"),
        ("misspelt", "@hookimpl\ndef zebra(): pass\n"),
    ):
        shelf.plugin(name, good + bad)
        host = load(only=(name,))
        assert only_broken(host).plugin == name
        assert not host.analyses
        assert not any(c.get_hookimpls() for c in vars(host.hook).values())


def test_the_first_version_works_and_says_nothing(shelf: Shelf) -> None:
    """Also where it is not declared; a plugin that offers nothing that changed has nothing to look at."""
    edits = (
        "from gausslens import Edit\n@hookimpl\ndef edits():\n    return [Edit(name='mine.e', version=1, summary='E.', "
    )
    edits += "edit='m:e', touches=('W_Q',))]\n"
    found = {}
    for name, declared in (("one", "api_version = 1\n"), ("none", ""), ("two", "api_version = 2\n")):
        source = f"{declared}{ANALYSES}[one()]\n"
        shelf.plugin(name, source + edits if name != "none" else source)
        host = load(only=(name,))
        assert not host.broken
        assert not host.warnings
        [found[name]] = host.plugins
    assert {name: plugin.api_version for name, plugin in found.items()} == {"one": 1, "none": 1, "two": 2}
    assert [name for name, plugin in found.items() if plugin.may_change] == ["one"]
    assert "without a head axis are refused" in found["one"].may_change


def test_an_older_interface_is_warned_of(shelf: Shelf) -> None:
    shelf.plugin("mine", f"api_version = 0\n{ANALYSES}[one()]\n")
    host = load(only=("mine",))
    assert not host.broken
    assert "mine.one" in host.analyses
    [warning] = host.warnings
    assert "plugin mine of gausslens-mine 1.0 was written for version 0 of the plugin interface" in warning


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        ("mine_plugin:missing", r"AttributeError: module 'mine_plugin' has no attribute 'missing'"),
        ("mine_plugin:thing", r"analyses\(\) returned None"),
        ("no_such_module", r"ModuleNotFoundError: No module named 'no_such_module'"),
        ("not a module!", r"the entry point 'not a module!' is not of the form 'package.module'"),
        ("mine_plugin:Needy", r"TypeError: .*missing 1 required positional argument"),
    ],
)
def test_entry_points_that_lead_nowhere(value: str, cause: str, shelf: Shelf) -> None:
    source = (
        f"{HOOK}class Thing:\n    @hookimpl\n    def analyses(self): pass\nthing = Thing()\n"
        "class Needy:\n    def __init__(self, x): pass\n"
    )
    shelf.install("gausslens-mine", {"mine": value}, {"mine_plugin": source})
    assert re.search(cause, only_broken(load(only=("mine",))).cause)


@pytest.mark.parametrize("attribute", ["Whole", "made", "space.made", "Whole [extra]"])
def test_a_class_or_an_object_is_a_plugin_too(attribute: str, shelf: Shelf) -> None:
    source = (
        f"{HOOK}{ONE}\nclass Whole:\n    @hookimpl\n    def analyses(self):\n        return (one(),)\n"
        "made = Whole()\nclass space:\n    made = made\n"
    )
    shelf.install("gausslens-mine", {"mine": f"mine_plugin:{attribute}"}, {"mine_plugin": source})
    host = load(only=("mine",))
    assert not host.broken
    assert list(host.analyses) == ["mine.one"]


def test_a_plugin_that_implements_nothing_is_warned_of(shelf: Shelf) -> None:
    shelf.plugin("mine", "x = 1\n")
    assert load(only=("mine",)).warnings == ("plugin mine of gausslens-mine 1.0 implements no hook",)


def test_what_a_plugin_prints_does_not_reach_our_output(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.plugin("mine", f"print('loading!')\n{HOOK}@hookimpl\ndef analyses():\n    print('called!')\n    return []\n")
    assert not load(only=("mine",)).broken
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == "loading!\ncalled!\n"


def test_who_would_have_provided_a_name(shelf: Shelf) -> None:
    shelf.plugin("early", "import no_such_module_anywhere\n")
    shelf.plugin("late", f"{ANALYSES}[one('late.one'), one('other.two', version=0)]\n")
    host = load(only=("early", "late"))
    assert [b.plugin for b in host.would_provide("early.anything")] == ["early"]
    assert [b.plugin for b in host.would_provide("other.two")] == []  # it never told that name in order
    assert [b.plugin for b in host.would_provide("nobody.thing")] == []
