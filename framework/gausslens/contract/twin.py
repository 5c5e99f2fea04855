"""Edits as overlays: a twin is the base model plus a dictionary of edited tensors."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ..guard import Guard, Stopped, is_outside
from .digests_and_seeds import derive
from .errors import GausslensError, ModelError, did_you_mean
from .model import LayerWeights, ModelInfo, OpenModel
from .parameters import fingerprint
from .reference import resolve

if TYPE_CHECKING:
    import numpy as np
    import torch
    import xarray as xr

    from .analyses import StepRef
    from .descriptors import Edit, Owned
    from .errors import Mark
    from .parameters import Parameters
    from .prompts import Prompt, Tokens


class EditFailed(GausslensError):
    """An edit raised, or returned what it may not."""


@dataclass(frozen=True)
class EditCall:
    """One edit of a variant. ``layers`` and ``heads`` restrict it; None means all."""

    edit: Owned[Edit]
    parameters: Parameters
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    mark: Mark

    @cached_property
    def fingerprint(self) -> str | None:
        """What the files hold that its edit reads, where the edit can say so."""
        edit = self.edit.descriptor
        return fingerprint(self.edit, self.parameters, f"{self.mark}: edit {edit.name}")


@dataclass(frozen=True)
class Generators:
    """Random generators of one edit and draw: one for each tensor, the same in every process."""

    seed: int
    layer: int | None

    def torch(self, name: str) -> torch.Generator:
        """A torch generator (CPU) for the tensor of that name."""
        import torch

        return torch.Generator().manual_seed(self.of(name))

    def numpy(self, name: str) -> np.random.Generator:
        """A numpy generator for the tensor of that name."""
        import numpy as np

        return np.random.default_rng(self.of(name))

    def of(self, name: str) -> int:
        """The seed for the tensor of that name."""
        return derive(self.seed, f"{'' if self.layer is None else self.layer}.{name}")


@dataclass
class Twin:
    """A model with the edits of one variant, point and draw laid over it; with no edits, the base model itself.

    Edited tensors are made once, layer by layer, and kept until ``forget``. Undoing is dropping the twin. ``inputs``
    are, for each edit, the results that it reads.
    """

    base: OpenModel
    edits: Sequence[EditCall] = ()
    run_seed: int = 0
    draw: int | None = None
    inputs: Sequence[Mapping[StepRef, xr.Dataset]] = ()
    limit: float | None = None  # seconds that an edit may take for a layer
    _made: dict[int | None, dict[str, torch.Tensor]] = field(default_factory=dict, repr=False)
    _touches: dict[int | None, frozenset[str]] = field(default_factory=dict, repr=False)

    @property
    def info(self) -> ModelInfo:
        """The facts of the base model."""
        return self.base.info

    def overlay(self, layer: int | None) -> Mapping[str, torch.Tensor]:
        """The edited tensors of a layer by name (layer None: those outside the layers)."""
        if not self.edits:
            return {}
        layer = self._place(layer)
        if layer not in self._made:
            made: dict[str, torch.Tensor] = {}
            strides: dict[str, Sequence[int]] = {}
            for number, call in enumerate(self.edits):
                inputs = self.inputs[number] if self.inputs else {}
                made |= _edited(self, call, layer, made, inputs, strides)
            self._made[layer] = {name: _laid_out(tensor, strides[name]) for name, tensor in made.items()}
        return self._made[layer]

    def touches(self, layer: int | None) -> frozenset[str]:
        """The tensors of a layer that its edits may change, told without making them."""
        if layer not in self._touches:
            there = self.base.names(layer)
            calls = [call for call in self.edits if call.layers is None or layer in call.layers]
            names = (name for call in calls for name in touched(call, self.info) if name in there)
            self._touches[layer] = frozenset(names)
        return self._touches[layer]

    def weights(self, layer: int | None, info: ModelInfo | None = None) -> LayerWeights:
        """The tensors of a layer as the edits leave them, narrowed to the heads in ``info``."""
        return LayerWeights(self.base, layer, self.overlay(layer), info)

    def adopt(self, layer: int | None, name: str, tensor: torch.Tensor) -> None:
        """Keep an edited tensor in an engine's storage, which holds the same values, so that it is in memory once."""
        self._made[self._place(layer)][name] = tensor

    def forget(self, layer: int | None) -> None:
        """Drop the edited tensors of a layer; they are made again, the same, when next asked for."""
        self._made.pop(self._place(layer), None)

    def _place(self, layer: int | None) -> int | None:
        """Where the edits of a layer are made: in layer 0 for all where they are one and the same (ALBERT)."""
        return 0 if layer is not None and self.info.facts.one_layer else layer


