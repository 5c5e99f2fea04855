"""Where results are copied from: the directory of a store, or a pack. It is only read, and may be hostile."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol, Self

from ...contract.errors import StoreError
from .. import checksums as seal
from ..disk import Temporary, explain_damage, explain_failure, write_at
from ..hdf5_writing import NewFile
from ..index import has_index
from ..layout import PARTS, RUNS, NewerStore, check_is_store, check_name, entry_of, part_path
from ..maintain import Damage, Named, files_below
from ..manifest import Manifest, read_manifest
from ..pack import PackReader, copy_arrays
from ..read_parts import check_element_type, read_attributes
from ..safety import arrays_of, check_place, follow, no_plugins, open_checked
from ..strangers import known
from ..write_parts import part_attributes

_BLOCK = 1 << 22
_NO_FILE = "is not a regular file: links and devices are not followed"
# What a part holds beside attributes and values, about: HDF5's own, the seal; and the head of each array.
_FRAME, _HEAD = 1 << 12, 1 << 10


class Unreadable(StoreError):
    """A result that cannot be read from where it is: the others can."""


class Vanished(Unreadable):
    """A result that was there when it was looked for: somebody removed it."""


class Source(Protocol):
    """A store or a pack that results are copied from; a context, for it may hold a file open."""

    path: Path

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def results(self) -> tuple[frozenset[Named], list[tuple[Named | None, Damage]]]:
        """All that it holds, and what lies where results should be and is none."""
        ...

    def size(self, named: Named) -> int:
        """The bytes that a result takes as a part, about; Unreadable where it cannot be."""
        ...

    def manifests(self) -> tuple[list[tuple[Manifest, bytes]], list[Damage]]:
        """Manifests that can be read, oldest first, each with its text; and what is wrong with the others."""
        ...

    def write(self, named: Named, temporary: Temporary) -> None:
        """Write a result as a part. What cannot be read is Unreadable, what cannot be written another StoreError."""
        ...


def open_source(path: str | os.PathLike[str]) -> Source:
    """The store or pack at a path, to copy from."""
    place = Path(path).expanduser()
    check_is_store(place)
    return PackSource(place) if place.is_file() else StoreSource(place)


class StoreSource:
    """The directory of a store. Parts that are being written have no name below ``parts`` yet, and are not seen."""

    def __init__(self, path: Path):
        self.path = path.resolve()
        has_index(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is held open."""

    def results(self) -> tuple[frozenset[Named], list[tuple[Named | None, Damage]]]:
        """All parts; of links, devices and strange names, what they are not."""
        found: set[Named] = set()
        wrong: list[tuple[Named | None, Damage]] = []
        if (self.path / PARTS).is_symlink():
            wrong.append((None, Damage(PARTS, _NO_FILE)))
        for path, error in files_below(self.path, PARTS):
            where = str(path.relative_to(self.path))
            named = None
            try:
                if error is not None:
                    raise error
                regular = stat.S_ISREG(os.lstat(path).st_mode)
                if not regular and path.parent == self.path / PARTS:
                    raise StoreError(_NO_FILE)
                named = check_name(path.parent.name, "analysis", dotted=True), check_name(path.stem, "key")
                if path != part_path(self.path, *named):
                    raise StoreError("is not called as a part is: nothing else belongs here")
                if not regular:
                    raise StoreError(_NO_FILE)
                found.add(named)
            except FileNotFoundError:
                pass  # removed meanwhile
            except (StoreError, OSError) as told:
                wrong.append((named, Damage(where, str(getattr(told, "strerror", None) or told))))
        return frozenset(found), wrong

    def size(self, named: Named) -> int:
        """The size of its file."""
        try:
            return os.lstat(part_path(self.path, *named)).st_size
        except OSError as error:
            raise _unread(error) from None

    def manifests(self) -> tuple[list[tuple[Manifest, bytes]], list[Damage]]:
        """Its manifests."""
        found: list[tuple[Manifest, bytes]] = []
        wrong: list[Damage] = []
        if (self.path / RUNS).is_symlink():
            return found, [Damage(RUNS, _NO_FILE)]
        for path, unlisted in files_below(self.path, RUNS):
            try:
                if unlisted is not None:
                    raise unlisted
                check_place(self.path, path)
                found.append((read_manifest(path), path.read_bytes()))
            except NewerStore:
                raise
            except (StoreError, OSError) as error:
                wrong.append(Damage(str(path.relative_to(self.path)), str(error)))
        return sorted(found, key=lambda one: one[0].age), wrong

    def write(self, named: Named, temporary: Temporary) -> None:
        """Its bytes as they are."""
        path = part_path(self.path, *named)
        try:
            check_place(self.path, path)
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (StoreError, OSError) as error:
            raise Unreadable(str(error)) if os.path.lexists(path) else Vanished("was removed meanwhile") from None
        try:
            told = os.fstat(descriptor)
            if not stat.S_ISREG(told.st_mode):
                raise Unreadable("is not a regular file")
            _copy_bytes(descriptor, told.st_size, temporary)
        finally:
            os.close(descriptor)


