"""Attention as a linear mixture of jointly Gaussian vectors. Pure numpy.

For fixed A the mixed vectors A x are Gaussian (a linear combination, not a mixture distribution) with covariance
(A (x) I) Sigma (A (x) I)^T. Where A is random but independent of x, moments add over its law. Joint covariances are
[position, d, position, d]; two equal rows of A make the joint singular.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gausslens.maths.moments import Floats

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


def mixed(mean: ArrayLike, cov: ArrayLike, A: ArrayLike) -> tuple[Floats, Floats]:
    """Mean [query, d] and covariance [query, d, query, d] of A x; x has mean [key, d], covariance [key, d, key, d]."""
    mixing = np.asarray(A, dtype=np.float64)
    spread: Floats = np.einsum("ij,jalb,kl->iakb", mixing, np.asarray(cov, dtype=np.float64), mixing, optimize=True)
    return mixing @ np.asarray(mean, dtype=np.float64), spread


def mixed_by_many(mean: ArrayLike, cov: ArrayLike, A_mean: ArrayLike, A_cov: ArrayLike) -> tuple[Floats, Floats]:
    """The same where A is drawn for each sample, independently of x, with mean [i, j] and covariance [i, j, k, l].

        Cov(A x) = mean mixture + sum_jl Cov(A_ij, A_kl) (Sigma_jl + mu_j mu_l^T)

    which is the mean over samples of each one's own (A (x) I) Sigma (A (x) I)^T plus the spread of A mu.
    """
    centre, spread = mixed(mean, cov, A_mean)
    mu = np.asarray(mean, dtype=np.float64)
    second = np.asarray(cov, dtype=np.float64) + np.einsum("ja,lb->jalb", mu, mu)
    added: Floats = np.einsum("ijkl,jalb->iakb", np.asarray(A_cov, dtype=np.float64), second, optimize=True)
    return centre, spread + added
