"""Read a result with one reader and compare every array: readers.py READER FILE GROUP. Exit code 0 if all is right."""

import sys

import numpy as np
from store.stored import NUMBERS, every_type

READER, FILE, GROUP = sys.argv[1:]


def expected() -> dict[str, np.ndarray]:
    """What lies in the file, by name, as a reader that knows nothing of us sees it."""
    dataset = every_type()
    found = {
        name: dataset[name].values for name in (*NUMBERS, "special", "single", "value", "offset", "one", "nothing")
    }
    found |= {name: dataset[name].values for name in ("text", "word", "token", "x", "y", "at", "sixth")}
    found |= {"flag": dataset["flag"].values.astype("i1"), "truth": np.int8(1)}
    found["eigenvalue"] = np.stack([dataset["eigenvalue"].values.real, dataset["eigenvalue"].values.imag], -1)
    found["strange"] = np.array(["a\u2400b", "x?y"])
    exact = [text.encode("utf-8", "surrogatepass") for text in ("a\0b", "x\ud800y")]
    found["strange_bytes"] = np.frombuffer(b"".join(exact), "u1")
    found["strange_offsets"] = np.array([0, 3, 8])
    return found


DIMS = {"eigenvalue": ("x", "y", "real_imag"), "text": ("x", "y"), "flag": ("x",), "sixth": tuple("abcdef"), "one": ()}


def by_h5py() -> tuple[dict, dict, dict]:
    import h5py

    with h5py.File(FILE, "r") as file:
        group = file[GROUP]
        text = h5py.string_dtype()
        values = {n: d.asstr()[()] if d.dtype == text else d[()] for n, d in group.items()}
        dims = {n: tuple(s[0].name.rsplit("/", 1)[1] for s in group[n].dims) for n in DIMS}
        return values, dims, dict(group["special"].attrs)


def by_netcdf4() -> tuple[dict, dict, dict]:
    import netCDF4

    with netCDF4.Dataset(FILE) as file:
        file.set_auto_mask(False)
        group = file[GROUP]
        values = {n: v[...] for n, v in group.variables.items()}
        return values, {n: group.variables[n].dimensions for n in DIMS}, group["special"].__dict__


def by_xarray() -> tuple[dict, dict, dict]:
    import xarray as xr

    with xr.open_dataset(FILE, group=GROUP, engine=READER.removeprefix("xarray-")) as dataset:
        assert "token" in dataset["special"].coords
        assert dataset["flag"].dtype == bool
        values = {n: v.values for n, v in dataset.variables.items()}
        values |= {n: values[n].astype("i1") for n in ("flag", "truth")}
        return values, {n: dataset[n].dims for n in DIMS}, dataset["special"].attrs


def main() -> None:
    values, dims, attrs = {"h5py": by_h5py, "netCDF4": by_netcdf4}.get(READER, by_xarray)()
    for name, wanted in expected().items():
        found = np.asarray(values[name])
        if wanted.dtype.kind == "U":
            assert found.tolist() == wanted.tolist(), (name, found)
        else:
            assert found.dtype == wanted.dtype, (name, found.dtype)
            assert found.tobytes() == wanted.tobytes(), (name, found)
        assert found.shape == wanted.shape, (name, found.shape)
    assert dims == DIMS, dims
    assert (attrs["units"], attrs["long_name"]) == ("nat", "NaN and ∞"), attrs


main()
