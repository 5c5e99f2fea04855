"""Rotary position as a bilinear form: q and k at lag D meet as q^T R(-D) k, and content is what rotation leaves. Numpy.

Su et al., "RoFormer" (2021), with the halves of a head turned against each other: (x1, x2) -> (x1 cos - x2 sin,
x2 cos + x1 sin), at angles position * frequency; dimensions beyond the turned ones stay.
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

    Dimensions beyond twice the frequencies are neither turned nor scaled.
    """

    d_head: int
    frequencies: tuple[float, ...] = ()
    scaling: float = 1.0

    def matrix(self, position: float) -> Floats:
        """R(position) [d_head, d_head], without the scaling; R(a) R(b) = R(a + b)."""
        angles, half = position * np.array(self.frequencies), len(self.frequencies)
        cos, sin, i = np.cos(angles), np.sin(angles), np.arange(half)
        R = np.eye(self.d_head)
        R[i, i] = R[half + i, half + i] = cos
        R[i, half + i], R[half + i, i] = -sin, sin
        return R

    @property
    def diagonal(self) -> tuple[NDArray[np.complex128], Floats]:
        """P and angles per position, of every R(position) = P diag(exp(i position angle)) P^H, P unitary."""
        half, i = len(self.frequencies), np.arange(len(self.frequencies))
        P = np.eye(self.d_head, dtype=np.complex128)
        P[i, i] = P[i, half + i] = np.sqrt(0.5)
        P[half + i, i], P[half + i, half + i] = -1j * np.sqrt(0.5), 1j * np.sqrt(0.5)
        angles = np.zeros(self.d_head)
        angles[:half], angles[half : 2 * half] = self.frequencies, -np.array(self.frequencies)
        return P, angles

    @property
    def scales(self) -> Floats:
        """What each dimension of q, and of k, is multiplied by."""
        return np.where(np.arange(self.d_head) < 2 * len(self.frequencies), self.scaling, 1.0)

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
        half = len(self.frequencies)
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)

    def undone(self, x: NDArray[Any]) -> NDArray[Any]:
        """Content of q or k [prompt, position, head, d_head] that were turned."""
        half = len(self.frequencies)
        angles = np.arange(x.shape[1])[:, None] * np.array(self.frequencies)[None, :]
        cos, sin = (f(angles)[None, :, None, :] / self.scaling for f in (np.cos, np.sin))
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = np.concatenate([first * cos + second * sin, second * cos - first * sin, rest], axis=-1)
        return turned.astype(x.dtype)
