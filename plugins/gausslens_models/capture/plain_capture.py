"""Engine `torch`: captures of a plain torch module, whose attention calls no function that could be registered.

q, k, v and z are seen at its modules: z is what the module of W_O is given. Scores and patterns are made of q and k by
the formulas of attention, and so proved by z: the module's own must be pattern times v. Where a pass may be changed,
the module of W_O is given the z that was made, changed or not: the same pattern in place of itself changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Finding, GausslensError, LayerWeights, ModelError

from ..families.mapped import MADE
from ..maths import attention_formulas as formulas
from ..maths.rounding import working_type
from .attention import Call, evaluating
from .engine import TransformersEngine
from .forward_pass import Capture, LastLayerDone, hook, pre_hook

if TYPE_CHECKING:
    from ..loading.plain_module import PlainModule


@dataclass(frozen=True)
class WrittenCall(Call):
    """A layer's attention written out, beside the head outputs [prompt, query, head, d_head] of the module."""

    given: torch.Tensor

    def outputs(self, eager: bool = False) -> torch.Tensor:
        """The module's own head outputs; or those made of the pattern."""
        return super().outputs(eager) if eager else self.given

    @property
    def fused(self) -> bool:
        """What is made of the pattern is made in blocks of rows."""
        return False

    def rows(self, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Head outputs and pattern of some query rows: softmax(scores) v."""
        scores = self.scores(start, end)
        pattern = scores.to(working_type(scores.dtype)).softmax(-1).to(self.value.dtype)
        return torch.matmul(pattern, self._repeated(self.value)).transpose(1, 2), pattern


class PlainCapture(Capture):
    """One forward pass of a plain module."""

    model: PlainModule

    def _ready(self, stack: contextlib.ExitStack, module: Any) -> None:
        self._heads: dict[int, dict[str, torch.Tensor]] = {}
        stack.enter_context(evaluating(module))

    def _called(self, ids: torch.Tensor, mask: torch.Tensor, logits: bool, whole: bool) -> dict[str, Any]:
        model = self.model
        self._visible = mask.bool()
        if "mask" not in model.mapping.arguments.values() and not _only_at_the_end(self._visible, model.info.causal):
            raise ModelError(
                f"{model.name}: prompts of unequal length are padded, and the mapping names no argument of the module "
                "that takes the mask: say arguments: {NAME: mask}, or give it prompts of one length"
            )
        try:
            found = model.answer(ids, mask)
        except (GausslensError, MemoryError, torch.OutOfMemoryError, LastLayerDone):
            raise
        except Exception as error:
            said = (str(error).strip().splitlines() or [""])[0][:300]
            raise ModelError(
                f"{model.name}: the module fails on token numbers {list(ids.shape)}: {type(error).__name__}: {said}"
            ) from error
        return ({"logits": found} if logits else {}) | ({"final": found} if whole and not logits else {})

    def _watch(self, stack: contextlib.ExitStack, module: Any, layer: int, needed: bool) -> None:
        """Keep q, k and v of this layer until the module of W_O is given z."""
        if not (self.model.layout.family.watched and (needed or self.eager)):
            return
        taps = self.model.heads
        for name in ("q", "k", "v"):
            place, keep = module.get_submodule(taps[name].module), partial(self._kept, layer, name)
            stack.enter_context(hook(place, keep) if taps[name].end == "out" else pre_hook(place, keep))
        stack.enter_context(pre_hook(module.get_submodule(taps["z"].module), partial(self._given, layer)))

    def _kept(self, layer: int, name: str, _module: Any, arguments: Any, result: Any) -> None:
        self._heads.setdefault(layer, {})[name] = self._cut(name, self.model.heads[name], arguments, result).detach()

    def _given(self, layer: int, _module: Any, arguments: tuple[Any, ...], named: Any) -> Any:
        """z as the module of W_O is given it; what is returned takes its place."""
        heads = self._heads.pop(layer, {})
        lost = sorted({"q", "k", "v"} - heads.keys())
        if lost or not arguments:
            what = f"{', '.join(lost)} fired after z, or never" if lost else "what W_O reads is no first argument"
            raise ModelError(f"{self.model.name}: layer {layer}: {what}: the mapping sees heads at other modules")
        z = arguments[0]
        sizes, (prompts, length) = self.model.layout.sizes, self._shape
        if z.numel() != prompts * length * sizes.heads * sizes.value:
            raise ModelError(
                f"{self.model.name}: layer {layer}: the module of W_O is given {list(z.shape)}, not "
                f"{sizes.heads} heads of {sizes.value} for {prompts} prompts of {length}"
            )
        out = self._attended(layer, self._call(layer, heads, z.reshape(prompts, length, sizes.heads, sizes.value)))
        if not self.eager or out is None:
            return None
        return (out.reshape(z.shape).to(z), *arguments[1:]), named

    def _call(self, layer: int, heads: dict[str, torch.Tensor], z: torch.Tensor) -> WrittenCall:
        info, weights = self.model.info, LayerWeights(self.model, layer)
        q, k = (formulas.positioned(heads[n.lower()], weights, n, layer, info).transpose(1, 2) for n in "QK")
        # A row of padding that sees nothing would be no number: let each see itself.
        own = torch.eye(q.shape[2], dtype=torch.bool, device=q.device)
        seen = (formulas.visible(layer, info, self._visible) | own)[:, None]
        options = {"scaling": info.facts.scale(layer), "softcap": info.facts.soft_cap}
        return WrittenCall(self.model.module, q, k, heads["v"].transpose(1, 2), seen, options, z.detach())


class PlainEngine(TransformersEngine):
    """Captures of plain modules. There is no cache of keys and values: each generated token runs the whole text."""

    capture = PlainCapture
    remembers = False

    def prove(self, model: Any, sites: Sequence[str] | None = None) -> list[Finding]:
        """Hold what is captured against the module's own answer, and against its tensors."""
        from ..loading.eager_answer import answer_of
        from ..loading.turns import turn_of
        from .parity_proof import prove

        def ask(ids: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
            return model.answer(ids, torch.ones_like(ids))[0], ()

        made = model.layout.family.watched and (sites is None or not {*MADE}.isdisjoint(sites))
        with turn_of(model.module):
            model.check_finite()
            with evaluating(model.module), torch.no_grad():
                reference = answer_of(model, ask)
            findings = prove(model, self.capture, reference, (*sites, "z") if made and sites is not None else sites)
        # Nothing but z tells whether what was made of q and k is what the module does.
        return [replace(f, sites=(*f.sites, *MADE)) if made and f.what.startswith("z of") else f for f in findings]


def _only_at_the_end(mask: torch.Tensor, causal: bool) -> bool:
    """Whether no token that is there can see padding though the module knows no mask."""
    if not causal:
        return bool(mask.all())
    return not bool((mask[:, 1:] & ~mask[:, :-1]).any())
