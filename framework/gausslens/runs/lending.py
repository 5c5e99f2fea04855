"""What outside plugins are given to read: copies, looked at again, so that no other step sees what they change.

Our own analyses are given the arrays themselves, and are held to leaving them alone by tests.
"""

from __future__ import annotations

import copy
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.analyses import Context
from ..contract.errors import GausslensError, InputError
from ..contract.prompts import Part, Prompt
from ..contract.reference import resolve
from ..contract.twin import Copies, LentModel
from ..guard import Guard, Stopped
from .requests import request_of

if TYPE_CHECKING:
    import torch
    import xarray as xr

    from ..contract.batches import Batch, Request
    from ..contract.model import LayerWeights, ModelInfo
    from ..contract.prompts import SourceContext, Tokens
    from .study import PromptCall, Use

# Prompts that are taken from an outside source in one call.
AT_A_TIME = 1024
# What a batch holds beside the sites.
BESIDE = ("tokens", "text", "mask", "key_tokens", "key_text", "key_mask")


class Spoiled(GausslensError):
    """A plugin changed what it was given to read."""

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(f"it changes {what} in place, which is given to it to read: work on a copy, as {instead}")


class LentBatch:
    """Copies of one batch that all outside analyses of a pass share, each looked at after it was used."""

    def __init__(self, batch: Batch, sites: Sequence[str]) -> None:
        self._of = replace(batch, arrays={site: batch.arrays[site] for site in sites if site in batch.arrays})
        self._lent: Batch | None = None

    def batch(self) -> Batch:
        """What is lent: copies that no one has changed."""
        if self._lent is None:
            self._lent = copied_batch(self._of)
        return self._lent

    def check(self) -> None:
        """Refuse it if any of it was changed; the next gets a new copy."""
        lent, of = self.batch(), self._of
        names = [f"batch[{site!r}]" for site in of.arrays if not same_bits(lent.arrays[site], of.arrays[site])]
        names += [f"batch.{n}" for n in BESIDE if not same_bits(getattr(lent, n), getattr(of, n))]
        names += [] if np.array_equal(lent.prompts, of.prompts) else ["batch.prompts"]
        if names:
            self._lent = None
            raise Spoiled(" and ".join(names), f"`{names[0]}.clone()`")


def copied_batch(batch: Batch) -> Batch:
    """A batch of which nothing is shared."""
    own = {name: getattr(batch, name).detach().clone() for name in BESIDE}
    arrays = {site: array.detach().clone() for site, array in batch.arrays.items()}
    return replace(batch, prompts=np.array(batch.prompts), arrays=arrays, **own)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same, bit for bit: not a number is then equal to itself, and 0 is not -0."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    if one.is_floating_point() and one.element_size() in integers:
        kind = integers[one.element_size()]
        one, other = one.detach().view(kind), other.detach().view(kind)
    return torch.equal(one, other)


def lent_context(context: Context) -> Context:
    """What an outside analysis knows of its step: a copy of the facts. Tokens hand out new arrays to whoever reads."""
    return context.seeing(copy.deepcopy(context.model), copy.copy(context.tokens))


def analysis_of(use: Use, context: Context, guard: Guard | None = None) -> Any:
    """The analysis of a step, made as its class is; one of an outside plugin has parameters of its own.

    Before a run no ``guard`` of its step is there yet, and what it is given is copied here.
    """
    if guard is None:
        guard = Guard.of(use.analysis.owner, context.seed)
        context = lent_context(context) if guard.outside else context
    parameters = use.parameters.model_copy(deep=True) if guard.outside else use.parameters
    return guard.call(lambda: resolve(use.analysis.descriptor.analysis)(parameters, context))


def taken(guard: Guard, made: Callable[[], xr.Dataset]) -> xr.Dataset:
    """What an analysis gives; of an outside one a copy in memory, so that none of its code runs when it is stored."""
    return guard.call(lambda: own_copy(made()) if guard.outside else made())


def own_copy(found: Any) -> Any:
    """A copy of what an analysis gives, in memory, a dataset as xarray's own class."""
    import xarray as xr

    if not isinstance(found, xr.Dataset):
        return copy.deepcopy(found)
    copied = found.copy(deep=True).load()
    return copied if type(copied) is xr.Dataset else xr.Dataset(copied.data_vars, copied.coords, copied.attrs)


def settled_use(use: Use, info: ModelInfo, tokens: Tokens | None) -> Use:
    """A use whose parameters have values for what the run file left open, as its analysis settles them."""
    if use.analysis.descriptor.settle is None:
        return use
    found = said_of(use.analysis.descriptor.settle, use, info.narrowed(use.layers, use.heads), tokens)
    if type(found) is not type(use.parameters):
        raise InputError(f"{use.analysis.descriptor.settle} gave no {type(use.parameters).__name__}")
    return replace(use, parameters=found)


