"""Copies of a device's arrays for what works on the CPU: all are begun at once, each is waited for when it is read.

On CUDA they go into pinned memory, which the device writes by itself while the CPU computes; torch keeps it for the
next. Elsewhere a copy is made when it is begun.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class HostCopies:
    """The copies of one batch: one of each array, however many ask for it."""

    def __init__(self) -> None:
        # Beside each copy what it is of, which must live as long: and what says that it is whole.
        self._begun: dict[int, tuple[torch.Tensor, torch.Tensor, Any]] = {}

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._begun

    def begin(self, tensor: torch.Tensor) -> None:
        """Begin the copy of an array, unless it was."""
        if tensor not in self:
            self._begun[id(tensor)] = (tensor, *_begun(tensor.detach()))

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The copy of an array, when it is whole."""
        self.begin(tensor)
        _, copy, written = self._begun[id(tensor)]
        if written is not None:
            written.synchronize()
        return copy


def _begun(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """A copy, and the event after which it is whole; None where it is."""
    import torch

    if not tensor.is_cuda:
        return tensor.cpu(), None
    copy = torch.empty_like(tensor, device="cpu", pin_memory=True)
    copy.copy_(tensor, non_blocking=True)
    written: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    written.record(torch.cuda.current_stream(tensor.device))
    return copy, written
