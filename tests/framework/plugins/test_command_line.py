"""The frame of the command line: help, misspelt words, exit codes, and what is said when something goes wrong."""

from __future__ import annotations

import argparse
import errno
import os
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from gausslens import command_line as parser
from gausslens.__main__ import main
from gausslens.command import COMMANDS, module_of
from gausslens.contract.errors import GausslensError, InputError

if TYPE_CHECKING:
    from conftest import Command, Shelf

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def doing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes ``gausslens plugins`` do something else."""

    def replace(act: Any) -> None:
        module = SimpleNamespace(add=lambda parser: None, run=act)
        monkeypatch.setattr(parser, "import_module", lambda name: module)

    return replace


def raising(error: BaseException) -> Any:
    def act(arguments: argparse.Namespace) -> int:
        raise error

    return act


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], [], ["help"]])
def test_the_overview_names_every_command(arguments: list[str], capsys: Captured) -> None:
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert [text.split()[0] for text in out.splitlines() if text.startswith("  ")] == list(COMMANDS)
    assert max(map(len, out.splitlines())) <= 100
    assert len(out.splitlines()) < 24


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_module_and_its_help(command: str, capsys: Captured) -> None:
    assert main([command, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: gausslens {command} ")
    assert "--debug" in out
    assert "--without PLUGIN" in out
    assert main(["help", command]) == 0
    assert capsys.readouterr().out == out
    module = import_module(module_of(command))
    assert module.__doc__


def test_the_version(capsys: Captured) -> None:
    from gausslens import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"gausslens {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["chck"], "gausslens: there is no command 'chck': did you mean check?"),
        (["zzz"], "gausslens: there is no command 'zzz'; there are check, diff, edit, example"),
        (["help", "chck"], "gausslens: there is no command 'chck': did you mean check?"),
        (["--debugg", "plugins"], "gausslens: unknown argument --debugg: did you mean --debug?"),
        (["plugins", "--jsn"], "gausslens plugins: unknown argument --jsn: did you mean --json?"),
        (["plugins", "--js"], "gausslens plugins: unknown argument --js: did you mean --json?"),
        (["plugins", "--withot=x"], "gausslens plugins: unknown argument --withot=x: did you mean --without?"),
        (["plugins", "a", "b"], "gausslens plugins: unknown argument b"),
        (["plugins", "--without"], "gausslens plugins: argument --without: expected one argument"),
    ],
)
def test_a_misspelt_word_is_told_with_near_ones(arguments: list[str], said: str, capsys: Captured) -> None:
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in told.err
    assert told.err.startswith("usage: gausslens ")
    assert len(told.err.splitlines()) <= 4


def test_a_misspelt_choice_is_told_with_near_ones(capsys: Captured) -> None:
    made = parser.Parser(prog="p")
    made.add_argument("what", choices=["verify", "pack"])
    with pytest.raises(SystemExit):
        made.parse_args(["verfy"])
    assert "argument what: there is no 'verfy': did you mean verify?" in capsys.readouterr().err


def test_common_options_may_stand_before_the_command_and_after(doing: Any) -> None:
    seen = []
    doing(lambda arguments: seen.append((arguments.debug, arguments.without)) or 0)
    assert main(["--debug", "--without", "a", "plugins", "--without", "b,c"]) == 0
    assert main(["plugins", "--debug"]) == 0
    assert main(["plugins"]) == 0
    assert seen == [(True, ["a", "b,c"]), (True, []), (False, [])]


def test_an_error_that_users_meet_is_told_as_it_is(doing: Any, capsys: Captured) -> None:
    for error, code in ((InputError("study.yaml:3:1: no"), 2), (GausslensError("cannot"), 1)):
        doing(raising(error))
        assert main(["plugins"]) == code
        told = capsys.readouterr()
        assert (told.out, told.err) == ("", f"{error}\n")
    assert main(["plugins", "--debug"]) == 1
    told = capsys.readouterr()
    assert "Traceback (most recent call last):" in told.err
    assert told.err.endswith("cannot\n")


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(0), RecursionError("deep"), GeneratorExit()])
def test_a_defect_says_that_it_is_one(error: BaseException, doing: Any, capsys: Captured) -> None:
    doing(raising(error))
    assert main(["plugins"]) == 1
    told = capsys.readouterr().err
    assert "Traceback" not in told
    assert "defect" in told
    assert "--debug" in told
    assert type(error).__name__ in told
    assert main(["plugins", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("number", "code", "advice"),
    [
        (errno.ENOENT, 2, "does not exist"),
        (errno.ENAMETOOLONG, 2, "the name is too long: choose a shorter one"),
        (errno.EISDIR, 2, "it is a directory: name a file"),
        (errno.EACCES, 1, "no permission: change it, or name another place"),
        (errno.EROFS, 1, "the disk is read-only: name another place"),
        (errno.ENOSPC, 1, "the disk is full"),
    ],
)
def test_what_the_system_refuses_is_one_line_with_the_path(
    number: int, code: int, advice: str, doing: Any, capsys: Captured
) -> None:
    for path in ("there/x.png", b"there/x.png"):
        doing(raising(OSError(number, os.strerror(number), path)))
        assert main(["plugins"]) == code
        told = capsys.readouterr().err
        assert told.startswith("cannot read or write there/x.png: ")
        assert advice in told
        assert len(told.splitlines()) == 1
    assert main(["plugins", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_full_disk_under_the_output_is_told(doing: Any, capsys: Captured) -> None:
    doing(raising(OSError(errno.ENOSPC, "No space left on device")))
    assert main(["plugins"]) == 1
    assert capsys.readouterr().err.startswith("cannot write: the disk is full")


def test_warnings_send_the_terminal_nothing(doing: Any) -> None:
    def warns(arguments: argparse.Namespace) -> int:
        text = warnings.formatwarning("of \x1b[31m", UserWarning, "x.py", 1, "")
        assert "UserWarning: of \\x1b[31m\n" in text
        return 7

    doing(warns)
    assert main(["plugins"]) == 7


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file", str(Path(parser.__file__).parent / "report/page.css")),
        OSError(errno.EBADF, "Bad file descriptor", "x"),
        OSError(errno.EACCES, "Permission denied"),
        OSError("words alone"),
    ],
    ids=["a file of our own", "no reason of the user's", "no path", "words"],
)
def test_what_is_no_fault_of_the_users_stays_a_defect(error: OSError, doing: Any, capsys: Captured) -> None:
    doing(raising(error))
    assert main(["plugins"]) == 1
    assert "a defect of its own" in capsys.readouterr().err


def test_names_given_send_the_terminal_nothing(doing: Any, tmp_path: Path, capsys: Captured) -> None:
    evil = "a\x1b[31m\u202e"
    told = []
    for argv in ([evil], ["show", tmp_path / evil], ["show", "x", f"--{evil}"], ["check", evil], ["schema", evil]):
        for more in ([], ["--debug"]):
            assert main([*map(str, argv), *more]) == 2
            told.append(capsys.readouterr().err)
    for error in (InputError(f"{evil}\nsecond line"), KeyError(evil), OSError(errno.EACCES, "no", evil)):
        doing(raising(error))
        main(["plugins"])
        told.append(capsys.readouterr().err)
    assert "\\x1b[31m\\u202e\nsecond line\n" in told[-3]
    for text in told:
        assert all(c.isprintable() or c == "\n" for c in text), text
        assert "\\x1b[31m" in text


@pytest.mark.parametrize(
    ("given", "one", "x", "rest"),
    [
        ("s --one v a -x b", "v", True, "s a b"),
        ("s --one=v a", "v", False, "s a"),
        ("s - a -x", None, True, "s - a"),
        ("s -x -- --one a", None, True, "s --one a"),
        ("-- s --one a", None, False, "s --one a"),
        ("", None, False, ""),
    ],
)
def test_options_are_taken_from_between_the_rest(given: str, one: str | None, x: bool, rest: str) -> None:
    found = _of_four().parse_intermixed_args(given.split())
    assert (found.one, found.x) == (one, x)
    assert [word for word in (found.a, found.b, found.c) if word is not None] == rest.split()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("s --one", "p: argument --one: expected one argument"),
        ("s --unknown a", "p: unknown argument --unknown\n"),
        ("s a b --grop", "p: unknown argument --grop: did you mean --group?\n"),
        ("s a b d --eithr", "p: unknown argument --eithr: did you mean --either?\n"),
        ("s --on v", "p: unknown argument --on: did you mean --one?\n"),
        ("s -- a b d c", "p: unknown argument d\n"),
    ],
)
def test_what_no_option_takes_is_told(given: str, said: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit):
        _of_four().parse_intermixed_args(given.split())
    assert said in capsys.readouterr().err


def _of_four() -> parser.Parser:
    made = parser.Parser(prog="p")
    made.add_argument("a", nargs="?")
    made.add_argument("b", nargs="?")
    made.add_argument("c", nargs="?")
    made.add_argument("--one")
    made.add_argument("-x", action="store_true")
    made.add_argument_group("more").add_argument("--group", action="store_true")
    made.add_mutually_exclusive_group().add_argument("--either", action="store_true")
    return made


def test_ctrl_c_is_130(doing: Any, capsys: Captured) -> None:
    doing(raising(KeyboardInterrupt()))
    assert main(["plugins"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_the_exit_code_is_that_of_the_command(doing: Any) -> None:
    doing(lambda arguments: 1)
    assert main(["plugins"]) == 1


def test_a_reader_that_goes_away_is_no_error(crowded: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "gausslens", "plugins", "--json"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(crowded)},
    )
    os.close(writer)
    os.close(reader)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert error == b""


def test_ctrl_c_while_plugins_load_is_130(command: Command, shelf: Shelf) -> None:
    shelf.plugin("slow", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)\n")
    done = command("plugins", path=shelf.directory)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("how", [["-m", "gausslens"], ["-c", "from gausslens.__main__ import main; exit(main())"]])
def test_both_ways_to_call_it(how: list[str]) -> None:
    done = subprocess.run([sys.executable, *how, "chck"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "gausslens: there is no command 'chck'" in done.stderr


def test_a_terminal_that_cannot_show_a_character(command: Command) -> None:
    done = command("plugins", "Wächter", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert "W\\xe4chter" in done.stderr