def touched(call: EditCall, info: ModelInfo) -> tuple[str, ...]:
    """The names of the tensors that an edit may change; with ``heads``, only those that have a head axis."""
    return tuple(n for n in _touches(call) if call.heads is None or info.head_axis(n) is not None)


def _touches(call: EditCall) -> tuple[str, ...]:
    """The names that its descriptor gives, whatever the run file says of heads."""
    touches, name = call.edit.descriptor.touches, call.edit.descriptor.name
    if not isinstance(touches, str):
        return tuple(touches)
    own = _own_parameters(call)
    try:
        return Guard.of(call.edit.owner).call(lambda: tuple("".join((n,)) for n in resolve(touches)(own)))
    except GausslensError:
        raise
    except Exception as error:
        raise EditFailed(f"edit {name} cannot say what it touches: {error!r}") from error


def _own_parameters(call: EditCall) -> Parameters:
    """The parameters of an edit; an outside one has a copy."""
    return call.parameters.model_copy(deep=True) if is_outside(call.edit.owner) else call.parameters


def check_edit(call: EditCall, model: OpenModel) -> None:
    """Refuse an edit that would change nothing, names layers or heads that there are not, or says it cannot be made."""
    name, info = call.edit.descriptor.name, model.info
    info.narrowed(call.layers, call.heads)
    if call.layers is not None and info.facts.one_layer and len(call.layers) < info.n_layers:
        raise ModelError(
            f"edit {name}: all layers of {info.name} have the same tensors, so that an edit of some is one of all: "
            "leave out layers"
        )
    check_touched(call, model)
    if call.edit.descriptor.check is not None:
        try:
            Guard.of(call.edit.owner).call(lambda: resolve(str(call.edit.descriptor.check))(model, call.parameters))
        except GausslensError:
            raise
        except Exception as error:
            raise EditFailed(f"edit {name} cannot say whether it can be made: {error!r}") from error


def check_touched(call: EditCall, model: OpenModel) -> None:
    """Refuse an edit that would change nothing: the model has none of its tensors, or none of some heads."""
    name, info = call.edit.descriptor.name, model.info
    layers = call.layers if call.layers is not None else (*info.layers, None)
    has = sorted({n for layer in layers for n in model.names(layer)})
    if not set(_touches(call)) & set(has):
        outside = sorted(set(_touches(call)) & set(model.names(None)))
        stand = "stands" if len(outside) == 1 else "stand"
        raise ModelError(
            f"edit {name} would change nothing: it touches {', '.join(_touches(call)) or 'nothing'}; "
            f"there the model has {', '.join(has) or 'nothing'}"
            + (f"; {', '.join(outside)} {stand} outside the layers: leave out layers" if outside else "")
        )
    if not set(touched(call, info)) & set(has):
        there = ", ".join(n for n in _touches(call) if n in has)
        raise ModelError(
            f"edit {name} with heads: {list(call.heads or ())} would change nothing: it touches no tensor that has "
            f"heads, {there} alone: leave out heads, or let it touch {_headed(has, info)}"
        )


def left_whole(call: EditCall, model: OpenModel) -> list[str]:
    """A note, where an edit of some heads touches tensors of the model that have no head axis: it leaves them alone."""
    layers = call.layers if call.layers is not None else (*model.info.layers, None)
    has = {n for layer in layers for n in model.names(layer)} if call.heads is not None else set()
    left = ", ".join(n for n in _touches(call) if n in has and model.info.head_axis(n) is None)
    what = f"{call.mark}: {call.edit.descriptor.name} with heads: {list(call.heads or ())}"
    return [f"{what} leaves as it is what has no head axis: {left}"] if left else []


def _headed(names: Iterable[str], info: ModelInfo) -> str:
    return ", ".join(n for n in names if info.head_axis(n) is not None) or "tensors that have heads"


def edit_seed(call: EditCall, run_seed: int, draw: int | None) -> int:
    """The seed of an edit: by run seed, the edit and its parameters, and the draw."""
    return derive(run_seed, call.edit.descriptor.first_name, call.parameters.keyed(), draw)


