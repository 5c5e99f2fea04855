"""Write the figures of a store as files for a paper."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import TYPE_CHECKING

from ...contract.errors import InputError
from ...terminal import print_table
from .. import load_host, outside, tell_undrawn, tell_what_is_not_shown

if TYPE_CHECKING:
    from ...report.figure_files import Named
    from ...store.read_results import Results

_MORE = """
Every figure of the page under a stable name: the ladder, every number by head, the sections of all plugins. Tables are
written as CSV and LaTeX (booktabs) too. DIR/captions.txt says what each shows, DIR/figures.json of which arrays.

A figure with sliders is drawn at all their places as panels where these fit on a page, else at the one where the page
opens, which is where there is most to see; --at chooses others.

  gausslens figures store --out figures
  gausslens figures store --out figures --only ladder --format svg --width 85mm
  gausslens figures store --out figures --only 'attention*' --at layer=3 --at head=0,1
"""


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.epilog = _MORE
    parser.add_argument("store", metavar="STORE", help="the directory of a store, or a pack")
    parser.add_argument("--out", required=True, metavar="DIR", help="write them into this folder, which is made")
    parser.add_argument(
        "--format",
        action="append",
        choices=("pdf", "svg", "png"),
        metavar="FORMAT",
        help="pdf, svg or png (default: pdf; may be repeated)",
    )
    parser.add_argument(
        "--width",
        metavar="WIDTH",
        help="column (82.5 mm), page (171 mm) or a length as 85mm, 3.3in (default: page for what is wide, else column)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="those whose name, section or title holds this; with * and ?, matches it (may be repeated)",
    )
    parser.add_argument(
        "--at",
        action="append",
        default=[],
        metavar="NAME=PLACE",
        help="where a slider stands, as layer=3; several, as head=0,1, are panels (may be repeated)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--run", metavar="NAME", help="of this run (default: the newest that finished anything)")
    which.add_argument("--all", action="store_true", help="of every run; names begin with it")
    parser.add_argument("--titles", action="store_true", help="write the title above each figure")
    parser.add_argument("--replace", action="store_true", help="write over files that were changed or made elsewhere")


def run(arguments: Namespace) -> int:
    """Write them and print a row for each."""
    from ...drawings import drawn
    from ...report import Undrawn
    from ...report.figure_files import CAPTIONS, Look, chosen, named, write_figures
    from ...report.sections import failed
    from ...store.read_results import open as open_store

    out, at = outside(Path(arguments.out), Path(arguments.store)), _places(arguments.at)
    results = open_store(arguments.store)
    if arguments.run is not None:
        results = results.named(arguments.run)
    views: list[Results] = list(results.all_runs().values())[::-1] if arguments.all else [results]
    host, told = load_host(arguments), list[Undrawn]()
    found: list[Named] = []
    for view in views:
        figures, failures = drawn(view, None, None, None, host)
        told += failures
        found += named([(each.section, each.figure) for each in figures], view.name if arguments.all else "")
    found = chosen(found, arguments.only, at)
    if not found:
        raise InputError(f"no section of the report has a figure of {arguments.store}")

    def tell(place: int, error: Exception) -> None:
        each = found[place]
        told.append(failed(f"{each.figure.title!r} of the section {each.section}", error, place))

    look = Look(formats=arguments.format or ("pdf",), width=arguments.width, at=at, titles=arguments.titles)
    made = write_figures(found, out, look, arguments.replace, tell)
    rows = [
        (
            each.name,
            " ".join(name.rpartition(".")[2] for name in each.files),
            f"{each.wide:.0f}",
            _said(each.places, each.notes),
        )
        for each in made
    ]
    print_table(("figure", "files", "mm", "shown"), rows, right=(2,))
    print(f"\n{len(made)} figures in {out}; {out / CAPTIONS} says what each shows")
    tell_undrawn(told, arguments.debug)
    if not arguments.all:
        tell_what_is_not_shown(results, arguments.run)
    return 0


def _said(places: str, notes: tuple[str, ...]) -> str:
    """Which places are drawn, and what else is to be known of a figure."""
    return "; ".join(part for part in (places, " ".join(notes)) if part)


def _places(given: list[str]) -> dict[str, list[str]]:
    """Places of sliders by name, as they are asked for."""
    made: dict[str, list[str]] = {}
    for text in given:
        name, sign, places = text.partition("=")
        labels = [place.strip() for place in places.split(",") if place.strip()]
        if not (sign and name.strip() and labels):
            raise InputError(f"--at takes NAME=PLACE, as --at layer=3, and not {text!r}")
        made.setdefault(name.strip(), []).extend(labels)
    return made
