"""Print results of a store: what there is, one result, one array."""

from __future__ import annotations

import math
import sys
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ...contract.errors import InputError, StoreError, did_you_mean
from ...terminal import MOST_ROWS, cell_len, columns, plain, print_frame, print_rows, print_table, table, tell, written
from .. import add_quoted, load_host, outside, tell_undrawn, tell_what_is_not_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd
    import xarray as xr

    from ...store.read_results import Results

# Arrays of so few cells are printed in the list of a result's arrays.
FEW_CELLS = 4
# Larger ones are looked at so many cells at a time.
BLOCK_CELLS = 1 << 22
# What a table of cells leaves out where a terminal is narrow, the first first.
LEAST = ("called", "se", "onset", "variant", "run")
# Draws and swept values that are named where they are missing.
MOST_MISSING = 5


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    parser.add_argument("store", metavar="STORE", help="the directory of a store, or a pack")
    parser.add_argument("label", nargs="?", metavar="LABEL", help="show this result")
    parser.add_argument("array", nargs="?", metavar="ARRAY", help="show the values of this array of it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--run",
        metavar="NAME",
        help="of this run, or of the plan whose digest begins so (default: of the newest run that finished anything)",
    )
    which.add_argument("--all", action="store_true", help="of every run; tables have a column for it")
    parser.add_argument("--variant", metavar="NAME", help="of this variant (default: of each)")
    parser.add_argument("--null", metavar="NAME", help="compared with this null (default: with each)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print every row, as CSV")
    form.add_argument("--json", action="store_true", help="print every row, as JSON")
    form.add_argument("--png", metavar="FILE", help="draw the report's figures of LABEL into one picture")
    add_quoted(parser)


def run(arguments: Namespace) -> int:
    """Print the tree of a run, one result, or one array of it."""
    from ...store.read_results import open as open_store

    results = open_store(arguments.store)
    if arguments.run is not None:
        results = results.named(arguments.run)
    views = _having(results, arguments) if arguments.all else [results]
    if arguments.variant is not None and all(arguments.variant not in view.variants for view in views):
        hint = did_you_mean(arguments.variant, results.variants)
        raise StoreError(f"{results.path} has no variant {arguments.variant!r}{hint}")
    tree = arguments.label is None and not (arguments.csv or arguments.json or arguments.png)
    code = 0
    if arguments.png is not None:
        _draw(results, arguments)
    elif arguments.label is None:
        _show_trees(views, arguments)
    else:
        code = _show_label(views, arguments)
    if not arguments.all:
        print(end="\n" if tree and results.notes(runs=arguments.run is None) else "")
        tell_what_is_not_shown(results, arguments.run, sys.stdout if tree else None)
    return code


def _having(results: Results, arguments: Namespace) -> list[Results]:
    """The runs that have what is asked for; where none has it, the newest, which says what is wrong."""

    def has(view: Results) -> bool:
        return any(
            arguments.variant in (None, variant)
            and arguments.label in (None, label)
            and arguments.null in (None, view.steps(variant, label)[0].against, *view.nulls(variant, label))
            for variant, label in (view.planned if arguments.label is None else view)
        )

    return [view for view in results.all_runs().values() if has(view)] or [results]


def _show_label(views: list[Results], arguments: Namespace) -> int:
    """One result, or one array of it, in each run; returns 1 where a damaged one was left out."""
    from ...store.manifest import left_out

    code = 0
    found = [(view, _compared(view, _variants(view, arguments), arguments)) for view in views]
    for view, _ in found:
        _tell_unfinished(view, arguments)
    if arguments.csv or arguments.json:
        print_frame(_frames(found, arguments), arguments.json, arguments.quoted)
    elif arguments.array is not None:
        _print_cells(_frames(found, arguments).drop(columns="variable"), arguments.array)
    else:
        for view, variants in found:
            for variant in variants:
                run = f"run {view.name}: " if arguments.all else ""
                with left_out() as damaged:
                    _show_result(view, variant, arguments.label, arguments.null, run)
                code = 1 if damaged else code
    return code


def _tell_unfinished(results: Results, arguments: Namespace) -> None:
    """On the error stream, so that tables stay tables: what was planned of the label and is not there."""
    label = arguments.label
    for variant in results.variants if arguments.variant is None else (arguments.variant,):
        if (variant, label) not in results.planned:
            continue
        missing = results.unfinished(variant, label)
        if missing:
            more = f" and {len(missing) - MOST_MISSING} more" if len(missing) > MOST_MISSING else ""
            words = plain("; ".join(missing[:MOST_MISSING]))
            print(f"not finished: {plain(variant)}, {plain(label)}: {words}{more}: run again", file=sys.stderr)


