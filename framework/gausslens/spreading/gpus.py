"""A GPU for each worker of this machine: it sees no other, so `device: cuda` is another card in each.

The process that leads says which cards there are, and starts each worker with one, by its number. One that is started
in its place has its number, and so its card.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runs.steps import Plan

# What CUDA reads when it starts: the cards that a process sees.
VISIBLE = "CUDA_VISIBLE_DEVICES"


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


def card_of(worker: int, cards: Sequence[str]) -> dict[str, str]:
    """What the environment of a worker says, so that it sees its own card alone; nothing where there are none."""
    return {VISIBLE: cards[worker % len(cards)]} if cards else {}
