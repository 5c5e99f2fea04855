"""Prompts in two parts, one to fit on and one to measure on, and the measured ones in groups for standard errors."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np

from gausslens import InputError
from gausslens.maths.resampling import GROUPS

if TYPE_CHECKING:
    from gausslens import Tokens


class Halves:
    """By the hash of a prompt's tokens, so that nothing depends on order, and equal prompts are on one side.

    ``held[prompt]`` says that it is measured on; ``group[prompt]`` is its group among those.
    """

    def __init__(self, tokens: Tokens, share: float, name: str) -> None:
        hashes = [sha256(np.asarray(ids).astype("<i8").tobytes()).digest() for ids in tokens.ids]
        order = sorted(set(hashes))
        count = round(share * len(order))
        if not 0 < count < len(order):
            raise InputError(
                f"{name} fits on some prompts and measures on others: {len(order)} different prompts and holdout "
                f"{share:g} leave none for one of them; give more prompts"
            )
        place = {one: i for i, one in enumerate(order)}
        places = np.array([place[one] for one in hashes])
        self.held = places < count
        self.group = np.where(self.held, places % GROUPS, -1)
