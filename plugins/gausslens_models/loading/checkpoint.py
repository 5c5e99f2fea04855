"""The tensors of a checkpoint on disk, one at a time: safetensors or .bin, in one file or in shards."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import ModelError

if TYPE_CHECKING:
    import torch

# What transformers looks for, in its order: a single file goes before an index of shards beside it.
KNOWN = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
INDEX = ".index.json"
# A file of another variant (model.fp16.safetensors), whole or the index of its shards.
VARIANT = re.compile(r"model\.((?!.*-of-\d+\.)[\w-]+)\.safetensors|model\.safetensors\.index\.([\w-]+)\.json")
# Names of tensors as Mistral and Meta publish them, and as transformers has them.
CONSOLIDATED = re.compile(r"(model\.)?layers\.\d+\.(attention\.w[qkvo]|feed_forward\.w\d)\.weight")
# What a file of git-lfs begins with, where the file itself was not fetched.
POINTER = b"version https://git-lfs"
# Types as safetensors calls them, and as torch does, whose numbers are weights. Integers and truth values are none.
WEIGHTS = ("F64", "F32", "F16", "BF16", "F8_", "float", "bfloat")
# Numbers of a tensor that are compared with what was loaded; multiples of the golden ratio spread over all places.
SAMPLE, GOLDEN = 1024, 0.6180339887498949
# Bytes of consecutive rows that are read together.
READ_AT_ONCE = 2**22
# Types of safetensors of which rows can be read, as torch calls them.
ROWS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor on disk: its file, shape and type as that says, and its name there where it is read by another."""

    file: Path
    shape: tuple[int, ...]
    dtype: str
    name: str = ""


