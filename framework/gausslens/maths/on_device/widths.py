"""In which type, and where, numbers are computed with: float64 wherever it is to be had."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Floats: TypeAlias = NDArray[np.float64]
# On the CPU an array of numpy, on a device a tensor.
Values: TypeAlias = "NDArray[Any] | torch.Tensor"


def has_float64(tensor: torch.Tensor) -> bool:
    """Whether the device of a tensor computes in float64. Apple's (mps) does not, nor do some of Intel's (xpu)."""
    try:
        tensor.new_zeros(1, dtype=tensor.dtype).double()
    except (TypeError, RuntimeError):
        return False
    return True


def wide(values: Values) -> Any:
    """In float64; on a device that has none, in float32. They stay where they are."""
    if isinstance(values, np.ndarray):
        return values.astype(np.float64)
    values = values.detach()
    return values.double() if has_float64(values) else values.float()


def values_of(tensor: torch.Tensor) -> Values:
    """A tensor as values: an array of numpy on the CPU, itself on a device."""
    tensor = tensor.detach()
    return tensor.numpy() if tensor.device.type == "cpu" else tensor


def in_double(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor in float64: where it lies if its device has that, else on the CPU."""
    tensor = tensor.detach()
    return tensor.double() if has_float64(tensor) else tensor.cpu().double()


def in_numpy(values: Any) -> Any:
    """As an array of numpy, in float64 where it was not one: of a device a copy. Of vectors there, all of them."""
    if isinstance(values, np.ndarray):
        return values
    return getattr(values, "tensor", values).detach().cpu().double().numpy()


def alike(array: NDArray[Any], values: Values) -> Any:
    """An array as it is multiplied with these values: as it is, or where they lie, in their type."""
    return array if isinstance(values, np.ndarray) else values.new_tensor(np.ascontiguousarray(array))
