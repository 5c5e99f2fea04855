"""Counts what torch code does: floating-point operations and bytes, operation by operation, as it runs.

    with counted() as cost:
        attend(q, k, v)
    cost.flops, cost.bytes

A product of [m, k] and [k, n] counts 2 m k n; a solve with an n x n matrix 2/3 n^3 and 2 n^2 for each column; a QR
4/3 n^3; anything else that computes, one for each element that it reads or writes, whichever are more. Bytes are
those of all that an operation reads and writes; views, and moving nothing, cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Operations that move numbers and compute none, by the start of their names.
_MOVES = (
    "_to_copy",
    "arange",
    "cat",
    "clone",
    "copy_",
    "empty",
    "expand",
    "eye",
    "fill_",
    "full",
    "gather",
    "index",
    "lift_fresh",
    "new_",
    "ones",
    "repeat",
    "scalar_tensor",
    "slice_backward",
    "stack",
    "tril",
    "zero",
)
_ADDS = ("index_add",)


@dataclass
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: int = 0
    bytes: int = 0


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, cost: Cost) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.cost = cost

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [x for x in tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        if not _is_view(func, given, made):
            self.cost.bytes += sum(x.numel() * x.element_size() for x in (*given, *made))
            self.cost.flops += _flops(name, given, made)
        return out


@contextmanager
def counted() -> Iterator[Cost]:
    """Count what runs inside."""
    cost = Cost()
    with _Counter(cost):
        yield cost


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The power of the size with which a cost grows: the slope of log cost on log size, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def _is_view(func: Any, given: list[torch.Tensor], made: list[torch.Tensor]) -> bool:
    """Whether nothing was computed: the result is the memory of an argument, and the operation does not write."""
    if func._schema.is_mutable:
        return False
    held = {x.untyped_storage()._cdata for x in given}
    return bool(made) and all(x.untyped_storage()._cdata in held for x in made)


def _flops(name: str, given: list[torch.Tensor], made: list[torch.Tensor]) -> int:
    if name in ("mm", "bmm", "addmm", "baddbmm"):
        left, right = given[-2:]
        return 2 * left.numel() * right.shape[-1]
    if name in ("linalg_solve_ex", "_linalg_solve_ex"):
        matrix, right = given[0], given[1]
        n = matrix.shape[-1]
        return matrix.numel() // (n * n) * (2 * n**3 // 3) + 2 * n * right.numel()
    if name == "linalg_qr":
        return given[0].numel() * 4 * min(given[0].shape[-2:]) // 3
    if name.startswith(_MOVES) and not name.startswith(_ADDS):
        return 0
    if name == "_softmax":
        return 5 * made[0].numel()
    return max((math.prod(x.shape) for x in (*given, *made)), default=0)
