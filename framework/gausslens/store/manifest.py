"""Manifests: what runs planned, and why two plans differ.

A manifest is immutable, committed like a part before the first step of its run.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..contract.digests_and_seeds import digest
from ..contract.errors import StoreError
from .disk import Temporary, Writer, explain_failure, is_file, locked
from .layout import LOCK, RUNS, NewerStore, StoreWarning, check_name, check_version, is_name

# Draw and swept values, by name: the place of a step among those of its variant and label.
SweepPoint = tuple[tuple[str, Any], ...]

FORMAT = "gausslens-run"
VERSION = 1
_FILE = re.compile(r"[A-Za-z0-9_-]{1,200}(\.[0-9]{1,9})?\.json")
# A manifest of 10,000 steps is about 30 MB.
MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class PlannedStep:
    """A planned step: which result it is for the user, and under which key it is stored."""

    variant: str
    label: str
    analysis: str
    key: str
    draw: int | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)
    ingredients: Mapping[str, Any] = field(default_factory=dict)
    against: str | None = None

    @property
    def point(self) -> SweepPoint:
        """Draw and swept values (lists as JSON): the place of this step among those of its variant and label."""
        draw = () if self.draw is None else (("draw", self.draw),)
        swept = ((n, v if isinstance(v, str | int | float) else json.dumps(v)) for n, v in self.sweep.items())
        return (*draw, *swept)

    @property
    def member(self) -> str:
        """The name of this step below its label in the index and in packs."""
        return ",".join(quote(str(v) if n == "draw" else f"{n}={v}", safe="=+ ") for n, v in self.point) or "result"


@dataclass(frozen=True)
class Manifest:
    """The plan of a run: its resolved run file and its steps."""

    run: str
    plan: str
    created: str
    steps: tuple[PlannedStep, ...]
    resolved: Mapping[str, Any] = field(default_factory=dict)
    distributions: Mapping[str, Any] = field(default_factory=dict)
    rungs: Mapping[str, str] = field(default_factory=dict)  # of each null its place on the ladder, in words
    path: Path = Path()
    sequence: int | None = None
    digest: str = ""
    copied: str | None = None  # of a copy the digest of the manifest that was written first, in another store

    @property
    def origin(self) -> str:
        """Which planning this is, in whatever store: the digest of its first manifest."""
        return self.copied or self.digest

    @property
    def age(self) -> tuple[int, datetime, str]:
        """Orders manifests from oldest to newest: by sequence; those from before there was one by the clock, first."""
        when = datetime.fromisoformat(self.created)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return self.sequence or 0, when, str(self.path)

    @property
    def asked_model(self) -> str:
        """The model that the run file names; nothing where it names none."""
        model = self.resolved.get("model")
        return str(model.get("path", "")) if isinstance(model, Mapping) else ""

    def swept_models(self, variant: str) -> tuple[str, ...]:
        """The names whose values fill in the path of a variant's model; of a difference, of the first of the two."""
        variants = self.resolved.get("variants")
        table = variants.get(variant) if isinstance(variants, Mapping) else None
        if not isinstance(table, Mapping):
            return ()
        pair = table.get("difference")
        if isinstance(pair, Sequence) and pair and pair[0] != variant:
            return self.swept_models(str(pair[0]))
        swept = table.get("sweep")
        return tuple(map(str, swept)) if isinstance(swept, Mapping) else ()

    def swept_by_number(self, variant: str) -> str | None:
        """The number by which a variant is swept over models; None where it is not, or is a null of others."""
        if any(step.against == variant for step in self.steps):
            return None
        mine = [step.sweep for step in self.steps if step.variant == variant]
        for name in self.swept_models(variant):
            values = [sweep.get(name) for sweep in mine]
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            if numbers and len(set(values)) > 1:
                return name
        return None


def write_manifest(writer: Writer, run: str, manifest: Mapping[str, Any]) -> Path:
    """Commit a manifest, unless the newest one of the store is of the same run and plan.

    Its sequence is one more than the largest there is: what was planned later is newer, whatever the clocks say.
    """
    root = writer.root
    body = {"format": FORMAT, "version": VERSION, **manifest, "run": check_name(run, "run"), "sequence": 1}
    body.setdefault("created", datetime.now(UTC).isoformat())
    try:
        digest(body)
        plan = parse(body, Path(run)).plan
    except (KeyError, ValueError, TypeError) as error:
        raise StoreError(f"the manifest of run {run!r} cannot be stored: {error!r}") from None
    with locked(root / LOCK):  # gc decides under this lock what no plan names
        found = manifests(root)
        if found and (found[-1].run, found[-1].plan) == (run, plan):
            return found[-1].path
        body["sequence"] = max((m.sequence or 0 for m in found), default=0) + 1
        data = json.dumps({**body, "digest": digest(body)}, indent=1).encode()
        return _commit(writer, run, plan, data)