def _draw(results: Results, arguments: Namespace) -> None:
    """Write the figures of a result into a file and print where it is."""
    from pathlib import Path

    from ...drawings import drawn
    from ...report.findings.as_figures import HEADS, LADDER
    from ...report.matplotlib_figures import save
    from ...report.sections import failed

    if arguments.all:
        raise InputError("--png draws one run: say which with --run NAME in place of --all")
    if arguments.label is None:
        raise InputError("--png draws one result: name its LABEL, as in `gausslens show STORE LABEL --png FILE`")
    if arguments.array is not None or arguments.null is not None:
        raise InputError("--png draws the report's figures of a LABEL: it takes no ARRAY and no --null")
    target = Path(arguments.png)
    if target.suffix.lower() != ".png":
        raise InputError(f"--png writes PNG alone: call the file {target.stem}.png, not {target.name}")
    outside(target, Path(results.path))
    every, undrawn = drawn(results, arguments.label, arguments.variant, None, load_host(arguments))
    figures = [each for each in every if each.section not in (LADDER, HEADS)]
    if not figures:
        raise InputError(f"no section of the report has a figure of {arguments.label!r}")
    told = list(undrawn)

    def tell(number: int, error: Exception) -> None:
        of = figures[number]
        told.append(failed(f"{of.figure.title!r} of the section {of.section}", error, number))

    save([each.figure for each in figures], target, tell)
    tell_undrawn(told, arguments.debug)
    print(arguments.png)


def _variants(results: Results, arguments: Namespace) -> list[str]:
    """The variants that have the label."""
    chosen = results.variants if arguments.variant is None else (arguments.variant,)
    having = [v for v in chosen if (v, arguments.label) in results]
    if not having and arguments.variant is None:
        known = dict.fromkeys(label for _, label in results)
        if arguments.label not in known:
            hint = did_you_mean(arguments.label, known)
            others = [name for name, view in results.all_runs().items() if arguments.label in view.labels]
            elsewhere = f"; it is in run {', '.join(others)}: --run shows it" if others and not arguments.all else ""
            raise InputError(f"{plain(results.path)} has no finished result {arguments.label!r}{hint}{elsewhere}")
    return having or [*chosen]


def _compared(results: Results, variants: list[str], arguments: Namespace) -> list[str]:
    """Of the variants, those whose result is compared with the null that is asked for."""
    null, label = arguments.null, arguments.label
    if null is None:
        return variants
    nulls = {v: results.nulls(v, label) for v in variants if (v, label) in results}
    having = [v for v, names in nulls.items() if null in names]
    if not having:
        what = label if arguments.variant is None else f"{arguments.variant}, {label}"
        known = dict.fromkeys(name for names in nulls.values() for name in names)
        if nulls and not known:
            raise StoreError(f"{what} is compared with no null: `against:` of a run file names one")
        if nulls:
            raise StoreError(f"{what} is not compared with {null!r}{did_you_mean(null, known)}")
    return having or variants


def _chosen(view: Results, arguments: Namespace) -> set[tuple[str, str]]:
    """Variant and label of what --variant and --null leave of the tree, finished or not."""
    planned = {name: view.steps(*name)[0].against for name in view.planned}
    found = {name: null for name, null in planned.items() if arguments.variant in (None, name[0])}
    nulls = {null for null in found.values() if null is not None}
    if arguments.null is not None and arguments.null not in nulls:
        raise StoreError(f"nothing is compared with {arguments.null!r}{did_you_mean(arguments.null, nulls)}")
    return {name for name, null in found.items() if arguments.null in (None, null)}


def _show_trees(views: list[Results], arguments: Namespace) -> None:
    """What there is of each run."""
    if arguments.csv or arguments.json:
        from ...store.tables import joined

        tables = []
        for view in views:
            table, chosen = view.table(), _chosen(view, arguments)
            tables.append(table.loc[[name in chosen for name in zip(table["variant"], table["label"], strict=True)]])
        print_frame(joined(tables) if len(tables) > 1 else tables[0], arguments.json, arguments.quoted)
        return
    found = [(view, _chosen(view, arguments)) for view in views]
    print(plain(views[0].path))
    for view, names in found:
        if view.runs:
            _show_tree(view, names)
        else:
            print("no run yet")


def _show_tree(view: Results, chosen: set[tuple[str, str]]) -> None:
    rows = []
    for variant in view.variants:
        for label in sorted((n for v, n in view.planned if v == variant), key=lambda n: (variant, n) not in view):
            if (variant, label) not in chosen:
                continue
            steps = view.steps(variant, label)
            done = [s for s in steps if view.finished(s)]
            rows.append((variant, label, steps[0].analysis, _dimensions(steps), f"{len(done)} of {len(steps)}"))
    plan = view.manifest()
    model = f", model {plan.asked_model}" if plan.asked_model else ""
    print(f"\n{plain(view.name)}   planned {plain(plan.created[:19])}, plan {plan.plan[:8]}{plain(model)}")
    print_table(("variant", "label", "analysis", "over", "finished"), rows, right=(4,))


