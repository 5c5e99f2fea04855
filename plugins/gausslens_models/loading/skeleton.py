"""What the class of a model makes of its config, without memory: which tensors there are, and their first draw."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from unittest import mock

from gausslens import GausslensError, ModelError

from ..families.layout import Layout, Place, make_layout
from .config_and_tokenizer import quiet_transformers

if TYPE_CHECKING:
    import torch

    from ..families.slots import Family

# Parts of names of what no site goes through: it may be missing in a checkpoint.
NO_SITE = ("pooler.", "seq_relationship.")
# What transformers keeps as a buffer though it is of the weights: zero where a file has none.
BUFFERS = {"final_logits_bias"}
# Tensors that an error names.
NAMED = 8
# Keys of a config that switch tensors off have one of these in their names.
SWITCHES = ("bias", "norm")


def skeleton_of(model_class: Any, config: Any, path: str) -> Any:
    """The model of a config on the meta device: its modules, and tensors that have shapes and no numbers."""
    import torch

    with by_transformers(path, f"build a {model_class.__name__} of its config"), torch.device("meta"):
        return model_class(copy.deepcopy(config))


@contextlib.contextmanager
def by_transformers(path: str, what: str) -> Iterator[None]:
    """What transformers itself fails at is no defect of its caller: told in its own words. No memory is no such."""
    import torch

    try:
        with quiet_transformers():
            yield
    except (GausslensError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0][:300]
        if "allocate" in said:
            raise
        raise ModelError(
            f"{path}: transformers cannot {what}: {type(error).__name__}: {said}; look at its config.json, which "
            "may say what transformers does not know, or what does not fit together, and at the dtype"
        ) from error


def tensors_of(module: Any) -> dict[str, torch.Tensor]:
    """All parameters of a module by name, and the buffers that are weights."""
    buffers = {name: b for name, b in module.named_buffers() if name.rpartition(".")[2] in BUFFERS}
    return {**dict(module.named_parameters()), **buffers}


def tensor_of(module: Any, name: str) -> torch.Tensor:
    """One of them: a twin asks for hundreds, and a list of all takes longer than what is done with one."""
    place, _, leaf = name.rpartition(".")
    holder = module.get_submodule(place)
    found: torch.Tensor = getattr(holder, leaf)
    return found


def layout_of(skeleton: Any, family: Family, config: Any, path: str) -> Layout:
    """Where our tensors are in the modules of a class."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors_of(skeleton).items()}
    return make_layout(family, config, shapes, path, skeleton.get_output_embeddings() is not None)


def held_against(layout: Layout, skeleton: Any, config: Any, path: str) -> Layout:
    """The layout of a file whose tensors are those that the model computes with, or an error that names the others.

    What stands outside the layers and is in no module (a head that the class does not have) is nobody's.
    """
    model = layout_of(skeleton, layout.family, config, path)
    _refuse_unused(layout, model, type(skeleton).__name__, config, path)
    _refuse_lost(layout, model, type(skeleton).__name__, path)
    _refuse_other_shapes(layout, model, path)
    outside = {ours: place for ours, place in layout.places[None].items() if ours in model.places[None]}
    left = {p.theirs for p in layout.places[None].values()} - {p.theirs for p in outside.values()}
    unclaimed = tuple(sorted({*layout.unclaimed, *left}))
    return replace(layout, places={**layout.places, None: outside}, unclaimed=unclaimed)


def _refuse_unused(layout: Layout, model: Layout, name: str, config: Any, path: str) -> None:
    """A bias that the config switches off is no part of the model, though its file has one."""
    unused = [
        _in_file(layout, place)
        for layer, places in layout.places.items()
        if layer is not None
        for ours, place in places.items()
        if ours not in model.places[layer]
    ]
    if unused:
        off = [f"{k}: false" for k, v in config.to_dict().items() if v is False and any(s in k for s in SWITCHES)]
        told = f" ({', '.join(sorted(off)[:NAMED])})" if off else ""
        raise ModelError(
            f"{path}: tensors in the file that the model does not use: {_listed(unused)}; the {name} that its config "
            f"says computes without them{told}: put into config.json what the weights were trained with (model_type, "
            "switches), or take them out of the file"
        )


