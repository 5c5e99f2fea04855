"""Arrays in .npy, .npz, .safetensors and HDF5 files, by name: looked at where they lie, a slice at a time."""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from gausslens import InputError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MAPS = ("pattern", "attention", "attn")
FORMATS = (".npy", ".npz", ".safetensors", ".h5", ".hdf5")
PICKLES = (".pkl", ".pickle")
TORCH_PICKLES = (".pt", ".pth", ".bin")
# No file holds more numbers for each of its bytes: deflate, of zeros alone, makes one byte of a thousand.
_MOST = 10_000
_SHOWN = 8
# Files by which a directory is known as a checkpoint: it is left to those who open these.
_OF_MODELS = ("config.json", "adapter_config.json")


@dataclass(frozen=True)
class Stored:
    """One array of a file: its shape, what it is kept as, and ``take``, which reads a part of it."""

    shape: tuple[int, ...]
    dtype: str
    take: Callable[[tuple[slice, ...]], NDArray[Any]]

    @property
    def whole(self) -> NDArray[Any]:
        """All of it."""
        return self.take(tuple(slice(None) for _ in self.shape))


def claims(path: str) -> bool:
    """A file of maps, or a directory of such files which is no checkpoint: by endings, and names of arrays."""
    place = Path(path)
    if place.is_dir():
        if any((place / name).exists() for name in _OF_MODELS):
            return False
        files = files_of(place)
        return bool(files) and _holds_maps(files[0])
    return _suffix(place) in PICKLES or (_suffix(place) in FORMATS and place.is_file() and _holds_maps(place))


def files_of(place: Path) -> list[Path]:
    """The files of a directory in natural order (2 before 10), pickles among them; or the file itself."""
    if not place.is_dir():
        return [place]
    known = (*FORMATS, *PICKLES, *TORCH_PICKLES)
    # A link that leads nowhere is told when it is read: without it prompts would be missing.
    return sorted((p for p in place.iterdir() if not p.is_dir() and _suffix(p) in known), key=_natural)


def _suffix(path: Path) -> str:
    return path.suffix.lower()


def _natural(path: Path) -> list[tuple[int, str]]:
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _holds_maps(path: Path) -> bool:
    try:
        names = {name.rsplit("/", 1)[-1] for name in read(path)}
    except InputError:
        return True  # which is told when it is opened
    return len(names) == 1 or bool(names & set(MAPS))


def arrays_of(path: Path) -> Iterator[tuple[Path, Mapping[str, Stored]]]:
    """The files of a path with their arrays; .npy files that are called as arrays are, are those of one."""
    files = files_of(path)
    if not files:
        raise InputError(f"{path}: holds no .npy, .npz, .safetensors, .h5 or .hdf5 file")
    named = {file.stem: file for file in files if _suffix(file) == ".npy"}
    if len(files) > 1 and len(named) == len(files) and set(MAPS) & set(named):
        yield path, {name: read(file)[name] for name, file in named.items()}
        return
    for file in files:
        yield file, read(file)


def of_one_group(path: Path, arrays: Mapping[str, Stored], wanted: str | None) -> dict[str, Stored]:
    """The arrays by the last part of their names: of the group that ``wanted`` names (run/pattern), else of all."""
    if wanted is not None and "/" in wanted:
        if wanted not in arrays:
            raise InputError(f"{path}: holds no array {wanted!r}{did_you_mean(wanted, arrays)}")
        group = wanted.rpartition("/")[0]
        return {n.rpartition("/")[2]: stored for n, stored in arrays.items() if n.rpartition("/")[0] == group}
    named: dict[str, list[str]] = {}
    for name in arrays:
        named.setdefault(name.rpartition("/")[2], []).append(name)
    several = next((names for names in named.values() if len(names) > 1), None)
    if several is not None:
        shown = ", ".join(several[:_SHOWN]) + (" ..." if len(several) > _SHOWN else "")
        raise InputError(
            f"{path}: holds {shown}: the maps of a file are one array, with axes for prompts, layers and heads: stack "
            f"them, or name the one that is meant, as `array: {several[0]}`, which is read with what stands beside it"
        )
    return {leaf: arrays[names[0]] for leaf, names in named.items()}


@cache
def _reader(suffix: str) -> Callable[[Path], dict[str, Stored]]:
    readers = {".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".h5": _hdf5, ".hdf5": _hdf5}
    return readers[suffix]


def read(path: Path) -> Mapping[str, Stored]:
    """The arrays of a file by name; that of a .npy file has its name. InputError where it cannot be read."""
    suffix = _suffix(path)
    if suffix in (*PICKLES, *TORCH_PICKLES):
        raise InputError(_refused(path))
    if suffix not in FORMATS:
        raise InputError(f"{path}: matrices are read from {', '.join(FORMATS)} files, or a directory of them")
    try:
        found = _reader(suffix)(path)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path}: cannot be read as {suffix}: {type(error).__name__}: {error}") from error
    if not found:
        raise InputError(f"{path}: holds no array")
    for name, stored in found.items():
        if math.prod(stored.shape) > _MOST * path.stat().st_size:
            raise InputError(_too_large(path, name, stored.shape))
    return found


def _too_large(path: Path, name: str, shape: tuple[int, ...]) -> str:
    """The refusal of an array whose header says more than can be there, before anything is made of its shape."""
    held = f"more than its {path.stat().st_size:,} bytes can hold: is it cut short, or was nothing written?"
    return f"{path}: {name} is said to have shape {shape}, which is {math.prod(shape):.3g} numbers, {held}"


