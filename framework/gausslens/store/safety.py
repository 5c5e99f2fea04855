"""What is checked before anything of a store is followed or read: paths, links, filters, sizes, names."""

from __future__ import annotations

import math
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple

import h5py
from h5py import h5d, h5f, h5l, h5o, h5p, h5pl, h5t, h5z
from h5py._objects import phil

from ..contract.errors import StoreError
from . import checksums as seal
from .disk import is_file
from .layout import MOST_ARRAYS, MOST_DIMENSIONS, PARTS, check_array_name
from .strangers import examined

# Deflate cannot make more of a byte; what claims more is a bomb.
MOST_RATIO = 1100
_PAGE = 4096
FILTERS = {
    h5z.FILTER_DEFLATE: "deflate",
    h5z.FILTER_SHUFFLE: "shuffle",
    h5z.FILTER_FLETCHER32: "fletcher32",
    h5z.FILTER_LZF: "lzf",
}
_CLASSES = {h5t.INTEGER, h5t.FLOAT, h5t.STRING}


def check_place(root: Path, path: Path) -> None:
    """A file of the store is a regular file at its own real path: no link leads there, nor a FIFO."""
    if not is_file(path):
        if not os.path.lexists(path):
            raise StoreError(f"{path} is missing: run again, or `gausslens store verify` to see what else is")
        raise StoreError(f"{path} is not a regular file: refused")
    place = os.fspath(root)
    for name in path.relative_to(root).parts:
        place = f"{place}{os.sep}{name}"
        if name == ".." or stat.S_ISLNK(os.lstat(place).st_mode):
            raise StoreError(f"{path} is reached through a link: refused")


def check_link(root: Path, filename: str, target: str) -> Path:
    """The part an external link of the index names: relative, below ``parts/``, and nothing else."""
    pure = PurePosixPath(filename)
    inside = len(pure.parts) == 3 and pure.parts[0] == PARTS and ".." not in pure.parts and str(pure) == filename
    if pure.is_absolute() or not inside or not filename.isprintable():
        raise StoreError(f"a link to {filename!r} leads out of the store's parts: refused")
    if target != f"/{pure.parts[1]}/{pure.stem}":
        raise StoreError(f"a link to {target!r} in {filename} is not to that part's result: refused")
    path = root / pure
    check_place(root, path)
    return path


_plugins_are_away = threading.RLock()


@contextmanager
def no_plugins() -> Iterator[None]:
    """HDF5 finds no filter plugin on disk meanwhile: a file cannot make it load a library.

    To look at an array's filters before its values is not enough: the links of a group may be packed with a filter
    too, which HDF5 loads to list or find one. h5py holds its lock in every call but those of h5pl, which
    crash beside another thread's calls: it is taken for them here, by the name that h5py documents
    (docs.h5py.org/en/stable/threads.html).
    """
    with _plugins_are_away:
        with phil:
            places = [h5pl.get(i) for i in range(h5pl.size())]
            for _ in places:
                h5pl.remove(0)
        try:
            yield
        finally:
            with phil:
                for place in places:
                    h5pl.append(place)


def _reading(locking: bool | None = None) -> h5p.PropFAID:
    """How files are opened: as h5py does, but HDF5 would fetch 64 KiB for each 4 KiB out of a large array."""
    how = h5p.create(h5p.FILE_ACCESS)
    how.set_sieve_buf_size(_PAGE)
    if locking is not None:
        how.set_file_locking(locking, False)
    return how


def open_checked(path: str, root: str, mode: Literal["r"] = "r") -> h5py.File:  # noqa: ARG001
    """Open a file of the store for reading, after its place and its seal were checked, and that HDF5 survives it.

    ``mode`` is for xarray, which gives it where a dataset is copied or unpickled.
    """
    return open_small(path, root)[0]


def open_small(path: str, root: str) -> tuple[h5py.File, bytes | None, list[seal.Extent]]:
    """The same with the bytes of a small file, which were read for its seal, and where in them its arrays lie."""
    check_place(Path(root), Path(path))
    wrong, extents, data = seal.check_read(Path(path))
    if wrong:
        part = Path(path).parent.parent == Path(root) / PARTS
        raise StoreError(f"{path} is refused: {wrong[0]}" + ("; remove it and run again" if part else ""))
    examined(Path(path))
    with no_plugins():
        return opened(path), data, extents


