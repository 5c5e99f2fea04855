"""What is put into the store comes out of it: every type, and datasets that nobody thought of."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from store.stored import META, NUMBERS, every_type, key, small, step

import gausslens
from gausslens import GausslensError
from gausslens.contract.errors import StoreError
from gausslens.store import Store

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_.@+-]{0,12}", fullmatch=True) | st.sampled_from(["größe", "β", "日本"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
DTYPES = st.sampled_from(["bool", *NUMBERS, "complex64", "complex128", ">i4", ">f8", "<U3"])


def same(found: xr.Dataset, wanted: xr.Dataset) -> None:
    xr.testing.assert_identical(found, wanted)
    for name, variable in wanted.variables.items():
        if variable.dtype.kind not in "UO":
            assert found[name].dtype == variable.dtype.newbyteorder("="), name
            # NaN payloads and negative zeros too
            assert found[name].values.tobytes() == variable.values.astype(found[name].dtype).tobytes(), name


def through(dataset: xr.Dataset, **options: Any) -> xr.Dataset:
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "s", **options).create()
        assert store.commit("probe.x", "k", dataset, META)
        return store.read("probe.x", "k").load()


@pytest.mark.parametrize("compression", [None, "lzf", "gzip"])
def test_every_type(compression: str | None) -> None:
    dataset = every_type().assign(large=(("p", "q"), np.arange(1e5).reshape(500, 200)))
    found = through(dataset, compression=compression)
    same(found, dataset)
    assert found["strange"].values.tolist() == ["a\0b", "x\ud800y"]


@st.composite
def datasets(draw: st.DrawFn) -> xr.Dataset:
    sizes = draw(st.dictionaries(NAMES, st.integers(0, 3), max_size=4))
    names = draw(st.lists(NAMES.filter(lambda n: n not in sizes), unique=True, max_size=5))
    made: dict[str, Any] = {}
    for name in names:
        dims = draw(st.lists(st.sampled_from(sorted(sizes)), unique=True)) if sizes else []
        values = draw(hnp.arrays(draw(DTYPES), tuple(sizes[d] for d in dims)))
        made[name] = xr.Variable(dims, values, draw(st.dictionaries(st.text(max_size=8), JSON, max_size=3)))
    coords = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    index = {
        d: draw(hnp.arrays(st.sampled_from(["int64", "float32", "<U2"]), n))
        for d, n in sizes.items()
        if draw(st.booleans())
    }
    attrs = draw(st.dictionaries(st.text(max_size=8), JSON, max_size=3))
    return xr.Dataset({n: v for n, v in made.items() if n not in coords}, {n: made[n] for n in coords} | index, attrs)


@given(dataset=datasets())
@settings(max_examples=80)
def test_any_dataset_comes_back(dataset: xr.Dataset) -> None:
    same(through(dataset), dataset)


@given(st.lists(st.text(alphabet=st.characters(), max_size=6), min_size=1, max_size=6))
def test_any_text_comes_back(words: list[str]) -> None:
    values = np.array(words, dtype="U")  # numpy's text drops NULs at the end, before the store sees it
    found = through(xr.Dataset({"word": ("i", values)}))
    assert found["word"].values.tolist() == values.tolist()


def test_coordinates_that_were_not_given_do_not_come_back() -> None:
    found = through(xr.Dataset({"a": (("x", "y"), np.zeros((2, 3)))}))
    assert list(found.coords) == []


def test_a_half_float_is_widened() -> None:
    found = through(xr.Dataset({"a": ("x", np.array([1.5, np.nan], dtype="f2"))}))
    assert found["a"].dtype == np.float32
    assert found["a"].values.tolist()[0] == 1.5


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (xr.Dataset({"t": ("x", np.array(["2026-01-01"], dtype="M8[s]"))}), "datetime64"),
        (xr.Dataset({"o": ("x", np.array([{1: 2}], dtype=object))}), "holds dict"),
        (xr.Dataset({"b": ("x", np.array([b"bytes"]))}), "numbers, truth values or text"),
        (xr.Dataset({"a b": ("x", [1])}), "a name is a letter"),
        (xr.Dataset({"a": ("x/y", [1])}), "a name is a letter"),
        (xr.Dataset({"\x1b[31m": ("x", [1])}), "a name is a letter"),
        (xr.Dataset({"e\u0301": ("x", [1])}), "a name is a letter"),
        (xr.Dataset({"x": (("x", "y"), [[1]])}), "name of a dimension"),
        (xr.Dataset({"t": ("x", ["\0a"]), "t_bytes": ("x", [1])}), "would be called"),
        (xr.Dataset({"a": ("x", [1], {"bad": object()})}), "cannot be stored as an attribute"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_words_and_leaves_nothing(
    store: Store, dataset: xr.Dataset, words: str
) -> None:
    with pytest.raises(StoreError, match=words) as caught:
        store.commit("probe.x", "k", dataset, META)
    assert isinstance(caught.value, ValueError)  # the step is at fault, not the store
    assert not store.has("probe.x", "k")
    assert list((store.path / "tmp").iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\0b", "é", "\x1b[31m", "x" * 300, ".hidden"])
def test_names_that_are_no_names_are_refused(store: Store, name: str) -> None:
    for call in (
        lambda: store.commit(name, "k", small(0), META),
        lambda: store.commit("probe.x", name, small(0), META),
        lambda: store.has(name, "k"),
        lambda: store.manifest(name, {"plan": "p", "steps": []}),
        lambda: store.manifest("r", {"plan": "p", "steps": [{**step("v", "l", "k"), "label": name}]}),
    ):
        with pytest.raises(StoreError, match="letters, digits"):
            call()


def test_large_arrays_are_read_when_used_and_travel_to_other_processes(store: Store) -> None:
    values = np.random.default_rng(0).normal(size=(40, 10_000))
    store.commit("probe.x", "k", xr.Dataset({"a": (("x", "y"), values), "z": ("x", values[:, 0] + 1j)}), META)
    found = store.read("probe.x", "k")
    assert not isinstance(found["a"].variable._data, np.ndarray)
    assert np.array_equal(found["a"][3:9:2, ::-1].values, values[3:9:2, ::-1])
    assert np.array_equal(found["a"][[5, 1], [7, 7, 2]].values, values[[5, 1]][:, [7, 7, 2]])
    assert np.array_equal(found["a"].isel(x=-1, y=5).values, values[-1, 5])
    again = pickle.loads(pickle.dumps(found))
    assert np.array_equal(again["a"].values, values)


def test_the_first_result_of_a_key_stands(store: Store) -> None:
    assert store.commit("probe.x", "k", small(1), META)
    assert not store.commit("probe.x", "k", small(2), META)
    xr.testing.assert_identical(store.read("probe.x", "k").load(), small(1))


def test_equal_content_has_equal_digests_whatever_the_file(store: Store) -> None:
    from gausslens.store.read_parts import read_facts

    store.commit("probe.x", "a", small(1), META)
    store.commit("probe.x", "b", small(1), {**META, "created": "2027-01-01T00:00:00+00:00", "object_id": "1"})
    store.commit("probe.x", "c", small(2), META)
    facts = [read_facts(store.path, store.path / "parts/probe.x" / f"{k}.h5", f"/probe.x/{k}") for k in "abc"]
    assert facts[0]["content"] == facts[1]["content"] != facts[2]["content"]
    assert facts[0]["provenance"] == META["provenance"]


def test_a_missing_part_is_told(store: Store) -> None:
    with pytest.raises(StoreError, match="is missing"):
        store.read("probe.x", key("none"))


def test_opening_what_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    with pytest.raises(GausslensError, match="no store here") as caught:
        gausslens.open(tmp_path / "full")
    assert caught.value.code == 2
    with pytest.raises(GausslensError, match="does not exist"):
        gausslens.open(tmp_path / "nowhere")
    with pytest.raises(GausslensError, match="not a store and not empty"):
        Store(tmp_path / "full").create()
    assert [p.name for p in (tmp_path / "full").iterdir()] == ["letter.txt"]
