"""Stores made to harm whoever opens them. Each attack is a function of a store's root and of a directory outside it.

That directory holds a secret and must not change. All files bear a good seal: it is not the seal that refuses them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from store.stored import key

from gausslens.contract.digests_and_seeds import digest
from gausslens.store import checksums as seal

SECRET = 31337.0
ENTRY = f"probe.score/{key('t')}"
Attack = Callable[[Path, Path], None]
ATTACKS: dict[str, Attack] = {}


def attack(function: Attack) -> Attack:
    ATTACKS[function.__name__] = function
    return function


def part_of(root: Path) -> Path:
    return root / "parts" / f"{ENTRY}.h5"


@contextmanager
def edited(path: Path) -> Any:
    """An HDF5 file to change; it is sealed again afterwards."""
    path.chmod(0o644)
    with h5py.File(path, "r+") as file:
        yield file
    with path.open("r+b") as raw:
        seal.seal(raw.fileno(), [])


@contextmanager
def result(root: Path) -> Any:
    """The group of one result to change."""
    with edited(part_of(root)) as file:
        yield file[ENTRY]


def rewrite(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the manifest and give it a good digest."""
    path = next((root / "runs").glob("*/*.json"))
    body = json.loads(path.read_text())
    body.pop("digest")
    change(body)
    path.chmod(0o644)
    path.write_text(json.dumps({**body, "digest": digest(body)}))


def described(array: h5py.Dataset) -> None:
    array.attrs.update({"encoding-type": "array", "encoding-version": 1, "crc32": 0})


@attack
def part_is_a_link(root: Path, outside: Path) -> None:
    part_of(root).rename(outside / "moved.h5")
    part_of(root).symlink_to(outside / "moved.h5")


@attack
def analysis_is_a_link(root: Path, outside: Path) -> None:
    (root / "parts/probe.score").rename(outside / "moved")
    (root / "parts/probe.score").symlink_to(outside / "moved")


@attack
def part_is_a_fifo(root: Path, outside: Path) -> None:
    part_of(root).unlink()
    os.mkfifo(part_of(root))


@attack
def part_is_a_directory(root: Path, outside: Path) -> None:
    part_of(root).unlink()
    part_of(root).mkdir()


@attack
def result_is_an_external_link(root: Path, outside: Path) -> None:
    with edited(part_of(root)) as file:
        del file[ENTRY]
        file[ENTRY] = h5py.ExternalLink(str(outside / "secret.h5"), "/group")


@attack
def result_is_a_soft_link(root: Path, outside: Path) -> None:
    with edited(part_of(root)) as file:
        file.move(ENTRY, "elsewhere")
        file[ENTRY] = h5py.SoftLink("/elsewhere")


@attack
def array_is_an_external_link(root: Path, outside: Path) -> None:
    with result(root) as group:
        group["more"] = h5py.ExternalLink("../../../outside/secret.h5", "/secret")


@attack
def array_is_a_link_to_a_fifo(root: Path, outside: Path) -> None:
    os.mkfifo(root / "fifo")
    with result(root) as group:
        group["more"] = h5py.ExternalLink("../../fifo", "/secret")


