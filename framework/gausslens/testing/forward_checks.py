"""A check of analyses of shape ``forward``: those that run the model themselves."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..contract.descriptors import Analysis
from ..contract.engines import CaptureEngine, Intervention, NarrowedRunner, Runner, no_texts
from ..contract.errors import GausslensError
from ..contract.model import ModelInfo, OpenModel
from ..contract.parameters import Parameters
from ..contract.prompts import Part, Prompt
from ..contract.reference import resolve
from ..contract.sites import site
from ..contract.twin import Twin
from ..runs.outcome import labelled
from .result_checks import check_in_view, check_outputs, check_result, check_same
from .stream_checks import TEXTS, context_of
from .tiny_engine import TinyEngine
from .tiny_model import TinyModel, of_kinds
from .weights_checks import all_tensors, check_untouched

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from ..contract.analyses import StepRef


def check_forward(
    analysis: Analysis,
    parameters: Parameters | None = None,
    *,
    model: TinyModel | None = None,
    texts: Sequence[str] = TEXTS,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    inputs: Mapping[StepRef, xr.Dataset] | None = None,
) -> xr.Dataset:
    """Run a forward analysis on the tiny model and return its result, after checking that

    - without ``model``, it runs on each of ``TinyModel.kinds()``, or refuses a kind by a GausslensError: what follows
      is checked of all, and the result is the plain one's;
    - a new instance gives the same bits, and leaves the model as it is: weights, and what it computes afterwards;
    - with only the last layer and head in view it runs, and names those and no others, or refuses that;
    - the result is well formed (``check_result``), and by default as the plugin lists it (``check_outputs``).

    ``layers`` and ``heads`` are those in view (None: all); ``inputs`` are the results that it finds in
    ``context.inputs``.
    """
    chosen = parameters or resolve(analysis.parameters)()
    found = of_kinds(model, lambda held: _Forward(analysis, chosen, held, texts, inputs).checked(layers, heads))
    return check_outputs(analysis, found) if parameters is None and model is None else found


class _Forward:
    """One forward analysis with its parameters, on one model."""

    def __init__(
        self,
        analysis: Analysis,
        parameters: Parameters,
        model: TinyModel,
        texts: Sequence[str],
        inputs: Mapping[StepRef, xr.Dataset] | None,
    ) -> None:
        self.analysis, self.parameters, self.model, self.inputs = analysis, parameters, model, inputs
        self.twin = Twin(model)
        self.tokens = model.tokenise([Prompt((Part(text),)) for text in texts])

    def run(self, info: ModelInfo) -> xr.Dataset:
        """The result as the host makes it, with these layers and heads in view."""
        context = context_of(self.analysis, self.model, self.inputs, self.tokens, view=info)
        made = resolve(self.analysis.analysis)(self.parameters, context)
        runner = NarrowedRunner(TinyEngine().runner(self.twin), self.twin, info, no_texts(self.analysis))
        return labelled(made.run(runner, self.tokens), info)

    def checked(self, layers: Sequence[int] | None, heads: Sequence[int] | None) -> xr.Dataset:
        info = self.model.info.narrowed(layers, heads)
        tensors, logits = all_tensors(self.model), self.logits()
        result = self.run(info)
        check_same(self.run(info), result, "a second run differs; draw random numbers from context.generator() alone")
        check_untouched(self.model, tensors)
        assert torch.equal(self.logits(), logits), "what it changed on the way is still changed after it has run"
        few = info.narrowed(info.layers[-1:], info.heads[-1:])
        with contextlib.suppress(GausslensError):
            check_in_view(self.run(few), few, result)
        return check_result(result)

    def logits(self) -> torch.Tensor:
        """What the model computes of the first prompt."""
        return TinyEngine().runner(self.twin).forward(self.tokens.ids[0][None])["logits"]


def check_interventions(engine: CaptureEngine, model: OpenModel, texts: Sequence[str] = TEXTS) -> None:
    """Check the runner of a capture engine at each of its sites, of each layer that has it:

    - an intervention that gives back what it is given changes no logit, and is called once, with the site's shape;
    - one of the last head, or of the last position, changes this head or position of what is captured, and no others;
    - with ``grad`` the gradient of the logits by what is captured is the change that a small intervention makes of
      them (a sum with random weights, along a random direction, to 5 percent of the larger of the two).
    """
    tokens = max(model.tokenise([Prompt((Part(text),)) for text in texts]).ids, key=len)[None]
    runner = engine.runner(Twin(model))
    plain = runner.forward(tokens)["logits"]
    for name in engine.sites(model):
        has = [n for n in model.info.layers if name not in model.info.lacking.get(n, {})]
        for layer in [None] if site(name).whole else has:
            at = _Place(runner, tokens, name, layer)
            assert torch.equal(at.logits(lambda x, _: x.clone()), plain), f"{at}: what is unchanged changes the logits"
            at.check_part(site(name).heads(model.info)[-1], of_heads=True)
            at.check_part(tokens.shape[1] - 1, of_heads=False)
            at.check_gradient(plain)


class _Place:
    """A site of a layer, at which interventions are tried."""

    def __init__(self, runner: Runner, tokens: np.ndarray, name: str, layer: int | None) -> None:
        self.runner, self.tokens, self.name, self.layer = runner, tokens, name, layer
        self.key: Any = name if layer is None else (layer, name)

    def __str__(self) -> str:
        return self.name if self.layer is None else f"{self.name} of layer {self.layer}"

    def intervened(self, function: Callable[..., Any], **where: Any) -> Any:
        """The intervention here, and what is then captured and computed."""
        one = Intervention(self.name, self.layer, function, **where)
        return self.runner.forward(self.tokens, (self.name, "logits"), interventions=[one])

    def logits(self, function: Callable[..., Any]) -> torch.Tensor:
        """What comes of an intervention; checked is that it was asked once, with the shape that the site has."""
        shapes: list[torch.Size] = []

        def noting(x: torch.Tensor, where: Any) -> Any:
            shapes.append(x.shape)
            return function(x, where)

        found = self.intervened(noting)
        seen = found[self.key].shape
        assert shapes == [seen], f"{self}: it was called with {shapes}, and the site is {seen}"
        made: torch.Tensor = found["logits"]
        return made

    def check_part(self, which: int, of_heads: bool) -> None:
        """Of one head, or position, that part of what is captured changes and no other."""
        dims = site(self.name).dims
        dim = site(self.name).heads_dim if of_heads else next(d for d in ("position", "query") if d in dims)
        if dim is None:
            return
        axis, where = dims.index(dim), {"heads" if of_heads else "positions": [which]}
        before = self.intervened(lambda *_: None)[self.key]
        after = self.intervened(lambda x, _: x + 1, **where)[self.key]
        moved = (after != before).movedim(axis, 0).flatten(1).any(1).nonzero().flatten().tolist()
        assert moved == [which], f"{self}: {where} changed the {dim}s {moved}"

    def check_gradient(self, plain: torch.Tensor) -> None:
        """The derivative of a sum of logits along a direction, by the graph and by a small step."""
        found = self.runner.forward(self.tokens, (self.name, "logits"), grad=True)
        draw = torch.Generator().manual_seed(0)
        weight, along = (torch.randn(x.shape, generator=draw).to(x) for x in (plain, found[self.key].detach()))
        along = torch.where(found[self.key].detach().abs() < MASKED, along, 0.0)
        graph = found["logits"].requires_grad and found[self.key].requires_grad
        total = (found["logits"] * weight).sum()
        gradient = torch.autograd.grad(total, found[self.key], allow_unused=True)[0] if graph else None
        assert gradient is not None, f"{self}: with grad the logits have no gradient by what is captured"
        wanted = float((gradient.double() * along.double()).sum())
        steps = [self.intervened(lambda x, _, s=sign: x + s * STEP * along)["logits"].double() for sign in (1, -1)]
        seen = float(((steps[0] - steps[1]) * weight.double()).sum()) / (2 * STEP)
        size = max(abs(wanted), abs(seen), 1e-3)
        assert abs(wanted - seen) <= 0.05 * size, f"{self}: its gradient gives {wanted:.4g}, a small step {seen:.4g}"


# A score that stands for no score at all, and how far along a direction the derivative is taken.
MASKED, STEP = 1e6, 1e-2