def _edited(
    twin: Twin,
    call: EditCall,
    layer: int | None,
    made: Mapping[str, torch.Tensor],
    inputs: Mapping[StepRef, xr.Dataset],
    strides: dict[str, Sequence[int]],
) -> dict[str, torch.Tensor]:
    """What one edit makes of one layer that earlier edits left as ``made``; checked.

    ``strides`` takes down how the model's own tensors lie in memory.
    """
    allowed = set(_touches(call))
    if call.layers is not None and layer not in call.layers:
        return {}
    if not allowed & set(twin.base.names(layer)):
        return {}
    seed = edit_seed(call, twin.run_seed, twin.draw)
    weights = Copies(twin.base, layer, made, seed=derive(seed, "initial", layer), edited=call.heads, inputs=inputs)
    name = call.edit.descriptor.name
    owner, parameters = call.edit.owner, _own_parameters(call)
    guard = Guard.of(owner, derive(seed, layer), twin.limit)

    def edited() -> Mapping[str, torch.Tensor]:
        found = resolve(call.edit.descriptor.edit)(weights, parameters, Generators(seed, layer))
        return _plain_copies(found) if guard.outside else found

    try:
        returned = guard.call(edited)
    except GausslensError:
        raise
    except Exception as error:
        what = str(error) if isinstance(error, Stopped) else repr(error)
        whose = f" (plugin {owner.plugin} of {owner.distribution})" if guard.outside else ""
        raise EditFailed(f"{call.mark}: edit {name} failed in layer {layer}: {what}{whose}") from error
    result: dict[str, torch.Tensor] = {}
    current = LayerWeights(twin.base, layer, made, edited=call.heads)
    for tensor_name, tensor in returned.items():
        where = f"{call.mark}: edit {name}, layer {layer}, {tensor_name}"
        if tensor_name not in allowed:
            raise EditFailed(f"{where}: it says that it touches only {', '.join(sorted(allowed))}")
        checked = _checked(where, call, current, tensor_name, tensor, strides)
        if checked is not None:
            result[tensor_name] = checked
    return result