def adopt(writer: Writer, found: Sequence[tuple[Manifest, bytes]]) -> list[Manifest]:
    """Commit copies of another store's manifests, given in their order with their text; returns which were new.

    A planning that is known here keeps its place. Others get the next numbers, in their order, so that what came last
    is newest; but where this store has planned the same run by itself, or knows what the other planned later, the copy
    gets none and comes before: it must not take the place of what is newer.
    """
    root = writer.root
    last_of_plan = {(m.run, m.plan): m.origin for m, _ in found}
    elsewhere = {m.origin for m, _ in found}
    with locked(root / LOCK):
        there = manifests(root)
        known = {m.origin for m in there}
        own = {m.run for m in there if m.copied is None and m.origin not in elsewhere}
        number = max((m.sequence or 0 for m in there), default=0)
        latest = max((i for i, (m, _) in enumerate(found) if m.origin in known), default=-1)
        new = []
        for place, (manifest, data) in enumerate(found):
            if manifest.origin in known or last_of_plan[manifest.run, manifest.plan] != manifest.origin:
                continue
            body = {k: v for k, v in json.loads(data).items() if k not in ("digest", "sequence")}
            body["copied"] = manifest.origin
            if place > latest and manifest.run not in own:
                number += 1
                body["sequence"] = number
            text = json.dumps({**body, "digest": digest(body)}, indent=1).encode()
            new.append(read_manifest(_commit(writer, manifest.run, manifest.plan, text)))
    return new


def _commit(writer: Writer, run: str, plan: str, data: bytes) -> Path:
    if len(data) > MOST_BYTES:
        raise StoreError(f"the manifest of run {run!r} has {len(data):,} bytes; readers take {MOST_BYTES:,}")
    number = 1
    while True:
        # A plan that comes back after another took its place is named again: manifests never change.
        final = writer.root / RUNS / run / (f"{plan}.json" if number == 1 else f"{plan}.{number}.json")
        temporary = Temporary(writer, ".json")
        try:
            temporary.write(data)
            if temporary.commit(final):
                return final
        finally:
            temporary.drop()
        number += 1


def manifest_paths(root: Path) -> list[Path]:
    """Where manifests are; links are not followed, and what is not named like one is left to ``verify``."""
    found: list[Path] = []
    with explain_failure("read", root):
        for directory in sorted(os.scandir(root / RUNS), key=lambda e: e.name):
            if directory.is_dir(follow_symlinks=False) and is_name(directory.name):
                found += sorted(p for p in Path(directory.path).iterdir() if _FILE.fullmatch(p.name))
    return found


def is_manifest(path: Path) -> bool:
    """Whether a file says that it is the manifest of a run, be it whole or not."""
    if not is_file(path):
        return False
    with path.open("rb") as file:
        return FORMAT.encode() in file.read(200)


def manifests(root: Path) -> list[Manifest]:
    """All manifests that can be read, oldest first; of a damaged one a warning tells, for the others are good."""
    return sorted(_readable(root), key=lambda m: m.age)


def _readable(root: Path) -> Iterator[Manifest]:
    for path in manifest_paths(root):
        try:
            yield read_manifest(path)
        except NewerStore:
            raise
        except StoreError as error:
            if os.path.lexists(path):  # what a gc beside this took away is no run any more
                warnings.warn(f"a run is left out: {error}", StoreWarning, stacklevel=2)


@contextmanager
def left_out(*also: type[StoreError]) -> Iterator[list[str]]:
    """Of a result that is damaged a warning tells, for the others are good; errors of another kind are raised.

    ``also`` are kinds that count as damage. What was told is in the list that it gives.
    """
    told: list[str] = []
    try:
        yield told
    except StoreError as error:
        if type(error) is not StoreError and not isinstance(error, also):
            raise
        told.append(str(error))
        warnings.warn(f"a result is left out: {error}", StoreWarning, stacklevel=3)