def _dimensions(steps: Any) -> str:
    """Draws and swept values, as ``8 draws, alpha 0.5 1 2``."""
    values: dict[str, dict[str, None]] = {}
    for step in steps:
        for name, value in step.point:
            values.setdefault(name, {})[str(value)] = None
    words = [f"{len(v)} draws" if n == "draw" else f"{n} {' '.join(v)}" for n, v in values.items()]
    return ", ".join(words)


def _show_result(results: Results, variant: str, label: str, null: str | None, run: str = "") -> None:
    """One result; where its draws differ in shape, or are no whole grid, each draw by itself."""
    from ...store.read_parts import DifferentShapes, Gaps

    nulls = results.nulls(variant, label) if null is None else (null,)
    try:
        against = {name: results.against(variant, label, name) for name in nulls}
        _show_arrays(f"{run}{variant}, {label}", results[variant, label], against)
    except (DifferentShapes, Gaps):
        compared = {name: results.draws(variant, f"{label}.against.{name}") for name in nulls}
        for point, dataset in results.draws(variant, label).items():
            words = run + ", ".join([variant, label, *(f"{n} {v}" for n, v in point)])
            _show_arrays(words, dataset, {n: each[point] for n, each in compared.items() if point in each})


def _show_arrays(title: str, dataset: xr.Dataset, nulls: Mapping[str, xr.Dataset]) -> None:
    """The arrays of a dataset: what each is, its range, and how it stands against each null."""
    from ...store.read_parts import WITHOUT, beside

    print(f"\n{plain(title)}")
    rows = []
    for name, array in dataset.data_vars.items():
        if beside(dataset, name) and str(name).endswith(WITHOUT):
            continue
        shape = ", ".join(f"{d} {n}" for d, n in array.sizes.items())
        about = [str(array.attrs.get("long_name", "")), str(array.attrs.get("units", ""))]
        rows.append([name, shape, array.dtype, *about, _range(array)])
    head = ["array", "over", "type", "what it is", "units", "values"]
    for null, against in nulls.items():
        head.append(f"against {null}")
        for row in rows:
            row.append(_stands(against, str(row[0])))
    print_table(head, rows)


def _range(array: xr.DataArray) -> str:
    """The values where there are few, else the smallest, the mean and the largest."""
    if array.size <= FEW_CELLS or array.dtype.kind not in "biuf":
        return " ".join(written(v) for v in array.values.ravel()[:FEW_CELLS].tolist())
    import numpy as np

    # A large array is read a block at a time; what is not finite is left out of the range and counted.
    low, high, total, count = math.inf, -math.inf, 0.0, 0
    for block in _blocks(array):
        values = np.asarray(block.values)
        values = values[np.isfinite(values)].astype(float)
        if values.size:
            low, high = min(low, values.min()), max(high, values.max())
            total, count = total + values.sum(), count + values.size
    lost = f", {array.size - count} not finite" if count < array.size else ""
    return f"{written(low)} to {written(high)}, mean {written(total / count)}{lost}" if count else "none finite"


