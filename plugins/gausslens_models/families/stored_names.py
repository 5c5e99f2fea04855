"""Which tensors of a file are which of the module: transformers renames some on loading, and stacks experts.

What it does is read from its own table (transformers.conversion_mapping): nothing of it is written down here. A fused
tensor that a file holds in parts is named by its parts, "mlp.experts.gate_up_proj#0/2" and "#1/2".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from gausslens import ModelError

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stored:
    """The tensors of a file that make one of the module: one by another name, or one for each expert."""

    names: tuple[str, ...]
    stacked: bool

    def joined(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """The tensor of the module; of experts with their axis first."""
        return torch.stack(tensors) if self.stacked else tensors[0]


def as_in_module(shapes: Shapes, config: Any, path: str) -> tuple[dict[str, tuple[int, ...]], dict[str, Stored]]:
    """The shapes of a file under the names of the module, and where they come from, for those that are changed."""
    renamings, converters = _conversions(config)
    found: dict[str, tuple[int, ...]] = {}
    experts: dict[str, list[str]] = {}
    stored: dict[str, Stored] = {}
    for name, shape in shapes.items():
        renamed = name
        for renaming in renamings:
            renamed = renaming.rename_source_key(renamed)[0]
        converted = next((c for c in converters if c.rename_source_key(renamed)[1] is not None), None)
        if converted is not None:
            target, source = converted.rename_source_key(renamed)
            index, count = converted.source_patterns.index(source), len(converted.source_patterns)
            experts.setdefault(target if count == 1 else f"{target}#{index}/{count}", []).append(name)
            continue
        found[renamed] = shape
        if renamed != name:
            stored[renamed] = Stored((name,), stacked=False)
    for target, names in experts.items():
        ordered = sorted(names, key=lambda name: [int(n) for n in re.findall(r"\d+", name)])
        sizes = {shapes[name] for name in ordered}
        if len(sizes) > 1:
            raise ModelError(f"{path}: the experts of {target} have different shapes: {sorted(sizes)}")
        found[target] = (len(ordered), *sizes.pop())
        stored[target] = Stored(tuple(ordered), stacked=True)
    _refuse_lost_experts(experts, path)
    return found, stored


def _refuse_lost_experts(experts: Mapping[str, list[str]], path: str) -> None:
    """All tensors of a layer's experts have as many."""
    counts: dict[str, set[int]] = {}
    for target, names in experts.items():
        counts.setdefault(target.rpartition(".")[0], set()).add(len(names))
    for place, found in counts.items():
        if len(found) > 1:
            few, *_, most = sorted(found)
            raise ModelError(f"{path}: incomplete checkpoint: {place} has a tensor of {few} experts, another of {most}")


def _conversions(config: Any) -> tuple[list[Any], list[Any]]:
    """What transformers renames, and what it stacks, for a model of this class or type; nothing else."""
    from transformers import conversion_mapping as known
    from transformers.core_model_loading import Concatenate, MergeModulelist, WeightConverter

    named = (getattr(config, "architectures", None) or [""])[0]
    all_of_it = known.get_checkpoint_conversion_mapping(named)
    if all_of_it is None:
        all_of_it = known.get_checkpoint_conversion_mapping(getattr(config, "model_type", "")) or []
    renamings = [c for c in all_of_it if not isinstance(c, WeightConverter)]
    converters = [c for c in all_of_it if isinstance(c, WeightConverter)]
    stacking = [
        c
        for c in converters
        if isinstance(c.operations[0], MergeModulelist)
        and all(isinstance(o, (MergeModulelist, Concatenate)) and o.dim == i for i, o in enumerate(c.operations))
    ]
    return renamings, stacking
