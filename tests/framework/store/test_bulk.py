"""Bulk capture: written as it comes, in four bytes or two, without being held; estimated and capped beforehand."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from store.stored import META, key

from gausslens import GausslensError
from gausslens.store import Store
from gausslens.store.codec import decode_values, to_bits
from gausslens.store.maintain import verify
from gausslens.store.write_parts import DTYPES, estimate

Child = Callable[..., "subprocess.CompletedProcess[str]"]


def begin(store: Store, name: str = "k", most: int | None = None):
    return store.begin("probe.x", key(name), META, most)


def test_blocks_in_any_order_and_what_is_never_written_is_nan(store: Store) -> None:
    wanted = np.full((4, 3, 6, 5), np.nan, dtype="f4")
    rng = np.random.default_rng(0)
    writer = begin(store)
    writer.create("q", ("prompt", "layer", "position", "d"), wanted.shape, "float32", {"units": "1", "flag": True})
    for prompt in (2, 0, 3):
        for layer in (1, 0):
            size = prompt + 2
            block = rng.normal(size=(size, 5)).astype("f4")
            writer.write("q", (prompt, layer, slice(0, size)), block)
            wanted[prompt, layer, :size] = block
    coords = {"token": (("prompt", "position"), np.full((4, 6), "é")), "layer": [0, 2, 5]}
    assert writer.commit(xr.Dataset({"length": ("prompt", [2, 0, 4, 5])}, coords, {"title": "bulk"}))
    found = store.read("probe.x", key("k")).load()
    assert found["q"].dtype == np.float32
    assert found["q"].values.tobytes() == wanted.tobytes()
    assert found["q"].attrs == {"units": "1", "flag": True}
    assert found["q"].sel(layer=2, prompt=0, position=1).shape == (5,)
    assert "token" in found["q"].coords
    assert found.attrs == {"title": "bulk"}
    assert verify(store.path) == []


INDEX = st.tuples(
    st.integers(0, 4) | st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True).map(sorted),
    st.slices(6).filter(lambda s: s.step is None or s.step > 0),
    st.slices(4).filter(lambda s: s.step is None or s.step > 0),
)


@given(st.lists(INDEX, max_size=8), st.sampled_from(["float32", "float64", "int16", "bool", "float16"]))
def test_any_blocks_are_as_in_numpy(blocks: list, dtype: str) -> None:
    import tempfile

    kind = np.dtype(dtype)
    wanted = np.full((5, 6, 4), np.nan if kind.kind == "f" else 0).astype(kind)
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "s").create()
        writer = begin(store)
        writer.create("a", ("x", "y", "z"), wanted.shape, dtype)
        for number, index in enumerate(blocks):
            values = np.arange(wanted[index].size).reshape(wanted[index].shape).astype(kind) + kind.type(number % 2)
            wanted[index] = values
            if values.size:
                writer.write("a", index, values)
        assert writer.commit(xr.Dataset())
        found = store.read("probe.x", key("k"))["a"].values
        assert found.dtype == kind
        assert np.array_equal(found, wanted, equal_nan=kind.kind == "f")
        assert [f for f in verify(store.path) if not f.harmless] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_type(store: Store, dtype: str) -> None:
    writer = begin(store)
    writer.create("a", ("x", "y"), (3, 2), dtype)
    writer.write("a", (slice(0, 2),), np.array([[0, 1], [1, 0]]))
    writer.commit(xr.Dataset())
    found = store.read("probe.x", key("k"))["a"]
    assert found.dtype == np.dtype("float32" if dtype == "bfloat16" else dtype)
    assert found.values[:2].tolist() == [[0, 1], [1, 0]]
    assert np.isnan(found.values[2]).all() if found.dtype.kind == "f" else not found.values[2].any()


@given(hnp.arrays("f4", st.integers(0, 50)))
def test_bfloat16_is_rounded_as_torch_does(values: np.ndarray) -> None:
    wanted = torch.from_numpy(values.copy()).to(torch.bfloat16).float().numpy()
    found = decode_values(to_bits(values, "bfloat16"), "bfloat16")
    assert np.array_equal(found, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(wanted)) or np.isnan(values).any()


@given(hnp.arrays("f4", st.integers(0, 50)))
def test_float16_is_rounded_as_numpy_does(values: np.ndarray) -> None:
    with np.errstate(over="ignore"):
        wanted = values.astype("f2")
    assert np.array_equal(decode_values(to_bits(values, "float16"), "float16"), wanted, equal_nan=True)


def test_the_estimate_is_what_is_written(store: Store) -> None:
    shapes = {"q": ((20, 100, 64), "float32"), "k": ((20, 100, 64), "bfloat16")}
    writer = begin(store)
    for name, (shape, dtype) in shapes.items():
        writer.create(name, ("prompt", "position", "d"), shape, dtype)
        writer.write(name, (slice(None),), np.zeros(shape))
    writer.commit(xr.Dataset())
    size = (store.path / "parts/probe.x" / f"{key('k')}.h5").stat().st_size
    assert abs(size - estimate(shapes)) < 0.02 * size


def test_the_cap_is_told_before_anything_is_written(store: Store) -> None:
    writer = begin(store, most=1_000_000)
    writer.create("q", ("x",), (200_000,), "float32")
    with pytest.raises(GausslensError, match="over its cap of 1,000,000: capture fewer"):
        writer.create("k", ("x",), (200_000,), "float32")
    writer.abandon()
    assert list((store.path / "tmp").iterdir()) == []


def test_what_does_not_fit_together_is_told(store: Store) -> None:
    writer = begin(store)
    writer.create("a", ("x", "y"), (3, 2), "float32")
    for arguments, words in (
        (("b", ("x",), (3, 2), "float32"), "do not go together"),
        (("b", ("x",), (-1,), "float32"), "do not go together"),
        (("a", ("x",), (3,), "float32"), "used twice"),
        (("b", ("b",), (3,), "float32"), "used twice"),
        (("b", ("x",), (3,), "complex64"), "one of float16"),
        (("b c", ("x",), (3,), "float32"), "a name is a letter"),
        (("b", ("x",), (4,), "float32"), "4 along 'x'"),
    ):
        with pytest.raises(GausslensError, match=words):
            writer.create(*arguments)
    with pytest.raises(GausslensError, match="no bulk array 'c'"):
        writer.write("c", (0,), np.zeros(2))
    with pytest.raises(GausslensError, match=r"'a'.*shape"):
        writer.write("a", (0,), np.zeros(5))
    with pytest.raises(GausslensError, match="has 4 along 'x'"):
        writer.commit(xr.Dataset({"small": ("x", np.zeros(4))}))
    assert not store.has("probe.x", key("k"))
    assert list((store.path / "tmp").iterdir()) == []


def test_the_first_of_two_stands(store: Store) -> None:
    one, two = begin(store), begin(store)
    for number, writer in enumerate((one, two)):
        writer.create("a", ("x",), (2,), "float32")
        writer.write("a", (slice(None),), np.full(2, number))
    assert two.commit(xr.Dataset())
    assert not one.commit(xr.Dataset())
    assert store.read("probe.x", key("k"))["a"].values.tolist() == [1, 1]


STREAM = """
import sys, resource
import numpy as np, xarray as xr
from gausslens.store import Store
rows = int(sys.argv[2])
store = Store(sys.argv[1]).create()
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def stream(name, rows):
    writer = store.begin("probe.x", name, {})
    writer.create("a", ("x", "y"), (rows, 10_000), "float32")
    for row in range(rows):
        writer.write("a", (row,), np.full(10_000, row, "f4"))
    writer.commit(xr.Dataset())
stream("warm", 10)
before = peak()
stream("k", rows)
print(peak() - before)
"""


def test_memory_does_not_grow_with_what_is_written(tmp_path: Path, child: Child) -> None:
    done = child(STREAM, tmp_path / "store", 5000)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 20e6  # of 200 MB written
