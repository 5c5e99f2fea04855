"""Engine `torch`: captures of a plain torch module, whose attention calls no function that could be registered.

q, k, v and z are seen at its modules: z is what the module of W_O is given. Scores and patterns are made of q and k by
the formulas of attention, and so proved by z: the module's own must be pattern times v. Where a pass may be changed,
the module of W_O is given the z that was made, changed or not: the same pattern in place of itself changes nothing.

The proof sees short prompts of random tokens. So z is held against pattern times v in every pass, too: a window, a
mask between documents or a scale that only longer or other prompts show is refused there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from gausslens import Finding, LayerWeights, ModelError

from ..families.mapped import MADE
from ..maths import attention_formulas as formulas
from ..maths.rounding import FACTOR, allowed, epsilons, softmax_moved, working_type
from .attention import Call, evaluating
from .engine import TransformersEngine
from .forward_pass import Capture, Captured
from .intervening import hook, pre_hook

if TYPE_CHECKING:
    from ..loading.plain_module import PlainModule


@dataclass(frozen=True)
class WrittenCall(Call):
    """A layer's attention written out, beside the head outputs [prompt, query, head, d_head] of the module.

    Whenever rows are made they are held against these, but for ``queries`` that are not there [prompt, query];
    ``unlike`` makes the error of prompt, position, difference and what is allowed. None holds nothing.
    """

    given: torch.Tensor
    queries: torch.Tensor
    turned: bool
    unlike: Callable[[int, int, float, float], ModelError] | None

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
        out = torch.matmul(pattern, self._repeated(self.value)).transpose(1, 2)
        if self.unlike is not None:
            self._hold(torch.arange(start, end, device=out.device), scores, pattern, out)
        return out, pattern

    def _hold(self, rows: torch.Tensor, scores: torch.Tensor, pattern: torch.Tensor, out: torch.Tensor) -> None:
        """Refuse rows that the module has otherwise; what is surely allowed is cheap, the rest looked at closely."""
        assert self.unlike is not None
        size = torch.matmul(pattern, self._repeated(self.value).abs()).transpose(1, 2)
        least = allowed(torch.zeros_like(out), size, pattern.shape[-1], out.dtype)
        doubtful = self._beyond(rows, out, least).flatten(2).any(-1).any(0)
        if not bool(doubtful.any()):
            return
        rows, out = rows[doubtful], out[:, doubtful]
        bound = self._allowed(rows, scores[:, :, doubtful], pattern[:, :, doubtful], out)
        wrong = self._beyond(rows, out, bound).flatten(2)
        if bool(wrong.any()):
            apart = (out - self.given[:, rows]).abs().flatten(2).nan_to_num(torch.inf)
            prompt, row, entry = (int(n) for n in wrong.nonzero()[0])
            worst = entry if not bool(apart[prompt, row].isfinite().all()) else int(apart[prompt, row].argmax())
            found, most = float(apart[prompt, row, worst]), float(bound.flatten(2)[prompt, row, worst])
            raise self.unlike(prompt, int(rows[row]), found, most)

    def _beyond(self, rows: torch.Tensor, out: torch.Tensor, bound: torch.Tensor) -> torch.Tensor:
        """Where the module has other head outputs in these rows; what is no number in both is not told apart."""
        given = self.given[:, rows]
        finite = out.isfinite() | given.isfinite()
        return ~((out - given).abs() <= bound) & finite & self.queries[:, rows, None, None]

    def _allowed(
        self, rows: torch.Tensor, scores: torch.Tensor, pattern: torch.Tensor, out: torch.Tensor
    ) -> torch.Tensor:
        """What z may be off by, as in the proof: scores by their rounding, the pattern by what that does to it.

        Angles of a rotation are off by a rounding of themselves: of radians, which there are as many of as positions.
        """
        dtype, wide = out.dtype, working_type(out.dtype)
        key, value = (self._repeated(t).to(wide) for t in (self.key, self.value))
        squares = torch.matmul(self.query[:, :, rows].to(wide).square(), key.square().mT)
        size = squares.sqrt() * abs(self.options["scaling"])
        moved = allowed(scores.to(wide), size, key.shape[-1], dtype)
        if self.turned:
            moved = moved + FACTOR * epsilons(dtype)[1] * rows[:, None] * size
        moved = torch.where(scores.isfinite(), moved, 0.0).amax(-1, keepdim=True)
        off = allowed(pattern.to(wide), 0.0, key.shape[2], dtype) + softmax_moved(pattern, moved).to(wide)
        summed = torch.matmul(pattern.to(wide).square(), value.square()).sqrt()
        bound = allowed(out.to(wide).transpose(1, 2), summed, key.shape[2], dtype) + torch.matmul(off, value.abs())
        return bound.transpose(1, 2)


class PlainCapture(Capture):
    """One forward pass of a plain module."""

    model: PlainModule
    held = True  # whether what is made of q and k is refused where z is not that

    def _ready(self, stack: contextlib.ExitStack, module: Any) -> None:
        self._heads: dict[int, dict[str, torch.Tensor]] = {}
        stack.enter_context(evaluating(module))

    def called(self, ids: torch.Tensor, mask: torch.Tensor, logits: bool, whole: bool = False) -> dict[str, Any]:
        """What the module itself gives of this: logits, or the final hidden state."""
        model = self.model
        self._visible = mask.bool()
        if not model.takes_mask and not _only_at_the_end(self._visible, model.info.causal):
            raise ModelError(
                f"{model.name}: prompts of unequal length are padded, and the mapping names no argument of the module "
                "that takes the mask: say arguments: {NAME: mask}, or give it prompts of one length"
            )
        found = model.answer(ids, mask)
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
        self._heads.setdefault(layer, {})[name] = self._cut(name, self.model.heads[name], arguments, result)

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
        call = self._call(layer, heads, z.reshape(prompts, length, sizes.heads, sizes.value))
        if self.held and not self.eager and not self._makes_rows(layer):
            call.outputs(eager=True)  # rows are made to hold them alone
        out = self._attended(layer, call)
        if not self.eager or out is None:
            return None
        return (out.reshape(z.shape).to(z), *arguments[1:]), named

    def _turned(self, layer: int, call: Call, captured: Captured) -> Call:
        """As for any model; what is changed here is none of the module's own, and was held against that before."""
        found = super()._turned(layer, call, captured)
        if found is call:
            return call
        call.outputs(eager=True)
        assert isinstance(found, WrittenCall)
        return replace(found, unlike=None)

    def _makes_rows(self, layer: int) -> bool:
        """Whether rows are made anyway, or nothing that is made of q and k is wanted."""
        made = {*MADE} & {*self.wanted.get(layer, ())}
        return not made or "pattern" in made or ("scores" in made and not self.rows)

    def _call(self, layer: int, heads: dict[str, torch.Tensor], z: torch.Tensor) -> WrittenCall:
        info, weights = self.model.info, LayerWeights(self.model, layer)
        q, k = (formulas.positioned(heads[n.lower()], weights, n, layer, info).transpose(1, 2) for n in "QK")
        # A row of padding that sees nothing would be no number: let each see itself.
        own = torch.eye(q.shape[2], dtype=torch.bool, device=q.device)
        seen = (formulas.visible(layer, info, self._visible) | own)[:, None]
        options = {"scaling": info.facts.scale(layer), "softcap": info.facts.soft_cap}
        parts = (self.model.module, q, k, heads["v"].transpose(1, 2), seen, options, z.detach(), self._visible)
        turned = info.facts.position == "rotary"
        return WrittenCall(*parts, turned, partial(self._unlike, layer) if self.held else None)

    def _unlike(self, layer: int, row: int, position: int, apart: float, bound: float) -> ModelError:
        prompt = row if self.prompts is None else int(self.prompts[row])
        return ModelError(
            f"{self.model.name}: layer {layer}, prompt {prompt}, position {position}: z, which the module of W_O is "
            f"given, is not pattern times v: differs by {apart:.2g}, allowed is {bound:.2g}. The short prompts of the "
            "proof did not show it. Look in the mapping at facts (sliding_window, causal, scale, soft_cap, rotary "
            "ones: do they hold at every length?) and at arguments (a mask). A mask of the module's own, between "
            "documents say, or a scale that changes with the length cannot be mapped: ask no scores and patterns"
        )


class UnheldCapture(PlainCapture):
    """The same for the proof, whose findings tell what differs."""

    held = False


class PlainEngine(TransformersEngine):
    """Captures of plain modules. There is no cache of keys and values: each generated token runs the whole text."""

    capture = PlainCapture
    remembers = False

    def by_layer(self, model: Any, edited: Collection[str] = ()) -> str:  # noqa: ARG002
        """Refused."""
        raise ModelError(f"{model.name}: a plain torch module is held whole")

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
            findings = prove(model, UnheldCapture, reference, (*sites, "z") if made and sites is not None else sites)
        # Nothing but z tells whether what was made of q and k is what the module does.
        return [replace(f, sites=(*f.sites, *MADE)) if made and f.what.startswith("z of") else f for f in findings]


def _only_at_the_end(mask: torch.Tensor, causal: bool) -> bool:
    """Whether no token that is there can see padding though the module knows no mask."""
    if not causal:
        return bool(mask.all())
    return not bool((mask[:, 1:] & ~mask[:, :-1]).any())
