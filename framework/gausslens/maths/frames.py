"""Orthonormal frames at random. Pure torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def haar(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Frames [block, rows, columns] of orthonormal columns, by Haar's measure: any rotation of one is as likely.

    The Q of a Gaussian matrix, its columns signed so that the diagonal of R is positive (Mezzadri 2007): the plain Q
    of a library has signs of its own and is not Haar.
    """
    drawn = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    Q, R = torch.linalg.qr(drawn)
    signed: torch.Tensor = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return signed
