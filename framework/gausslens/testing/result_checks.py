"""Checks of results: what every dataset owes its readers, and that the store gives back what it was given."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..plugins.outputs import FILE, outputs_in, outputs_of

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis
    from ..contract.model import ModelInfo


def check_result(dataset: xr.Dataset) -> xr.Dataset:
    """Check what every result owes: named variables of plain types, each with ``long_name`` and ``units``.

    A dimensionless quantity has units "1". Layers, heads and key/value heads have coordinates, unless all are in view.
    """
    assert isinstance(dataset, xr.Dataset), f"a result is an xarray.Dataset, not a {type(dataset).__name__}"
    assert dataset.data_vars, "the result holds no variable"
    for name, variable in dataset.data_vars.items():
        assert variable.dtype.kind in "biufcUSTO", f"{name}: {variable.dtype} cannot be stored"
        if variable.dtype.kind == "O":
            assert all(isinstance(v, str) for v in variable.values.flat), f"{name}: objects cannot be stored, only text"
        lacking = [key for key in ("long_name", "units") if not isinstance(variable.attrs.get(key), str)]
        assert not lacking, f"{name}: give it the attribute {' and '.join(lacking)} (units '1' where it has none)"
        unnamed = [dim for dim in variable.dims if str(dim).startswith("dim_")]
        assert not unnamed, f"{name}: its dimension {unnamed[0]} has no name"
    return dataset


def check_outputs(analysis: Analysis, dataset: xr.Dataset) -> xr.Dataset:
    """Check what every result owes (``check_result``), and that it is what the plugin's ``outputs.json`` lists.

    Each variable is listed of the analysis, with these dimensions and this unit. Of a plugin without such a list
    nothing more is checked. The other checks call it where parameters are the default and the model is the tiny one.
    """
    check_result(dataset)
    listed = outputs_of(analysis)
    if listed is None:
        return dataset
    known = {each.name: each for each in listed}
    again = f"'gausslens schema {analysis.name} --outputs STORE' makes {FILE} again"
    for output in outputs_in([(analysis.name, dataset)])[analysis.name]:
        assert output.name in known, f"{analysis.name} gives {output.name}, which {FILE} does not list; {again}"
        one = known[output.name]
        assert output.dims[0] in one.dims, f"{output.name} is {output.shape}, and listed as {one.shape}; {again}"
        assert output.units == one.units, f"{output.name} is in {output.units}, and listed in {one.units}; {again}"
    return dataset


def check_same(found: xr.Dataset, wanted: xr.Dataset, what: str, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Check that two results are equal: bit by bit, or to a tolerance; NaN equals NaN. ``what`` says what it means."""
    try:
        if rtol or atol:
            xr.testing.assert_allclose(found, wanted, rtol=rtol, atol=atol)
        else:
            xr.testing.assert_equal(found, wanted)
    except AssertionError as error:
        raise AssertionError(f"{what}\n{error}") from None


def check_round_trip(dataset: xr.Dataset, directory: Path | None = None) -> xr.Dataset:
    """Check that a part of the store gives a dataset back: values, types, dimensions, coordinates and attributes."""
    from ..store import Store

    with tempfile.TemporaryDirectory(dir=directory) as place:
        store = Store(Path(place) / "store")
        store.create()
        meta = {"plugin": "testing", "plugin_version": "0", "version": 1, "object_id": "0" * 32, "provenance": {}}
        assert store.commit("testing.round-trip", "0" * 64, dataset, meta)
        back = store.read("testing.round-trip", "0" * 64).load()
        back.close()
    check_same(back.drop_vars(set(back.coords) - set(dataset.coords)), dataset, "the store gave back other values")
    for name, variable in dataset.variables.items():
        held = back[name]
        assert held.dims == variable.dims, f"{name}: dimensions {variable.dims} came back as {held.dims}"
        if variable.dtype.kind in "biufc":
            assert held.dtype == variable.dtype, f"{name}: {variable.dtype} came back as {held.dtype}"
        for key, value in variable.attrs.items():
            assert key in held.attrs, f"{name}: its attribute {key} was lost"
            assert np.array_equal(held.attrs[key], value), f"{name}: {key} {value!r} came back as {held.attrs[key]!r}"
    return back


def check_in_view(narrow: xr.Dataset, few: ModelInfo, whole: xr.Dataset) -> None:
    """Check that a result with few layers and heads in view names those and no others, where the whole one has any."""
    for dim, known in (("layer", few.layers), ("head", few.heads), ("kv_head", few.kv_heads)):
        if dim in whole.dims:
            seen = narrow[dim].values.tolist() if dim in narrow.dims else []
            assert seen == list(known), f"with only {dim} {list(known)} in view it gives {dim} {seen}"