def _plain_copies(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies of what an outside edit returned, as torch's own class: it may go on to write into them.

    A class of its own would run its code wherever the twin's tensors are used.
    """
    import torch

    copies = {"".join((name,)): tensor.detach().clone() for name, tensor in tensors.items()}
    with torch._C.DisableTorchFunctionSubclass():
        plain = {name: tensor.as_subclass(torch.Tensor) for name, tensor in copies.items()}
    odd = [
        f"{name} is a {type(copies[name]).__name__}"
        for name, tensor in plain.items()
        if type(tensor) is not torch.Tensor
    ]
    if odd:
        raise TypeError(f"{', '.join(odd)}: give plain tensors")
    return plain


def _laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """The tensor with its axes in memory in the order of these strides, as an engine keeps it (``Twin.adopt``).

    Sums of the same numbers in another order differ in their last digits: what is found of an edited tensor would
    depend on whether the twin was run before.
    """
    order = sorted(range(tensor.ndim), key=lambda axis: -strides[axis])
    back = sorted(range(tensor.ndim), key=lambda axis: order[axis])
    return tensor.permute(order).contiguous().permute(back)


class LentModel:
    """An open model of which facts and tokenizer are copies; what it has beside that is passed on."""

    def __init__(self, model: OpenModel) -> None:
        self._model = model

    @cached_property
    def info(self) -> ModelInfo:
        """The facts of the model."""
        return copy.deepcopy(self._model.info)

    @cached_property
    def tokenizer(self) -> Any:
        """A tokenizer of its own: what is set on it no other analysis reads with."""
        return copy.deepcopy(self._model.tokenizer)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._model, name)


class Copies(LayerWeights):
    """Weights of which each tensor is a copy whenever it is read: who works in place changes no tensor of the model.

    Edits are given these, and plugins that are not ours.
    """

    @classmethod
    def of(cls, weights: LayerWeights) -> Copies:
        """The same weights, as copies."""
        made = cls.__new__(cls)
        vars(made).update(vars(weights) | {"_overlay": dict(weights._overlay)})
        return made

    def __getitem__(self, name: str) -> torch.Tensor:
        return super().__getitem__(name).detach().clone()

    @property
    def model(self) -> OpenModel:
        """The model, with facts and a tokenizer of its own."""
        return LentModel(self._model)

    def base(self, layer: int | None) -> LayerWeights:
        """The tensors of any layer without edits, as copies."""
        return Copies.of(super().base(layer))


def _checked(
    where: str,
    call: EditCall,
    weights: LayerWeights,
    name: str,
    tensor: torch.Tensor,
    strides: dict[str, Sequence[int]],
) -> torch.Tensor | None:
    """The tensor as it is laid over the model; None for one without heads, where only some heads are edited."""
    import torch

    if name not in weights:
        raise ModelError(f"{where}: the model has no such tensor{did_you_mean(name, weights.names)}")
    before = weights[name]
    strides.setdefault(name, before.stride())
    if tensor.shape != before.shape:
        raise EditFailed(f"{where}: its shape is {tuple(tensor.shape)}, the model's is {tuple(before.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise EditFailed(f"{where}: it holds values that are not finite")
    after = tensor.to(before.dtype)
    rows, found = weights.rows(name), weights.info.head_axis(name)
    if found is None and rows is not None:
        if torch.equal(after, before):
            return None
        raise EditFailed(
            f"{where}: it has no head axis, so that no part of it belongs to heads {list(call.heads or ())}: leave out "
            f"heads, or edit only {_headed(weights, weights.info)} there (for authors of the edit: "
            "weights.may_change(name) is then False)"
        )
    if found is not None and rows is not None:
        chosen = torch.tensor(rows, device=before.device)
        after = before.index_copy(found[0], chosen, after.index_select(found[0], chosen))
    if call.edit.descriptor.random and torch.equal(after, before):
        raise EditFailed(f"{where}: the edit is random and left the tensor bit-equal")
    return after


class DifferenceModel:
    """The weights of one twin less those of another, W_of - W_less, as a model that edits are laid over.

    It has weights alone: nothing runs it, it reads no text, and has no initialisation of its own. ``weights.base``
    gives the tensors of the twin that is taken away. What both have is there, in float32 at least.
    """

    def __init__(self, of: Twin, less: Twin, fingerprint: str) -> None:
        self._of, self._less = of, less
        self._layer: int | None = None
        mine, theirs = of.info, less.info
        facts: dict[str, Any] = {"one_layer": mine.facts.one_layer and theirs.facts.one_layer, "difference": True}
        facts |= {"head_axes": dict(mine.facts.head_axes)} if mine.facts.head_axes else {}
        self._info = replace(
            mine,
            name=f"{mine.name} less {theirs.name}",
            fingerprint=fingerprint,
            dtype="float64" if "float64" in (mine.dtype, theirs.dtype) else "float32",
            n_parameters=max(mine.n_parameters, theirs.n_parameters),
            facts=facts,
        )
        for what in ("family", "causal", "n_layers", "n_heads", "n_kv_heads", "d_model", "d_head"):
            _check_alike(what, mine, getattr(mine, what), theirs, getattr(theirs, what))
        _check_alike("facts.head_axes", mine, dict(mine.facts.head_axes), theirs, dict(theirs.facts.head_axes))
        _check_alike("facts.crossed", mine, mine.facts.crossed, theirs, theirs.facts.crossed)
        # Tensors of other shapes can only be where these differ: elsewhere none is read to see its shape.
        self._alike = all(
            getattr(mine, what) == getattr(theirs, what) for what in ("vocabulary", "d_mlp", "d_value", "max_positions")
        )
        self._names: dict[int | None, tuple[str, ...]] = {}

    @property
    def info(self) -> ModelInfo:
        """The sizes of both, and none of the facts that hold of a model alone."""
        return self._info

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:  # noqa: ARG002
        """Refused."""
        raise ModelError(f"{self._info.name} is a difference of weights: it reads no prompts")

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors that both have, of the same shape: those of another vocabulary are left out."""
        if layer not in self._names:
            theirs = set(self._less.base.names(layer))
            both = tuple(name for name in self._of.base.names(layer) if name in theirs)
            self._names[layer] = both if self._alike else tuple(n for n in both if self._same_shape(layer, n))
        return self._names[layer]

    def _same_shape(self, layer: int | None, name: str) -> bool:
        return bool(self._of.base.tensor(layer, name).shape == self._less.base.tensor(layer, name).shape)

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        """One tensor of the difference."""
        import torch

        for twin in (self._of, self._less) if layer != self._layer else ():
            twin.forget(self._layer)  # what edits made of the layer before
        self._layer = layer
        of, less = self._of.weights(layer)[name], self._less.weights(layer)[name]
        if of.shape != less.shape:
            where = "outside the layers" if layer is None else f"in layer {layer}"
            raise ModelError(
                f"{self._info.name}: {name} {where} is {tuple(of.shape)} in one and {tuple(less.shape)} in the other"
            )
        wide = getattr(torch, self._info.dtype)
        return of.to(wide) - less.to(device=of.device, dtype=wide)

    def base_weights(self, layer: int | None, info: ModelInfo) -> LayerWeights:
        """The tensors of the twin that is taken away, narrowed to the heads in ``info``."""
        seen = replace(self._less.info, layers=info.layers, heads=info.heads, kv_heads=info.kv_heads)
        return self._less.weights(layer, seen)

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:  # noqa: ARG002
        """Refused."""
        raise ModelError(
            f"{self._info.name} is a difference, which no class of models draws: take a null that keeps something of "
            "it, as reinit.gaussian (its norm) or reinit.permute (its entries)"
        )

    def close(self) -> None:
        """Let go of what both sides hold."""
        for twin in (self._of, self._less):
            twin.base.close()


def _check_alike(what: str, mine: ModelInfo, of: object, theirs: ModelInfo, less: object) -> None:
    if of != less:
        raise ModelError(f"{mine.name} and {theirs.name} have no difference: {what} is {of} and {less}")
