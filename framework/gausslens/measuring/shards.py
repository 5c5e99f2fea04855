"""How many tokens go through a model at once: 2,048 on the CPU, and on a device as many as its memory has room for.

On the CPU the number is fixed, so that results depend on no memory. On a device it is a power of two, of what this
process may hold there, what is held already included: so it is the same for all steps of a run, and in the next run.
Results differ by the rounding of sums that are cut otherwise.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from ..contract.errors import InputError, ModelError
from ..contract.model import BYTES
from ..contract.sites import TABLE

if TYPE_CHECKING:
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens
    from ..runs.open import Opened

# What says how many tokens a shard has on a device, in place of its memory.
TOKENS = "GAUSSLENS_SHARD_TOKENS"
LEAST, MOST = 256, 16384
# Of the memory that weights leave, the part that a shard may take: the rest is for what estimates do not know.
PART = 0.5
# A reduction holds what it sees in float64, about its mean, and a product of it.
WIDENED = 3 * 8


def shard_tokens(opened: Opened, tokens: Tokens, sites: Collection[str]) -> int | None:
    """The tokens of a shard, for passes that capture these sites; None: as many as everywhere."""
    device = opened.call.device
    if device == "cpu" or opened.max_memory is not None:
        return None
    told = os.environ.get(TOKENS)
    if told is not None:
        if not told.isdecimal() or not int(told):
            raise InputError(f"{TOKENS}={told!r}: give a number of tokens, as 1024")
        return int(told)
    memory = device_memory(device)
    if memory is None:
        return None
    room = (memory - weight_bytes(opened)) * PART / token_bytes(opened.model.info, sites, longest(tokens))
    return min(max(1 << int(math.log2(max(room, 1))), LEAST), MOST)


def check_device(opened: Opened) -> None:
    """Refuse a device that is not here, before weights are read."""
    device = opened.call.device
    if device != "cpu" and device_memory(device) is None:
        import torch

        raise ModelError(
            f"{opened.call.mark}: torch {torch.__version__} finds no device {device!r} here: write `device: cpu`, or "
            "install a torch that has it (its version ends in +cpu where it was built for the CPU alone)"
        )


def weight_bytes(opened: Opened) -> int:
    """What the weights take on the device; those that a twin changes are there twice."""
    return 2 * opened.model.info.weight_bytes


def token_bytes(info: ModelInfo, sites: Collection[str], width: int) -> int:
    """What a token takes on the device, in prompts of this width: what is captured of a layer, and what flows there."""
    size = BYTES.get(info.dtype, 4)
    captured = sum(math.prod(TABLE.get(site, TABLE["resid_pre"]).shape(info, 1, width)) // width for site in sites)
    flowing = 8 * info.d_model + 4 * (info.d_mlp or 4 * info.d_model) + 3 * info.n_heads * width
    return size * flowing + (size + WIDENED) * captured


def longest(tokens: Tokens) -> int:
    """The longest prompt, or what it reads."""
    return max((*tokens.lengths, *(tokens.sources.lengths if tokens.sources is not None else ()), 1))


def device_memory(device: str) -> int | None:
    """Bytes that this process may hold on a device, with those that it holds; None where there is no such device."""
    import torch

    kind = device.partition(":")[0]
    if kind == "mps":
        return int(torch.mps.recommended_max_memory()) if torch.backends.mps.is_available() else None
    of = getattr(torch, kind, None)
    if kind not in ("cuda", "xpu") or not of.is_available():  # type: ignore[union-attr]
        return None
    free, _ = of.mem_get_info(device)  # type: ignore[union-attr]
    return int(free + of.memory_reserved(device))  # type: ignore[union-attr]
