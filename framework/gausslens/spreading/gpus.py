"""A GPU for each worker of this machine: it sees no other, so `device: cuda` is another card in each.

The process that leads says which cards there are, and a worker takes one by its number before torch looks for any. One
that is started again has its number, and so its card.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..runs.steps import Plan

# What CUDA reads when it starts, and what the leading process tells its workers: cards, one or none for each.
VISIBLE, SHARED = "CUDA_VISIBLE_DEVICES", "GAUSSLENS_GPUS"


def cards(plan: Plan) -> list[str]:
    """The cards that workers share out: those that this process sees, where a model asks for `cuda` and for no card."""
    if not any(opened.call.device == "cuda" for opened in plan.models):
        return []
    told = os.environ.get(VISIBLE)
    if told is not None:
        return [card.strip() for card in told.split(",") if card.strip() not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


def told(workers: int, plan: Plan) -> str:
    """What is to be said of them; nothing where no model is on one."""
    number = len(cards(plan))
    if not number:
        return ""
    if workers <= number:
        return f", on {workers} of {number} GPUs" if number > 1 else ", on one GPU"
    return f", {workers} on {number} GPU{'s' if number > 1 else ''}: take {number} if memory there runs out"


def take(worker: Any) -> None:
    """Let this process, of a worker that begins, see its own card alone."""
    shared = os.environ.get(SHARED, "")
    if shared and isinstance(worker.name, int):
        each = shared.split(",")
        os.environ[VISIBLE] = each[worker.name % len(each)]
