"""Pieces of steps in files: they come back to the bit, or are not used."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from gausslens.measuring.pieces import NotPlain, OfLayer, dataset_of, plain_dataset, read_layer, write_layer
from gausslens.store.disk import Writer


class TestPieces:
    def test_a_dataset_comes_back_as_it_was(self, tmp_path):
        turned = np.arange(6.0).reshape(2, 3).T
        found = xr.Dataset(
            {
                "a": (("x", "y"), turned, {"units": "1", "n": 3, "yes": True}),
                "t": ("x", np.array(["", "ü", "b"], object)),
            },
            coords={"y": ["p", "q"], "z": 2.5},
            attrs={"model": "m"},
        ).assign_coords(x=[3, 1, 2])
        found["after"] = ((), np.float32(np.nan))
        writer = Writer(tmp_path)
        write_layer(writer, "key", 4, OfLayer(found, spent=0.25))
        back = read_layer(tmp_path, "key", 4)
        assert back is not None
        assert back.found is not None
        assert back.spent == 0.25
        xr.testing.assert_identical(back.found, found)
        assert list(back.found.variables) == list(found.variables)
        assert back.found["a"].values.strides == turned.strides
        assert back.found["t"].dtype == object
        assert type(back.found["a"].attrs["yes"]) is bool
        back.found["a"].values[0, 0] = 7  # its own, to be written to
        assert read_layer(tmp_path, "key", 3) is None
        assert read_layer(tmp_path, "other", 4) is None

    def test_one_of_another_layer_damaged_or_of_other_versions_is_not_used(self, tmp_path, monkeypatch):
        writer = Writer(tmp_path)
        write_layer(writer, "key", 1, OfLayer(xr.Dataset({"a": ("x", np.arange(3))})))
        path = tmp_path / "progress/key.layer-1"
        whole = path.read_bytes()
        (tmp_path / "progress/key.layer-2").write_bytes(whole)
        assert read_layer(tmp_path, "key", 2) is None
        for place in range(0, len(whole), 7):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            assert read_layer(tmp_path, "key", 1) is None
        path.write_bytes(whole)
        assert read_layer(tmp_path, "key", 1) is not None
        monkeypatch.setattr("gausslens.measuring.pieces.distributions", lambda: {"torch": "another"})
        assert read_layer(tmp_path, "key", 1) is None

    @pytest.mark.parametrize(
        "found",
        [
            {"a": 1},
            xr.Dataset({"a": ("x", np.array([1, "b"], object))}),
            xr.Dataset({"a": ("x", np.arange(2), {"of": np.float32(1)})}),
            xr.Dataset(attrs={"of": (1, 2)}),
            xr.Dataset({"a": ("x", np.arange(2))}, coords={"x": np.array(["2001", "2002"], "datetime64[ns]")}),
            xr.Dataset({1: ("x", np.arange(2))}),
        ],
    )
    def test_what_would_not_come_back_is_refused(self, found):
        with pytest.raises(NotPlain):
            plain_dataset(found, [])

    @given(st.lists(st.sampled_from("abcdef"), unique=True), st.integers(0, 3))
    def test_variables_keep_their_order(self, names, size):
        found = xr.Dataset()
        for name in names:
            values = (name if name < "c" else "x", np.arange(float(size)))
            found = found.assign_coords({name: values}) if name in "be" else found.assign({name: values})
        arrays: list[np.ndarray] = []
        back = dataset_of(plain_dataset(found, arrays), arrays)
        assert list(back.variables) == list(found.variables)
        xr.testing.assert_identical(back, found)
