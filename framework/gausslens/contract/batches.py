"""What an analysis asks of a pass, and what it gets while the pass runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..maths.on_device.host_copies import HostCopies
from .errors import ModelError, did_you_mean

if TYPE_CHECKING:
    import numpy as np
    import torch


@dataclass(frozen=True)
class Request:
    """What an analysis wants of a pass: sites, in some layers (None: all in view), in one or more passes.

    ``ordered``: one instance sees all shards, one after another, as training on a stream does: it is never copied nor
    merged. Prompts come in an order shuffled by the seed of the run, another in each pass, the same for all variants.
    """

    sites: tuple[str, ...]
    layers: tuple[int, ...] | None = None
    passes: int = 1
    rows: int | None = None  # set by the host for the engine: give scores and pattern in blocks of so many query rows
    ordered: bool = False
    columns: bool = False  # set by the host for the engine: logits may come some of the vocabulary at a time


@dataclass
class Batch:
    """The activations of one layer for one shard of prompts. Arrays are valid during the call.

    ``prompts`` are indices in the user's order; ``tokens``, ``text`` (real text: not BOS, not padding) and ``mask``
    (not padding) are [prompt, position]. ``batch["resid_pre"]`` is [prompt, position, d_model]; q, z are
    [prompt, position, head, d_head]; k, v have kv_head in place of head; scores and pattern are
    [prompt, head, query, key]. ``heads`` and ``kv_heads`` name what the head axes hold. Where an analysis takes row
    blocks, ``rows`` is the first query row of scores and pattern in this batch; ``last_rows``: no more follow.
    ``layer`` is None for sites of the whole model (embed, logits). Where one takes column blocks, ``columns`` is
    the first token of the vocabulary that logits [prompt, position, token] of the batch are of; ``last_rows`` as there.

    ``key_tokens``, ``key_text`` and ``key_mask`` [prompt, key] are those of the keys: the same, but in attention from
    one stack of a model to another (``facts.crossed``). There k and v have as many positions as there are keys.
    """

    layer: int | None
    prompts: np.ndarray
    tokens: torch.Tensor
    text: torch.Tensor
    mask: torch.Tensor
    arrays: Mapping[str, torch.Tensor]
    heads: tuple[int, ...] = ()
    kv_heads: tuple[int, ...] = ()
    rows: int = 0
    last_rows: bool = True
    key_tokens: torch.Tensor = None  # type: ignore[assignment]
    key_text: torch.Tensor = None  # type: ignore[assignment]
    key_mask: torch.Tensor = None  # type: ignore[assignment]
    columns: int = 0
    # HostCopies: of arrays of another device, which all views of a batch share.
    copies: Any = field(default_factory=HostCopies, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("tokens", "text", "mask"):
            if getattr(self, f"key_{name}") is None:
                object.__setattr__(self, f"key_{name}", getattr(self, name))

    def __getitem__(self, site: str) -> torch.Tensor:
        try:
            return self.arrays[site]
        except KeyError:
            raise ModelError(f"this batch has no {site!r}{did_you_mean(site, self.arrays)}") from None

    def values(self, site: str) -> np.ndarray | torch.Tensor:
        """The array of a site where it lies: on the CPU as ``numpy`` gives it, on a device the tensor, not copied.

        ``gausslens.maths.on_device`` and the running states of ``gausslens.maths.moments`` take both.
        """
        return self.numpy(site) if self[site].device.type == "cpu" else self[site]

    def numpy(self, site: str) -> np.ndarray:
        """The array of a site in numpy: read-only; float32 where the model computes in 2 bytes.

        What lies on another device is copied once, however many analyses of a pass ask for it.
        """
        of = self[site]
        if of.device.type == "cpu":
            return _in_numpy(of.detach())
        return _in_numpy(self.copies.of(of))


def _in_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Read-only: others see the same memory, the model among them."""
    array: np.ndarray = tensor.float().numpy() if tensor.element_size() == 2 else tensor.numpy()
    array.flags.writeable = False
    return array


Sink = Callable[[Batch], None]