def said_of(reference: str, use: Use, view: ModelInfo, tokens: Tokens | None) -> Any:
    """What a function of (parameters, info, tokens) of an analysis says; an outside one is given copies."""
    context, guard, parameters = Context(view, 0, tokens), Guard.of(use.analysis.owner, 0), use.parameters
    if guard.outside:
        context, parameters = lent_context(context), parameters.model_copy(deep=True)
    return guard.call(lambda: resolve(reference)(parameters, context.model, context.tokens))


def asked_of(use: Use, context: Context) -> Request:
    """What a stream analysis asks of a pass on these tokens, before it runs."""
    return Guard.of(use.analysis.owner, context.seed).call(lambda: request_of(analysis_of(use, context)))


def prompts_of(call: PromptCall, context: SourceContext) -> Iterator[Prompt]:
    """What a prompt source gives, some at a time; an outside one has parameters and facts of its own."""
    owner, parameters = call.source.owner, call.parameters
    guard = Guard.of(owner, context.seed)
    if guard.outside:
        parameters, context = parameters.model_copy(deep=True), replace(context, facts=copy.deepcopy(context.facts))
    try:
        each = guard.call(lambda: iter(resolve(call.source.descriptor.prompts)(parameters, context)))
        while some := guard.call(lambda: _some(each, guard.outside)):
            yield from some
    except Exception as error:
        if not guard.outside:
            raise
        name = call.source.descriptor.name
        kind = "" if isinstance(error, (GausslensError, Stopped)) else f"{type(error).__name__}: "
        raise InputError(
            f"{call.mark}: the prompt source {name} of plugin {owner.plugin} ({owner.distribution}): {kind}{error}"
        ) from error


def _some(each: Iterator[Prompt], outside: bool) -> list[Prompt]:
    """The next prompts; those of an outside source are looked at, and their text is plain text."""
    some = list(islice(each, AT_A_TIME))
    if outside:
        _check_prompts(some)
        some = [_with_plain_text(prompt) for prompt in some]
    return some


def _with_plain_text(prompt: Prompt) -> Prompt:
    """The same, without classes of text of a plugin's own, whose code would run wherever the text is read."""
    odd = _odd_text(prompt)
    if not odd and not any(map(_odd_text, prompt.parts)):
        return prompt
    parts = tuple(replace(part, **_odd_text(part)) for part in prompt.parts)
    return replace(prompt, parts=parts, **odd)


def _odd_text(one: Prompt | Part) -> dict[str, Any]:
    return {name: "".join((v,)) for name, v in vars(one).items() if isinstance(v, str) and type(v) is not str}


def _check_prompts(prompts: Sequence[object]) -> None:
    """Refuse what is no prompt, before a tokenizer stumbles over it."""
    for prompt in prompts:
        is_one = isinstance(prompt, Prompt) and all(
            isinstance(p, Part) and isinstance(p.text, str) for p in prompt.parts
        )
        if not isinstance(prompt, Prompt) or not is_one:
            raise InputError(f"it gave {reprlib.repr(prompt)}: prompts are made as Prompt((Part('text'),))")
        try:
            "".join(part.text for part in prompt.parts).encode()
        except UnicodeEncodeError as error:
            raise InputError(f"a text holds {error.object[error.start]!r}, half of a character") from error
        if (least := min(prompt.ids or (0,))) < 0:
            raise InputError(f"it gave the token {least}: numbers of tokens begin at 0")


class LentRunner:
    """A runner of which weights and facts are copies; what an engine has beside that is passed on."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner

    @property
    def info(self) -> ModelInfo:
        """The facts of the model."""
        info: ModelInfo = self._runner.info
        return copy.deepcopy(info)

    @property
    def whole(self) -> LentRunner:
        """The runner of the whole model."""
        return LentRunner(self._runner.whole)

    @property
    def twin(self) -> Any:
        """The twin that runs, with edited tensors of its own: they are made anew, the same."""
        twin = self._runner.twin
        return replace(twin, base=LentModel(twin.base), _made={})

    def forward(self, *arguments: Any, grad: bool = False, **named: Any) -> Mapping[Any, torch.Tensor]:
        """As the runner's; what has gradients is on the graph itself, which is of this pass alone."""
        given = named | ({"grad": True} if grad else {})
        found: Mapping[Any, torch.Tensor] = self._runner.forward(*arguments, **given)
        return found if grad else {what: array.clone() for what, array in found.items()}

    def generate(self, *arguments: Any, **named: Any) -> list[np.ndarray]:
        """As the runner's."""
        found: list[np.ndarray] = self._runner.generate(*arguments, **named)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        """As the runner's."""
        return str(self._runner.decode(ids))

    def weights(self, layer: int | None) -> LayerWeights:
        """Copies of the tensors of a layer."""
        return Copies.of(self._runner.weights(layer))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._runner, name)
