"""Engine `transformer-lens`: capture through the hook points of a TransformerBridge."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Finding, ModelError

from ..loading.turns import turn_of
from .engine import TransformersEngine
from .forward_pass import Capture, Captured, LastLayerDone, Sources, check_sources, scaled

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
        last = max(self.wanted, default=-1)
        hooks: list[tuple[str, Any]] = [
            (name, partial(self._noted, layer, site)) for layer, site, name in self._names()
        ]
        hooks += [
            (f"blocks.{layer}.hook_out", partial(self._ended, layer, layer == last and not (logits or whole)))
            for layer in self.wanted
        ]
        if embed:
            place = "project_in.hook_out" if "project_in.hook_out" in self.model.bridge.hook_dict else "embed.hook_out"
            hooks.append((place, lambda tensor, hook: found.update(embed=tensor.detach())))  # noqa: ARG005
        with torch.no_grad(), _silenced(), self.model.bridge.hooks(fwd_hooks=hooks), contextlib.suppress(LastLayerDone):
            output = self.model.bridge(ids, attention_mask=mask, return_type="logits")
            if logits:
                found["logits"] = output
        self._check_done(found, logits, embed)
        return found

    def _names(self) -> Iterator[tuple[int, str, str]]:
        for layer, sites in self.wanted.items():
            self.captured[layer] = Captured()
            for site in sites:
                name = f"blocks.{layer}.{self.model.hooks[site]}"
                if name not in self.model.bridge.hook_dict:
                    raise ModelError(f"{self.model.name}: TransformerLens shows no {site} of layer {layer}")
                yield layer, site, name

    def _noted(self, layer: int, site: str, tensor: torch.Tensor, hook: Any) -> None:  # noqa: ARG002
        if site == "scores":
            # What masks is the lowest number, or that over the root of d_head.
            tensor = tensor.masked_fill(tensor <= torch.finfo(tensor.dtype).min / 1024, -torch.inf)
        self.captured[layer].add(site, scaled(self.model, site, tensor))

    def _ended(self, layer: int, stop: bool, tensor: torch.Tensor, hook: Any) -> None:  # noqa: ARG002
        captured = self.captured.pop(layer)
        self._check(layer, captured)
        self.done(layer, captured)
        self.finished.add(layer)
        if stop:
            raise LastLayerDone


class BridgeEngine(TransformersEngine):
    """Captures through TransformerLens. Replacement and edits of what a bridge has copied are refused."""

    capture = BridgeCapture
    remembers = False

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
