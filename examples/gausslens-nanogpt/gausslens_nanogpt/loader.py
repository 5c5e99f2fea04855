"""A checkpoint of nanoGPT, as gausslens opens it: a torch module, and a mapping that says where it has what.

gausslens proves the mapping each time a checkpoint is opened: captures, formulas and the module's own answer agree.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gausslens import ModelError, ModelSpec, OpenAs

from . import tokenizers_of_files
from .checkpoint import NAME, Checkpoint, has_keys, read, write
from .gpt import GPT, Sizes, fresh
from .parameters import NanoGPT

# What the two ways to compute GELU are called: in torch, and in a mapping.
GELU = {"exact": ("none", "gelu"), "tanh": ("tanh", "gelu_new")}


def claims(path: str) -> bool:
    """A directory with ckpt.pt, or a .pt file that has its keys."""
    return (Path(path) / NAME).is_file() or (Path(path).suffix == ".pt" and has_keys(Path(path)))


def open_nanogpt(spec: ModelSpec) -> OpenAs:
    """The checkpoint as a module of torch, its mapping, and its tokenizer where there is one."""
    assert isinstance(spec.parameters, NanoGPT)
    found = read(_file(Path(spec.path)))
    fingerprint, sizes = found.fingerprint(), found.sizes
    approximate, activation = GELU[spec.parameters.gelu]
    words = _tokenizer_file(spec.parameters, found)
    about = replace(found, tensors={})  # weights are read again when they are needed, and not held until then
    return OpenAs(
        module=partial(_module, found.file, fingerprint, approximate),
        parameters=mapping(sizes, activation),
        fingerprint=fingerprint,
        name=found.file.parent.name if found.file.name == NAME else found.file.stem,
        tokenizer=None if words is None else tokenizers_of_files.read(words, sizes.vocab_size),
        initial=partial(fresh, sizes, approximate),
        save=partial(_save, spec, about, words),
    )


def mapping(sizes: Sizes, activation: str) -> dict[str, Any]:
    """Where the module has what, for the loader `torch` of gausslens."""
    matrices = {
        "W_Q": "attn.c_attn.weight[q]",
        "W_K": "attn.c_attn.weight[k]",
        "W_V": "attn.c_attn.weight[v]",
        "W_O": "attn.c_proj.weight",
        "W_in": "mlp.c_fc.weight",
        "W_out": "mlp.c_proj.weight",
    }
    biases = {f"b{name[1:]}": place.replace(".weight", ".bias") for name, place in matrices.items()}
    norms = {"ln1": "ln_1", "ln2": "ln_2"}
    final = {"ln_final": "transformer.ln_f"}
    return {
        "n_heads": sizes.n_head,
        "layers": "transformer.h",
        "tensors": matrices | _norms(norms, sizes.bias) | (biases if sizes.bias else {}),
        "outside": {
            "W_E": "transformer.wte.weight",
            "W_pos": "transformer.wpe.weight",
            "W_U": "lm_head.weight",
            **_norms(final, sizes.bias),
        },
        "facts": {"norm": "layer", "position": "learned", "activation": activation},
    }


def _norms(places: Mapping[str, str], bias: bool) -> dict[str, str]:
    gains = {f"{ours}.w": f"{place}.weight" for ours, place in places.items()}
    return gains | ({f"{ours}.b": f"{place}.bias" for ours, place in places.items()} if bias else {})


def _file(path: Path) -> Path:
    file = path / NAME if path.is_dir() else path
    if not file.is_file():
        raise ModelError(f"there is no {file}")
    return file


def _module(file: Path, fingerprint: str, approximate: str) -> GPT:
    """The module with the weights of the file, which must be those that were there when it was opened."""
    found = read(file)
    if found.fingerprint() != fingerprint:
        raise ModelError(f"{file} has changed since it was opened: a training writes it again; study a copy of it")
    with torch.device("meta"):
        made = GPT(found.sizes, approximate)
    made.load_state_dict(found.tensors, strict=False, assign=True)  # all but the head, as `read` has seen
    made.tie()
    return made


def _tokenizer_file(parameters: NanoGPT, found: Checkpoint) -> Path | None:
    """The file that says what tokens are: the one that was named, or the first where nanoGPT would have it."""
    if parameters.tokenizer is not None:
        named = Path(parameters.tokenizer)
        file = tokenizers_of_files.find(named) if named.is_dir() else named
        if file is None:
            raise ModelError(f"{named} holds no meta.pkl, no tokenizer.json and no .tiktoken file")
        return file
    places = [found.file.parent]
    if found.dataset and Path(found.dataset).name == found.dataset:
        places.append(found.file.resolve().parent.parent / "data" / found.dataset)
    return next((file for place in places if (file := tokenizers_of_files.find(place)) is not None), None)


def _save(
    spec: ModelSpec, about: Checkpoint, words: Path | None, directory: Path, tensors: Mapping[str, torch.Tensor]
) -> OpenAs:
    """A twin as a checkpoint of nanoGPT, with its tokenizer beside it; what opening it gives."""
    write(directory / NAME, about, tensors)
    if words is not None:
        shutil.copyfile(words, directory / words.name)
    own = spec.parameters.model_copy(update={"tokenizer": None})
    return open_nanogpt(replace(spec, path=str(directory), parameters=own))
