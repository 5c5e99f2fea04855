"""The tensors of a checkpoint on disk, one at a time: safetensors or .bin, in one file or in shards."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gausslens import ModelError

if TYPE_CHECKING:
    import torch

SAFETENSORS = ("model.safetensors.index.json", "model.safetensors")
PICKLED = ("pytorch_model.bin.index.json", "pytorch_model.bin")


@dataclass(frozen=True)
class StoredTensor:
    """A tensor on disk: its file, and its shape and type as the file says."""

    file: Path
    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """A directory of weights. Headers are read at once, tensors when asked for; no file stays open."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = weight_files(directory)
        self.tensors: dict[str, StoredTensor] = {}
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

    def read(self, name: str) -> torch.Tensor:
        """One tensor. Its file is opened for this and closed: an open one keeps what was read in memory."""
        stored = self.tensors[name]
        if stored.file.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(stored.file, framework="pt") as file:
                tensor: torch.Tensor = file.get_tensor(name)
        else:
            tensor = _unpickled(stored.file)[name].clone()
        return tensor

    def _refuse_lost(self) -> None:
        """An index names tensors: each must be where it says."""
        for index in (SAFETENSORS[0], PICKLED[0]):
            file = self.directory / index
            if not file.is_file() or not self.files or self.files[0].suffix != _suffix(index):
                continue
            for name, shard in _weight_map(file).items():
                found = self.tensors.get(name)
                if found is None or found.file.name != shard:
                    raise ModelError(f"{self.directory}: incomplete checkpoint: {index} says {name} is in {shard}")


def weight_files(directory: Path) -> tuple[Path, ...]:
    """The files that hold the weights, safetensors before .bin; none where there are none."""
    for index, single in (SAFETENSORS, PICKLED):
        if (directory / index).is_file():
            names = sorted(set(_weight_map(directory / index).values()))
            lost = [n for n in names if not (directory / n).is_file()]
            if lost:
                raise ModelError(f"{directory}: incomplete checkpoint: {index} names {lost[0]}, which is not there")
            return tuple(directory / n for n in names)
        if (directory / single).is_file():
            return (directory / single,)
    return ()


def _suffix(index: str) -> str:
    return Path(index.removesuffix(".index.json")).suffix


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


def _headers(file: Path) -> Iterator[tuple[str, StoredTensor]]:
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
