"""schemas/STORE.md and schemas/store.v1.json say what the code writes: element by element, attribute by attribute."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr
from store.stored import META, every_type, fill, key, step
from store.stored import manifest as plan

from gausslens.store import Store, layout, manifest
from gausslens.store import checksums as seal
from gausslens.store.bank import copy
from gausslens.store.codec import NUMBERS, decoded_dtype
from gausslens.store.pack import pack
from gausslens.store.safety import FILTERS, MOST_ARRAYS, MOST_DIMENSIONS, MOST_RATIO

SCHEMAS = Path(__file__).parents[3] / "schemas"
TREE = json.loads((SCHEMAS / "store.v1.json").read_text(encoding="utf-8"))
PROSE = (SCHEMAS / "STORE.md").read_text(encoding="utf-8")
# What HDF5's and netCDF's own machinery adds to dimension scales and what is attached to them.
MACHINERY = {"CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with something of everything, and a pack beside it."""
    store = fill(tmp_path_factory.mktemp("written") / "store")
    store.manifest("every", plan("p2", [step("v", "every", "e"), step("v", "bulk", "b", draw=0, sweep={"a": 1})]))
    store.commit("probe.score", key("e"), every_type(), META)
    writer = store.begin("probe.score", key("b"), META)
    writer.create("q", ("prompt", "d"), (3, 4), "bfloat16", {"units": "1", "long_name": "queries", "scaled": False})
    writer.commit(xr.Dataset({}, {"token": ("prompt", list("abc"))}))
    Store(store.path, compression="gzip").commit("probe.score", "z", xr.Dataset({"a": ("x", np.zeros(10**5))}), META)
    other = Store(tmp_path_factory.mktemp("other") / "store").create()
    other.manifest("other", plan("p3", [step("v", "x", "o")]))
    for name in ("o", "loose"):
        other.commit("probe.score", key(name), every_type(), META)
    copy(other.path, store.path)
    store.reindex()
    pack(store.path, store.path.parent / "pack.h5")
    return store.path


def files(written: Path) -> list[Path]:
    return [*written.glob("parts/*/*.h5"), written / "store.h5", written.parent / "pack.h5"]


def elements(written: Path) -> list[tuple[str, Any]]:
    """Everything that says what it is: its type and its attributes."""
    found = []
    for path in files(written):
        with h5py.File(path, "r") as file:
            found.append((file.attrs["encoding-type"], dict(file.attrs)))
            names: list[str] = []
            file.visit(names.append)
            for name in names:
                if "encoding-type" in file[name].attrs:
                    found.append((file[name].attrs["encoding-type"], dict(file[name].attrs)))
                elif isinstance(file[name], h5py.Dataset):
                    assert name.endswith(".json"), f"{path}: {name} does not say what it is"
    for path in (*written.glob("runs/*/*.json"), *written.glob("kept/*.json")):
        body = json.loads(path.read_text())
        found.append((body["format"], body))
        found += [("step", s) for s in body.get("steps", ())]
    return found


def holds(value: Any, kind: str) -> bool:
    if kind == "integer":
        return isinstance(value, int | np.integer)
    if kind == "JSON":
        return isinstance(json.loads(value), dict)
    return isinstance(value, {"text": str, "list": list, "mapping": dict}[kind])


def test_every_type_is_written_and_no_other(written: Path) -> None:
    assert {kind for kind, _ in elements(written)} == set(TREE["types"])
    assert TREE["version"] == layout.VERSION
    assert TREE["types"]["gausslens-run"]["version"] == manifest.VERSION
    assert manifest.FORMAT in TREE["types"]


