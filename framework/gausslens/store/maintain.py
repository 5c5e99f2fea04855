"""Keeping a store in order: everything in it verified, what no plan needs any more removed, what was copied kept."""

from __future__ import annotations

import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from xarray.backends import CachingFileManager
from zlib_ng.zlib_ng import crc32

from ..contract.digests_and_seeds import digest
from ..contract.errors import StoreError
from . import checksums as seal
from .codec import TEXT, content, crc_of, own_of, provenance_of
from .disk import STALE, Temporary, Writer, claimed, explain_damage, explain_failure, is_file, locked
from .hdf5_writing import kind_of
from .index import links, listed, parts
from .layout import (
    CLAIMS,
    INDEX,
    KEPT,
    LOCK,
    PARTS,
    PROGRESS,
    RUNS,
    TEMPORARY,
    NewerStore,
    check_name,
    check_version,
    entry_of,
    is_name,
)
from .manifest import MOST_BYTES, Manifest, PlannedStep, manifest_paths, read_manifest, superseded_plans
from .pack import PackReader
from .read_parts import check_element_type, decode_arrays, dims_of_stored, read_attributes, read_values
from .safety import arrays_of, check_link, follow, no_plugins, open_checked

_BLOCK = 1 << 24


@dataclass(frozen=True)
class Damage:
    """Something wrong, or (``harmless``) worth knowing: where, and in words what."""

    where: str
    what: str
    harmless: bool = False


def verify(path: Path, tell: Callable[[str], None] = lambda _: None) -> list[Damage]:
    """All that is wrong with a store or a pack. ``tell`` hears of each file that was checked."""
    found: list[Damage] = []
    checks = _checks(path)
    while True:
        try:
            where, wrong = next(checks)
        except StopIteration:
            return found
        except Exception as error:
            return [*found, Damage(str(path), f"the check itself stopped: {error!r}")]
        found += wrong
        tell(where)


def _checks(path: Path) -> Iterator[tuple[str, list[Damage]]]:
    yield from _pack_checks(path) if path.is_file() else _store_checks(path)


def count(path: Path) -> int:
    """How many files ``verify`` will check."""
    if path.is_file():
        return 1
    return sum(1 for below in (PARTS, RUNS, KEPT) for _ in files_below(path, below)) + 1


def _store_checks(root: Path) -> Iterator[tuple[str, list[Damage]]]:
    for name in (PARTS, RUNS, KEPT, PROGRESS, CLAIMS, TEMPORARY):
        if os.path.lexists(root / name) and (not (root / name).is_dir() or (root / name).is_symlink()):
            yield name, [Damage(name, "is not a directory: a link, or a file, in the place of one")]
    for below, check in ((PARTS, _part_findings), (RUNS, _manifest_findings), (KEPT, _kept_findings)):
        for path, error in files_below(root, below):
            where = str(path.relative_to(root))
            if error is not None:
                yield where, [_unread(where, error)]
            else:
                wrong = _guarded(where, lambda check=check, path=path: check(root, path))  # type: ignore[misc]
                # What a gc beside this takes away is no damage.
                yield where, wrong if os.path.lexists(path) else []
    if os.path.lexists(root / INDEX):
        made_anew = "`gausslens store reindex` makes it anew; no result is lost"
        found = _guarded(INDEX, lambda: _index_findings(root))
        yield INDEX, [f if f.harmless else replace(f, what=f"{f.what}: {made_anew}") for f in found]
    else:
        yield INDEX, [Damage(INDEX, "is missing: `gausslens store reindex` makes it anew", harmless=True)]


def _guarded(where: str, check: Callable[[], list[Damage]]) -> list[Damage]:
    try:
        return check()
    except StoreError as error:
        return [Damage(where, str(error))]
    except OSError as error:
        return [_unread(where, error)]
    except Exception as error:
        return [Damage(where, f"cannot be checked: {error!r}")]


def _unread(where: str, error: OSError) -> Damage:
    return Damage(where, f"cannot be read: {(error.strerror or str(error)).lower()}")


