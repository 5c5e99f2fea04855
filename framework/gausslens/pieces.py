"""Putting a shard together again when an engine hands it over in pieces: some prompts at a time, in any order.

Pieces are padded to the width of the shard, and all sites of a layer come together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from .batch import Batch
from .errors import ModelError

if TYPE_CHECKING:
    import numpy as np


class Pieces:
    """The pieces of one shard, by layer and block of query rows."""

    def __init__(self, shard: np.ndarray) -> None:
        self.place = {int(prompt): place for place, prompt in enumerate(shard)}
        self.waiting: dict[tuple[int | None, int], list[Batch]] = {}
        self.done: set[int | None] = set()

    def add(self, batch: Batch) -> Batch | None:
        """The whole shard of this layer (and block of rows) once its last piece is there, else None."""
        _check(batch)
        whole: Batch | None = batch
        if [int(p) for p in batch.prompts] != list(self.place):
            where = (batch.layer, batch.rows)
            self.waiting.setdefault(where, []).append(kept(batch))
            if sum(len(b.prompts) for b in self.waiting[where]) < len(self.place):
                return None
            whole = self._joined(self.waiting.pop(where))
        if batch.layer in self.done:
            raise ModelError(f"the engine gave {_where(batch.layer)} twice for one shard")
        if batch.last_rows:
            self.done.add(batch.layer)
        return whole

    def check_done(self) -> None:
        """Refuse a shard of which prompts are missing."""
        for (layer, _), batches in self.waiting.items():
            got = sum(len(b.prompts) for b in batches)
            raise ModelError(f"the engine gave {got} of {len(self.place)} prompts of a shard for {_where(layer)}")

    def _joined(self, batches: Sequence[Batch]) -> Batch:
        import numpy as np
        import torch

        prompts = np.concatenate([b.prompts for b in batches])
        if sorted(self.place) != sorted(int(p) for p in prompts):
            raise ModelError(f"the engine gave prompts twice, or of another shard, for {_where(batches[0].layer)}")
        order = torch.as_tensor(np.argsort([self.place[int(p)] for p in prompts]))

        def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
            whole = torch.cat(list(parts))
            return whole[order.to(whole.device)]

        return replace(
            batches[0],
            prompts=prompts[order.numpy()],
            tokens=joined([b.tokens for b in batches]),
            text=joined([b.text for b in batches]),
            mask=joined([b.mask for b in batches]),
            arrays={s: joined([b[s] for b in batches]) for s in batches[0].arrays},
        )


def kept(batch: Batch) -> Batch:
    """A batch that outlives the call in which an engine handed it over."""
    return replace(batch, arrays={site: array.clone() for site, array in batch.arrays.items()})


def _check(batch: Batch) -> None:
    for site, array in batch.arrays.items():
        if array.shape[0] != len(batch.prompts) or array.numel() == 0:
            raise ModelError(
                f"site {site} of {_where(batch.layer)} has shape {tuple(array.shape)} for {len(batch.prompts)} prompts"
            )


def _where(layer: int | None) -> str:
    return "the whole model" if layer is None else f"layer {layer}"
