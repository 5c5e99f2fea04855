"""The command line: which command is meant, its arguments, and near names for misspelt ones."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from .command import COMMANDS, module_of
from .contract.errors import did_you_mean, near
from .terminal import plain_lines


class Parser(argparse.ArgumentParser):
    """Argparse that takes no abbreviations and knows near names."""

    def __init__(self, **options: Any) -> None:
        self.options: list[str] = []  # as they are written
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def add_argument(self, *names: str, **options: Any) -> argparse.Action:  # noqa: D102
        self.options += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **options)

    def add_argument_group(self, *args: Any, **options: Any) -> Any:  # noqa: D102
        return self._remembering(super().add_argument_group(*args, **options))

    def add_mutually_exclusive_group(self, **options: Any) -> Any:  # noqa: D102
        return self._remembering(super().add_mutually_exclusive_group(**options))

    def _remembering(self, group: Any) -> Any:
        """A group of which the parser knows the options: what is added to a group does not pass by it."""
        add = group.add_argument

        def add_argument(*names: str, **options: Any) -> argparse.Action:
            self.options += [name for name in names if name.startswith("-")]
            action: argparse.Action = add(*names, **options)
            return action

        group.add_argument = add_argument
        return group

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: D102
        return self._all_known(*self.parse_known_args(args, namespace))

    def parse_intermixed_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: D102
        words = list(args)
        # Where `--` is the first word there are no options, and Python 3.11 forgets that it was there.
        parse = self.parse_known_args if words[:1] == ["--"] else self.parse_known_intermixed_args
        return self._all_known(*parse(words, namespace))

    def _all_known(self, found: Any, rest: list[str]) -> Any:
        unknown = sorted((word for word in rest if word != "--"), key=lambda word: not word.startswith("-"))
        if unknown:
            close = near(unknown[0].split("=")[0], self.options) if unknown[0].startswith("-") else []
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            self.error(f"unknown argument {unknown[0]}{hint}")
        return found

    def error(self, message: str) -> NoReturn:  # noqa: D102
        choice = re.fullmatch(r"(.*)invalid choice: '(.*)' \(choose from (.*)\)", message)
        if choice:
            known = re.findall(r"[\w-]+", choice[3])
            message = f"{choice[1]}there is no {choice[2]!r}{did_you_mean(choice[2], known)}"
        self.exit(2, f"{self.format_usage()}{self.prog}: {plain_lines(message)}\n")


def parsed(argv: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """The module of the command that is called, and its arguments."""
    first = Parser(prog="gausslens", add_help=False, usage="gausslens [--help] [--version] COMMAND ...")
    first.add_argument("-h", "--help", action="store_true")
    first.add_argument("--version", action="store_true")
    _add_common(first)
    first.add_argument("command", nargs="?", metavar="COMMAND")
    first.add_argument("rest", nargs=argparse.REMAINDER)
    arguments = first.parse_args(argv)
    if arguments.version:
        from .version import VERSION

        print(f"gausslens {VERSION}")
        first.exit()
    if arguments.help or (arguments.command in (None, "help") and not arguments.rest):
        print(_overview())
        first.exit()
    if arguments.command == "help":
        arguments.command, arguments.rest = arguments.rest[0], ["--help"]
    if arguments.command not in COMMANDS:
        first.error(f"there is no command {arguments.command!r}{did_you_mean(arguments.command, COMMANDS)}")
    module = import_module(module_of(arguments.command))
    text = COMMANDS[arguments.command]
    parser = Parser(prog=f"gausslens {arguments.command}", description=f"{text[0].upper()}{text[1:]}.")
    module.add(parser)
    _add_common(parser)
    found = parser.parse_intermixed_args(arguments.rest)
    found.debug |= arguments.debug
    found.without = arguments.without + found.without
    return module, found


def _add_common(parser: Parser) -> None:
    common = parser.add_argument_group("common options")
    common.add_argument("--debug", action="store_true", help="show tracebacks")
    common.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PLUGIN",
        help="leave a plugin out (may be repeated; GAUSSLENS_WITHOUT does the same, with commas)",
    )


def _overview() -> str:
    lines = [f"  {name:<12}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        (
            "usage: gausslens [--debug] [--without PLUGIN] COMMAND ...",
            "",
            "What training put into a transformer's attention, and what chance would have put there.",
            "",
            *lines,
            "",
            "'gausslens COMMAND --help' says more. A first run: 'gausslens example'.",
        )
    )