def _refused(path: Path, arrays: bool = False) -> str:
    """Why a pickle, or ``arrays`` of Python objects, is not opened, and the two lines that turn it into an .npz."""
    name, made = path.name, path.with_suffix(".npz").name
    stacked = "numpy.stack([numpy.asarray(m, dtype='float32') for m in maps])"
    last = f"numpy.savez({made!r}, pattern={stacked})"
    if arrays and _suffix(path) == ".npz":
        made = f"{path.stem}-plain.npz"
        last = f"numpy.savez({made!r}, **{{n: {stacked.replace('in maps', 'in maps[n]')} for n in maps}})"
    if arrays:
        first = f"import numpy; maps = numpy.load({name!r}, allow_pickle=True)"
    elif _suffix(path) in TORCH_PICKLES:
        first = f"import numpy, torch; maps = torch.load({name!r}, weights_only=True)"
    else:
        first = f"import numpy, pathlib, pickle; maps = pickle.loads(pathlib.Path({name!r}).read_bytes())"
    what = "holds Python objects, which are a pickle" if arrays else "is a pickle"
    return (
        f"{path}: {what}; opening one runs any code that is in it, so it is not opened. If you trust it, two lines "
        f"turn it into {made} (maps of unequal size: one file of each, in a directory):\n  {first}\n  {last}"
    )


def _npy(path: Path) -> dict[str, Stored]:
    with path.open("rb") as file:
        return {path.stem: _mapped(path, file, 0)}


def _npz(path: Path) -> dict[str, Stored]:
    found = {}
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for entry in archive.infolist():
            if not entry.filename.endswith(".npy"):
                continue
            name = entry.filename.removesuffix(".npy")
            if entry.compress_type == zipfile.ZIP_STORED:
                file.seek(entry.header_offset)
                header = file.read(30)
                # Behind the header of an entry stand its name and what else is told of it.
                start = entry.header_offset + 30 + sum(int.from_bytes(header[i : i + 2], "little") for i in (26, 28))
                found[name] = _mapped(path, file, start)
            else:
                found[name] = _compressed(path, archive, entry)
    return found


def _header(path: Path, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    import numpy as np

    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise InputError(f"{path}: holds an array of named fields; maps are plain numbers")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise InputError(_refused(path, arrays=True))
    return shape, fortran, dtype


def _mapped(path: Path, file: IO[bytes], start: int) -> Stored:
    """An array that lies in a file as it is: mapped into memory, read where it is looked at."""
    import numpy as np

    file.seek(start)
    shape, fortran, dtype = _header(path, file)
    if 0 in shape:
        return _of_array(np.zeros(shape, dtype))
    offset = file.tell()
    if math.prod(shape) * dtype.itemsize > path.stat().st_size - offset:
        raise InputError(_too_large(path, "an array", shape))
    return _of_array(np.memmap(path, dtype, "r", offset, shape, "F" if fortran else "C"))


def _compressed(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> Stored:
    """An array of a compressed file, which is read whole when it is first looked at."""
    import numpy as np

    with archive.open(entry) as stream:
        shape, _, dtype = _header(path, stream)
    if math.prod(shape) * dtype.itemsize > entry.file_size:
        raise InputError(_too_large(path, entry.filename, shape))

    @cache
    def whole() -> NDArray[Any]:
        with zipfile.ZipFile(path) as again, again.open(entry) as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))

    return Stored(shape, str(dtype), lambda index: whole()[index])


def _of_array(array: NDArray[Any]) -> Stored:
    import numpy as np

    return Stored(array.shape, str(array.dtype), lambda index: np.asarray(array[index]))


def _safetensors(path: Path) -> dict[str, Stored]:
    import numpy as np
    from safetensors import safe_open

    names = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool"}
    file: Any = safe_open(path, framework="pt")

    def stored(name: str) -> Stored:
        part = file.get_slice(name)
        kept = part.get_dtype()

        def take(index: tuple[slice, ...]) -> NDArray[Any]:
            # numpy has no bfloat16; float32 holds every one.
            tensor = part[index] if index else file.get_tensor(name)
            return np.asarray((tensor.float() if kept == "BF16" else tensor).numpy())

        return Stored(tuple(part.get_shape()), names.get(kept, kept.lower()), take)

    return {name: stored(name) for name in file.keys()}  # noqa: SIM118  it is no dict


def _hdf5(path: Path) -> dict[str, Stored]:
    import h5py
    import numpy as np

    file = h5py.File(path, "r")
    found: dict[str, Stored] = {}

    def visit(name: str, item: Any) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            kind = "external storage" if item.external else "a virtual dataset"
            raise InputError(f"{path}: {name} is {kind}, whose numbers are in other files: write them into this one")
        text = h5py.check_string_dtype(item.dtype) is not None
        if item.dtype.hasobject and not text:
            raise InputError(f"{path}: {name} holds rows of unequal length; maps are plain numbers, padded")
        held = item.asstr() if text else item
        found[name] = Stored(
            tuple(item.shape), "str" if text else str(item.dtype), lambda index: np.asarray(held[index])
        )

    outside = file.visititems_links(lambda name, link: (name, link) if isinstance(link, h5py.ExternalLink) else None)
    if outside is not None:
        name, link = outside
        raise InputError(f"{path}: {name} is a link into {link.filename}: write its numbers into this file")
    file.visititems(visit)
    return found
