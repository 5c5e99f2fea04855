"""The products of a head, QK = W_Q W_K^T and OV = W_V W_O, edited through their factors.

Both are M = A B^T (OV transposed) with A of the query head and B of its key/value head, each d_model x d_head. With
A = Q_a R_a, B = Q_b R_b the small core R_a R_b^T = U s V^T has the spectrum of M. Where heads share a key/value head, B
is left alone and A takes the whole change: A' = Q_a U s' V^T R_b^-T.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gausslens import LayerWeights, ModelError
from gausslens.maths.frames import haar
from gausslens.maths.laws import Product

from .decomposition import Decomposed

# name: the factor of each query head, that of each key/value head, and the bias that goes with the first
PARTS = {"QK": ("W_Q", "W_K", "b_Q"), "OV": ("W_O", "W_V", None)}


@dataclass(frozen=True)
class HeadProduct:
    """The factors of one kind of product in one layer: A [head, d_model, d_head], B [kv_head, d_model, d_head]."""

    name: str
    A: torch.Tensor
    B: torch.Tensor
    kv_of_head: Sequence[int]

    @classmethod
    def of(cls, name: str, weights: LayerWeights) -> HeadProduct:
        """The factors, float64."""
        first, second, _ = PARTS[name]
        A, B = (weights[n].detach().cpu().double() for n in (first, second))
        return cls(name, (A.mT if name == "OV" else A).contiguous(), B.contiguous(), weights.kv_of_head)

    @property
    def noise(self) -> Product:
        """The law of a product of noise of these shapes, of variance 1."""
        return Product(self.A.shape[1], self.A.shape[2], self.B.shape[1], 1.0)

    def core(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Decomposed]:
        """Q_a, R_a, R_b for each head, and the decomposition of the core."""
        Qa, Ra = torch.linalg.qr(self.A)
        Rb = torch.linalg.qr(self.B)[1][list(self.kv_of_head)]
        return Qa, Ra, Rb, Decomposed.of(Ra @ Rb.mT)

    def with_values(self, found: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A' that gives the products these singular values, and the map T of the head space with A' = A T."""
        Qa, Ra, Rb, core = self.core()
        wanted = Decomposed(core.U, found, core.V).matrices()
        new = (torch.linalg.pinv(Rb) @ wanted.mT).mT
        missed = (new @ Rb.mT - wanted).flatten(1).norm(dim=1)
        bad = torch.nonzero(missed > 1e-6 * wanted.flatten(1).norm(dim=1)).flatten().tolist()
        if bad:
            raise ModelError(
                f"{self.name} of head {bad[0]} cannot have that spectrum: its key/value matrix has fewer directions "
                "than the spectrum has values; edit W_Q, W_K, W_V or W_O themselves"
            )
        return Qa @ new, torch.linalg.pinv(Ra) @ new

    def in_random_frame(self, which: str, generator: torch.Generator) -> torch.Tensor:
        """A or B in a Haar-random frame of the residual stream: the vectors on that side of M are random then."""
        factor = self.A if which == "A" else self.B
        R = torch.linalg.qr(factor)[1]
        found: torch.Tensor = haar(factor.shape, generator) @ R
        return found

    def tensor(self, which: str, factor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """A or B as the tensor that it came from."""
        return (factor.mT if self.name == "OV" and which == "A" else factor).to(like)
