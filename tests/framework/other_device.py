"""A device of the tests, in place of a GPU: it counts copies from it, mixes with nothing else, and may lack float64.

No GPU was there to try anything on. ``OnDevice`` is a subclass of torch's tensors: what lies there says so, is no array
of numpy until it is copied, and takes nothing from elsewhere but by a copy (``new_tensor``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from gausslens import Batch, Request, Sink, Tokens, Twin
from gausslens.contract.engines import NarrowedRunner
from gausslens.testing import TinyEngine
from gausslens.testing.tiny_engine import TinyRunner

INDEXING = ("__getitem__", "index_select", "gather", "__setitem__", "take_along_dim")
UPLOADS = ("new_tensor", "new_zeros", "new_empty", "new_full", "new_ones")


@dataclass
class Copies:
    """What was copied from the device: numbers of each copy by the name of what was copied."""

    float64: bool = True
    of: dict[str, list[int]] = field(default_factory=dict)
    pending: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    together: int = 0  # the most copies that were on their way at once

    def note(self, tensor: torch.Tensor) -> None:
        """One more."""
        self.of.setdefault(getattr(tensor, "place", "made there"), []).append(tensor.numel())

    @property
    def sites(self) -> dict[str, int]:
        """How often each site was copied."""
        return {name: len(sizes) for name, sizes in self.of.items() if not name.startswith(("made", "weights"))}

    @property
    def numbers(self) -> int:
        """Numbers that were copied, in all."""
        return sum(map(sum, self.of.values()))


COPIES = Copies()


class Event:
    """What says that copies are made: they are made when one waits for it, all that were begun before it."""

    def record(self, stream: object) -> None:
        """Nothing: here the device is slow, and only begins."""

    def synchronize(self) -> None:
        """Make all copies."""
        COPIES.together = max(COPIES.together, len(COPIES.pending))
        while COPIES.pending:
            into, of = COPIES.pending.pop(0)
            into.copy_(of)


class OnDevice(torch.Tensor):
    """A tensor on the device, or on one of several; ``place`` says which site it is, if it is one."""

    place: str
    number: int

    @staticmethod
    def of(tensor: torch.Tensor, name: str, number: int = 0) -> OnDevice:
        made = _plain(tensor.detach()).as_subclass(OnDevice)
        made.place, made.number = name, number
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        said = getattr(function, "__name__", "")
        numbers = {t.number for t in tree_leaves((args, kwargs)) if isinstance(t, OnDevice)}
        number = min(numbers)
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return torch.device("cuda", number)
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        if said == "cpu":
            COPIES.note(args[0])
            return _plain(args[0])
        if said in ("numpy", "__array__", "tolist", "item"):
            raise TypeError("what lies on the device is no array: copy it first")
        if said == "empty_like" and kwargs.get("device") == "cpu":
            assert kwargs["pin_memory"], "what the device writes by itself is pinned"
            return torch.full_like(_plain(args[0]), torch.nan)  # until it has
        if said == "copy_" and not isinstance(args[0], OnDevice):
            COPIES.note(args[1])
            COPIES.pending.append((args[0], _plain(args[1])))
            return args[0]
        if said == "to" and (device := _device_of(args, kwargs)) is not None:
            if device.type == "cpu":
                return args[0].cpu()
            return OnDevice.of(args[0], getattr(args[0], "place", "made there"), device.index or 0)
        _check_places(said, args, kwargs)
        if len(numbers) > 1 and said not in INDEXING:
            raise RuntimeError(f"{said}: some of it lies on another device")
        with torch._C.DisableTorchFunctionSubclass():
            kwargs.pop("device", None)
            found = function(*tree_map(_plain, args), **tree_map(_plain, kwargs))
        if not COPIES.float64 and any(
            t.dtype == torch.float64 for t in tree_leaves(found) if isinstance(t, torch.Tensor)
        ):
            raise TypeError(f"{said}: the device has no float64")
        if said == "detach":
            return OnDevice.of(found, getattr(args[0], "place", "made there"), number)
        return tree_map(
            lambda one: OnDevice.of(one, "made there", number) if isinstance(one, torch.Tensor) else one, found
        )


class Uploads(TorchFunctionMode):
    """Lets ``tensor.to(device)`` of what lies on the CPU put it there."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        device = _device_of(args, kwargs or {}) if getattr(function, "__name__", "") == "to" else None
        if device is not None and device.type == "cuda" and not isinstance(args[0], OnDevice):
            return OnDevice.of(args[0], "from the CPU", device.index or 0)
        return function(*args, **(kwargs or {}))


def _device_of(args: Any, kwargs: Any) -> torch.device | None:
    """The device that ``to`` is given."""
    given = next((a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.device | str)), None)
    return None if given is None else torch.device(given)


def _plain(one: Any) -> Any:
    return one.as_subclass(torch.Tensor) if isinstance(one, OnDevice) else one


def _check_places(said: str, args: Any, kwargs: Any) -> None:
    """Refuse what mixes tensors of the device with others; numbers, and places to index by, may come from the CPU."""
    if said in INDEXING or said in UPLOADS:
        return
    if any(type(t) is torch.Tensor and t.dim() for t in tree_leaves((args, kwargs))):
        raise RuntimeError(f"{said}: some of it lies on the device, and some does not")
    if any(isinstance(t, np.ndarray) for t in tree_leaves((args, kwargs))):
        raise RuntimeError(f"{said}: an array of numpy among tensors of the device")


RUN, FORWARD, WEIGHTS = TinyEngine.run, TinyRunner.forward, NarrowedRunner.weights
Place = Callable[[str, torch.Tensor], torch.Tensor]


def compute(patch: pytest.MonkeyPatch, place: Place) -> None:
    """Let the tiny model hand out what ``place`` makes of each tensor, of which it is told what it is."""

    def run(engine: Any, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        def placed(batch: Batch) -> Batch:
            where = f"shard {int(shard[0])}, layer {batch.layer}"
            return replace(batch, arrays={s: place(f"{where}: {s}", a) for s, a in batch.arrays.items()})

        RUN(engine, twin, tokens, shard, request, lambda batch: sink(placed(batch)))

    def forward(runner: Any, tokens: Any, sites: Any = (), replace: Any = None, **named: Any) -> Any:
        def watch(layer: int, *seen: torch.Tensor) -> None:
            replace(layer, *(place(f"layer {layer}: {s}", a) for s, a in zip(WATCHED, seen, strict=True)))

        found = FORWARD(runner, tokens, sites, None if replace is None else watch, **named)
        return {what: place(str(what), array) for what, array in found.items()}

    patch.setattr(torch.cuda, "Event", Event)
    patch.setattr(torch.cuda, "current_stream", lambda device: device)
    patch.setattr(TinyEngine, "run", run)
    patch.setattr(TinyRunner, "forward", forward)
    patch.setattr(NarrowedRunner, "weights", lambda runner, layer: _Weights(WEIGHTS(runner, layer), place))


WATCHED = ("scores", "pattern", "v")


def in_float32(_: str, tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, in the type that the device has."""
    return tensor.float()


def on_device(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """On the device."""
    return OnDevice.of(tensor.float(), name)


class _Weights:
    """The tensors of a layer where activations are."""

    def __init__(self, weights: Any, place: Place) -> None:
        self._weights, self._place = weights, place

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._place(f"weights: {name}", self._weights[name])

    def __contains__(self, name: str) -> bool:
        return name in self._weights

    def __getattr__(self, name: str) -> Any:
        return getattr(self._weights, name)
