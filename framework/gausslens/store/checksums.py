"""The seal: the last bytes of every HDF5 file of the store, by which any flipped bit is found without HDF5.

After the HDF5 bytes (readers ignore what follows their end) comes one line of JSON and a footer of 37 bytes::

    {"arrays":[[offset,bytes,crc32],...],"rest":"<sha-256>","size":<bytes before the line>}
    gausslens-seal-1 <length of the line, 10 digits> <crc32 of the line, 8 hex>\\n

``rest`` is the digest of every byte that is in none of the arrays. So a bulk array is read once, for its crc32, and
the rest can be checked in microseconds before HDF5 is let near it: a damaged file can crash HDF5.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path

from zlib_ng import zlib_ng

from ..contract.errors import StoreError
from .disk import explain_failure, is_file, write_at

_FAMILY = b"gausslens-seal-"
_MAGIC = _FAMILY + b"1"
_FOOTER = len(_MAGIC) + 1 + 10 + 1 + 8 + 1
_BLOCK = 1 << 24
_BUFFER = 1 << 18
_SMALL = 1 << 20

Extent = tuple[int, int, int]  # offset, bytes, crc32


def seal(descriptor: int, extents: Iterable[Extent]) -> str:
    """Append the seal to a finished file; returns its ``identity``."""
    size = os.fstat(descriptor).st_size
    arrays = sorted(extents)
    line = json.dumps({"arrays": arrays, "rest": _rest(descriptor, size, arrays), "size": size}, separators=(",", ":"))
    data = line.encode() + b"\n"
    data += b"%s %010d %08x\n" % (_MAGIC, len(data), zlib_ng.crc32(data))
    write_at(descriptor, memoryview(data), size)
    return hashlib.sha256(data).hexdigest()


def identity(path: Path) -> str:
    """What tells the bytes that HDF5 looks at from all others: the digest of the seal, which was checked."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        total = os.fstat(descriptor).st_size
        words = os.pread(descriptor, _FOOTER, max(0, total - _FOOTER)).split()
        length = _FOOTER + int(words[1])
        return hashlib.sha256(os.pread(descriptor, length, total - length)).hexdigest()
    finally:
        os.close(descriptor)


def sealed(path: Path) -> bool:
    """Whether a file ends as ours do, of whatever version."""
    return _mark(path).startswith(_FAMILY)


def newer(path: Path) -> bool:
    """Whether a file ends with the seal of another version than this."""
    mark = _mark(path)
    return mark.startswith(_FAMILY) and mark != _MAGIC


def _mark(path: Path) -> bytes:
    """The first word of the last line; nothing where it is no regular file."""
    if not is_file(path):
        return b""
    with explain_failure("read", path), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _FOOTER))
        words = file.read(_FOOTER).split()
    return words[0] if words else b""


def check(path: Path, *, arrays: bool) -> tuple[list[str], list[Extent]]:
    """What is wrong with a sealed file, in words, and where its arrays lie; ``arrays``: their bytes are checked too."""
    return check_read(path, arrays=arrays)[:2]


def check_read(path: Path, *, arrays: bool = False) -> tuple[list[str], list[Extent], bytes | None]:
    """The same, and the bytes before the seal of a small file, which were read for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = _read(descriptor)
        if isinstance(found, str):
            return [found], [], None
        size, extents, rest = found
        wrong = []
        whole = os.pread(descriptor, size, 0) if size <= _SMALL else None
        if (_rest(descriptor, size, extents) if whole is None else _rest_of(whole, extents)) != rest:
            wrong.append("its digest does not match: the file was damaged or changed after it was written")
        for offset, length, crc in extents if arrays else ():
            if crc32(descriptor, offset, length) != crc:
                wrong.append(f"the array at byte {offset} does not match its crc32: the file was damaged")
        return wrong, extents, whole
    finally:
        os.close(descriptor)


def _read(descriptor: int) -> tuple[int, list[Extent], str] | str:
    """Size, extents and digest of the rest; or what is wrong with the seal."""
    total = os.fstat(descriptor).st_size
    footer = os.pread(descriptor, _FOOTER, max(0, total - _FOOTER))
    words = footer.split()
    if len(footer) != _FOOTER or len(words) != 3 or words[0] != _MAGIC or not words[1].isdigit():
        return "it has no seal: it was cut short, or something else wrote it"
    length = int(words[1])
    start = total - _FOOTER - length
    if start < 0:
        return "its seal is damaged"
    line = os.pread(descriptor, length, start)
    if footer != b"%s %010d %08x\n" % (_MAGIC, length, zlib_ng.crc32(line)):
        return "its seal is damaged"
    try:
        sealed = json.loads(line)
        size, rest = int(sealed["size"]), str(sealed["rest"])
        extents = [(int(o), int(n), int(c)) for o, n, c in sealed["arrays"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "its seal is damaged"
    ends = [0] + [o + n for o, n, _ in extents]
    starts = [o for o, _, _ in extents] + [size]
    if size != start or any(e > b for e, b in zip(ends, starts, strict=True)) or any(n < 0 for _, n, _ in extents):
        return "its seal does not fit its size: it was cut short or added to"
    return size, extents, rest


def _rest(descriptor: int, size: int, arrays: list[Extent]) -> str:
    """SHA-256 of the bytes that are in no array."""
    found = hashlib.sha256()
    place = 0
    for offset, length in [(o, n) for o, n, _ in arrays] + [(size, 0)]:
        while place < offset:
            data = os.pread(descriptor, min(_BLOCK, offset - place), place)
            if not data:
                raise StoreError("the file became shorter while it was read")
            found.update(data)
            place += len(data)
        place += length
    return found.hexdigest()


def _rest_of(data: bytes, arrays: list[Extent]) -> str:
    """The same of a small file, which is read at once."""
    found, place = hashlib.sha256(), 0
    for offset, length, _ in arrays:
        found.update(data[place:offset])
        place = offset + length
    found.update(data[place:])
    return found.hexdigest()


def crc32(descriptor: int, offset: int, length: int) -> int:
    """CRC-32 of a stretch of a file, through a buffer that stays in the processor's cache."""
    found = 0
    buffer = memoryview(bytearray(min(_BUFFER, length)))
    while length:
        got = os.preadv(descriptor, [buffer[: min(_BUFFER, length)]], offset)
        if not got:
            raise StoreError("the file became shorter while it was read")
        found = zlib_ng.crc32(buffer[:got], found)
        offset, length = offset + got, length - got
    return found