def _copy_bytes(source: int, size: int, temporary: Temporary) -> None:
    place = 0
    while place < size:
        try:
            data = os.pread(source, min(_BLOCK, size - place), place)
        except OSError as error:
            raise _unread(error) from None
        if not data:
            raise Unreadable("became shorter while it was read")
        with explain_failure("write to", temporary.root):
            write_at(temporary.descriptor, memoryview(data), place)
        place += len(data)


def _unread(error: OSError) -> Unreadable:
    if isinstance(error, FileNotFoundError):
        return Vanished("was removed meanwhile")
    return Unreadable(f"cannot be read: {(error.strerror or str(error)).lower()}")


class PackSource:
    """A pack: each of its results becomes a part of its own again. The content digest stays what it was."""

    def __init__(self, path: Path):
        self.reader = PackReader(path)
        self.path = self.reader.path
        self.places = {named: entry for entry, named in self.reader.entries().items()}
        self.held = ExitStack()
        self.file: Any = None

    def __enter__(self) -> Self:
        with explain_damage(str(self.path)):
            self.file = open_checked(os.fspath(self.path), os.fspath(self.path.parent))
        self.held.callback(self.file.close)
        return self

    def __exit__(self, *error: object) -> None:
        self.held.close()

    def results(self) -> tuple[frozenset[Named], list[tuple[Named | None, Damage]]]:
        """All results that its manifests name."""
        return frozenset(self.places), []

    def size(self, named: Named) -> int:
        """The bytes of its arrays, and what is around them."""
        attrs, arrays = self._arrays(named)
        around = _FRAME + sum(len(str(value)) for value in attrs.values())
        return around + sum(_HEAD + int(array.size) * int(array.dtype.itemsize) for array in arrays.values())

    def _arrays(self, named: Named) -> tuple[dict[str, Any], dict[str, Any]]:
        """Attributes and arrays of a result."""
        try:
            with explain_damage(self.places[named]), no_plugins():
                group = follow(self.file, self.places[named])
                attrs = read_attributes(group)
                check_element_type(attrs, "step-result", self.places[named])
                return attrs, arrays_of(group, self.path.stat().st_size)
        except StoreError as error:
            raise Unreadable(str(error)) from None

    def manifests(self) -> tuple[list[tuple[Manifest, bytes]], list[Damage]]:
        """Its manifests."""
        with explain_damage(str(self.path)), no_plugins():
            found = [(m, follow(self.file, str(m.path)).asstr()[()].encode()) for m in self.reader.manifests()]
        return found, []

    def write(self, named: Named, temporary: Temporary) -> None:
        """A part of the same arrays, attributes and digest, with a seal of its own."""
        attrs, arrays = self._arrays(named)
        entry = entry_of(*named)
        with explain_failure("write to", temporary.root):
            with NewFile(temporary.descriptor, "store-part", part_attributes(entry)) as out:
                try:
                    with explain_damage(self.places[named]), no_plugins():
                        extents = copy_arrays(self.file, arrays, out, out.group(entry, attrs))
                except StoreError as error:
                    raise Unreadable(str(error)) from None
            known.add(seal.seal(temporary.descriptor, extents))


def sizes(source: Source, wanted: Collection[Named]) -> tuple[dict[Named, int], list[tuple[Named | None, Damage]]]:
    """The size of each result, and what is wrong with those that have none."""
    found: dict[Named, int] = {}
    wrong: list[tuple[Named | None, Damage]] = []
    for named in sorted(wanted):
        try:
            found[named] = source.size(named)
        except Unreadable as error:
            wrong.append((named, Damage("/".join(named), str(error))))
    return found, wrong
