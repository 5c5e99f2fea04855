"""What stream analyses do with activations that lie on another device: one that counts copies and has no float64.

No GPU was there to try it on. The device is a subclass of torch's tensors: what lies on it says so, is no array of
numpy until it is copied, and takes no numbers from elsewhere but by a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch.utils._pytree import tree_leaves

import gausslens
from gausslens import Batch, Request, Sink, Tokens, Twin
from gausslens.testing import TinyEngine, host_of

COPIES: Counter[str] = Counter()
DEVICE = torch.device("cuda", 0)


class OnDevice(torch.Tensor):
    """A tensor that behaves as if it lay on another device; ``place`` says which site it is, if it is one."""

    place: str

    @staticmethod
    def of(tensor: torch.Tensor, name: str) -> OnDevice:
        made = tensor.detach().as_subclass(OnDevice)
        made.place = name
        return made

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        said = getattr(function, "__name__", "")
        if function == torch.Tensor.device.__get__:  # type: ignore[attr-defined]
            return DEVICE
        if function == torch.Tensor.is_cuda.__get__:  # type: ignore[attr-defined]
            return True
        with torch._C.DisableTorchFunctionSubclass():
            if said == "cpu":
                COPIES[getattr(args[0], "place", "made there")] += 1
                return args[0].as_subclass(torch.Tensor)
            if said in ("numpy", "__array__", "tolist"):
                raise TypeError("what lies on the device is no array: copy it first")
            indexing = said in ("__getitem__", "index_select", "gather", "__setitem__")
            here = [t for t in tree_leaves((args, kwargs)) if type(t) is torch.Tensor and t.dim() and not indexing]
            if here:
                raise RuntimeError(f"{said}: some of it lies on the device, and some does not")
            kwargs.pop("device", None)
            found = function(*args, **kwargs)
        made = [t for t in tree_leaves(found) if isinstance(t, torch.Tensor)]
        if any(t.dtype == torch.float64 for t in made):
            raise TypeError(f"{said}: the device has no float64")
        if said == "detach" and isinstance(args[0], OnDevice):
            return OnDevice.of(found, getattr(args[0], "place", "made there"))
        return found.as_subclass(OnDevice) if isinstance(found, torch.Tensor) else found


RUN = TinyEngine.run


def _in_float32(
    engine: TinyEngine, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink
) -> None:
    """As the tiny engine does, but in float32."""
    RUN(engine, twin, tokens, shard, request, lambda batch: sink(_changed(batch, lambda _, array: array)))


def _on_device(engine: TinyEngine, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
    """The same, and all that is captured lies on the device."""

    def named(batch: Batch, site: str, array: torch.Tensor) -> torch.Tensor:
        return OnDevice.of(array, f"shard {int(shard[0])}, layer {batch.layer}: {site}")

    RUN(engine, twin, tokens, shard, request, lambda b: sink(_changed(b, lambda site, array: named(b, site, array))))


def _changed(batch: Batch, change: Callable[[str, torch.Tensor], torch.Tensor]) -> Batch:
    return replace(batch, arrays={site: change(site, array.float()) for site, array in batch.arrays.items()})


STREAMS: tuple[dict[str, Any], ...] = (
    {"use": "gaussian.moments", "as": "stream", "with": {"site": "resid_pre"}},
    {"use": "gaussian.moments", "as": "robust", "with": {"site": "resid_pre", "robust": True, "principal": 2}},
    {"use": "gaussian.moments", "as": "values", "with": {"site": "v"}},
    {"use": "gaussian.joint", "with": {"window": 2, "dims": 1, "permutations": 0, "bigrams": 0}},
    {"use": "model.attention"},
    {"use": "model.capture", "with": {"sites": ["resid_pre", "pattern"]}},
    {"use": "attention.band", "with": {"w": [0], "budget": [0]}},
    {"use": "attention.masks", "with": {"keys": [2], "kinds": ["window"]}},
    {"use": "attention.lowrank", "with": {"rank": [1], "kinds": ["svd"]}},
    {"use": "attention.kernels", "with": {"kernels": ["elu"]}},
    {"use": "attention.pooling", "with": {"functions": ["dot"]}},
    {"use": "attention.roles"},
    {"use": "bilinear.logits"},
    {"use": "model.loss"},
)


@pytest.fixture
def results(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    def run(on_device: bool) -> tuple[dict[str, xr.Dataset], Counter[str]]:
        monkeypatch.setattr(TinyEngine, "run", _on_device if on_device else _in_float32)
        COPIES.clear()
        study = {
            "gausslens": 1,
            "name": "device",
            "model": {"path": "builtin:testing"},
            "prompts": {
                "source": "tokens",
                "ids": [[3 + (5 * i * j + i + j) % 40 for j in range(9)] for i in range(12)],
            },
            "variants": {"trained": []},
            "analyses": [dict(one) for one in STREAMS],
            "errors": False,
            "report": False,
        }
        host = host_of("models", "gaussian", "attention", "bilinear")
        store = gausslens.run(study, store=tmp_path / str(on_device), host=host, shown=False)
        labels = [one.get("as", one["use"]) for one in STREAMS]
        return {label: store["trained", label] for label in labels}, Counter(COPIES)

    return run


def test_each_site_of_a_layer_is_copied_once_and_nothing_is_float64_there(results: Any) -> None:
    there, copies = results(on_device=True)
    here, none = results(on_device=False)
    assert not none
    sites = {name: count for name, count in copies.items() if name != "made there"}
    print(copies)
    assert len(sites) > 10
    # A second pass (robust) sees a shard again.
    assert {name: count for name, count in sites.items() if count > 1 + name.endswith("resid_pre")} == {}
    for label, found in here.items():
        xr.testing.assert_identical(there[label].drop_attrs(), found.drop_attrs())