def test_every_element_has_what_it_must_and_only_what_it_may(written: Path) -> None:
    seen: dict[str, set[str]] = {}
    for kind, attrs in elements(written):
        rules = TREE["types"][kind]["attributes"]
        seen.setdefault(kind, set()).update(attrs)
        assert {n for n, r in rules.items() if r["must"]} <= set(attrs), kind
        assert attrs.get("encoding-version", 1) == TREE["types"][kind]["version"]
        free = kind == "array"  # a user's own attributes are free where they are plain
        assert free or set(attrs) <= set(rules), (kind, set(attrs) - set(rules))
        for name, rule in rules.items():
            if attrs.get(name) is not None:
                assert holds(attrs[name], rule["holds"]), (kind, name, attrs[name])
    for kind, rules in TREE["types"].items():
        assert set(rules["attributes"]) <= seen[kind], f"{kind}: not everything that it may have was written"


def test_the_tree_of_files_is_as_said(written: Path) -> None:
    shapes = {re.sub(r"<[a-z]+>", r"[^/]+", p).replace(".", r"\.") + "$" for p in TREE["tree"]}
    for path in written.rglob("*"):
        if path.is_file():
            where = str(path.relative_to(written))
            assert any(re.match(shape, where) for shape in shapes), where
    with h5py.File(written / "store.h5") as index:
        link = index["first/dose/score"].get("1,alpha=0.5", getlink=True)
        assert link.filename == f"parts/probe.score/{key('d1-0.5')}.h5"
        assert link.path == f"/probe.score/{key('d1-0.5')}"
        assert "result" in index["first/trained/score"]
    with h5py.File(written.parent / "pack.h5") as file:
        assert f"first/{key('p1')}.json" in file
        assert "every/v/bulk/0,a=1" in file


def test_types_of_arrays_are_as_said(written: Path) -> None:
    assert [str(d) for d in NUMBERS] == TREE["numbers"]
    for meant, stored in TREE["dtypes"].items():
        assert decoded_dtype(np.dtype(stored), meant)
    assert list(FILTERS.values()) == TREE["filters"]
    kinds = set()
    for path in files(written):
        with h5py.File(path, "r") as file:
            file.visititems(lambda _, o: kinds.add(str(o.dtype)) if isinstance(o, h5py.Dataset) else None)
    assert kinds == {*TREE["numbers"], "object"}


def test_every_array_has_real_scales_and_is_contiguous(written: Path) -> None:
    def check(name: str, array: Any) -> None:
        if not isinstance(array, h5py.Dataset) or name.endswith(".json"):
            return
        if array.attrs.get("CLASS") == b"DIMENSION_SCALE":
            assert array.ndim == 1
            return
        for axis in range(array.ndim):
            assert len(array.dims[axis]) == 1, f"{name} has no scale for axis {axis}"
            assert array.dims[axis][0].parent == array.parent
        assert (array.chunks is None) == ("/z/" not in f"{array.file.filename}/{name}"), name
        assert not array.is_virtual
        assert array.external is None

    for path in files(written):
        if path.name != "store.h5":
            with h5py.File(path, "r") as file:
                file.visititems(check)


def test_the_seal_is_as_said(written: Path) -> None:
    """Read by the words of STORE.md alone, with nothing of ours."""
    import hashlib
    import zlib

    for path in files(written):
        data = path.read_bytes()
        footer = data[-37:]
        magic, length, crc = footer.split()
        assert magic == b"gausslens-seal-1"
        assert footer.endswith(b"\n")
        line = data[-37 - int(length) : -37]
        assert zlib.crc32(line) == int(crc, 16)
        sealed = json.loads(line)
        assert sealed["size"] == len(data) - 37 - int(length)
        rest, place = hashlib.sha256(), 0
        for offset, size, found in sealed["arrays"]:
            assert zlib.crc32(data[offset : offset + size]) == found
            rest.update(data[place:offset])
            place = offset + size
        rest.update(data[place : sealed["size"]])
        assert rest.hexdigest() == sealed["rest"]
    assert seal._FOOTER == 37


