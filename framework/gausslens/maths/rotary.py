"""Rotary position as a bilinear form: q and k at lag D meet as q^T R(-D) k, and content is what rotation leaves. Numpy.

Su et al., "RoFormer" (2021): (x1, x2) -> (x1 cos - x2 sin, x2 cos + x1 sin), at angles position * frequency. x1 and x2
are halves of a head, or with ``pairs`` neighbours (2 i, 2 i + 1), as in the paper; dimensions beyond them stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Rotation:
    """How one layer turns q and k: no frequencies, no turning. cos and sin are multiplied by ``scaling``.

    Dimensions before ``start``, and beyond it twice the frequencies, are neither turned nor scaled.
    """

    d_head: int
    frequencies: tuple[float, ...] = ()
    scaling: float = 1.0
    pairs: bool = False
    start: int = 0

    @property
    def places(self) -> tuple[slice, slice]:
        """Which dimensions are turned against which: x1 and x2."""
        half, start = len(self.frequencies), self.start
        end = start + 2 * half
        if self.pairs:
            return slice(start, end, 2), slice(start + 1, end, 2)
        return slice(start, start + half), slice(start + half, end)

    def matrix(self, position: float) -> Floats:
        """R(position) [d_head, d_head], without the scaling; R(a) R(b) = R(a + b)."""
        angles = position * np.array(self.frequencies)
        cos, sin = np.cos(angles), np.sin(angles)
        first, second = (np.arange(self.d_head)[place] for place in self.places)
        R = np.eye(self.d_head)
        R[first, first] = R[second, second] = cos
        R[first, second], R[second, first] = -sin, sin
        return R

    @property
    def diagonal(self) -> tuple[NDArray[np.complex128], Floats]:
        """P and angles per position, of every R(position) = P diag(exp(i position angle)) P^H, P unitary."""
        first, second = (np.arange(self.d_head)[place] for place in self.places)
        P = np.eye(self.d_head, dtype=np.complex128)
        P[first, first] = P[first, second] = np.sqrt(0.5)
        P[second, first], P[second, second] = -1j * np.sqrt(0.5), 1j * np.sqrt(0.5)
        angles = np.zeros(self.d_head)
        angles[first], angles[second] = self.frequencies, -np.array(self.frequencies)
        return P, angles

    @property
    def scales(self) -> Floats:
        """What each dimension of q, and of k, is multiplied by."""
        place = np.arange(self.d_head) - self.start
        return np.where((place >= 0) & (place < 2 * len(self.frequencies)), self.scaling, 1.0)

    def between(self, lag: int) -> Floats:
        """The form in which q and k of content meet at this lag: R(-lag), scaled on both sides."""
        return self.scales[:, None] * self.matrix(-lag) * self.scales[None, :]

    def turned(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """q or k [prompt, position, head, d_head] turned and scaled, in torch and with angles in float32, as models do.

        ``positions`` are numbers [position].
        """
        import torch

        if not self.frequencies:
            return x
        angles = positions[:, None].to(x.device).float() * torch.tensor(self.frequencies, device=x.device)
        cos, sin = ((f(angles) * self.scaling).to(x.dtype)[None, :, None, :] for f in (torch.cos, torch.sin))
        first, second = (x[..., place] for place in self.places)
        turned = x.clone()
        turned[..., self.places[0]] = first * cos - second * sin
        turned[..., self.places[1]] = second * cos + first * sin
        return turned

    def undone(self, x: NDArray[Any]) -> NDArray[Any]:
        """Content of q or k [prompt, position, head, d_head] that were turned."""
        angles = np.arange(x.shape[1])[:, None] * np.array(self.frequencies)[None, :]
        cos, sin = (f(angles)[None, :, None, :] / self.scaling for f in (np.cos, np.sin))
        first, second = (x[..., place] for place in self.places)
        content = x.astype(np.result_type(x, cos))
        content[..., self.places[0]] = first * cos + second * sin
        content[..., self.places[1]] = second * cos - first * sin
        return content.astype(x.dtype)
