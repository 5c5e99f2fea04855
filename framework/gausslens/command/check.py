"""Check a run file: all mistakes at once, and nothing computed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ..terminal import tell
from . import add_run_file, load_host

if TYPE_CHECKING:
    from ..plugins import Host
    from ..runs.study import Study


def add(parser: ArgumentParser) -> None:
    """Its arguments."""
    add_run_file(parser)
    parser.add_argument("--quick", action="store_true", help="the file alone: open no model, read no prompts")


def run(arguments: Namespace) -> int:
    """Say what a run file holds; raises all its mistakes, then all that does not fit its models and prompts."""
    from ..runfile import read

    host = load_host(arguments)
    study = read(arguments.file, host, arguments.set)
    steps = "" if arguments.quick else f", {_count(_planned(study, host), 'step')}"
    tell(f"{arguments.file}: {_held(study)}{steps}")
    for warning in study.warnings:
        tell(f"warning: {warning}")
    return 0


def _planned(study: Study, host: Host) -> int:
    """How many steps it has; its models are opened (config, tokenizer, shapes: no weights), its prompts read."""
    from ..runs.open import Models
    from ..runs.plan import make_plan

    models = Models(study, host)
    try:
        return len(make_plan(study, models).steps)
    finally:
        models.close()


def _held(study: Study) -> str:
    """``study alpha: 4 variants (chance: 8 draws; dose: 5 points), 14 twins, 3 analyses``."""
    notes = []
    for variant in study.variants:
        counts = [_count(variant.draws, "draw")] if variant.draws is not None else []
        counts += [_count(len(variant.points), "point")] if variant.points[0].values else []
        notes += [f"{variant.name}: {' of '.join(counts)}"] if counts else []
    twins = sum((variant.draws or 1) * len(variant.points) for variant in study.variants)
    held = _count(len(study.variants), "variant") + (f" ({'; '.join(notes)})" if notes else "")
    against = f", against {' and '.join(study.against)}" if study.against else ""
    return f"{study.name}: {held}, {_count(twins, 'twin')} in all, {_count(len(study.uses), 'analysis')}{against}"


def _count(number: int, of: str) -> str:
    many = "analyses" if of == "analysis" else f"{of}s"
    return f"{number} {of if number == 1 else many}"
