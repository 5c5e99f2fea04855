"""The law of Tracy and Widom: how the largest eigenvalue of noise fluctuates at the edge of its bulk. Pure numpy.

Of real matrices (beta = 1): for squared singular values x_1 of noise, (x_1 - centre) / scale has this law as the matrix
grows, with the centre and scale of the law at hand (laws.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.special import gammainccinv

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

# Bornemann, "On the numerical evaluation of distributions in random matrix theory" (2010).
MEAN, SD = -1.2065335745820, 1.2680340580127
# Chiani, "Distribution of the largest eigenvalue for real Wishart and Gaussian random matrices" (2014): the law is that
# of theta g - alpha, with g of a gamma distribution of shape k, to 0.03 in its quantiles up to 99.9 %.
_K, _THETA, _ALPHA = 46.446, 0.186054, 9.84801


def beyond(rate: ArrayLike) -> NDArray[np.float64]:
    """The value that the law exceeds with this probability: 0.01 gives 2.02."""
    at = np.asarray(rate, dtype=np.float64)
    if not ((at > 0) & (at < 1)).all():
        raise ValueError(f"a rate lies between 0 and 1, not {rate!r}")
    found: NDArray[np.float64] = np.asarray(_THETA * gammainccinv(_K, at) - _ALPHA)
    return found
