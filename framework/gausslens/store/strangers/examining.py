"""What the child does: read all of a file that a reader may read, within limits, and say what is wrong.

It does not judge what the file says; the readers do. It finds out whether HDF5 comes to an end with it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5g, h5l, h5o, h5r

from ...contract.errors import StoreError
from .. import checksums as seal
from ..codec import TEXT
from ..layout import MOST_ARRAYS
from ..safety import checked_array, no_plugins, opened

# What a file may take: memory beside what the child has, for each byte of the file; seconds of the processor.
MEMORY, MEMORY_PER_BYTE = 256 << 20, 16
SECONDS, BYTES_PER_SECOND = 4, 20 << 20
# run / variant / label / draw / array of a pack, and the root.
_DEEPEST = 6
_BLOCK = 1 << 22
# How HDF5 says that there was no memory.
_NO_MEMORY = ("alloc", "memory", "resource unavailable")


def serve() -> None:
    """Answer for each path on stdin with a line: null, or what is wrong."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever asks; it ends this by closing the pipe
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        path = Path(json.loads(line))
        sys.stdout.write(json.dumps(_wrong(path)) + "\n")
        sys.stdout.flush()


def _wrong(path: Path) -> str | None:
    try:
        _limit(path.stat().st_size)
        with no_plugins():
            examine(path)
    except StoreError as error:
        return str(error)
    except MemoryError:
        return "to read it takes more memory than a file of its size can need"
    except Exception as error:
        if any(word in str(error).lower() for word in _NO_MEMORY):
            return "to read it takes more memory than a file of its size can need"
        return f"cannot be read: {error!r}"[:500]
    return None


def _limit(size: int) -> None:
    """Allow the next file its share; where a system knows no such limit, the clock of who asks is left."""
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    taken = 0
    with suppress(OSError):
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    for kind, most in (
        (resource.RLIMIT_CPU, int(used) + 1 + SECONDS + size // BYTES_PER_SECOND),
        (resource.RLIMIT_AS, taken + MEMORY + MEMORY_PER_BYTE * size if taken else resource.RLIM_INFINITY),
    ):
        hard = resource.getrlimit(kind)[1]
        with suppress(ValueError, OSError):
            resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def examine(path: Path) -> None:
    """Read what a reader may: attributes, links and arrays of every group that hard links lead to."""
    size = path.stat().st_size
    wrong, extents = seal.check(path, arrays=False)
    if wrong:
        raise StoreError(wrong[0])
    laid: set[tuple[int, int]] = set()
    with opened(os.fspath(path)) as file:
        for group in _groups(file):
            laid |= _arrays(file, group, size)
    # Bytes that the digest leaves out must be values: anything else could be exchanged without another seal.
    if not {(offset, length) for offset, length, _ in extents} <= laid:
        raise StoreError("its seal says that there are values where there are none")


def _groups(file: h5py.File) -> Iterator[h5py.Group]:
    """Every group, once, with its attributes read."""
    left: list[tuple[Any, int]] = [(h5g.open(file.id, b"/"), 0)]
    seen = set()
    while left:
        group, depth = left.pop()
        place = h5o.get_info(group).addr
        if place in seen or depth > _DEEPEST:
            continue
        seen.add(place)
        found = h5py.Group(group)
        _read_attributes(file, found)
        yield found
        for name in group:
            if group.links.get_info(name).type == h5l.TYPE_HARD:
                below = h5o.open(group, name)
                if isinstance(below, h5g.GroupID):
                    left.append((below, depth + 1))
            else:
                group.links.get_val(name)


def _read_attributes(file: h5py.File, owner: h5py.Group | h5py.Dataset) -> None:
    for name, value in owner.attrs.items():
        if name == "DIMENSION_LIST":
            for references in value:
                h5r.get_name(references[0], file.id)


def _arrays(file: h5py.File, group: h5py.Group, size: int) -> set[tuple[int, int]]:
    """Read the arrays of a group; where their values lie, of those in one piece."""
    laid: set[tuple[int, int]] = set()
    if len(group) > MOST_ARRAYS:
        return laid  # readers refuse it
    for name in group.id:
        hard = group.id.links.get_info(name).type == h5l.TYPE_HARD
        found = h5o.open(group.id, name) if hard else None
        if not isinstance(found, h5d.DatasetID):
            continue
        array = h5py.Dataset(found, readonly=True)
        _read_attributes(file, array)
        try:
            checked_array(name.decode(), found, size)
        except StoreError:
            continue  # so do they
        offset = found.get_offset()
        if array.dtype != TEXT:
            laid.add((offset, array.nbytes))
        elif offset is not None:
            _check_text(name.decode(), Path(file.filename), offset, array.size, size)
        _read_values(array)
    return laid


def _check_text(name: str, path: Path, offset: int, count: int, size: int) -> None:
    """Text lies elsewhere: here is how long each is, and where. Many that are one would be as large as one likes."""
    told = np.dtype([("bytes", "<u4"), ("heap", "<u8"), ("number", "<u4")])
    claimed = int(np.fromfile(path, told, count, offset=offset)["bytes"].sum(dtype=np.uint64))
    if claimed > size:
        raise StoreError(f"the text of {name!r} claims {claimed} bytes of which the file holds {size}")


def _read_values(array: h5py.Dataset) -> None:
    """All of an array whose values HDF5 must look for; the ends of a large one that lies in one piece."""
    if array.chunks is not None:
        for place in array.iter_chunks() if array.size else ():
            array[place]
    elif array.dtype == TEXT or array.nbytes <= _BLOCK:
        array[()]
    else:
        array[:1], array[-1:]