def _blocks(array: xr.DataArray) -> Iterator[xr.DataArray]:
    """An array in pieces that fit into memory: one of a single layer may hold the maps of ten thousand prompts."""
    if array.size <= BLOCK_CELLS:
        yield array
        return
    axis = next(axis for axis, size in enumerate(array.shape) if size > 1)
    step = max(1, BLOCK_CELLS * array.shape[axis] // array.size)
    for start in range(0, array.shape[axis], step):
        yield from _blocks(array.isel({array.dims[axis]: slice(start, start + step)}))


def _stands(against: xr.Dataset, name: str) -> str:
    """The largest effect, and how many cells have q below 0.05; or why nothing can be said."""
    import numpy as np

    if f"{name}_z" not in against or f"{name}_q" not in against:
        return ""
    z, q = against[f"{name}_z"].values, against[f"{name}_q"].values
    if not np.isfinite(z).any():
        return str(against[f"{name}_z"].attrs.get("note", "constant under the null"))
    size = against.get(f"{name}_effect", against[f"{name}_z"]).values.ravel()
    largest = size[np.argmax(np.where(np.isfinite(size), np.abs(size), -1))]
    what = "effect" if f"{name}_effect" in against else "z"  # older comparisons have no effect
    return f"{what} to {largest:+.3g}, q < 0.05 in {int((q < 0.05).sum())} of {q.size}"


def _frames(found: list[tuple[Results, list[str]]], arguments: Namespace) -> pd.DataFrame:
    """The cells of all variants in one table; of several runs only where all are asked for, each row with its run."""
    from ...store.tables import joined

    wanted = None if arguments.array is None else [arguments.array]
    tables = []
    for view, variants in found:
        for variant in variants:
            table = view.frame(variant, arguments.label, null=arguments.null, variables=wanted)
            table.insert(0, "variant", variant)
            if arguments.all:
                table.insert(0, "run", view.name)
            tables.append(table)
    return joined(tables)


def _print_cells(frame: pd.DataFrame, array: str) -> None:
    """The first cells, and of each null what a reader wants; of several nulls each has a row of its own."""
    from ...store.tables import NULL_COLUMNS

    at = list(frame).index("value") + 1
    own, known = list(frame)[:at], list(frame)[at:]
    nulls = [column.removesuffix("null_mean") for column in known if column.endswith("null_mean")]  # "before.", or ""
    if not nulls:
        print_rows(frame, array)
        return
    has = {column.rpartition(".")[2] for column in known}
    several = nulls != [""]
    mine, last = [*own, *(["se"] if "se" in has else [])], [c for c in ("onset", "rung") if c in known]
    judged = ["effect" if "effect" in has else "z", *(c for c in ("q", "called") if c in has)]
    rows = []
    for cell in frame.head(MOST_ROWS).astype(object).to_dict("records"):
        there = [null for null in nulls if _known(cell[f"{null}null_mean"])]
        for place, null in enumerate(there or nulls[:1]):
            before, behind = ([_cell(cell[c]) if place == 0 else "" for c in names] for names in (mine, last))
            named = [null.removesuffix(".") if there else ""] if several else []
            rows.append([*before, *named, _spread(cell, null), *(_judged(cell, null, c) for c in judged), *behind])
    spread = "mean \N{PLUS-MINUS SIGN} sd"
    head = [*mine, *(["null", spread] if several else [f"null {spread}"]), *judged, *last]
    _print_fitting(head, rows, {"null", "rung", *(c for c in own if frame[c].dtype.kind not in "iuf")})
    if len(frame) > MOST_ROWS:
        print(f"... {len(frame) - MOST_ROWS:,} more rows of {plain(array)}; --csv prints them all")
    shown = {"null_mean", "null_sd", *judged, *last}
    more = [column for column in NULL_COLUMNS if column in has - shown]
    if more:
        tell(f"--csv and --json have also: {', '.join(more)}")


def _spread(cell: Mapping[str, Any], null: str) -> str:
    """The mean of a null, and the standard deviation of its draws."""
    mean, sd = (cell.get(f"{null}null_{name}") for name in ("mean", "sd"))
    if not _known(mean):
        return ""
    return f"{mean:.3g} \N{PLUS-MINUS SIGN} {sd:.2g}" if _known(sd) else f"{mean:.3g}"


def _judged(cell: Mapping[str, Any], null: str, name: str) -> str:
    """The effect, z, q, or whether the cell is called, in few digits."""
    value = cell.get(f"{null}{name}")
    if not _known(value):
        return ""
    if name == "called":
        return "yes" if value else "no"
    return f"{value:.2g}" if name == "q" else f"{value:+.3g}"


def _cell(value: Any) -> str:
    return written(value) if _known(value) else ""


def _known(value: Any) -> bool:
    return value is not None and type(value).__name__ != "NAType" and value == value


def _print_fitting(head: list[str], rows: list[list[str]], words: set[str]) -> None:
    """Print a table; on a terminal that is too narrow without what it can do without, and that is told."""

    def right(names: list[str]) -> list[int]:
        return [i for i, name in enumerate(names) if name not in words]

    def fits(names: list[str], cells: list[list[str]]) -> bool:
        width = columns()
        lines = table([*map(plain, names)], [[*map(plain, row)] for row in cells], right(names), width)
        return width is None or max(map(cell_len, lines)) <= width

    left, fewer, cells = [], head, rows
    for name in LEAST if not fits(head, rows) else ():
        at = fewer.index(name) if name in fewer else None
        held = {row[at] for row in cells if row[at]} if at is not None else set()
        if at is None or (name in ("variant", "run") and len(held) != 1):
            continue
        left.append(f"{name} {plain(*held)}" if name in ("variant", "run") else name)
        fewer, cells = [*fewer[:at], *fewer[at + 1 :]], [[*row[:at], *row[at + 1 :]] for row in cells]
        if fits(fewer, cells):
            print_table(fewer, cells, right(fewer))
            tell(f"left out on this narrow terminal: {', '.join(left)}")
            return
    print_table(head, rows, right(head))
