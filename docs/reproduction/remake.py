"""Runs what the rows of the sources rest on, reads their numbers, and writes docs/REPRODUCTION.md.

    python docs/reproduction/remake.py --store DIR            runs what is not in the stores yet, then writes
    python docs/reproduction/remake.py --store DIR --no-run   reads what is there
    python docs/reproduction/remake.py                        writes the page of the numbers that are kept here
    python docs/reproduction/remake.py --check                ends with 1 where the page is not that
    python docs/reproduction/remake.py --check --store DIR    runs, and tells what is not as it is kept; writes nothing

DIR holds a store for each model: builtin, and where GAUSSLENS_MODELS is set stories15m and smollm2; and made, the
checkpoints that scripts train for rows of theirs. Killed and started again it goes on where it was. Numbers are kept in
numbers.json, so that the page can be made of what one machine has and another has not. What differs from the kept
numbers by more than its error is told. README.md beside this file says what a row is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from judging import BadExpression, VerdictBroken
from reading import UnreadableNumber, read_numbers
from writing import MODELS, Known, kind_of, page

import gausslens

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE, NUMBERS = ROOT / "docs/REPRODUCTION.md", HERE / "numbers.json"
# Numbers without an error, or of another machine's last digits, may differ by this share.
TOLERANCE = 0.01
# Half of a 95 % interval in standard errors, of ten groups of prompts.
WIDE = 2.26


def sources() -> dict[str, Any]:
    """What the sources contain."""
    return dict(_yaml("sources.yaml"))


def rows() -> list[dict[str, Any]]:
    """The rows of all sources, and of the models that are trained for them."""
    return [row for name in (*sources(), "trained") for row in _yaml(f"{name}.yaml")]


def settings() -> dict[str, dict[str, list[str]]]:
    """``{run file: {model: [key=value, ...]}}``: what is asked of a run file on a model, where it is not all of it."""
    return dict(_yaml("settings.yaml") or {})


def made() -> dict[str, dict[str, Any]]:
    """``{run file: {script, into, small, called}}``: whose models a script makes, and where beside the run file."""
    return dict(_yaml("made.yaml"))


def with_checkpoints(name: str, beside: Path, small: bool = False) -> Path:
    """A run file, copied to where the checkpoints that it names are made first; what is there is not made again."""
    path = ROOT / "examples" / name
    if name not in made():
        return path
    beside.mkdir(parents=True, exist_ok=True)
    how = made()[name]
    command = [sys.executable, str(path.with_name(how["script"])), str(beside / how["into"])]
    command += [str(option) for option in [*how.get("options", ()), *(how["small"] if small else ())]]
    subprocess.run(command, check=True)  # noqa: S603 - a script of examples/, with options of made.yaml
    return Path(shutil.copy(path, beside))


def kept() -> dict[str, Any]:
    """The numbers that were read last: ``{row: {model: {model, version, numbers}}}``."""
    found: dict[str, Any] = json.loads(NUMBERS.read_text(encoding="utf-8")) if NUMBERS.exists() else {}
    return found


def _yaml(name: str) -> Any:
    return yaml.safe_load((HERE / name).read_text(encoding="utf-8"))


def written(stored: Mapping[str, Any]) -> str:
    """The page of these numbers."""
    return page(Known(sources(), rows(), _yaml("formulas.yaml"), _yaml("texts.yaml"), stored, settings()))


def models_of(row: Mapping[str, Any]) -> Sequence[str]:
    """The models that a row is for."""
    return tuple(row.get("models", MODELS))


def run(name: str, model: str, store: Path) -> Any:
    """A run file on one model, into the store of that model: its results. What is in the store is not run again."""
    sets = ["report=false", *settings().get(name, {}).get(model, ())]
    if model != "builtin":
        sets.append(f"model.path={Path(os.environ['GAUSSLENS_MODELS']) / model}")
    return gausslens.run(with_checkpoints(name, store / "made"), store=store / model, sets=sets)


def stored_run(name: str, model: str, store: Path) -> Any:
    """What the store of a model holds of a run file."""
    called = yaml.safe_load((ROOT / "examples" / name).read_text(encoding="utf-8"))["name"]
    return gausslens.open(store / model).run(called)


def read_row(row: Mapping[str, Any], results: Any) -> dict[str, Any]:
    """A row's numbers in the results of its run, and of which model they are."""
    model = (results.manifest().resolved.get("model") or {}).get("path", "none")
    numbers = read_numbers(row["numbers"], results)
    called = made().get(row["run"][0], {}).get("called") or Path(model).name
    return {"model": called, "version": gausslens.__version__, "numbers": numbers}


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """What was read now and is not what was kept, beyond its error, or beyond the spread of the twins."""
    for name, one in now["numbers"].items():
        old = before.get("numbers", {}).get(name)
        if old is None:
            continue
        if not _near(old["value"], one["value"], one["error"]):
            yield f"{name}: {old['value']} was kept, {one['value']} is read"
        for null, twins in one["nulls"].items():
            was = old["nulls"].get(null, {}).get("mean")
            if not _near(was, twins["mean"], twins["sd"]):
                yield f"{name} of {null}: {was} was kept, {twins['mean']} is read"