def opened(path: str) -> h5py.File:
    """Give a file to HDF5, unchecked."""
    try:
        return h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY, _reading()))
    except OSError as error:
        # Where locks fail; and HDF5 wants whoever has it open in this process to have asked for the same.
        with suppress(OSError):
            return h5py.File(h5f.open(os.fsencode(path), h5f.ACC_RDONLY, _reading(locking=False)))
        raise StoreError(f"{path} is not an HDF5 file that can be read: {error}") from None


def follow(file: h5py.File, entry: str) -> Any:
    """The object at a path inside a file. Every step must be a hard link: soft and external ones lead away."""
    found: Any = file
    for name in entry.strip("/").split("/"):
        if not _has(found, name):
            raise StoreError(f"{file.file.filename} has no {entry}: refused")
        if found.id.links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise StoreError(f"{file.file.filename}: {name!r} of {entry} is a link to elsewhere: refused")
        found = found[name]
    return found


def holds(file: h5py.File, entry: str) -> bool:
    """Whether there is a result at this path of a pack, and not another name (a soft link) of one, nor nothing yet."""
    found: Any = file
    *above, last = entry.strip("/").split("/")
    for name in above:
        if not _has(found, name):
            return False
        found = follow(found, name)
    if not _has(found, last) or found.id.links.get_info(last.encode()).type == h5l.TYPE_SOFT:
        return False
    follow(found, last)
    return True


def _has(group: Any, name: str) -> bool:
    return isinstance(group, h5py.Group) and name.encode() in group.id


class Checked(NamedTuple):
    """An array of a file that may be read: as HDF5 has it, for h5py's own object costs as much as reading it."""

    id: h5d.DatasetID
    shape: tuple[int, ...]
    is_text: bool

    def opened(self) -> h5py.Dataset:
        """The same as h5py has it."""
        return h5py.Dataset(self.id, readonly=True)


def arrays_of(group: Any, size: int) -> dict[str, h5py.Dataset]:
    """The arrays of a result's group, each checked; anything else in it is refused. ``size`` is that of the file."""
    return {name: found.opened() for name, found in checked_arrays(group, size).items()}


def checked_arrays(group: Any, size: int) -> dict[str, Checked]:
    """The same, not opened by h5py yet."""
    if not isinstance(group, h5py.Group):
        raise StoreError("a result is not a group: refused")
    if len(group) > MOST_ARRAYS:
        raise StoreError(f"{len(group)} arrays in one result, more than {MOST_ARRAYS}: refused")
    found = {}
    links = group.id.links
    for name in group:
        check_array_name(name)
        if links.get_info(name.encode()).type != h5l.TYPE_HARD:
            raise StoreError(f"{name!r} is a link to elsewhere: refused")
        array = h5o.open(group.id, name.encode())
        if not isinstance(array, h5d.DatasetID):
            raise StoreError(f"{name!r} is not an array: refused")
        found[name] = checked_array(name, array, size)
    return found


def checked_array(name: str, array: h5d.DatasetID, size: int) -> Checked:
    """Refuse virtual and external storage, foreign types and filters, and sizes that cannot be."""
    how = array.get_create_plist()
    layout = how.get_layout()
    if layout not in (h5d.CONTIGUOUS, h5d.CHUNKED, h5d.COMPACT):
        raise StoreError(f"{name!r} is a virtual array: refused")
    if how.get_external_count():
        raise StoreError(f"{name!r} keeps its values in another file: refused")
    for index in range(how.get_nfilters()):
        code = how.get_filter(index)[0]
        if code not in FILTERS:
            raise StoreError(f"{name!r} needs the HDF5 filter {code}; only {', '.join(FILTERS.values())} are allowed")
    kind, space = array.get_type(), array.get_space()
    if kind.get_class() not in _CLASSES or space.get_simple_extent_type() == h5py.h5s.NULL:
        raise StoreError(f"{name!r} holds neither numbers nor text: refused")
    shape = space.get_simple_extent_dims()
    if len(shape) > MOST_DIMENSIONS:
        raise StoreError(f"{name!r} has {len(shape)} dimensions, more than {MOST_DIMENSIONS}: refused")
    claimed = math.prod(shape) * kind.get_size()
    stored = array.get_storage_size()
    if stored > size or (claimed > stored if layout != h5d.CHUNKED else claimed > stored * MOST_RATIO):
        raise StoreError(f"{name!r} claims {claimed} bytes of which the file holds {stored}: refused")
    return Checked(array, shape, kind.get_class() == h5t.STRING)
