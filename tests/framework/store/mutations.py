"""HDF5 files and manifests changed at random, so that what reads them gets past every checksum to the change.

A flipped bit is found by the seal. Here the seal, and the checksums that HDF5 keeps of its own headers, are made good
again: what is left is what a stranger could have written.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from store.attacks import lookup3

from gausslens.contract.digests_and_seeds import digest
from gausslens.store import checksums as seal

Span = tuple[int, int]
# Numbers at which sizes, counts and addresses go wrong.
EDGES = (0, 1, 2, 7, 8, 255, 256, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
# Of a header with a checksum behind it: its signature, and how many bytes come before the checksum.
FIXED = {b"FRHP": 142, b"BTHD": 34}


def headers(data: bytes | bytearray) -> list[Span]:
    """The stretches of a file that are followed by a checksum of HDF5: begin and end."""
    found, place = [], data.find(b"OHDR")
    while place >= 0:
        flags = data[place + 5]
        start = place + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        messages = start + width
        end = messages + int.from_bytes(data[start:messages], "little")
        if end + 4 <= len(data) and good(data, (place, end)):
            found.append((place, end))
            found += continued(data, messages, end, flags)
        place = data.find(b"OHDR", place + 4)
    for signature, size in FIXED.items():
        place = data.find(signature)
        while place >= 0:
            if place + size + 4 <= len(data) and good(data, (place, place + size)):
                found.append((place, place + size))
            place = data.find(signature, place + 4)
    return sorted(found)


def continued(data: bytes | bytearray, place: int, end: int, flags: int) -> list[Span]:
    """Where the messages of a header go on."""
    found = []
    while place + 4 <= end:
        kind, size = data[place], int.from_bytes(data[place + 1 : place + 3], "little")
        body = place + 4 + (2 if flags & 4 else 0)
        if kind == 16:
            address, length = struct.unpack_from("<QQ", data, body)
            if address + length <= len(data) and good(data, (address, address + length - 4)):
                found.append((address, address + length - 4))
                found += continued(data, address + 4, address + length - 4, flags)
        place = body + size
    return found


def good(data: bytes | bytearray, span: Span) -> bool:
    """Whether the checksum behind a stretch is right."""
    return lookup3(data[slice(*span)]) == int.from_bytes(data[span[1] : span[1] + 4], "little")


def heaps(data: bytes | bytearray) -> list[Span]:
    """Where text and references of variable length lie."""
    found, place = [], data.find(b"GCOL")
    while place >= 0:
        size = int.from_bytes(data[place + 8 : place + 16], "little")
        found.append((place, min(place + max(size, 16), len(data))))
        place = data.find(b"GCOL", place + 4)
    return found


def changed_file(whole: bytes, rng: random.Random) -> bytes:
    """An HDF5 file with one to four changes, its checksums good again; without a seal."""
    data = bytearray(whole)
    spans = headers(data)
    kinds = [spans] * 6 + [heaps(data)] * 2 + [[(0, len(data))]]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = rng.choice(kinds) or [(0, len(data))]
        rng.choice(CHANGES)(data, rng.choice(places), rng)
    for begin, end in spans:
        data[end : end + 4] = lookup3(data[begin:end]).to_bytes(4, "little")
    return bytes(data)


def flip(data: bytearray, span: Span, rng: random.Random) -> None:
    data[rng.randrange(*span)] ^= 1 << rng.randrange(8)


def set_byte(data: bytearray, span: Span, rng: random.Random) -> None:
    data[rng.randrange(*span)] = rng.randrange(256)


def set_number(data: bytearray, span: Span, rng: random.Random) -> None:
    width = rng.choice((2, 4, 8))
    place = rng.randrange(span[0], max(span[0] + 1, span[1] - width))
    number = rng.choice((*EDGES, len(data), rng.randrange(len(data))))
    data[place : place + width] = (number % 2 ** (8 * width)).to_bytes(width, "little")


def set_address(data: bytearray, span: Span, rng: random.Random) -> None:
    """An address of the file leads to another: to a header, so that there are rings."""
    begin, end = span
    found = [
        place for place in range(begin, end - 8) if 48 <= int.from_bytes(data[place : place + 8], "little") < len(data)
    ]
    if found:
        place = rng.choice(found)
        to = rng.choice([s for s, _ in headers(data)] or [0])
        data[place : place + 8] = to.to_bytes(8, "little")


def copy_block(data: bytearray, span: Span, rng: random.Random) -> None:
    width = rng.choice((4, 8, 16, 64))
    source, target = rng.randrange(*span), rng.randrange(*span)
    block = data[source : source + width]
    data[target : target + len(block)] = block


CHANGES: tuple[Callable[[bytearray, Span, random.Random], None], ...] = (
    flip, set_byte, set_number, set_number, set_address, copy_block,
)  # fmt: skip


def write_sealed(path: Path, data: bytes) -> None:
    """Put a file in its place, sealed."""
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    with path.open("r+b") as raw:
        seal.seal(raw.fileno(), [])


WRONG: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1e400, float("nan"), "", "\x1b[31m", "a" * 300, "\ud800", [], {}, [[]], {"a": {"b": []}},
    ["x"], "2026-01-02T03:04:05", "2026-01-02", "0001-01-01T00:00:00+14:00", "NaN", "../..", ["draw"], {"draw": 1},
)  # fmt: skip


def changed_json(body: Any, rng: random.Random) -> Any:
    """A tree of JSON with one to three places exchanged, dropped, added or set to what does not belong there."""
    body = json.loads(json.dumps(body))
    for _ in range(rng.choice((1, 1, 2, 3))):
        owners = [node for node in _nodes(body) if isinstance(node, dict | list) and node]
        owner = rng.choice(owners)
        name = rng.choice(list(owner) if isinstance(owner, dict) else range(len(owner)))
        what = rng.randrange(8)
        if what == 0:
            del owner[name]
        elif what == 1 and isinstance(owner, dict):
            owner[rng.choice(["draw", "sweep", "against", "x", "resolved", "nulls"])] = rng.choice(WRONG)
        elif what == 2:
            owner[name] = json.loads(json.dumps(rng.choice(_nodes(body))))  # a ring is no JSON
        else:
            owner[name] = rng.choice(WRONG)
    return body


def _nodes(body: Any) -> list[Any]:
    found, left = [], [body]
    while left:
        node = left.pop()
        found.append(node)
        left += node.values() if isinstance(node, dict) else node if isinstance(node, list) else []
    return found


def write_digested(path: Path, body: dict[str, Any]) -> None:
    """A manifest with a good digest."""
    body = {name: value for name, value in body.items() if name != "digest"}
    try:
        sealed = digest(body)
    except (ValueError, TypeError):  # what no writer could have made a digest of
        sealed = "0" * 64
    path.unlink(missing_ok=True)
    path.write_text(json.dumps({**body, "digest": sealed}))
