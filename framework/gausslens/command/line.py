"""The command line: which command is meant, its arguments, and near names for misspelt ones."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from ..contract.errors import did_you_mean, near
from . import COMMANDS
from .printed import plain_lines


class Parser(argparse.ArgumentParser):
    """Argparse that takes no abbreviations and knows near names."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: D102
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            options = [o for action in self._actions for o in action.option_strings]
            close = near(unknown[0].split("=")[0], options) if unknown[0].startswith("-") else []
            hint = f": did you mean {' or '.join(close)}?" if close else ""
            self.error(f"unknown argument {unknown[0]}{hint}")
        return found

    def options_first(self, words: Sequence[str]) -> list[str]:
        """The words with options before the rest: argparse itself takes no option between two positionals."""
        options: list[str] = []
        rest: list[str] = []
        left = iter(words)
        for word in left:
            if word == "--":
                return [*options, "--", *rest, *left]
            if not word.startswith("-") or word == "-" or " " in word.partition("=")[0]:
                rest.append(word)
                continue
            options.append(word)
            action = self._option_string_actions.get(word)
            if action is not None and action.nargs is None:
                options += [value for value in [next(left, None)] if value is not None]
        return [*options, *rest]

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
        from ..version import VERSION

        print(f"gausslens {VERSION}")
        first.exit()
    if arguments.help or (arguments.command in (None, "help") and not arguments.rest):
        print(_overview())
        first.exit()
    if arguments.command == "help":
        arguments.command, arguments.rest = arguments.rest[0], ["--help"]
    if arguments.command not in COMMANDS:
        first.error(f"there is no command {arguments.command!r}{did_you_mean(arguments.command, COMMANDS)}")
    module = import_module(f"{__package__}.{arguments.command.replace('-', '_')}")
    text = COMMANDS[arguments.command]
    parser = Parser(prog=f"gausslens {arguments.command}", description=f"{text[0].upper()}{text[1:]}.")
    module.add(parser)
    _add_common(parser)
    found = parser.parse_args(parser.options_first(arguments.rest))
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
