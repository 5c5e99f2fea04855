"""Checks of what reads or changes weights: analyses of shape ``weights``, and edits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import xarray as xr

from ..contract.analyses import StepRef
from ..contract.descriptors import Analysis, Edit, Owned, Owner
from ..contract.errors import GausslensError, Mark
from ..contract.model import LayerWeights, ModelInfo
from ..contract.parameters import Parameters
from ..contract.reference import resolve
from ..contract.twin import EditCall, EditFailed, Twin, check_touched
from ..runs.outcome import labelled
from .result_checks import check_in_view, check_outputs, check_result, check_same
from .stream_checks import context_of
from .tiny_model import TinyModel, of_kinds

Overlays = Mapping[int | None, Mapping[str, torch.Tensor]]
_NOWHERE = Mark("<test>", 1, 1)
# As one of ours: the global generators of outside plugins are seeded, and that would hide draws from them.
_NOBODY = Owner("testing", "gausslens", "0")


def check_weights(
    analysis: Analysis,
    parameters: Parameters | None = None,
    *,
    model: TinyModel | None = None,
    inputs: Mapping[StepRef, xr.Dataset] | None = None,
) -> xr.Dataset:
    """Run a weights analysis on the tiny model and return its result, after checking that

    - without ``model``, it runs on each of ``TinyModel.kinds()`` (norms, biases, MLP, key/value heads), or refuses a
      kind by a GausslensError: what follows is checked of all, and the result is the plain one's;
    - layers may come in any order, and a new instance gives the same bits;
    - no tensor of the model is changed;
    - with only some layers and heads in view it runs, and names those and no others;
    - the result is well formed (``check_result``), and by default as the plugin lists it (``check_outputs``).

    ``inputs`` are the results that it finds in ``context.inputs``.
    """
    chosen = parameters or resolve(analysis.parameters)()
    found = of_kinds(model, lambda held: _checked_weights(analysis, chosen, held, inputs))
    return check_outputs(analysis, found) if parameters is None and model is None else found


def _checked_weights(
    analysis: Analysis, chosen: Parameters, held: TinyModel, inputs: Mapping[StepRef, xr.Dataset] | None
) -> xr.Dataset:
    before = all_tensors(held)
    info = held.info
    result = _weighed(analysis, chosen, held, info, info.layers, inputs)
    backwards = _weighed(analysis, chosen, held, info, tuple(reversed(info.layers)), inputs)
    check_same(backwards, result, "it depends on the order in which layers come")
    check_untouched(held, before)
    few = info.narrowed(info.layers[-1:], info.heads[-1:])
    narrow = _weighed(analysis, chosen, held, few, few.layers, inputs)
    check_in_view(narrow, few, result)
    return check_result(result)


def check_edit(
    edit: Edit,
    parameters: Parameters | None = None,
    *,
    model: TinyModel | None = None,
    seed: int = 0,
    inputs: Mapping[StepRef, xr.Dataset] | None = None,
) -> Overlays:
    """Apply an edit to the tiny model and return {layer: {name: tensor}}, after checking that

    - without ``model``, it can be made of each of ``TinyModel.kinds()`` of which it touches something (norms, biases,
      MLP, key/value heads), or refuses a kind by a GausslensError: what follows is checked of all, and what is
      returned is the plain one's, or the first's;
    - of one head alone it changes that head's part of tensors that have heads, and leaves all others as they are, or
      refuses `heads` by a GausslensError of its own (where it touches no tensor that has heads, the host does);
    - it returns something, only tensors that it says it touches, finite and of the model's shapes;
    - it repeats bit by bit, in any order of layers; if it is random it differs in every tensor from draw to draw and
      from seed to seed, and if it is not, neither matters.

    ``inputs`` are the results that it finds in ``weights.inputs``.
    """
    chosen = parameters or resolve(edit.parameters)()
    return of_kinds(model, lambda held: _checked_edit(edit, chosen, held, seed, inputs or {}))


def _checked_edit(
    edit: Edit, chosen: Parameters, held: TinyModel, seed: int, inputs: Mapping[StepRef, xr.Dataset]
) -> Overlays:
    call = EditCall(Owned(edit, _NOBODY), chosen, None, None, _NOWHERE)
    layers = (None, *held.info.layers)

    def edited(call: EditCall, seed: int, draw: int, layers: Sequence[int | None]) -> Overlays:
        twin = Twin(held, [call], seed, draw, [inputs])
        return {layer: dict(twin.overlay(layer)) for layer in layers}

    before = all_tensors(held)
    check_touched(call, held)
    made = edited(call, seed, 0, layers)
    assert any(made.values()), f"{edit.name} returned no tensor of any layer"
    _check_alike(edit, made, edited(call, seed, 0, tuple(reversed(layers))), None)
    _check_alike(edit, made, edited(call, seed, 1, layers), "draw")
    _check_alike(edit, made, edited(call, seed + 1, 0, layers), "seed")
    of_one = replace(call, heads=held.info.heads[-1:])
    try:  # refused at plan where it touches nothing that has heads, else made, or refused by the edit itself
        check_touched(of_one, held)
        edited(of_one, seed, 0, layers)
    except EditFailed as error:
        raise AssertionError(f"{edit.name} ignores heads: {error}") from error
    except GausslensError:
        pass
    check_untouched(held, before)
    return made


def _weighed(
    analysis: Analysis,
    parameters: Parameters,
    model: TinyModel,
    info: ModelInfo,
    layers: Sequence[int],
    inputs: Mapping[StepRef, xr.Dataset] | None,
) -> xr.Dataset:
    """The result as the host makes it, layers in this order."""
    made = resolve(analysis.analysis)(parameters, context_of(analysis, model, inputs, view=info))
    twin = Twin(model)
    parts = {layer: made.layer(LayerWeights(twin.base, layer, {}, info), layer) for layer in layers}
    if hasattr(made, "join"):
        return labelled(made.join(parts), info)
    stacked = [part.expand_dims(layer=[layer]) for layer, part in sorted(parts.items())]
    return labelled(xr.concat(stacked, dim="layer", join="outer", combine_attrs="override"), info)


def _check_alike(edit: Edit, made: Overlays, other: Overlays, changed: str | None) -> None:
    """Compare two applications; ``changed`` is what differed between them, if anything."""
    for layer, tensors in made.items():
        assert tensors.keys() == other[layer].keys(), f"{edit.name}, layer {layer}: it returns other tensors"
        for name, tensor in tensors.items():
            same = torch.equal(tensor, other[layer][name])
            where = f"{edit.name}, layer {layer}, {name}"
            if changed is None:
                assert same, f"{where}: a second application differs; draw only from the generators it is given"
            elif edit.random:
                assert not same, f"{where}: it is random, but another {changed} gives the same tensor"
            else:
                assert same, f"{where}: it depends on the {changed}, so its descriptor must say random=True"


def all_tensors(model: TinyModel) -> dict[tuple[int | None, str], torch.Tensor]:
    """Copies of all tensors of a model."""
    layers = (None, *model.info.layers)
    return {(layer, name): model.tensor(layer, name).clone() for layer in layers for name in model.names(layer)}


def check_untouched(model: TinyModel, before: Mapping[tuple[int | None, str], torch.Tensor]) -> None:
    """Check that a model's tensors are what they were."""
    for (layer, name), tensor in before.items():
        assert torch.equal(model.tensor(layer, name), tensor), f"it changed {name} of layer {layer} in place"