def _near(was: Any, now: Any, around: Any) -> bool:
    if isinstance(now, list):
        beside = around if isinstance(around, list) else [None] * len(now)
        same = isinstance(was, list) and len(was) == len(now)
        return same and all(_near(*each) for each in zip(was, now, beside, strict=True))
    if isinstance(now, str):
        return bool(was == now)
    if was is None or now is None or isinstance(was, list | str):
        return was is now
    return bool(abs(was - now) <= max(TOLERANCE * abs(was), WIDE * (around or 0.0), 1e-9))


def gathered(store: Path, models: Sequence[str], chosen: Sequence[str], runs: bool) -> tuple[dict[str, Any], list[str]]:
    """The kept numbers with those of these rows and models read anew, and what went wrong or differs."""
    found, told = kept(), list[str]()
    for model in models:
        mine = [
            r for r in rows() if kind_of(r) == "stored" and model in models_of(r) and (not chosen or r["id"] in chosen)
        ]
        for name in dict.fromkeys(row["run"][0] for row in mine):
            print(f"{model}: {name}", flush=True)
            try:
                results = (run if runs else stored_run)(name, model, store)
            except gausslens.GausslensError as error:
                told.append(f"{name} on {model}: {error}")
                continue
            for row in mine:
                if row["run"][0] == name:
                    told += _taken(found.setdefault(row["id"], {}), row, model, results)
    return found, told


def _taken(of_row: dict[str, Any], row: Mapping[str, Any], model: str, results: Any) -> list[str]:
    """Puts what is read of a row on a model among its numbers; what went wrong, or differs from before."""
    try:
        read = read_row(row, results)
    except UnreadableNumber as error:
        return [f"{row['id']} on {model}: {error}"]
    told = [f"{row['id']} on {model} differs: {each}" for each in differences(of_row.get(model, {}), read)]
    of_row[model] = read
    return told


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, read, write; 1 where anything failed or differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, help="the directory of the stores")
    parser.add_argument("--models", nargs="+", choices=MODELS, help="by default all that are there")
    parser.add_argument("--rows", nargs="+", default=(), metavar="ROW", help="these alone")
    parser.add_argument("--no-run", action="store_true", help="read what the stores hold")
    parser.add_argument("--check", action="store_true", help="write nothing, and say whether the page is that")
    asked = parser.parse_args(arguments)
    numbers, told = kept(), list[str]()
    if asked.store is not None:
        there = MODELS if os.environ.get("GAUSSLENS_MODELS") else MODELS[:1]
        numbers, told = gathered(asked.store, asked.models or there, asked.rows, not asked.no_run)
        numbers = {row["id"]: numbers[row["id"]] for row in rows() if row["id"] in numbers}
        if not asked.check:  # kept even where a verdict no longer holds: its sentence is what is mended
            NUMBERS.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    try:
        text = written(numbers)
    except (VerdictBroken, BadExpression, KeyError) as error:
        print(*told, f"no page was written: {error}", sep="\n", file=sys.stderr)
        return 1
    if asked.check and asked.store is None:
        told += [] if PAGE.read_text(encoding="utf-8") == text else [f"{PAGE.name} is older than its data"]
    elif not asked.check:
        PAGE.write_text(text, encoding="utf-8")
    print(*told, sep="\n", end="\n" if told else "", file=sys.stderr)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main())
