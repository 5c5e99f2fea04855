"""ckpt.pt as nanoGPT writes it: {"model": tensors, "model_args": sizes, "config": settings, "optimizer": ...}.

Only tensors and plain values are read (``weights_only``), and of the file only what is asked for: it is mapped into
memory, so that what the optimizer keeps is never read.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

from gausslens import ModelError

from .gpt import GPT, Sizes

Tensors = dict[str, torch.Tensor]
NAME = "ckpt.pt"
# What torch.compile puts before the names, and the mask that old versions of nanoGPT kept among the tensors.
COMPILED, MASK = "_orig_mod.", ".attn.bias"
HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"
# What is not kept when a twin is written: it belongs to the training of the model.
OF_TRAINING = ("optimizer",)


@dataclass(frozen=True)
class Checkpoint:
    """What a file holds: sizes, tensors by nanoGPT's names, and everything else."""

    file: Path
    sizes: Sizes
    tensors: Tensors
    rest: Mapping[str, Any]

    @property
    def dataset(self) -> str | None:
        """What its config calls the data that it was trained on."""
        config = self.rest.get("config")
        found = config.get("dataset") if isinstance(config, dict) else None
        return found if isinstance(found, str) else None

    def fingerprint(self) -> str:
        """SHA-256 of sizes, and of the name, type, shape and bytes of each tensor; how it was trained is none of it."""
        found = hashlib.sha256(json.dumps(asdict(self.sizes)).encode())
        for name in sorted(self.tensors):
            tensor = self.tensors[name].contiguous()
            found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            found.update(tensor.view(-1).view(torch.uint8).numpy().data)
        return found.hexdigest()


def has_keys(file: Path) -> bool:
    """Whether a file may be a checkpoint of nanoGPT, by what torch writes of its keys; no tensor is read."""
    try:
        with zipfile.ZipFile(file) as held:
            tables = [name for name in held.namelist() if name.endswith("data.pkl")]
            return any(b"model_args" in held.read(name) for name in tables)
    except (OSError, zipfile.BadZipFile):
        return False


def read(file: Path) -> Checkpoint:
    """The checkpoint in a file; a ModelError says what is wrong with it."""
    try:
        held = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # what torch raises of a bad file is of many classes
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ModelError(f"{file} cannot be read as tensors and plain values: {said}") from error
    if not isinstance(held, dict) or not all(isinstance(held.get(key), dict) for key in ("model", "model_args")):
        raise ModelError(f"{file} is no checkpoint of nanoGPT: it has no `model` and `model_args`")
    sizes = _sizes(file, held["model_args"])
    tensors = {str(name).removeprefix(COMPILED): tensor for name, tensor in held["model"].items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(MASK)}
    _check(file, sizes, tensors)
    # Copied, so that a training that writes the file again changes nothing here.
    copied = {name: tensor.detach().clone() for name, tensor in tensors.items() if name != HEAD}
    rest = {key: value for key, value in held.items() if key not in ("model", "model_args", *OF_TRAINING)}
    return Checkpoint(file, sizes, copied, rest)


def write(file: Path, checkpoint: Checkpoint, tensors: Mapping[str, torch.Tensor]) -> None:
    """Other tensors in place of those of a checkpoint, the rest as it was but for the optimizer's."""
    if not torch.equal(tensors[HEAD], tensors[EMBEDDING]):
        raise ModelError("nanoGPT ties W_U to W_E, and in this twin they differ: edit both alike, or neither")
    plain = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
    plain[HEAD] = plain[EMBEDDING]
    args = asdict(checkpoint.sizes) | {"dropout": 0.0}
    torch.save({**checkpoint.rest, "model": plain, "model_args": args}, file)


def _sizes(file: Path, told: Mapping[str, Any]) -> Sizes:
    wanted = {field.name: bool if field.name == "bias" else int for field in fields(Sizes)}
    for name, kind in wanted.items():
        value = told.get(name)
        if type(value) is not kind or (kind is int and not 0 < value <= 10**8):
            raise ModelError(f"{file}: model_args: {name} is {value!r}, and should be a {kind.__name__}")
    sizes = Sizes(**{name: told[name] for name in wanted})
    if sizes.n_embd % sizes.n_head:
        raise ModelError(f"{file}: model_args: n_head {sizes.n_head} does not divide n_embd {sizes.n_embd}")
    return sizes


def _check(file: Path, sizes: Sizes, tensors: Mapping[str, Any]) -> None:
    """Refuse tensors that are not those of a GPT of these sizes."""
    if sizes.n_layer > len(tensors):  # before as many are made
        raise ModelError(f"{file}: n_layer is {sizes.n_layer}, and there are {len(tensors)} tensors")
    with torch.device("meta"):
        wanted = GPT(sizes).state_dict()
    for name in sorted(wanted.keys() ^ tensors.keys()):
        raise ModelError(f"{file}: {name} is {'missing' if name in wanted else 'none that a nanoGPT of its sizes has'}")
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point():
            raise ModelError(f"{file}: {name} is no tensor of numbers")
        if tensor.shape != wanted[name].shape:
            shapes = f"{list(tensor.shape)}, and should be {list(wanted[name].shape)}"
            raise ModelError(f"{file}: {name} has shape {shapes} by model_args")
    if not torch.equal(tensors[HEAD], tensors[EMBEDDING]):
        raise ModelError(f"{file}: {HEAD} and {EMBEDDING} differ: nanoGPT has one tensor for both")
