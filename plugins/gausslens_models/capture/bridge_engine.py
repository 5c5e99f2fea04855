"""Engine `transformer-lens`: capture through the hook points of a TransformerBridge."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Finding, ModelError

from ..loading.turns import turn_of
from .engine import TransformersEngine
from .forward_pass import Capture, Captured, LastLayerDone, Sources, check_sources, scaled
from .intervening import by_difference

if TYPE_CHECKING:
    from ..loading.bridge import BridgedModel


class BridgeCapture(Capture):
    """One forward pass through a bridge; layers are handed over as they complete, as by the other engine."""

    model: BridgedModel

    def run(
        self,
        ids: torch.Tensor,
        mask: torch.Tensor,
        logits: bool = False,
        embed: bool = False,
        whole: bool = False,
        sources: Sources | None = None,
    ) -> dict[str, Any]:
        """Run the bridge on [prompt, position] and return embed and logits if asked."""
        check_sources(self.model, sources)
        if self.replace is not None:
            raise ModelError("replacement needs plain transformers: open the model with `loader: transformers`")
        found: dict[str, Any] = {}
        self._shape = (ids.shape[0], ids.shape[1])
        layers = sorted({*self.wanted, *self._layers_changed})
        last = max(layers, default=-1)
        hooks: list[tuple[str, Any]] = [
            (name, partial(self._noted, layer, site)) for layer, site, name in self._names()
        ]
        hooks += [
            (f"blocks.{layer}.hook_out", partial(self._ended, layer, layer == last and not (logits or whole)))
            for layer in layers
        ]
        if embed or self.grad or self._changed(None):
            place = "project_in.hook_out" if "project_in.hook_out" in self.model.bridge.hook_dict else "embed.hook_out"
            hooks.append((place, partial(self._bridge_embedded, found)))
        with (
            torch.set_grad_enabled(self.grad),
            _silenced(),
            self.model.bridge.hooks(fwd_hooks=hooks),
            contextlib.suppress(LastLayerDone),
        ):
            output = self.model.bridge(ids, attention_mask=mask, return_type="logits")
            if logits:
                found["logits"] = self.flow(None, "logits", output)
        self._check_done(found, logits, embed or "embed" in self._changed(None))
        return found if embed else {name: array for name, array in found.items() if name != "embed"}

    def _names(self) -> Iterator[tuple[int, str, str]]:
        for layer in sorted({*self.wanted, *self._layers_changed}):
            self.captured[layer] = Captured()
            for site in dict.fromkeys((*self.wanted.get(layer, ()), *self._changed(layer))):
                name = f"blocks.{layer}.{self.model.hooks[site]}"
                if name not in self.model.bridge.hook_dict:
                    raise ModelError(f"{self.model.name}: TransformerLens shows no {site} of layer {layer}")
                yield layer, site, name

    def _bridge_embedded(self, found: dict[str, Any], tensor: torch.Tensor, hook: Any) -> torch.Tensor | None:  # noqa: ARG002
        found["embed"] = flows = self.flow(None, "embed", tensor)
        if self.grad:
            return flows.clone()
        return flows if "embed" in self._changed(None) else None

    def _noted(self, layer: int, site: str, tensor: torch.Tensor, hook: Any) -> torch.Tensor | None:  # noqa: ARG002
        seen = tensor
        if site == "scores":
            # What masks is the lowest number, or that over the root of d_head.
            seen = tensor.masked_fill(tensor <= torch.finfo(tensor.dtype).min / 1024, -torch.inf)
        ours = scaled(self.model, site, seen)
        wanted = site in self.wanted.get(layer, ())
        flows = self.flow(layer, site, ours) if self._on_path(layer, site) else ours
        self.captured[layer].add(site, flows, wanted)
        if not self._on_path(layer, site) or (flows is ours and not self.grad):
            return None
        if site == "scores":
            return flows.clamp_min(torch.finfo(tensor.dtype).min)
        return flows if ours is tensor else by_difference(tensor, ours, flows, self._factor(site))

    def _ended(self, layer: int, stop: bool, tensor: torch.Tensor, hook: Any) -> None:  # noqa: ARG002
        captured = self.captured.pop(layer)
        self._check(layer, captured)
        if layer in self.wanted:
            self.done(layer, captured)
        self.finished.add(layer)
        if stop:
            raise LastLayerDone


class BridgeEngine(TransformersEngine):
    """Captures through TransformerLens. ``replace`` and edits of what a bridge has copied are refused."""

    capture = BridgeCapture
    remembers = False

    def by_layer(self, model: Any, edited: Collection[str] = ()) -> str:  # noqa: ARG002
        """Refused."""
        raise ModelError(f"{model.name}: TransformerLens holds a model whole: use `loader: transformers`")

    def prove(self, model: Any, sites: Sequence[str] | None = None) -> list[Finding]:
        """Hold what the bridge gives against the model as it was before it was wrapped, and against its tensors."""
        from .parity_proof import prove

        with turn_of(model.module):
            model.check_finite()
            model.bridge  # noqa: B018 - booted, and the plain answer kept
            return prove(model, self.capture, model.reference, sites)


@contextlib.contextmanager
def _silenced() -> Iterator[None]:
    """What TransformerLens and transformers say of each other's versions is not for our users."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
