"""Modes that torch keeps for the whole process, beside its settings: what was entered and never left is left again.

Autocast, inference mode, which kernels attention takes, and what stands between a call and its function. And the
direction in which the processor rounds, which torch does not know.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

Setting = tuple[Callable[[], Any], Callable[[Any], Any]]
ATTENTION = ("flash", "mem_efficient", "math", "cudnn")
# Inference modes that were put back: leaving one is letting go of its object.
_INFERENCE: list[Any] = []


def of_modes() -> list[Setting]:
    """How each mode is read, and how it is put back."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return _of_processor()
    cuda, c = torch.backends.cuda, torch._C
    kernels = [
        (getattr(cuda, f"{name}_sdp_enabled"), getattr(cuda, f"enable_{name}_sdp"))
        for name in ATTENTION
        if hasattr(cuda, f"enable_{name}_sdp")
    ]
    return [
        *_of_processor(),
        *kernels,
        (lambda: torch.is_autocast_enabled("cpu"), lambda on: torch.set_autocast_enabled("cpu", on)),
        (lambda: torch.get_autocast_dtype("cpu"), lambda dtype: torch.set_autocast_dtype("cpu", dtype)),
        (torch.is_inference_mode_enabled, lambda on: _infer(c, on)),
        (lambda: torch.backends.mkldnn.enabled, lambda on: torch.backends.mkldnn.set_flags(on)),
        (lambda: _functions(torch), lambda before: _leave_functions(torch, before)),
        (lambda: _dispatchers(torch), lambda before: _leave_dispatchers(torch, before)),
        (lambda: c._autograd._top_saved_tensors_default_hooks(True), lambda before: _leave_saved(c, before)),
    ]


def _infer(c: Any, on: bool) -> None:
    _INFERENCE.append(c._InferenceMode(on))


def _functions(torch: Any) -> list[Any]:
    found: list[Any] = torch.overrides._get_current_function_mode_stack()
    return found


def _leave_functions(torch: Any, before: list[Any]) -> None:
    while _functions(torch):
        torch._C._pop_torch_function_stack()
    for mode in before:
        torch._C._push_on_torch_function_stack(mode)


def _dispatchers(torch: Any) -> list[Any]:
    found: list[Any] = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return found


def _leave_dispatchers(torch: Any, before: list[Any]) -> None:
    while len(_dispatchers(torch)) > len(before):
        torch.utils._python_dispatch._pop_mode()


def _leave_saved(c: Any, before: Any) -> None:
    while c._autograd._top_saved_tensors_default_hooks(True) not in (before, None):
        c._autograd._pop_saved_tensors_default_hooks()


@cache
def _of_processor() -> list[Setting]:
    try:
        library = ctypes.CDLL(None)
        return [(library.fegetround, library.fesetround)]
    except (OSError, AttributeError):
        return []