def _refuse_lost(layout: Layout, model: Layout, name: str, path: str) -> None:
    """What the class has and its file does not would be drawn at random."""
    lost = [
        place.theirs
        for layer, places in model.places.items()
        for ours, place in places.items()
        if ours not in layout.places[layer] and not any(part in place.theirs for part in (*NO_SITE, *BUFFERS))
    ]
    if lost:
        raise ModelError(
            f"{path}: incomplete checkpoint: {_listed(lost)} missing, which the {name} that its config says has"
        )


def _refuse_other_shapes(layout: Layout, model: Layout, path: str) -> None:
    wrong = []
    for layer, places in layout.places.items():
        for ours, place in places.items():
            other = model.places[layer].get(ours)
            if other is not None and _seen(layout, place) != _seen(model, other):
                # Of what a file holds otherwise than the model, the shapes of the parts.
                alike = place.slot == other.slot
                found = layout.shapes[place.theirs] if alike else _seen(layout, place)
                wanted = model.shapes[other.theirs] if alike else _seen(model, other)
                wrong.append(f"{_in_file(layout, place)} {list(found)}, not {list(wanted)}")
    if wrong:
        raise ModelError(
            f"{path}: tensors of other shapes than those of the model that its config says: {_listed(wrong)}; correct "
            "the sizes in config.json, or get the weights that belong to it"
        )


def _seen(layout: Layout, place: Place) -> tuple[int, ...]:
    """The shape of our tensor."""
    import torch

    return tuple(layout.view(place, torch.empty(layout.shapes[place.theirs], device="meta")).shape)


def _in_file(layout: Layout, place: Place) -> str:
    """The name of a tensor in its file; of stacked ones how many, and the first."""
    stored = layout.stored.get(place.theirs)
    if stored is None:
        return place.theirs
    first, count = stored.names[0], len(stored.names)
    return f"{count} tensors as {first}" if stored.stacked else first


def _listed(names: list[str]) -> str:
    names = list(dict.fromkeys(names))
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


