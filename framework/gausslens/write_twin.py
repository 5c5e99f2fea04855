"""A twin of a run file as a checkpoint: one draw of one point of one variant, written whole or not at all."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .contract.errors import InputError, ModelError, advice_for, did_you_mean
from .contract.twin import Twin, check_edit
from .runs.open import Models
from .version import VERSION

if TYPE_CHECKING:
    from .contract.twin import EditCall
    from .plugins import Host
    from .runs.open import Opened
    from .runs.study import Point, Study, Variant
    from .spreading.prepare import RunFile

# What lies beside the weights and says which twin they are; a directory without it is never overwritten.
TOLD = "gausslens.json"
FORMAT, FORMAT_VERSION = "gausslens-twin", 1


def edit(
    source: RunFile,
    variant: str,
    out: str | os.PathLike[str],
    draw: int | None = None,
    at: Mapping[str, Any] | None = None,
    force: bool = False,
    sets: Sequence[str] = (),
    without: Iterable[str] = (),
    host: Host | None = None,
) -> Path:
    """Write a twin of a run file as a checkpoint that plain transformers opens; the directory.

    ``draw`` chooses one of the variant's draws, ``at`` a value of each parameter that it sweeps. Weights have the type
    in which the run file opens the model. ``gausslens.json`` beside them says which twin it is. ``force`` overwrites a
    directory that was written so before, and no other.
    """
    from . import plugins, runfile

    target = Path(out)
    _check_target(target, force)
    host = host or plugins.load(without=without)
    study = runfile.read(source, host, sets)
    chosen = _variant(study, variant)
    number, point = _draw(chosen, draw), _point(chosen, at or {})
    models = Models(study, host)
    try:
        opened = models.of(point, number)
        if opened is None:
            raise InputError(f"{chosen.mark}: {variant} has no model: add `model: {{path: ...}}` to the run file")
        for call in point.edits:
            if call.edit.descriptor.inputs is not None:
                raise InputError(
                    f"{call.mark}: edit {call.edit.descriptor.name} reads results of the run, which are not computed "
                    f"here: {variant} cannot be written as a checkpoint"
                )
            check_edit(call, opened.model)
        told = _told(study, chosen, number, point, opened)
        _written(target, opened, Twin(opened.model, point.edits, study.seed, number), told)
    finally:
        models.close()
    return target


def _check_target(target: Path, force: bool) -> None:
    """Refuse to overwrite: at all, or with ``force`` what was not written here."""
    if not target.exists() and not target.is_symlink():
        return
    ours = target.is_dir() and not target.is_symlink() and ((target / TOLD).is_file() or not any(target.iterdir()))
    if force and ours:
        return
    advice = "--force overwrites it" if ours else f"it holds no {TOLD}, so that it is not overwritten"
    raise InputError(f"{target} is there already: choose another place ({advice})")


def _variant(study: Study, name: str) -> Variant:
    found = next((v for v in study.variants if v.name == name), None)
    if found is None:
        known = [v.name for v in study.variants]
        raise InputError(f"the run {study.name} has no variant {name!r}{did_you_mean(name, known)}")
    return found


def _draw(variant: Variant, draw: int | None) -> int | None:
    """The draw that is meant; where there is one alone, that."""
    count = variant.draws
    if count is None:
        if draw is not None:
            raise InputError(f"{variant.mark}: the variant {variant.name} has no draws: leave --draw out")
        return None
    if draw is None and count == 1:
        return 0
    if draw is None or not 0 <= draw < count:
        has = "one draw, 0" if count == 1 else f"{count} draws, 0 to {count - 1}"
        told = "" if draw is None else f", and no draw {draw}"
        raise InputError(f"{variant.mark}: the variant {variant.name} has {has}{told}: choose one with --draw")
    return draw


def _point(variant: Variant, at: Mapping[str, Any]) -> Point:
    """The point of the variant's sweeps at which every swept parameter has the value that was chosen."""
    swept: dict[str, list[Any]] = {}
    for point in variant.points:
        for name, value in point.values:
            known = swept.setdefault(name, [])
            known += [value] if value not in known else []
    unknown = next((name for name in at if name not in swept), None)
    if unknown is not None:
        has = "sweeps nothing" if not swept else f"sweeps {', '.join(swept)}"
        hint = did_you_mean(unknown, swept) if swept else ""
        raise InputError(f"{variant.mark}: --at {unknown}: the variant {variant.name} {has}{hint}")
    found = variant.points
    for name, values in swept.items():
        shown = f"{name} ({', '.join(map(str, values))})"
        if name not in at and len(values) > 1:
            raise InputError(
                f"{variant.mark}: the variant {variant.name} sweeps {shown}: choose with --at {name}={values[0]}"
            )
        wanted = at.get(name, values[0])
        found = tuple(p for p in found if _same(dict(p.values)[name], wanted))
        if not found:
            raise InputError(f"{variant.mark}: --at {name}={wanted}: the variant {variant.name} sweeps {shown}")
    return found[0]


def _same(value: Any, wanted: Any) -> bool:
    """Whether a swept value is meant; 0.1 is meant by what reads as 0.1."""
    numbers = [isinstance(v, int | float) and not isinstance(v, bool) for v in (value, wanted)]
    return math.isclose(value, wanted, rel_tol=1e-9) if all(numbers) else bool(str(value) == str(wanted))


def _told(study: Study, variant: Variant, draw: int | None, point: Point, opened: Opened) -> dict[str, Any]:
    """Which twin it is, for those who find the directory; a path of this machine is not in it."""
    info, call = opened.model.info, opened.call
    chosen = {name: v for name, v in call.parameters.canonical().items() if name not in call.parameters.paths()}
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "gausslens": VERSION,
        "run": study.name,
        "variant": variant.name,
        "draw": draw,
        "at": dict(point.values),
        "seed": study.seed,
        "edits": [_described(call) for call in point.edits],
        "base": {
            "name": info.name,
            "loader": call.loader.descriptor.name,
            "with": chosen,
            "fingerprint": info.fingerprint,
            "dtype": info.dtype,
        },
    }


def _described(call: EditCall) -> dict[str, Any]:
    return {
        "edit": call.edit.descriptor.name,
        "version": call.edit.descriptor.version,
        "layers": call.layers,
        "heads": call.heads,
        "with": call.parameters.keyed(),
    }


def _written(target: Path, opened: Opened, twin: Twin, told: Mapping[str, Any]) -> None:
    """Written beside its place and moved there whole: what is there before stays until then."""
    save = getattr(opened.model, "save", None)
    if opened.is_difference:
        raise ModelError(
            f"{opened.model.info.name} is a difference of weights, and no model that could be opened again"
        )
    if save is None:
        loader = opened.call.loader
        raise ModelError(
            f"{opened.call.mark}: {opened.model.info.name} cannot be written as a checkpoint: models of the loader "
            f"{loader.descriptor.name!r} (plugin {loader.owner.plugin}) have no save(); `loader: transformers` has one"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as workshop:
            made = Path(workshop) / "made"
            made.mkdir()
            fingerprint = save(made, twin)
            text = json.dumps({**told, "fingerprint": fingerprint}, indent=2, ensure_ascii=False)
            (made / TOLD).write_text(f"{text}\n", encoding="utf-8")
            for file in made.iterdir():
                with file.open("rb") as opened_file:
                    os.fsync(opened_file.fileno())
            if target.exists():
                target.rename(Path(workshop) / "before")
            made.rename(target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {advice_for(error) or error.strerror or error}") from error