@attack
def array_is_virtual(root: Path, outside: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(str(outside / "secret.h5"), "secret", (4,))
    with result(root) as group:
        described(group.create_virtual_dataset("more", layout))


@attack
def array_is_in_another_file(root: Path, outside: Path) -> None:
    with result(root) as group:
        space = [(str(outside / "secret.raw"), 0, 32)]
        described(group.create_dataset("more", (4,), "f8", external=space))


@attack
def array_needs_a_filter_from_a_directory(root: Path, outside: Path) -> None:
    """HDF5 loads whatever library HDF5_PLUGIN_PATH holds; here the library is a FIFO, on which loading hangs."""
    how = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    how.set_chunk((4,))
    how.set_filter(32015, h5py.h5z.FLAG_OPTIONAL)
    with result(root) as group:
        made = h5py.h5d.create(group.id, b"more", h5py.h5t.IEEE_F64LE, h5py.h5s.create_simple((4,)), how)
        made.write_direct_chunk((0,), np.zeros(4).tobytes())
        described(group["more"])


@attack
def links_need_a_filter_from_a_directory(root: Path, outside: Path) -> None:
    """The links of a group lie in a heap that is packed with a filter: to look one up loads it, before any array."""
    path = part_of(root)
    path.unlink()
    above, name = ENTRY.split("/")
    with h5py.File(path, "w", libver=("v108", "v110")) as file:
        how = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        h5py.h5i.inc_ref(how)  # for the second name of one list
        h5py.h5p.PropDCID(how.id).set_deflate(4)
        group = h5py.h5g.create(file.id, above.encode(), None, how)
        for link in (name, *(f"more{i}" for i in range(60))):
            h5py.h5g.create(group, link.encode())
        file.attrs.update({"encoding-type": "store-part", "encoding-version": 1, "entry": f"/{ENTRY}"})
        file[ENTRY].attrs.update({"encoding-type": "step-result", "encoding-version": 1, "provenance": "{}"})
    data = bytearray(path.read_bytes())
    heap = data.index(b"FRHP")
    filters = data.index(bytes([2, 1, 1, 0, 1, 0, 1, 0, 4, 0, 0, 0]), heap)  # one filter, deflate, of level 4
    assert lookup3(data[heap : filters + 12]) == int.from_bytes(data[filters + 12 : filters + 16], "little")
    data[filters + 2] = 200  # a filter that nobody has
    data[filters + 12 : filters + 16] = lookup3(data[heap : filters + 12]).to_bytes(4, "little")
    path.write_bytes(data)
    with path.open("r+b") as raw:
        seal.seal(raw.fileno(), [])


def lookup3(data: bytes | bytearray) -> int:
    """The checksum of HDF5's metadata (Jenkins 2006)."""

    def mixed(at: list[int], turns: list[tuple[int, int, int]]) -> None:
        for i, j, turn in turns:
            at[i] = (at[i] ^ at[j]) - (at[j] << turn & MASK | at[j] >> 32 - turn) & MASK

    at = [(0xDEADBEEF + len(data)) & MASK] * 3
    place, left = 0, len(data)
    while True:
        for i in range(3):
            word = bytes(data[place + 4 * i : place + 4 * i + 4])
            at[i] = (at[i] + int.from_bytes(word, "little")) & MASK
        place, left = place + 12, left - 12
        if left <= 0:
            break
        for i, j, k, turn in [(0, 2, 1, 4), (1, 0, 2, 6), (2, 1, 0, 8), (0, 2, 1, 16), (1, 0, 2, 19), (2, 1, 0, 4)]:
            at[i] = (at[i] - at[j] & MASK) ^ (at[j] << turn & MASK | at[j] >> 32 - turn)
            at[j] = at[j] + at[k] & MASK
    mixed(at, [(2, 1, 14), (0, 2, 11), (1, 0, 25), (2, 1, 16), (0, 2, 4), (1, 0, 14), (2, 1, 24)])
    return at[2]


MASK = 0xFFFFFFFF


@attack
def array_claims_a_terabyte(root: Path, outside: Path) -> None:
    with result(root) as group:
        described(group.create_dataset("more", (1 << 37,), "f8"))


@attack
def array_claims_a_terabyte_in_chunks(root: Path, outside: Path) -> None:
    with result(root) as group:
        made = group.create_dataset("more", (1 << 37,), "f8", chunks=(1 << 16,), compression="gzip")
        made[:4] = 0
        described(made)


@attack
def group_holds_itself(root: Path, outside: Path) -> None:
    with result(root) as group:
        group["more"] = group


@attack
def part_holds_a_ring(root: Path, outside: Path) -> None:
    with edited(part_of(root)) as file:
        file["probe.score/ring"] = file["/"]


@attack
def array_is_named_with_terminal_escapes(root: Path, outside: Path) -> None:
    with result(root) as group:
        described(group.create_dataset("\x1b]0;owned\x07", data=[1.0]))


@attack
def files_are_named_with_terminal_escapes(root: Path, outside: Path) -> None:
    for place in (
        "parts/probe.score/\x1b[31m.h5",
        "parts/\x1b[31m/k.h5",
        "runs/first/\x1b[31m.json",
        "runs/\x1b[31m/p.json",
    ):
        (root / place).parent.mkdir(exist_ok=True)
        (root / place).write_text("{")


@attack
def array_is_opaque(root: Path, outside: Path) -> None:
    with result(root) as group:
        described(group.create_dataset("more", data=np.zeros(3, "V16")))


@attack
def array_holds_references(root: Path, outside: Path) -> None:
    with result(root) as group:
        made = group.create_dataset("more", (2,), h5py.ref_dtype)
        made[0] = group.ref
        described(made)


@attack
def array_is_null(root: Path, outside: Path) -> None:
    with result(root) as group:
        described(group.create_dataset("more", data=h5py.Empty("f8")))


@attack
def array_is_a_half_float(root: Path, outside: Path) -> None:
    with result(root) as group:
        described(group.create_dataset("more", data=np.zeros(3, "f2")))


@attack
def dimension_is_of_another_group(root: Path, outside: Path) -> None:
    with edited(part_of(root)) as file:
        file["scale"] = np.arange(3)
        file["scale"].make_scale("scale")
        made = file[ENTRY].create_dataset("more", data=np.arange(3.0))
        made.dims[0].attach_scale(file["scale"])
        described(made)


@attack
def dimension_leads_nowhere(root: Path, outside: Path) -> None:
    with result(root) as group:
        made = group.create_dataset("more", data=np.arange(3.0))
        scale = group.create_dataset("gone", data=np.arange(3))
        scale.make_scale("gone")
        made.dims[0].attach_scale(scale)
        described(made)
        del group["gone"]


@attack
def part_is_of_a_newer_version(root: Path, outside: Path) -> None:
    with result(root) as group:
        group.attrs["encoding-version"] = 99


@attack
def part_has_no_version(root: Path, outside: Path) -> None:
    with result(root) as group:
        group["score"].attrs["encoding-version"] = "1"


@attack
def part_is_of_another_type(root: Path, outside: Path) -> None:
    with result(root) as group:
        group.attrs["encoding-type"] = "store-index"


@attack
def attributes_are_a_pit(root: Path, outside: Path) -> None:
    with result(root) as group:
        group.attrs["attributes"] = "[" * 200_000


@attack
def text_reaches_beyond_its_bytes(root: Path, outside: Path) -> None:
    with result(root) as group:
        group["name"].attrs["lossless"] = "layer layer"


@attack
def part_has_a_million_links(root: Path, outside: Path) -> None:
    with result(root) as group:
        for i in range(10_001):
            group[f"a{i}"] = group["mass"]


@attack
def manifest_names_lead_out(root: Path, outside: Path) -> None:
    rewrite(root, lambda body: body["steps"][0].update(analysis="..", key="../../outside/secret"))


@attack
def manifest_names_have_escapes(root: Path, outside: Path) -> None:
    rewrite(root, lambda body: body["steps"][0].update(variant="\x1b[31mtrained"))


@attack
def manifest_is_a_pit(root: Path, outside: Path) -> None:
    path = next((root / "runs").glob("*/*.json"))
    path.chmod(0o644)
    path.write_text("[" * 500_000)


@attack
def manifest_is_a_fifo(root: Path, outside: Path) -> None:
    path = next((root / "runs").glob("*/*.json"))
    path.unlink()
    os.mkfifo(path)


@attack
def run_is_a_link(root: Path, outside: Path) -> None:
    (root / "runs/first").rename(outside / "first")
    (root / "runs/first").symlink_to(outside / "first")


@attack
def index_leads_out(root: Path, outside: Path) -> None:
    with edited(root / "store.h5") as file:
        for name, target in {
            "absolute": str(outside / "secret.h5"),
            "above": "../outside/secret.h5",
            "dotted": "parts/../../outside/secret.h5",
            "deep": "parts/a/b/c.h5",
            "escape": "parts/probe.score/\x1b[31m.h5",
        }.items():
            file[f"first/trained/score/{name}"] = h5py.ExternalLink(target, "/")


@attack
def index_leads_to_a_fifo(root: Path, outside: Path) -> None:
    os.mkfifo(root / "parts/probe.score/fifo.h5")
    with edited(root / "store.h5") as file:
        file["first/trained/score/9"] = h5py.ExternalLink("parts/probe.score/fifo.h5", "/probe.score/fifo")


@attack
def index_is_a_ring(root: Path, outside: Path) -> None:
    with edited(root / "store.h5") as file:
        file["first/trained/ring"] = file["first"]
