"""LoRA adapters as peft saves them, written by hand: what they add to each weight is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

PREFIX = "base_model.model."
CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "bias": "none", "task_type": "CAUSAL_LM"}


def factors(shape: tuple[int, ...], rank: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A [rank, in] and B [out, rank] for a weight [out, in]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rank, shape[1], generator=draw) * 0.2, torch.randn(shape[0], rank, generator=draw) * 0.2


def plant(
    path: Path,
    base: Path,
    targets: tuple[str, ...],
    config: Mapping[str, Any] | None = None,
    ranks: Mapping[str, int] | None = None,
) -> dict[str, torch.Tensor]:
    """Write an adapter of all weights of ``base`` whose module ends so; return what is added: {weight: B A}."""
    held = load_file(base / "model.safetensors")
    made, added = {}, {}
    for seed, (name, weight) in enumerate(sorted(held.items())):
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and module.endswith(targets):
            rank = next((r for end, r in (ranks or {}).items() if module.endswith(end)), 2)
            A, B = factors(tuple(weight.shape), rank, seed)
            made |= {f"{PREFIX}{module}.lora_A.weight": A, f"{PREFIX}{module}.lora_B.weight": B}
            added[name] = B.double() @ A.double()
    write(path, made, {"base_model_name_or_path": str(base), **(config or {})})
    return added


def write(path: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> Path:
    """The two files of an adapter."""
    path.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(CONFIG | dict(config)))
    return path


def configured(path: Path, **changes: Any) -> Path:
    """The adapter with other keys in its config."""
    held = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps(held | changes))
    return path


def copied(path: Path, to: Path) -> Path:
    """A copy of an adapter."""
    return Path(shutil.copytree(path, to))