def test_digests_are_as_said(written: Path) -> None:
    import hashlib
    import zlib

    path = written / "parts/probe.score" / f"{key('e')}.h5"
    with h5py.File(path, "r") as file:
        group = file[f"probe.score/{key('e')}"]
        listed = []
        for name, array in group.items():
            attrs = {n: v for n, v in array.attrs.items() if n not in MACHINERY}
            attrs = {n: v.tolist() if isinstance(v, np.generic | np.ndarray) else v for n, v in attrs.items()}
            dims = [name] if "CLASS" in array.attrs else [d[0].name.rsplit("/", 1)[1] for d in array.dims]
            text = array.dtype == object
            if text:
                encoded = [t.encode() for t in np.ravel(array.asstr()[()]).tolist()]
                values = b"".join(len(e).to_bytes(8, "little") + e for e in encoded)
            else:
                values = array[()].tobytes()
            assert attrs.pop("crc32") == zlib.crc32(values), name
            assert (attrs.pop("encoding-type"), attrs.pop("encoding-version")) == ("array", 1)
            crc = int(array.attrs["crc32"])
            listed.append([name, dims, "text" if text else array.dtype.name, list(array.shape), crc, attrs])
        found = hashlib.sha256(json.dumps(sorted(listed), sort_keys=True).encode()).hexdigest()
        assert found == group.attrs["content"]
    for path in (*written.glob("runs/*/*.json"), *written.glob("kept/*.json")):
        body = json.loads(path.read_text())
        said = body.pop("digest")
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert hashlib.sha256(canonical.encode()).hexdigest() == said


def blocks() -> dict[str, str]:
    """The blocks of STORE.md by type, each with its heading's version."""
    found = re.split(r"^## ", PROSE, flags=re.MULTILINE)[1:]
    return {b.split(",")[0].splitlines()[0]: b for b in found}


def test_the_prose_has_a_block_for_each_type_and_version() -> None:
    said = blocks()
    for kind, rules in TREE["types"].items():
        assert said[kind].startswith(f"{kind}, version {rules['version']}\n"), kind
        assert "MUST" in said[kind]


@pytest.mark.parametrize("kind", TREE["types"])
def test_the_prose_says_of_each_attribute_that_it_must_or_may(kind: str) -> None:
    block = blocks()[kind]
    sentences = re.split(r"(?<=[.:])\s+(?=[A-Z])|\n- ", block)
    for name, rule in TREE["types"][kind]["attributes"].items():
        about = [s for s in sentences if f"`{name}`" in s]
        assert about, f"{kind}: STORE.md does not speak of {name}"
        word = "MUST" if rule["must"] else r"MAY|SHOULD"
        assert any(re.search(rf"\b({word})\b", s) for s in about), f"{kind}: {name} {'MUST' if rule['must'] else 'MAY'}"
    # and nothing that is not in the tree is demanded
    for sentence in sentences:
        if re.search(r"\bIt MUST have\b|\bThe root MUST have\b", sentence):
            named = set(re.findall(r"`([a-z_][a-zA-Z_0-9-]*)`", sentence))
            assert named <= {a for rules in TREE["types"].values() for a in rules["attributes"]}, named


def test_the_limits_are_as_said() -> None:
    limits = blocks()["Limits of readers"]
    for number in (MOST_ARRAYS, MOST_DIMENSIONS, MOST_RATIO):
        assert f"{number:,}" in limits
    for name in TREE["filters"]:
        assert name in PROSE
    for name in TREE["dtypes"]:
        assert f'"{name}"' in PROSE
    for place in TREE["tree"]:
        assert place.split("/")[0] in blocks()["The directory"]


def test_readers_refuse_what_is_newer(tmp_path: Path) -> None:
    with pytest.raises(layout.NewerStore):
        layout.check_version(layout.VERSION + 1, "it", tmp_path)
    for nothing in (None, "1", 0, True, 1.0):
        with pytest.raises(layout.StoreError, match="no version"):
            layout.check_version(nothing, "it", tmp_path)
    layout.check_version(layout.VERSION, "it", tmp_path)