def read_manifest(path: Path) -> Manifest:
    """One manifest, checked."""
    with explain_failure("read", path):
        if not is_file(path):
            raise StoreError(f"{path} is not a regular file")
        if path.stat().st_size > MOST_BYTES:
            raise StoreError(f"{path} is larger than a manifest can be")
        return from_bytes(path.read_bytes(), path)


def from_bytes(data: bytes, path: Path) -> Manifest:
    """One manifest from its JSON, checked."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        raise StoreError(f"{path} is not JSON: it was damaged or cut short") from None
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise StoreError(f"{path} is not the manifest of a run")
    check_version(body.get("version"), "the manifest", path)
    sealed = body.pop("digest", None)
    try:
        if digest(body) != sealed:
            raise StoreError(f"{path}: its digest does not match: it was damaged or changed after it was written")
        return replace(parse(body, path), digest=sealed)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StoreError(f"{path}: {error!r}") from None


def parse(body: Mapping[str, Any], path: Path) -> Manifest:
    """A manifest from plain data; every name is checked, for names become paths."""
    datetime.fromisoformat(body["created"])
    sequence = body.get("sequence")
    if sequence is not None and (type(sequence) is not int or sequence < 1):
        raise ValueError(f"sequence {sequence!r}")
    copied = body.get("copied")
    return Manifest(
        run=check_name(body["run"], "run"),
        plan=check_name(body["plan"], "plan"),
        created=body["created"],
        steps=tuple(_step(s) for s in body["steps"]),
        resolved=dict(body.get("resolved", {})),
        distributions=dict(body.get("distributions", {})),
        rungs={check_name(n["name"], "null"): check_name(n["rung"], "rung") for n in body.get("nulls", ())},
        path=path,
        sequence=sequence,
        copied=None if copied is None else check_name(copied, "digest"),
    )


def _step(body: Mapping[str, Any]) -> PlannedStep:
    draw = body.get("draw")
    against = body.get("against")
    if draw is not None and not -(2**63) <= int(draw) < 2**63:
        raise ValueError(f"draw {str(draw)[:40]}")
    return PlannedStep(
        variant=check_name(body["variant"], "variant"),
        label=check_name(body["label"], "label", dotted=True),
        analysis=check_name(body["analysis"], "analysis", dotted=True),
        key=check_name(body["key"], "key"),
        draw=None if draw is None else int(draw),
        sweep={check_name(n, "swept parameter"): v for n, v in (body.get("sweep") or {}).items()},
        ingredients=dict(body.get("ingredients") or {}),
        against=None if against is None else check_name(against, "null"),
    )


def shown_plan(found: Sequence[Manifest], finished: Callable[[PlannedStep], bool]) -> Manifest | None:
    """Of plans in their order, the newest that finished anything; where none did, the newest."""
    done = (m for m in reversed(found) if any(finished(step) for step in m.steps))
    return next(done, found[-1] if found else None)


def shown_plans(found: Sequence[Manifest], finished: Callable[[PlannedStep], bool]) -> dict[str, Manifest]:
    """The plan of each run that readers see, the run planned last at the end.

    It is one plan alone: an edited run file may name another model under the same labels.
    """
    by_run: dict[str, list[Manifest]] = {}
    for manifest in found:
        by_run[manifest.run] = [*by_run.pop(manifest.run, []), manifest]
    shown = ((run, shown_plan(plans, finished)) for run, plans in by_run.items())
    return {run: manifest for run, manifest in shown if manifest is not None}


def by_label(manifest: Manifest) -> dict[tuple[str, str], tuple[PlannedStep, ...]]:
    """The steps of a plan, by variant and label."""
    grouped: dict[tuple[str, str], list[PlannedStep]] = {}
    for step in manifest.steps:
        grouped.setdefault((step.variant, step.label), []).append(step)
    return {name: tuple(steps) for name, steps in grouped.items()}


def superseded_plans(found: Sequence[Manifest], finished: Callable[[PlannedStep], bool]) -> list[Manifest]:
    """Plans that a newer one of their run replaces: it is the same, or newer ones have all its labels, finished."""
    gone = []
    seen: dict[str, tuple[set[str], set[tuple[str, str]]]] = {}
    for manifest in reversed(found):
        labels = by_label(manifest)
        newer = seen.get(manifest.run)
        if newer is not None and (manifest.plan in newer[0] or labels.keys() <= newer[1]):
            gone.append(manifest)
            continue
        plans, whole = seen.setdefault(manifest.run, (set(), set()))
        plans.add(manifest.plan)
        whole |= {name for name, steps in labels.items() if all(map(finished, steps))}
    return gone[::-1]