class Checkpoint:
    """A directory of weights. Headers are read at once, tensors when asked for; no file stays open.

    ``named`` is the file that the config names (``transformers_weights``), which then is the one that counts; else it
    is the first that there is of ``known``. Where that is none, the one ``variant`` that is there is taken.
    """

    def __init__(self, directory: Path, named: str | None = None, known: Sequence[str] = KNOWN) -> None:
        self.directory = directory
        self.files, self.index = weight_files(directory, named, known)
        self.variant: str | None = None
        if not self.files and known is KNOWN:
            self.files, self.index, self.variant = variant_files(directory)
        self.tensors: dict[str, StoredTensor] = {}
        self.reads: Counter[str] = Counter()  # how often each tensor was read, of rows alone their share of it
        for file in self.files:
            for name, stored in _headers(file):
                if name in self.tensors:
                    raise ModelError(f"{directory}: {name} is in {self.tensors[name].file.name} and in {file.name}")
                self.tensors[name] = stored
        self._refuse_lost()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor."""
        return {name: stored.shape for name, stored in self.tensors.items()}

    def only(self, names: Mapping[str, str]) -> Checkpoint:
        """The same files with some of their tensors alone, by other names: {name: name in the files}."""
        found = copy.copy(self)
        found.tensors = {name: replace(self.tensors[theirs], name=theirs) for name, theirs in names.items()}
        return found

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Its file is opened for this and closed: an open one keeps what was read in memory."""
        stored = self.tensors[name]
        self.reads[name] += 1
        name = stored.name or name
        if stored.file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(stored.file, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        else:
            tensor = _unpickled(stored.file)[name].clone()
        return tensor

    def has_rows(self, name: str) -> bool:
        """Whether rows of a tensor can be read without the rest of it."""
        stored = self.tensors[name]
        return stored.file.suffix == ".safetensors" and stored.dtype in ROWS and len(stored.shape) > 0

    def rows(self, name: str, wanted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Some rows of a tensor, in a type: they alone are in memory. ``wanted`` are their numbers, in order.

        The file is not mapped: whatever lies beside a row would count as the process' own.
        """
        import torch

        stored = self.tensors[name]
        self.reads[name] += Fraction(len(wanted), stored.shape[0])  # type: ignore[assignment]
        kept: torch.dtype = getattr(torch, ROWS[stored.dtype])
        begin = _place(stored.file, stored.name or name)
        found = torch.empty((len(wanted), *stored.shape[1:]), dtype=dtype)
        size = kept.itemsize * math.prod(stored.shape[1:])
        with stored.file.open("rb") as file:
            for place, first, count in _runs(wanted.tolist(), max(1, READ_AT_ONCE // max(size, 1))):
                some = found[place : place + count]
                own = some if kept == dtype else torch.empty(some.shape, dtype=kept)
                memory: Any = own.view(-1).view(torch.uint8).numpy()
                file.seek(begin + first * size)
                if file.readinto(memoryview(memory)) != own.numel() * own.element_size():
                    raise ModelError(f"{stored.file}: cut short within {name}")
                if own is not some:
                    some.copy_(own)
        return found

    def samples(self, names: Collection[str]) -> Iterator[tuple[str, int, torch.Tensor]]:
        """(name, first row, some rows) of tensors, from another place in each; each file is opened once."""
        for file in self.files:
            with _opened(file) as rows_of:
                for place, name in enumerate(sorted(n for n in names if self.tensors[n].file == file)):
                    shape = self.tensors[name].shape
                    numbers: int = math.prod(list(shape))
                    if shape and numbers:
                        count = max(1, SAMPLE * shape[0] // numbers)
                        start = int(max(0, shape[0] - count) * (place * GOLDEN % 1))
                        yield name, start, rows_of(self.tensors[name].name or name, start, start + count)

    def refuse_integers(self, names: Iterable[str]) -> None:
        """Tensors that are read as weights must be kept as such: int16 bytes under a weight's name are no weight."""
        wrong = [n for n in names if n in self.tensors and not self.tensors[n].dtype.startswith(WEIGHTS)]
        if wrong:
            told = ", ".join(f"{n} ({self.tensors[n].dtype})" for n in wrong[:8])
            raise ModelError(f"{self.directory}: weights that are stored as integers are not weights: {told}")

    def _refuse_lost(self) -> None:
        """An index names tensors: each must be where it says."""
        if self.index is None:
            return
        for name, shard in _weight_map(self.index).items():
            found = self.tensors.get(name)
            if found is None or found.file.name != shard:
                raise ModelError(
                    f"{self.directory}: incomplete checkpoint: {self.index.name} says {name} is in {shard}"
                )


def weight_files(
    directory: Path, named: str | None = None, known: Sequence[str] = KNOWN
) -> tuple[tuple[Path, ...], Path | None]:
    """The files that hold the weights, as transformers chooses them, and their index; none where there are none.

    The file that the config names goes first, then a single file before an index, safetensors before .bin.
    """
    if named is not None:
        chosen = directory / named
        if Path(named).name != named or not named.endswith((".safetensors", f".safetensors{INDEX}")):
            raise ModelError(f"{directory}: transformers_weights: {named!r} is no safetensors file of that directory")
        if not chosen.is_file():
            raise ModelError(f"{directory}: its config names {named} (transformers_weights), which is not there")
    else:
        chosen = next((directory / name for name in known if (directory / name).is_file()), directory)
    if chosen == directory:
        return (), None
    return _with_shards(directory, chosen)


def variant_files(directory: Path) -> tuple[tuple[Path, ...], Path | None, str | None]:
    """The files of the one variant that there is (fp16, bf16, ...), their index, and its name; refused are several."""
    found = {m[1] or m[2]: f for f in sorted(directory.glob("model.*")) if (m := VARIANT.fullmatch(f.name))}
    if len(found) > 1:
        told = ", ".join(file.name for file in found.values())
        raise ModelError(
            f"{directory}: holds the weights in several variants and none of them is model.safetensors: {told}; name "
            'the one that is meant in config.json ("transformers_weights")'
        )
    for name, file in found.items():
        return (*_with_shards(directory, file), name)
    return (), None, None


def refuse_no_weights(directory: Path) -> None:
    """Say that there are no weights which transformers would read, and what there is instead."""
    others = sorted(f for pattern in ("*.safetensors", "*.bin", "*.pth", "*.gguf") for f in directory.glob(pattern))
    told = f"; there are {', '.join(f.name for f in others[:4])}" if others else ""
    for file in others:
        if file.suffix == ".safetensors" and any(CONSOLIDATED.match(name) for name, _ in _headers(file)):
            raise ModelError(
                f"{directory}: {file.name} holds the weights under the names of their publisher (attention.wq, ...), "
                "with queries and keys in another order than transformers': get the files of transformers' format "
                "(model.safetensors), or convert it with the script that transformers has for this model"
            )
    may_be = [f for f in others if not f.name.startswith(("adapter_", "consolidated"))]
    hint = '; if one of them holds the model, say so in config.json ("transformers_weights")' if may_be else ""
    raise ModelError(f"{directory}: no weights there: neither model.safetensors nor pytorch_model.bin{told}{hint}")


def _with_shards(directory: Path, chosen: Path) -> tuple[tuple[Path, ...], Path | None]:
    """A file of weights; or the shards that it is an index of, and itself."""
    if not chosen.name.endswith(".json"):
        return (chosen,), None
    names = sorted(set(_weight_map(chosen).values()))
    lost = [n for n in names if not (directory / n).is_file()]
    if lost:
        raise ModelError(f"{directory}: incomplete checkpoint: {chosen.name} names {lost[0]}, which is not there")
    return tuple(directory / n for n in names), chosen


def _weight_map(index: Path) -> dict[str, str]:
    try:
        found = json.loads(index.read_text("utf-8"))["weight_map"]
        names = {str(k): str(v) for k, v in found.items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise ModelError(f"{index}: not an index of shards: {error!r}") from error
    for shard in names.values():
        # A shard lies beside its index: a path that leaves the directory is not followed.
        if Path(shard).name != shard or shard in ("", ".", ".."):
            raise ModelError(f"{index}: the shard {shard!r} is not the name of a file beside it")
    return names


@contextlib.contextmanager
def _opened(file: Path) -> Iterator[Callable[[str, int, int], torch.Tensor]]:
    """Reading rows of the tensors of one file."""
    if file.suffix != ".safetensors":
        tensors = _unpickled(file)
        yield lambda name, start, end: tensors[name][start:end]
        return
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        yield lambda name, start, end: opened.get_slice(name)[start:end]


def refuse_not_finite(path: str, named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Weights that are NaN or infinite are told by the names of their tensors.

    A sum is NaN or infinite where one of its numbers is, and takes a tenth of the time of looking at each; only where
    it is, they are looked at.
    """
    import torch

    wrong = []
    for name, tensor in named:
        if not tensor.is_floating_point() or tensor.is_meta:
            continue
        total = tensor.sum(dtype=torch.promote_types(tensor.dtype, torch.float32))
        if not bool(torch.isfinite(total)):
            lost = tensor.numel() - int(torch.isfinite(tensor).sum())
            wrong += [f"{name} ({lost:,} of {tensor.numel():,})"] if lost else []
    if wrong:
        more = f" and {len(wrong) - 8} more" if len(wrong) > 8 else ""
        raise ModelError(f"{path}: weights that are NaN or infinite: {', '.join(wrong[:8])}{more}")


def _place(file: Path, name: str) -> int:
    """Where in a safetensors file the numbers of a tensor begin."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        begin: int = json.loads(opened.read(length))[name]["data_offsets"][0]
    return 8 + length + begin


def _runs(rows: Sequence[int], most: int) -> Iterator[tuple[int, int, int]]:
    """(place among these, first, how many) of rows that follow each other, at most so many."""
    start = 0
    for place in range(1, len(rows) + 1):
        if place == len(rows) or rows[place] != rows[place - 1] + 1 or place - start == most:
            yield start, rows[start], place - start
            start = place


def _headers(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    with file.open("rb") as opened:
        if opened.read(len(POINTER)) == POINTER:
            raise ModelError(f"{file}: a pointer of git-lfs, not the weights: get them with `git lfs pull`")
    if file.suffix == ".safetensors":
        yield from _safetensors_header(file)
        return
    for name, tensor in _unpickled(file).items():
        yield name, StoredTensor(file, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _safetensors_header(file: Path) -> Iterator[tuple[str, StoredTensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            for name in opened.keys():  # noqa: SIM118 - it is no mapping
                stored = opened.get_slice(name)  # its shape and type; nothing is read
                yield name, StoredTensor(file, tuple(stored.get_shape()), str(stored.get_dtype()))
    except SafetensorError as error:
        if "incomplete" in str(error).lower():
            raise ModelError(f"{file}: cut short: {file.stat().st_size} bytes, its header says more") from error
        raise ModelError(f"{file}: not a safetensors file: {error}") from error


def _unpickled(file: Path) -> dict[str, torch.Tensor]:
    import torch

    try:
        mapped = zipfile.is_zipfile(file)  # files of before torch 1.6 are none, and are read whole
        found = torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)
    except Exception as error:
        raise ModelError(
            f"{file}: cannot be read as plain tensors ({type(error).__name__}); save the model as safetensors"
        ) from error
    held = found.get("state_dict", found) if isinstance(found, dict) else {}
    tensors = {str(k): v for k, v in held.items() if isinstance(v, torch.Tensor)}
    if not tensors:
        raise ModelError(f"{file}: holds no tensors by name")
    return tensors
