"""Copying results, and the runs that planned them, from one store (or pack) into another.

Nothing that is copied is believed: each part is verified whole, in the file that will be the part, before that has its
name. So it is whole and durable, or not there: whoever is killed, and whoever writes to either store meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ...contract.errors import InputError, StoreError
from ..disk import Temporary, explain_failure, is_file
from ..layout import entry_of, part_path
from ..maintain import Damage, Named, keep, sealed_findings
from ..manifest import Manifest, adopt
from ..write_parts import Store
from .sources import Source, Unreadable, Vanished, open_source, sizes


@dataclass(frozen=True)
class Copying:
    """What copying would do: results with their sizes, and the manifests that come along, each with its text.

    ``there`` are results that the target has, ``lacking`` those that were asked for and the source has not, ``wrong``
    what cannot be copied.
    """

    source: Source
    target: Path
    results: dict[Named, int]
    there: frozenset[Named]
    lacking: frozenset[Named]
    manifests: tuple[tuple[Manifest, bytes], ...]
    wrong: tuple[Damage, ...]

    @property
    def bytes(self) -> int:
        """What the results take, about."""
        return sum(self.results.values())


@dataclass
class Copied:
    """What was copied: results and their bytes, those that were ``there``, runs that came along, what was left out."""

    results: list[Named] = field(default_factory=list)
    bytes: int = 0
    there: set[Named] = field(default_factory=set)
    runs: list[Manifest] = field(default_factory=list)
    wrong: list[Damage] = field(default_factory=list)
    vanished: list[Named] = field(default_factory=list)


def copy(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    keys: Collection[Named] | None = None,
    plans: Collection[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Copied:
    """Copy the results of a store or a pack into a store, which is made where there is none.

    All of them, and the runs that planned them; or those of ``keys``, pairs of analysis and key as ``results.table()``
    and manifests have them, and then runs of ``plans`` alone, by the digests of their plans. ``tell`` hears of each
    result. What is damaged is left out, and told in ``wrong``.
    """
    with open_source(source) as opened:
        return carry_out(intend(opened, target, keys, plans), tell)


def intend(
    source: Source,
    target: str | os.PathLike[str],
    keys: Collection[Named] | None = None,
    plans: Collection[str] = (),
) -> Copying:
    """What ``copy`` would do; nothing is written."""
    root = Path(target).expanduser().absolute()
    if root.exists() and root.resolve() == source.path:
        raise InputError(f"{target} is to be copied into itself: name two stores")
    if is_file(root.resolve()):
        raise InputError(f"{target} is a file: results are copied into the directory of a store")
    found, strange = source.results()  # before the manifests, which were committed before them
    wanted = found if keys is None else found & frozenset(keys)
    there = frozenset(named for named in wanted if is_file(part_path(root, *named)))
    sized, unsized = sizes(source, wanted - there)
    manifests, unread = source.manifests()
    asked = [one for one in manifests if keys is None or one[0].plan in plans]
    wrong = [damage for named, damage in (*strange, *unsized) if keys is None or named in keys]
    return Copying(
        source,
        root,
        sized,
        there,
        frozenset() if keys is None else frozenset(keys) - found,
        tuple(asked),
        tuple(wrong + (unread if keys is None or plans else [])),
    )


def carry_out(copying: Copying, tell: Callable[[str], None] = lambda _: None) -> Copied:
    """Copy. Runs come first, as a run plans before it computes: so ``gc`` never finds a result that nothing names."""
    check_space(copying)
    store = Store(copying.target).create()
    copied = Copied(there=set(copying.there), wrong=list(copying.wrong))
    copied.runs = adopt(store.writer, copying.manifests)
    planned = {(step.analysis, step.key) for manifest, _ in copying.manifests for step in manifest.steps}
    keep(store.writer, (copying.results.keys() | copying.there) - planned)
    try:
        for named in copying.results:
            _copy_result(copying, store, named, copied)
            tell("/".join(named))
    except BaseException:
        with suppress(StoreError):
            store.reindex()
        raise
    store.reindex()
    return copied


def check_space(copying: Copying) -> None:
    """Refuse before anything is written what does not fit on the target's disk."""
    place = next(path for path in (copying.target, *copying.target.parents) if path.exists())
    with explain_failure("write to", place):
        disk = os.statvfs(place)
    # Each file begins on a block of its own; manifests are written out once more.
    block, free = disk.f_frsize, disk.f_bavail * disk.f_frsize
    wanted = sum(-(-size // block) * block for size in copying.results.values())
    wanted += sum(len(text) for _, text in copying.manifests)
    if wanted > free:
        raise StoreError(
            f"{copying.target} would take {wanted:,} bytes and the disk has {free:,}: free some space, name a store "
            "on another disk, or copy less with --keys-of"
        )


def _copy_result(copying: Copying, store: Store, named: Named, copied: Copied) -> None:
    """One result: written to ``tmp``, verified there, and only then given its name."""
    if store.has(*named):  # by another writer, meanwhile
        copied.there.add(named)
        return
    temporary = Temporary(store.writer, ".h5")
    try:
        copying.source.write(named, temporary)
        _verify(store.path, temporary.path, named)
        size = os.fstat(temporary.descriptor).st_size
        if temporary.commit(part_path(store.path, *named)):
            copied.results.append(named)
            copied.bytes += size
        else:
            copied.there.add(named)
    except Vanished:
        copied.vanished.append(named)
    except Unreadable as error:
        copied.wrong.append(Damage("/".join(named), str(error)))
    finally:
        temporary.drop()


def _verify(root: Path, path: Path, named: Named) -> None:
    """Every byte by the seal, every array by its crc32, the result by its content digest; else Unreadable."""
    try:
        with explain_failure("read", path):
            wrong = sealed_findings(root, path, {entry_of(*named): named}, "store-part")
        told = [finding.what for finding in wrong if not finding.harmless]
    except StoreError as error:
        told = [str(error)]
    if told:
        what = "; ".join(dict.fromkeys(told))
        for place in (str(path), str(path.relative_to(root))):
            what = what.replace(place, "it")
        raise Unreadable(what)
