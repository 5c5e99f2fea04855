"""The capture engine and the runner of the tiny model, in plain torch: short enough to check by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from ..contract.batches import Batch, Request, Sink
from ..contract.engines import Intervention, Interventions
from ..contract.model import LayerWeights, ModelInfo, OpenModel
from ..contract.prompts import Prompt, Tokens
from ..contract.sites import MODEL_SITES
from ..contract.twin import Twin
from .tiny_model import ATTENTION_SITES, BOS, EPSILON, MLP_SITES

SITES = ("embed", "resid_pre", *ATTENTION_SITES, "resid_post", "logits")
Replace = Callable[..., torch.Tensor | None]
Seen = Callable[[int | None, dict[str, torch.Tensor]], None]
# (layer, site, tensor) -> what flows on from there
Flow = Callable[[int | None, str, torch.Tensor], torch.Tensor]


class TinyEngine:
    """Runs a shard at a time and hands over each layer once."""

    def sites(self, model: OpenModel) -> tuple[str, ...]:
        """All that the model computes; it has no rotation."""
        if not model.info.d_mlp:
            return SITES
        return (*SITES, *(() if model.info.facts.parallel else ("resid_mid",)), *MLP_SITES)

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        """Run one shard and give the sink what was asked for."""
        ids, text, mask = (torch.from_numpy(array) for array in tokens.padded(shard))
        info = twin.info
        layers = info.layers if request.layers is None else request.layers

        def seen(layer: int | None, arrays: dict[str, torch.Tensor]) -> None:
            wanted = {site: array for site, array in arrays.items() if site in request.sites}
            if wanted and (layer is None or layer in layers):
                sink(Batch(layer, shard, ids, text, mask, wanted, info.heads, info.kv_heads))

        _forward(twin, ids, mask, seen)

    def runner(self, twin: Twin) -> TinyRunner:
        """The runner of ``forward`` analyses."""
        return TinyRunner(twin)


class TinyRunner:
    """Runs the tiny model for a ``forward`` analysis."""

    def __init__(self, twin: Twin) -> None:
        self.twin = twin

    @property
    def info(self) -> ModelInfo:
        """The facts of the model."""
        return self.twin.info

    @property
    def whole(self) -> TinyRunner:
        """The runner of the whole model: itself."""
        return self

    def forward(
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Replace | None = None,
        base: bool = False,
        mask: np.ndarray | None = None,
        sources: tuple[np.ndarray, np.ndarray] | None = None,
        interventions: Sequence[Intervention] = (),
        grad: bool = False,
    ) -> Mapping[Any, torch.Tensor]:
        """Logits where no sites are asked for; else each site, under its name or (layer, site).

        What is captured is what flows on, after ``interventions``; with ``grad`` logits have gradients by it.
        """
        if sources is not None:
            raise TypeError("the tiny model reads no sources")
        return self._forward(tokens, sites, replace, base, mask, interventions, grad)

    def _forward(
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Replace | None = None,
        base: bool = False,
        mask: np.ndarray | None = None,
        interventions: Sequence[Intervention] = (),
        grad: bool = False,
        more: bool = False,
    ) -> Mapping[Any, torch.Tensor]:
        asked = tuple(sites) or ("logits",)
        ids = torch.as_tensor(tokens)
        held = torch.ones(ids.shape, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
        found: dict[Any, torch.Tensor] = {}
        changes = Interventions(interventions, self.info, TinyEngine().sites(self.twin.base), held, more=more)

        def flow(layer: int | None, site: str, tensor: torch.Tensor) -> torch.Tensor:
            if grad and site == "embed":
                tensor = tensor.requires_grad_()  # the root of the graph
            return changes(layer, site, tensor)

        def seen(layer: int | None, arrays: dict[str, torch.Tensor]) -> None:
            for site, array in arrays.items():
                if site in asked:
                    found[site if site in MODEL_SITES else (layer, site)] = array

        with torch.set_grad_enabled(grad):
            _forward(Twin(self.twin.base) if base else self.twin, ids, held, seen, replace, flow)
        return found

    def generate(
        self,
        tokens: np.ndarray,
        most: int,
        base: bool = False,
        replace: Replace | None = None,
        interventions: Sequence[Intervention] = (),
        **how: Any,
    ) -> list[np.ndarray]:
        """The likeliest continuation of each prompt, ``most`` tokens long; every step sees the whole text."""
        if how:
            raise TypeError(f"the tiny model generates greedily; it knows no {', '.join(how)}")
        start = ids = np.atleast_2d(np.asarray(tokens))
        for _ in range(most):
            found = self._forward(ids, replace=replace, base=base, interventions=interventions, more=True)
            likeliest = found["logits"][:, -1].argmax(-1).numpy()
            ids = np.concatenate([ids, likeliest[:, None]], axis=1)
        return list(ids[:, start.shape[1] :])

    def weights(self, layer: int | None) -> LayerWeights:
        """The tensors of a layer as the edits leave them; layer None: those outside the layers."""
        return self.twin.weights(layer)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token numbers."""
        return bytes(number for number in ids if number != BOS).decode("utf-8", "replace")

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Prompts as tokens."""
        return self.twin.base.tokenise(prompts)


def _unchanged(layer: int | None, site: str, tensor: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    return tensor


def _forward(
    twin: Twin,
    ids: torch.Tensor,
    mask: torch.Tensor,
    seen: Seen,
    replace: Replace | None = None,
    flow: Flow = _unchanged,
) -> None:
    """One forward pass; ``seen`` gets the sites of each layer, then those of the whole model."""
    outside = twin.weights(None)
    n = ids.shape[1]
    x = embed = flow(None, "embed", outside.W_E[ids] + outside.W_pos[:n])
    allowed = torch.ones(n, n, dtype=torch.bool).tril() & mask[:, None, None, :]
    for layer in twin.info.layers:
        x = flow(layer, "resid_pre", x)
        arrays = {"resid_pre": x}
        if layer not in twin.info.lacking:
            arrays |= _attention(twin, layer, x, allowed, replace, flow)
        attended = x + arrays["attn_out"] if "attn_out" in arrays else x
        if twin.info.d_mlp and not twin.info.facts.parallel:
            attended = arrays["resid_mid"] = flow(layer, "resid_mid", attended)
        if twin.info.d_mlp:
            arrays |= _mlp(twin, layer, x if twin.info.facts.parallel else attended, flow)
            attended = attended + arrays["mlp_out"]
        x = flow(layer, "resid_post", attended)
        seen(layer, arrays | {"resid_post": x})
    seen(None, {"embed": embed, "logits": flow(None, "logits", _normed(x, outside, "ln_final") @ outside.W_U)})


def _attention(
    twin: Twin, layer: int, x: torch.Tensor, allowed: torch.Tensor, replace: Replace | None, flow: Flow
) -> dict[str, torch.Tensor]:
    weights = twin.weights(layer)
    h = _normed(x, weights, "ln1")
    made = {n: torch.einsum("pnd,hde->pnhe", h, weights[f"W_{n}"]) + _bias(weights, f"b_{n}") for n in "QKV"}
    q, k, v = (flow(layer, name.lower(), tensor) for name, tensor in made.items())
    each = list(weights.kv_of_head)
    scores = torch.einsum("pqhe,pkhe->phqk", q, k[:, :, each]) / math.sqrt(q.shape[-1])
    # A padded first key leaves a row with nothing to attend to; it is spread evenly rather than NaN.
    scores = flow(layer, "scores", scores.masked_fill(~allowed, torch.finfo(scores.dtype).min))
    pattern = scores.softmax(-1)
    z = None
    given = replace(layer, scores, pattern, v) if replace else None
    if given is not None and given.shape == pattern.shape:
        pattern = given
    elif given is not None:
        z = given
    pattern = flow(layer, "pattern", pattern)
    if z is None:
        z = torch.einsum("phqk,pkhe->pqhe", pattern, v[:, :, each])
    z = flow(layer, "z", z)
    out = flow(layer, "attn_out", torch.einsum("pqhe,hed->pqd", z, weights.W_O) + _bias(weights, "b_O"))
    return {"q": q, "k": k, "v": v, "scores": scores, "pattern": pattern, "z": z, "attn_out": out}


def _mlp(twin: Twin, layer: int, x: torch.Tensor, flow: Flow) -> dict[str, torch.Tensor]:
    weights = twin.weights(layer)
    h = _normed(x, weights, "ln1" if twin.info.facts.parallel else "ln2")
    before = flow(layer, "mlp_pre", h @ weights.W_in + _bias(weights, "b_in"))
    after = flow(layer, "mlp_post", torch.nn.functional.gelu(before))
    out = flow(layer, "mlp_out", after @ weights.W_out + _bias(weights, "b_out"))
    return {"mlp_pre": before, "mlp_post": after, "mlp_out": out}


def _bias(weights: LayerWeights, name: str) -> torch.Tensor | float:
    if name in weights:
        return weights[name]
    return 0.0


def _normed(x: torch.Tensor, weights: LayerWeights, name: str) -> torch.Tensor:
    if weights.info.facts.get("norm") == "layer":  # a test may take the facts away
        x = x - x.mean(-1, keepdim=True)
    normed = x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    gained: torch.Tensor = normed * weights[f"{name}.w"] if f"{name}.w" in weights else normed
    return gained + _bias(weights, f"{name}.b")
