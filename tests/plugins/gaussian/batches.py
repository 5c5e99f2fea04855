"""Batches made by hand."""

from __future__ import annotations

import numpy as np
import torch

from gausslens import Batch


def batch(site: str, values: np.ndarray, layer: int | None = 0, text: np.ndarray | None = None) -> Batch:
    """One shard whose tokens are all text, unless ``text`` says otherwise."""
    shape = values.shape[:2]
    kept = np.ones(shape, dtype=bool) if text is None else text
    return Batch(
        layer=layer,
        prompts=np.arange(shape[0]),
        tokens=torch.zeros(shape, dtype=torch.long),
        text=torch.from_numpy(kept),
        mask=torch.ones(shape, dtype=torch.bool),
        arrays={site: torch.from_numpy(values)},
        heads=(0, 1, 2, 3),
        kv_heads=(0, 1),
    )
