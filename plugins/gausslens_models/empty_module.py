"""A module of transformers without its weights, and which tensors of the files make which of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from .loading.skeleton import by_transformers

if TYPE_CHECKING:
    from .loading.pretrained import PretrainedModel


@dataclass(frozen=True)
class Sources:
    """Tensors of the files, and those of the module that transformers makes of them; None: it is one, as it is."""

    checkpoint: Any
    names: tuple[str, ...]
    targets: tuple[str, ...]
    converter: Any = None
    patterns: tuple[str, ...] = ()

    def read(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The tensors of the module."""
        read = self.checkpoint.read
        if self.converter is None:
            return {self.targets[0]: read(self.names[0]).to(dtype)}
        converter = copy.deepcopy(self.converter)
        for name, pattern in zip(self.names, self.patterns, strict=True):
            converter.add_tensor(self.targets[0], name, pattern, partial(_read_as, read, name, dtype))
        made = converter.convert(self.targets[0], model=None, config=None, hf_quantizer=None, loading_info=None)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def _read_as(read: Callable[[str], torch.Tensor], name: str, dtype: torch.dtype) -> torch.Tensor:
    return read(name).to(dtype)


def sources_of(module: Any, checkpoint: Any) -> dict[str, Sources]:
    """Of each tensor of the module those of the files that make it, by transformers' own names and conversions."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(module, None, None)
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    renamings = [one for one in mapping if not isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    known, prefix = module.state_dict(), module.base_model_prefix
    found: dict[str, list[tuple[str, str | None]]] = {}
    for name in sorted(checkpoint.tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], prefix, known)
        found.setdefault(target, []).append((name, pattern))
    sources: dict[str, Sources] = {}
    for target, pairs in found.items():
        pattern = pairs[0][1]
        if pattern is None:
            sources[target] = Sources(checkpoint, (pairs[0][0],), (target,))
            continue
        one = by_pattern[pattern]
        targets = tuple(target.replace(one.target_patterns[0], t) for t in one.target_patterns)
        made = Sources(checkpoint, tuple(n for n, _ in pairs), targets, one, tuple(str(p) for _, p in pairs))
        sources |= dict.fromkeys(targets, made)
    return sources


def empty_module(model: PretrainedModel) -> Any:
    """The module of a model as transformers builds it before it reads weights; buffers that no file has are made."""
    config = copy.deepcopy(model.config)
    chosen = model.attention or ("eager" if not model.layout.family.watched else None)
    arguments: dict[str, Any] = {"dtype": model.dtype} | ({"attn_implementation": chosen} if chosen else {})
    with by_transformers(model.spec.path, "build this model"), torch.device("meta"):
        module = model.model_class()._from_config(config, **arguments)
    module.eval().requires_grad_(False)
    _make_buffers(module, model.spec.device)
    return module


def _make_buffers(module: Any, device: str) -> None:
    """Buffers that are in no file, as transformers makes them when it loads a model."""
    lasting = set(module.state_dict())
    owners: dict[str, Any] = {}
    for path, owner in module.named_modules():
        for leaf, buffer in owner._buffers.items():
            name = f"{path}.{leaf}" if path else leaf
            if buffer is not None and buffer.is_meta and name not in lasting:
                owner._buffers[leaf] = torch.empty_like(buffer, device="cpu")
                owners[path] = owner
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for path, owner in owners.items():
            maker_of(module, path)._init_weights(owner)
    for owner in owners.values():
        for leaf in owner._buffers:
            if leaf in owner._non_persistent_buffers_set and owner._buffers[leaf] is not None:
                owner._buffers[leaf] = owner._buffers[leaf].to(device)


def maker_of(module: Any, path: str) -> Any:
    """The nearest model of transformers around a module: it knows how its buffers are made."""
    from transformers import PreTrainedModel

    while path:
        path = path.rpartition(".")[0]
        found = module.get_submodule(path)
        if isinstance(found, PreTrainedModel):
            return found
    return module