def files_below(root: Path, below: str, depth: int = 2) -> Iterator[tuple[Path, OSError | None]]:
    """Everything two levels below, in order; links are named, not followed. With an error: what cannot be listed."""
    directory = root / below
    try:
        if directory.is_symlink() or not directory.is_dir():
            return
        entries = sorted((e.name, e.is_dir(follow_symlinks=False)) for e in os.scandir(directory))
    except OSError as error:
        yield directory, error
        return
    for name, is_directory in entries:
        if is_directory and depth > 1:
            yield from files_below(root, f"{below}/{name}", depth - 1)
        else:
            yield directory / name, None


def _part_findings(root: Path, path: Path) -> list[Damage]:
    where = str(path.relative_to(root))
    if path.suffix != ".h5" or path.parent.parent.name != PARTS or not stat.S_ISREG(os.lstat(path).st_mode):
        return [Damage(where, "is not a part: nothing else belongs here, least of all a link or a device")]
    analysis, key = check_name(path.parent.name, "analysis", dotted=True), check_name(path.stem, "key")
    return sealed_findings(root, path, {entry_of(analysis, key): (analysis, key)}, "store-part")


def sealed_findings(root: Path, path: Path, entries: dict[str, tuple[str, str]], kind: str) -> list[Damage]:
    """Check the seal first: HDF5 sees only files whose bytes are as they were written."""
    where = str(path.relative_to(root))
    wrong, extents = seal.check(path, arrays=True)
    if wrong:
        return [Damage(where, w) for w in wrong]
    sealed = {(offset, size): crc for offset, size, crc in extents}
    found: list[Damage] = []
    with explain_damage(where), no_plugins(), open_checked(os.fspath(path), os.fspath(root)) as file:
        check_element_type(read_attributes(file), kind, where)
        for entry, named in entries.items():
            if kind == "store-part":
                found += _guarded(where, lambda named=named: _alone(file, where, *named))  # type: ignore[misc]
            result = (file, entry, named, sealed, path.stat().st_size)
            found += _guarded(where, lambda result=result: [Damage(where, w) for w in _result_findings(*result)])  # type: ignore[misc]
    return found


def _alone(file: Any, where: str, analysis: str, key: str) -> list[Damage]:
    """A part says which result it holds, and holds nothing else."""
    found = []
    if file.attrs.get("entry") != entry_of(analysis, key):
        found.append(Damage(where, f"says that it is {file.attrs.get('entry')!r}"))
    if list(file) != [analysis] or list(follow(file, analysis)) != [key]:
        found.append(Damage(where, "holds something besides its result"))
    return found


def _result_findings(
    file: Any, entry: str, named: tuple[str, str], sealed: dict[tuple[int, int], int], size: int
) -> Iterator[str]:
    group = follow(file, entry)
    attrs = read_attributes(group)
    check_element_type(attrs, "step-result", entry)
    if (attrs.get("analysis"), attrs.get("key")) != named:
        yield f"{entry} says that it is {attrs.get('analysis')!r}, {attrs.get('key')!r}"
    provenance_of(attrs)
    json.loads(attrs.get("attributes", "{}"))
    arrays = arrays_of(group, size)
    described = []
    told = {name: read_attributes(array) for name, array in arrays.items()}
    for name, array in arrays.items():
        own = told[name]
        crc = _crc(array, sealed)
        if crc != own.get("crc32"):
            yield f"{entry}/{name} does not match its crc32"
        laid = (dims_of_stored(file, array), kind_of(array.dtype), array.shape)
        described.append((name, *laid, own.get("crc32"), own_of(own)))
    if content(described) != attrs.get("content"):
        yield f"{entry} does not match its content digest: names, dimensions, types, values or attributes were changed"
    else:
        decode_arrays(file, arrays, told, CachingFileManager(open_checked, file.filename), entry)