class Initial:
    """The initialisation of a model class: fresh draws, one layer at a time.

    transformers marks what it has loaded as initialised, and its own functions then change nothing, in silence. So the
    class is built anew from the full config (depth-scaled schemes read it) without memory, and of one layer what is
    asked for is made real. The layer drawn last is kept: its other tensors are of the same draw.
    """

    def __init__(self, config: Any, model_class: Any, dtype: torch.dtype, family: Family) -> None:
        self.skeleton = skeleton_of(model_class, config, model_class.__name__).to(dtype)
        self.layout = layout_of(self.skeleton, family, config, model_class.__name__)
        self.dtype = dtype
        self._drawn: tuple[tuple[int | None, int, str], _Drawing] | None = None

    def draw(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """One tensor of ours from the draw that this seed gives."""
        import torch

        place = self.layout.places[layer][name]
        if place.theirs.rpartition(".")[2] in BUFFERS:
            return self.layout.ours(place, torch.zeros(self.layout.shapes[place.theirs], dtype=self.dtype), self.dtype)
        owner = place.theirs.rpartition(".")[0] if layer is None else self._layer_path(layer)
        if layer is None and f"{self.layout.family.layers}." in owner:  # of distance: its attention says how it begins
            owner = owner.rpartition(".")[0]
        if self._drawn is None or self._drawn[0] != (layer, seed, owner):
            self._drawn = ((layer, seed, owner), _Drawing(self.skeleton, owner, seed, self.dtype))
        theirs = self._drawn[1].tensor(place.theirs)
        if not bool(torch.isfinite(theirs).all()):
            raise ModelError(f"{type(self.skeleton).__name__} does not initialise {place.theirs}")
        return self.layout.ours(place, theirs, theirs.dtype)

    def _layer_path(self, layer: int) -> str:
        theirs = next(iter(self.layout.places[layer].values())).theirs
        head, stack, _ = theirs.partition(f"{self.layout.family.layers}.{self.layout.family.stored_layer(layer)}.")
        return (head + stack).rstrip(".")


class _Drawing:
    """One draw of a module, as far as it was asked for: its parts in transformers' own order, up to the last needed.

    What a part draws depends on all parts before it, for they share a generator; what is behind is left for later.
    """

    def __init__(self, skeleton: Any, owner: str, seed: int, dtype: torch.dtype) -> None:
        import torch

        self._initialise, self._owner, self._dtype = skeleton._init_weights, owner, dtype
        self._module = copy.deepcopy(skeleton.get_submodule(owner))
        self._parts = list(_in_order(self._module))
        self._written = self._writes()
        self._next = 0
        # Equal seeds must not give two tensors equal numbers: the name of the module goes in.
        start = int.from_bytes(sha256(f"{seed} {owner}".encode()).digest()[:7])
        self._generator = torch.Generator().manual_seed(start).get_state()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of it by its name in the whole model."""
        own = name.removeprefix(f"{self._owner}.")
        path, _, leaf = own.rpartition(".")
        part = self._module.get_submodule(path)
        if _is_activation(part):
            # Of activations that learn, nothing but their constructor says what they begin as.
            begun: torch.Tensor = getattr(type(part)(dtype=self._dtype), leaf).detach()
            return begun
        last = max((number for number, names in enumerate(self._written) if own in names), default=len(self._parts) - 1)
        self._up_to(last)
        self._make_real([own])
        return tensor_of(self._module, own).detach()

    def _up_to(self, last: int) -> None:
        import torch

        if last < self._next:
            return
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._generator)
            for part, names in zip(self._parts[self._next : last + 1], self._written[self._next :], strict=False):
                self._make_real(names)
                self._initialise(part)
            self._generator = torch.get_rng_state()
        self._next = last + 1

    def _make_real(self, names: Iterable[str]) -> None:
        """Memory for these tensors, with no numbers yet."""
        import torch

        for name in names:
            path, _, leaf = name.rpartition(".")
            held = self._module.get_submodule(path)._parameters
            if held[leaf].is_meta:
                empty = torch.full(held[leaf].shape, torch.nan, dtype=held[leaf].dtype)
                held[leaf] = torch.nn.Parameter(empty, requires_grad=False)

    def _writes(self) -> list[tuple[str, ...]]:
        """The tensors that each part's turn writes, seen without memory; all of them where one is written unseen."""
        import torch

        named = dict(self._module.named_parameters())
        found = []
        with torch.no_grad(), torch.random.fork_rng(devices=[]), _seen_without_memory():
            for part in self._parts:
                before = {name: tensor._version for name, tensor in named.items()}
                self._initialise(part)
                found.append(tuple(name for name, tensor in named.items() if tensor._version != before[name]))
        constant = {n for p, m in self._module.named_modules() for n in _below(p, m) if _is_activation(m)}
        if set(named) - {name for names in found for name in names} - constant:
            return [tuple(named)] * len(found)
        return found


@contextlib.contextmanager
def _seen_without_memory() -> Iterator[None]:
    """Initial values are written to tensors without memory too, so that it is seen: torch leaves some out there."""
    import torch
    from transformers.initialization import TORCH_INIT_FUNCTIONS

    def written(tensor: torch.Tensor, *_: Any, **_named: Any) -> torch.Tensor:
        return tensor.zero_()

    truncated = "_no_grad_trunc_normal_"
    with (
        mock.patch.dict(TORCH_INIT_FUNCTIONS, dict.fromkeys(TORCH_INIT_FUNCTIONS, written)),
        mock.patch.object(torch.nn.init, truncated, written, create=True),
    ):
        yield


def _in_order(module: Any) -> Iterator[Any]:
    """A module's parts and itself, in the order of ``apply``."""
    for part in module.children():
        yield from _in_order(part)
    yield module


def _is_activation(module: Any) -> bool:
    return type(module).__module__ == "transformers.activations"


def _below(path: str, module: Any) -> list[str]:
    """The names of a module's own parameters."""
    return [f"{path}.{leaf}" if path else leaf for leaf in module._parameters]
