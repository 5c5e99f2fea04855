"""Whether an intervention at a site acts, and acts alone: held against the model's own answer, before the first one.

Putting back what a site holds must change nothing, to the bit; putting back something else must reach the end. Where
the stream is changed, what is added to it later must be added to the changed one. Layers of one kind are proved once.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch

from gausslens import Finding, Intervention, Interventions, ModelError, Where

from ..loading.eager_answer import proof_prompt, proof_sources
from ..loading.turns import turn_of
from .engine import wanted_sites
from .forward_pass import Capture, Captured

# Tokens of the prompts of this proof.
TOKENS = 8
# What is added to the stream behind a site of it, and the stream after that.
ADDED_TO = {"resid_pre": ("attn_out", "resid_mid"), "resid_mid": ("mlp_out", "resid_post")}
_PROVED: weakref.WeakKeyDictionary[Any, dict[tuple[Any, ...], list[Finding]]] = weakref.WeakKeyDictionary()


def check_they_act(model: Any, capture: type[Capture], given: Sequence[Intervention]) -> None:
    """Refuse interventions at sites where they do not act as they should; each site and kind of layer is tried once."""
    proved = _PROVED.setdefault(model, {})
    for one in given:
        key = (one.site, *_kind(model, one.layer))
        if key not in proved:
            proved[key] = prove_site(model, capture, one.site, one.layer)
        wrong = [f for f in proved[key] if not f.holds]
        if wrong:
            raise ModelError(
                f"{model.name}: interventions at {one.site} do not act as they should: {wrong[0].what} differs by "
                f"{wrong[0].difference:.2g}, allowed is {wrong[0].tolerance:.2g}"
            )


def _kind(model: Any, layer: int | None) -> tuple[Any, ...]:
    """What tells layers of another kind apart: without attention, of experts."""
    layout = getattr(model, "layout", None)
    if layer is None or layout is None:
        return (layer is None,)
    return (False, *(row[layer] for row in (layout.kinds, layout.mixed) if len(row) > layer))


def prove_site(model: Any, capture: type[Capture], name: str, layer: int | None) -> list[Finding]:
    """What interventions at a site of a layer do to the end of a short prompt."""
    where = name if layer is None else f"{name} of layer {layer}"
    passes = _Passes(model, capture)
    with turn_of(model.module):
        own = passes.end(())
        same = passes.end([Intervention(name, layer, lambda tensor, _: tensor.clone())])
        moved = passes.end([Intervention(name, layer, _noise)])
        reaches = not torch.equal(own, moved) or passes.connected(name, layer)
        changed = f"the end where {where} is put back as it is"
        reached = f"the end where {where} is changed, which reaches it not,"
        found = [
            Finding(changed, float((own - same).abs().max()), 0.0, (name,)),
            Finding(reached, 0.0 if reaches else torch.inf, 0.0, (name,)),
        ]
        if name in ADDED_TO and {name, *ADDED_TO[name]} <= set(model.sites) and layer is not None:
            found += passes.stream(name, layer)
    return found


class _Passes:
    """Passes over a short prompt."""

    def __init__(self, model: Any, capture: type[Capture]) -> None:
        self.model, self.capture = model, capture
        ids, _ = proof_prompt(model)
        self.ids = ids[:, :TOKENS]
        sources = proof_sources(model, len(ids))
        self.sources = None if sources is None else (sources[0], sources[1].long())

    def end(self, given: Sequence[Intervention]) -> torch.Tensor:
        """Logits, or the final hidden state."""
        return self._run(given, {})[0]

    def connected(self, name: str, layer: int | None) -> bool:
        """Whether the end is computed of a site at all, be it that weights behind it are zero."""
        site = () if layer is None else (name,)
        wanted = {} if layer is None else {n: s for n, s in self._wanted(site).items() if n == layer}
        end, found = self._run((), wanted, grad=True)
        held = found[name] if layer is None else found[layer, name]
        [gradient] = torch.autograd.grad(end.sum(), [held], allow_unused=True)
        return gradient is not None

    def stream(self, name: str, layer: int) -> list[Finding]:
        """Whether what is added to a changed stream is added to it, where it is to the stream as it is."""
        added, after = ADDED_TO[name]
        if any(s in self.model.info.lacking.get(layer, {}) for s in (added, after)):
            return []
        wanted: dict[int, tuple[str, ...]] = {layer: (name, added, after)}

        def apart(given: Sequence[Intervention]) -> float:
            found = self._run(given, wanted)[1]
            held, more, then = (found[layer, site].double() for site in wanted[layer])
            return float((held + more - then).abs().max() / then.abs().max())

        allowed = 16 * torch.finfo(self.model.dtype).eps
        if apart(()) > allowed:  # a norm stands between, or attention to a source
            return []
        return [Finding(f"{after} of layer {layer}, where {name} is changed,", apart([_of(name, layer)]), allowed)]

    def _wanted(self, sites: Sequence[str]) -> dict[int, tuple[str, ...]]:
        return wanted_sites(self.model, sites, None) if sites else {}

    def _run(
        self, given: Sequence[Intervention], wanted: dict[int, tuple[str, ...]], grad: bool = False
    ) -> tuple[torch.Tensor, dict[Any, torch.Tensor]]:
        found: dict[Any, torch.Tensor] = {}

        def done(layer: int, captured: Captured) -> None:
            found.update({(layer, site): array for site, array in captured.arrays.items()})

        model, mask = self.model, torch.ones_like(self.ids)
        keys = self.sources[1] if self.sources is not None and model.info.facts.crossed else None
        changes = Interventions(given, model.info, model.sites, mask, keys) if given else None
        capture = self.capture(model, wanted, done, eager=True, changes=changes, grad=grad)
        whole = capture.run(self.ids, mask, model.headed, grad, whole=True, sources=self.sources)
        return whole["logits" if model.headed else "final"], found | whole


def _of(name: str, layer: int) -> Intervention:
    return Intervention(name, layer, _noise)


def _noise(tensor: torch.Tensor, where: Where) -> torch.Tensor:
    """As much noise as there is of it; other scores and patterns."""
    if where.site == "pattern":
        return torch.zeros_like(tensor)
    finite = tensor[tensor.isfinite()]
    size = float(finite.float().std()) or 1.0
    draw = torch.Generator().manual_seed(0)
    return tensor + size * torch.randn(tensor.shape, generator=draw).to(tensor)