def _crc(array: Any, sealed: dict[tuple[int, int], int]) -> int:
    """The crc32 of an array's values: known from the seal, or read, a stretch of the first axis at a time."""
    if array.dtype == TEXT:
        return crc_of(read_values(array))
    known = sealed.get((array.id.get_offset(), array.nbytes))
    if known is not None:
        return known
    if not array.ndim or not array.size:
        return crc_of(read_values(array))
    found = 0
    step = max(1, _BLOCK * array.shape[0] // array.nbytes)
    for start in range(0, array.shape[0], step):
        found = crc32(np.ascontiguousarray(array[start : start + step]).data.cast("B"), found)
    return found


def _manifest_findings(root: Path, path: Path) -> list[Damage]:
    where = str(path.relative_to(root))
    if path not in manifest_paths(root):
        return [Damage(where, "is not a manifest: nothing else belongs here")]
    manifest = read_manifest(path)
    if manifest.run != path.parent.name or path.name.split(".")[0] != manifest.plan:
        return [Damage(where, f"says that it is run {manifest.run}, plan {manifest.plan}")]
    return []


def _kept_findings(root: Path, path: Path) -> list[Damage]:
    _read_kept(root, path)
    return []


def _index_findings(root: Path) -> list[Damage]:
    with warnings.catch_warnings(action="ignore"):  # damaged manifests have findings of their own
        held = listed(root)
        try:
            wanted = links(root)
        except StoreError as error:  # what cannot be listed has a finding of its own
            return [Damage(INDEX, f"cannot be compared with the results: {error}", harmless=True)]
    found = []
    for place, (filename, target) in held.items():
        try:
            if not place.isprintable():
                raise StoreError("a name that cannot be printed: refused")
            check_link(root, filename, target)
        except StoreError as error:
            found.append(Damage(f"{INDEX}/{place}", str(error)))
    stale = {p for p in held.keys() | wanted.keys() if held.get(p) != wanted.get(p)}
    if stale and not found:
        what = f"{len(stale)} of its links are out of date: `gausslens store reindex` makes it anew"
        found.append(Damage(INDEX, what, harmless=True))
    return found


def _pack_checks(path: Path) -> Iterator[tuple[str, list[Damage]]]:
    def check() -> list[Damage]:
        wrong, _ = seal.check(path, arrays=True)
        if wrong:
            return [Damage(path.name, w) for w in wrong]  # before HDF5 is asked for its manifests
        return sealed_findings(path.parent, path, PackReader(path).entries(), "store-pack")

    yield path.name, _guarded(path.name, check)


Named = tuple[str, str]  # analysis and key of a result
_KEPT_FORMAT, _KEPT_VERSION = "gausslens-kept", 1


def keep(writer: Writer, named: Iterable[Named]) -> Path | None:
    """Say that these results were copied here, for plans to come: ``gc`` leaves them alone. Nothing: None."""
    results = sorted(map(list, named))
    if not results:
        return None
    body = {"format": _KEPT_FORMAT, "version": _KEPT_VERSION, "results": results}
    mark = digest(body)
    final = writer.root / KEPT / f"{mark}.json"
    with locked(writer.root / LOCK):  # gc decides under this lock what goes
        if not is_file(final):
            temporary = Temporary(writer, ".json")
            try:
                temporary.write(json.dumps({**body, "digest": mark}).encode())
                temporary.commit(final)
            finally:
                temporary.drop()
    return final


def kept(root: Path) -> dict[Path, frozenset[Named]]:
    """The records of what was copied here, each with the results that it names."""
    directory = root / KEPT
    with explain_failure("read", directory):
        if directory.is_symlink() or not directory.is_dir():
            return {}
        return {path: _read_kept(root, path) for path in sorted(directory.iterdir())}


def _read_kept(root: Path, path: Path) -> frozenset[Named]:
    where = path.relative_to(root)
    with explain_failure("read", path):
        if not is_file(path) or path.suffix != ".json" or path.stat().st_size > MOST_BYTES:
            raise StoreError(f"{where} is not a record of copied results: nothing else belongs here")
        data = path.read_bytes()
    try:
        body = json.loads(data)
        if body["format"] == _KEPT_FORMAT:
            check_version(body["version"], "the record", path)
            if digest({k: v for k, v in body.items() if k != "digest"}) == body["digest"] == path.stem:
                return frozenset((str(analysis), str(key)) for analysis, key in body["results"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise StoreError(f"{where} is damaged, and does not say what was copied here: remove it, and copy again")


@dataclass(frozen=True)
class Superseded:
    """What ``gc`` would remove: manifests, and parts with their sizes and the steps that they were.

    ``kept`` are parts that only a copy put there: they stay, unless their ``records`` were asked to go. ``progress`` is
    what runs committed on the way, of steps that are finished, or that no run has touched for a week.
    """

    manifests: tuple[Manifest, ...]
    parts: dict[Path, int]
    steps: dict[Path, tuple[tuple[str, PlannedStep], ...]]
    kept: dict[Path, int] = field(default_factory=dict)
    kept_manifests: tuple[Manifest, ...] = ()
    records: tuple[Path, ...] = ()
    copied: bool = False
    progress: tuple[Path, ...] = ()

    @property
    def bytes(self) -> int:
        """What removing the parts frees."""
        return sum(self.parts.values())


def superseded(root: Path, copied: bool = False, records: Collection[Path] | None = None) -> Superseded:
    """Plans that newer ones of their runs replace with finished results, and parts that no other plan names.

    What another store gave (``store copy``) stays, needed or not, unless ``copied`` asks for it too. ``records`` are
    those of such copies that may go then: all that there are, where it is left out. A plan of which a live process
    computes a step (``claims``) is not superseded yet, and what is committed on the way of that step stays.
    """
    everything = _all_manifests(root)
    live = claimed(root)
    there = {found: path for found, path in parts(root) if seal.sealed(path)}
    old = superseded_plans(everything, lambda step: (step.analysis, step.key) in there)
    if live:
        old = [m for m in old if not any(step.key in live for step in m.steps)]
    gone = [m for m in old if copied or m.copied is None]
    leaving = {m.path for m in gone}
    named = {(s.analysis, s.key) for m in everything if m.path not in leaving for s in m.steps}
    recorded = kept(root)
    going = {path for path in recorded if copied and (records is None or path in records)}
    held = {found for path, results in recorded.items() if path not in going for found in results}
    loose = {path: found for found, path in there.items() if found not in named}
    strange = {path for path, found in loose.items() if not any(found in results for results in recorded.values())}
    if strange and not everything:
        raise StoreError(f"{root} has results and no plan: were its runs/ removed? gc would remove all of them")
    by_key: dict[Named, list[tuple[str, PlannedStep]]] = {}
    for manifest in everything:
        for step in manifest.steps:
            by_key.setdefault((step.analysis, step.key), []).append((manifest.run, step))
    with explain_failure("read", root):
        sizes = {path: path.stat().st_size for path in loose}
    leaves = {path: size for path, size in sizes.items() if loose[path] not in held}
    return Superseded(
        tuple(gone),
        leaves,
        {path: tuple(by_key.get(loose[path], ())) for path in leaves},
        {path: size for path, size in sizes.items() if path not in leaves},
        tuple(m for m in old if m.path not in leaving),
        tuple(sorted(going)),
        copied,
        tuple(p for p in _left_on_the_way(root, {key for _, key in there}) if p.name.partition(".")[0] not in live),
    )


def _left_on_the_way(root: Path, finished: Collection[str]) -> Iterator[Path]:
    """A live run writes its own again within minutes, and should one go, a killed run merely begins anew."""
    for path, error in files_below(root, PROGRESS, 1):
        key, dot, piece = path.name.partition(".")
        if error is None and is_file(path) and is_name(key) and (is_name(piece) or not dot):
            with suppress(OSError):
                if key in finished or time.time() - path.stat().st_mtime > STALE:
                    yield path


def _all_manifests(root: Path) -> list[Manifest]:
    """All of them: what a plan that cannot be read names must not be taken for superseded."""
    try:
        return sorted((read_manifest(path) for path in manifest_paths(root)), key=lambda m: m.age)
    except NewerStore:
        raise
    except StoreError as error:
        raise StoreError(
            f"{error}. gc removes nothing while a plan cannot be read, for its results would seem superseded: "
            "remove that file (or bring it back), run again what it planned, then gc"
        ) from None


def remove(root: Path, shown: Superseded) -> int:
    """Remove what was shown and is still superseded; returns how many files went."""
    with locked(root / LOCK):  # no manifest is committed meanwhile
        still = superseded(root, shown.copied, shown.records)
        manifests_gone = {m.path for m in shown.manifests} & {m.path for m in still.manifests}
        parts_gone = shown.parts.keys() & still.parts.keys()
        progress_gone = set(shown.progress) & set(still.progress)
        with explain_failure("remove from", root):
            # Records last: what a gc that was killed left is still told apart from what was never copied.
            for path in (*manifests_gone, *parts_gone, *progress_gone, *still.records):
                path.unlink(missing_ok=True)
    return len(manifests_gone) + len(parts_gone) + len(progress_gone) + len(still.records)
