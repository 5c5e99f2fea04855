"""Ragged arrays in a store: whoever reads sees one array filled up, and no more of it is read than is asked for."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from store.stored import META, key

from gausslens import ragged_variables
from gausslens.command.stored import show
from gausslens.contract.errors import StoreError
from gausslens.maths.ragged import Ragged
from gausslens.store import Store
from gausslens.store.read_parts import Filled

LENGTHS = [2, 3, 0, 1, 9]


def maps(lengths: list[int], dtype: str = "float32") -> tuple[xr.Dataset, np.ndarray]:
    """A result with maps [layer, prompt, head, query, key] laid flat, and the same filled up by hand."""
    layout = Ragged.of(("layer", "prompt", "head", "query", "key"), ("query", "key"), lengths, {"layer": 2, "head": 3})
    rng = np.random.default_rng(0)
    flat, whole = np.empty(layout.flat_shape, dtype), np.full(layout.shape, np.nan, dtype)
    for number, n in enumerate(lengths):
        for layer in range(2):
            block = rng.normal(size=(3, n, n)).astype(dtype)
            flat[layer, layout.cells(number)] = layout.flat(block)
            whole[layer, number, :, :n, :n] = block
    text = Ragged.of(("prompt", "query"), ("query",), lengths, {})
    words = np.array([f"w{i}" for i in range(sum(lengths))], dtype=object)
    numbers = ragged_variables("id", text, np.arange(sum(lengths)), "number", fill=-1)
    coords: dict[str, Any] = {"prompt": [f"p{i}" for i in range(len(lengths))], "head": [4, 5, 6]}
    coords |= ragged_variables("query_text", text, words, "text")
    return xr.Dataset(ragged_variables("map", layout, flat, "a map") | numbers, coords=coords), whole


def test_a_ragged_array_reads_as_one_whole(store: Store) -> None:
    dataset, whole = maps(LENGTHS)
    store.commit("probe.score", key("x"), dataset, META)
    found = store.read("probe.score", key("x"))
    assert set(found.variables) == {"map", "id", "query_text", "prompt", "head"}
    assert found["map"].dims == ("layer", "prompt", "head", "query", "key")
    np.testing.assert_array_equal(found["map"].values, whole)
    assert found["map"].attrs == {"long_name": "a map", "units": "1"}
    assert found["id"].values.tolist()[1] == [2, 3, 4, -1, -1, -1, -1, -1, -1]
    assert found["query_text"].values[0].tolist() == ["w0", "w1", *[""] * 7]
    chosen = found["map"].sel(prompt=["p4", "p0"], head=5).isel(layer=1, query=[0, 8], key=slice(1, None, 3))
    np.testing.assert_array_equal(chosen.values, whole[1][[4, 0]][:, 1][:, [0, 8]][:, :, 1::3])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.data())
def test_any_choice_of_it_is_that_of_the_whole(data: st.DataObject) -> None:
    dataset, whole = maps(LENGTHS)
    layout = Ragged.of(("layer", "prompt", "head", "query", "key"), ("query", "key"), LENGTHS, {"layer": 2, "head": 3})
    array = Filled(layout, dataset["map"].variable, np.nan)
    lazy = xr.Variable(layout.dims, xr.core.indexing.LazilyIndexedArray(array))
    picked = {}
    for dim, size in zip(layout.dims, layout.shape, strict=True):
        one = st.integers(-size, size - 1)
        # xarray itself fails on empty slices that run backwards.
        slices = st.slices(size).filter(lambda s, size=size: len(range(*s.indices(size))) > 0)
        picked[dim] = data.draw(st.one_of(one, st.lists(one, max_size=3), slices))
    expected = xr.Variable(layout.dims, whole).isel(picked)
    found = lazy.isel(picked)
    assert found.dims == expected.dims
    np.testing.assert_array_equal(found.values, expected.values)


def test_no_more_is_read_than_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset, _ = maps(LENGTHS)
    read = []
    layout = Ragged.of(("layer", "prompt", "head", "query", "key"), ("query", "key"), LENGTHS, {"layer": 2, "head": 3})
    monkeypatch.setattr(Ragged, "cells", lambda self, number: read.append(number) or slice(0, LENGTHS[number] ** 2))
    array = Filled(layout, dataset["map"].variable, np.nan)
    xr.Variable(layout.dims, xr.core.indexing.LazilyIndexedArray(array)).isel(prompt=3).values  # noqa: B018
    assert read == [3]


@pytest.mark.parametrize("lead", [[0], [0, 1]])
def test_the_range_of_an_array_is_found_without_having_all_of_it_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, lead: list[int]
) -> None:
    """One layer of ten thousand prompts of which one is long has more cells, filled up, than any memory."""
    dataset, whole = maps(LENGTHS)
    store.commit("probe.score", key("x"), dataset, META)
    array = store.read("probe.score", key("x"))["map"].isel(layer=lead)
    most, read = 100, []
    monkeypatch.setattr(show, "BLOCK_CELLS", most)
    plain = Filled._read
    monkeypatch.setattr(Filled, "_read", lambda self, key: read.append(plain(self, key)) or read[-1])
    told = show._range(array)
    values = whole[lead]
    finite = values[np.isfinite(values)]
    numbers = [float(word.strip(",")) for word in told.split() if word.strip(",").lstrip("-")[0].isdigit()]
    np.testing.assert_allclose(numbers[:3], [finite.min(), finite.max(), finite.mean()], atol=2e-3)
    assert numbers[3] == values.size - finite.size
    assert sum(each.size for each in read) == values.size
    assert max(each.size for each in read) <= most


@pytest.mark.parametrize(
    "spoil",
    [
        lambda d: d["map_extent"].values.__setitem__((0, 0), 5),
        lambda d: d["map_extent"].values.__setitem__((0, 0), -2),
        lambda d: d["map"].attrs.update(ragged=json.dumps({"dims": ["a"], "unequal": ["a"], "over": "b"})),
        lambda d: d["map"].attrs.update(ragged=json.dumps({"dims": ["layer"]})),
        lambda d: d["map"].attrs.update(ragged="{"),
    ],
)
def test_extents_that_do_not_fit_are_refused(store: Store, spoil: Any) -> None:
    dataset, _ = maps(LENGTHS)
    spoil(dataset)
    store.commit("probe.score", key("x"), dataset, META)
    with pytest.raises(StoreError, match="map"):
        store.read("probe.score", key("x"))
