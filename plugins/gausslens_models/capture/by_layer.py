"""A model whose weights are read a part at a time: what runs has its tensors, the rest of it has shapes alone.

The parts are the embedding, each layer, and the head; what else stands outside the layers (norms, positions) is read
when a pass begins. A part is read from the files when the model first calls it, edited as the twin says, and let go of
when another is needed. Of embedding and head some rows are read at a time, where no edit changes them (vocabulary.py).
Buffers that no file has, as rotary frequencies, are made as transformers makes them.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gausslens import ModelError

from ..loading.checkpoint import refuse_not_finite
from ..loading.skeleton import BUFFERS, NO_SITE, by_transformers
from .vocabulary import Rows, rows_of

if TYPE_CHECKING:
    from gausslens import Twin

    from ..loading.pretrained import PretrainedModel

# What is left for a model that cannot be run a part at a time.
AGAIN = ": it cannot be run a layer at a time; leave max_memory out, or raise it above the size of the weights"
# A tensor outside the layers that an edit draws whole: the model's, what the edit is given, what it gives.
COPIES_OF_EDITED = 3


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a model: its module (None: all that is in no other part), and the names of its tensors there.

    ``layers`` are those that it serves; none for what is outside of them.
    """

    name: str
    module: Any
    tensors: tuple[str, ...]
    layers: tuple[int, ...] = ()


class Visitor(Protocol):
    """Who is asked at each call of a part, in place of the part itself."""

    def visited(self, part: Part, forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the part gives."""
        ...


class ByLayer:
    """The module of a model without weights, and its parts as they are needed."""

    def __init__(self, model: PretrainedModel) -> None:
        self._model = model
        self.module = empty_module(model)
        self.visitor: Visitor | None = None
        self.why_not: str | None = None  # why runs cannot be carried through it together, "" where they can
        self.in_columns = False  # whether its logits come out the same some columns at a time
        self.twin: Twin | None = None
        self.serving: int | None = None  # the layer whose tensors are in the module as the files have them
        self._held: dict[Part, dict[str, torch.Tensor]] = {}  # of each part in memory what stood in its places before
        self._depth = 0
        self._sources = _sources(self.module, model.checkpoint)

    @cached_property
    def layers(self) -> tuple[Part, ...]:
        """The part of each layer: one for all of them where they are one and the same."""
        found: dict[int, list[int]] = {}
        modules = [self._model.layer_module(layer) for layer in range(self._model.info.n_layers)]
        for layer, module in enumerate(modules):
            found.setdefault(id(module), []).append(layer)
        paths = {id(module): path for path, module in self.module.named_modules()}
        parts = {}
        for layer, module in enumerate(modules):
            if id(module) not in parts:
                numbers, path = tuple(found[id(module)]), paths[id(module)]
                parts[id(module)] = Part(f"layer {layer}", module, self._below(path), numbers)
        return tuple(parts[id(module)] for module in modules)

    @cached_property
    def embedding(self) -> Part:
        """The embedding of tokens."""
        module = self._model.body.get_input_embeddings()
        return Part("the embedding", module, self._below(self._path(module)))

    @cached_property
    def head(self) -> Part | None:
        """The head, where there is one."""
        head = self.module.get_output_embeddings() if self._model.headed else None
        if head is None or head is self.embedding.module:
            return None
        return Part("the head", head, self._below(self._path(head)))

    @cached_property
    def rest(self) -> Part:
        """All that is in no other part; of two stacks what the studied one has."""
        parts = [*self.layers, self.embedding, *([self.head] if self.head else [])]
        taken = {name for part in parts for name in part.tensors}
        stack = "" if self._model.stack is None else self._path(self._model.body) + "."
        names = tuple(n for n in self._names if n not in taken and n.startswith(stack))
        return Part("what is outside the layers", None, names)

    @cached_property
    def rows(self) -> dict[Part, Rows]:
        """Embedding and head, where their matrices can be read by rows."""
        found = ((part, rows_of(self._model, part, self._plainly_stored)) for part in (self.embedding, self.head))
        return {part: rows for part, rows in found if part is not None and rows is not None}

    def in_rows(self, part: Part | None) -> Rows | None:
        """How a part is read by rows; None where it is read whole, as what an edit changes is."""
        if part is None or part not in self.rows:
            return None
        return None if self.twin is not None and self._edited(self.twin, part) else self.rows[part]

    def held(self, edited: Collection[str] = ()) -> tuple[int, str]:
        """The most bytes that parts take at once, and of which; ``edited`` tensors of ours outside the layers."""
        twins = self._model.spec.twins
        sizes = {part: self.bytes(part) * (1 + twins) for part in dict.fromkeys(self.layers)}
        for part in (self.embedding, self.head):
            if part is None:
                continue
            changed = bool(self._ours(part, edited))
            if changed or part not in self.rows:
                sizes[part] = self.bytes(part) * (COPIES_OF_EDITED if changed else 1)
        largest = max(sizes, key=sizes.__getitem__)
        return self.bytes(self.rest) + sizes[largest], largest.name

    @property
    def parts(self) -> tuple[Part, ...]:
        """Every part once."""
        return (self.rest, self.embedding, *dict.fromkeys(self.layers), *([self.head] if self.head else []))

    def bytes(self, part: Part) -> int:
        """The memory that a part takes."""
        known = self._names
        return sum(known[name].numel() * known[name].element_size() for name in part.tensors)

    def watch(self) -> None:
        """Let parts be read when the model calls them."""
        for part in self.parts[1:]:
            _intercept(part.module, partial(self._called, part))
        for module in dict.fromkeys([self.module, self.module.base_model, self._model.body]):
            _intercept(module, self._outermost)

    @contextlib.contextmanager
    def of(self, twin: Twin) -> Iterator[None]:
        """Read parts as this twin has them."""
        before, self.twin = self.twin, twin
        try:
            yield
        finally:
            self.twin = before

    @contextlib.contextmanager
    def holding(self) -> Iterator[None]:
        """What is in memory stays there between calls of the model; afterwards nothing does."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                self.drop()

    def need(self, part: Part) -> None:
        """Have a part in memory, and no other but the rest."""
        for one in (self.rest, part):
            if one not in self._held:
                self.drop(self.rest)
                self._read(one)

    def drop(self, but: Part | None = None) -> None:
        """Let go of all parts but one."""
        gone = [part for part in self._held if part is not but]
        for part in gone:
            for name, before in self._held.pop(part).items():
                _put(self.module, name, before)
        if gone:
            give_back()

    def tensor(self, name: str) -> torch.Tensor:
        """A tensor of a part in memory."""
        holder, leaf = _holder(self.module, name)
        found: torch.Tensor = getattr(holder, leaf)
        return found.detach()

    def _called(self, part: Part, forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        if self.visitor is not None:
            return self.visitor.visited(part, forward, given, named)
        return self.through(part, forward, given, named)

    def through(self, part: Part, forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a part gives, with its tensors; it must be given numbers, not shapes alone."""
        self.need(part)
        if any(isinstance(one, torch.Tensor) and one.is_meta for one in (*given, *named.values())):
            raise ModelError(f"{self._model.name}: {part.name} is given what was computed where no weights were{AGAIN}")
        rows = self.in_rows(part)
        if rows is None:
            return forward(*given, **named)
        if part is self.embedding:
            return rows.looked_up(forward, given, named)
        return rows.multiplied(forward, given, named, self._model.room_for_block)

    def _outermost(self, forward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with self.holding():
            if self.visitor is None:  # some models ask the embedding where it is before they call it
                self.need(self.embedding)
            return forward(*given, **named)

    def _read(self, part: Part) -> None:
        """Read a part from the files, and lay over it what the twin changes there."""
        self._held[part] = {name: self._names[name] for name in part.tensors}
        rows = self.in_rows(part)
        names = [name for name in part.tensors if rows is None or name != rows.name]
        self._make([name for name in names if self._stored_as(name) is None])
        for name, tensor in self._stored(names):
            _put(self.module, name, tensor)
        if rows is not None:  # none of them yet
            _put(self.module, rows.name, self._names[rows.name].new_empty((0, 0), device=self._model.spec.device))
        refuse_not_finite(self._model.spec.path, ((name, self.tensor(name)) for name in names))
        self._model.merge_adapter(self.module, set(part.tensors))
        if self.twin is not None and self.twin.edits:
            self._edit(self.twin, part)

    def _edit(self, twin: Twin, part: Part) -> None:
        """Write what a twin changes into a part, and let go of it."""
        layer = part.layers[0] if part.layers else None
        if not self._edited(twin, part):
            return
        self.serving = layer
        try:
            edited = twin.overlay(layer)
        finally:
            self.serving = None
        model = self._model
        layout = model.module_layout
        own: set[str] = set()
        for name, tensor in edited.items():
            place = model.place_to_edit(layer, name)
            plus = place.slot.plus
            at = self._place_in(part, name, place.theirs, layout.tied)
            if at is None:
                continue
            if plus and torch.equal(tensor, layout.ours(place, self.tensor(at), self.tensor(at).dtype)):
                continue  # what is stored cannot be had back exactly from the sum
            if at not in own:  # what was read may be the file itself
                own.add(at)
                _put(self.module, at, self.tensor(at).clone())
            layout.write(place, self.tensor(at), tensor - plus if plus else tensor)
        twin.forget(layer)

    def _edited(self, twin: Twin, part: Part) -> bool:
        """Whether edits of a twin may change anything in a part."""
        layer = part.layers[0] if part.layers else None
        return bool(self._ours(part, twin.touches(layer)))

    def _ours(self, part: Part, names: Collection[str]) -> list[str]:
        """Which of these tensors of ours lie in a part."""
        layer = part.layers[0] if part.layers else None
        layout = self._model.module_layout
        places = layout.places[layer]
        factors = layout.products(layer)
        return [
            name
            for name in names
            if name in factors or (name in places and self._place_in(part, name, places[name].theirs, layout.tied))
        ]

    def _place_in(self, part: Part, name: str, theirs: str, tied: bool) -> str | None:
        """The tensor of a part that an edit of ours changes: of a head tied to the embedding each has its own."""
        if tied and name in ("W_E", "W_U"):
            wanted = self.head if name == "W_U" else self.embedding
            if wanted is None or wanted is not part:
                return None
            return next(n for n in part.tensors if n.endswith(".weight"))
        return theirs if theirs in part.tensors else None

    def _stored(self, names: Collection[str]) -> Iterator[tuple[str, torch.Tensor]]:
        """These tensors as the files have them; several that one of the files makes are made of it at once."""
        made: dict[str, torch.Tensor] = {}
        for name in names:
            there = self._stored_as(name)
            if there is not None:
                made |= {} if there in made else self._sources[there].read(self._names[name].dtype)
                yield name, made.pop(there).to(self._model.spec.device)

    def _stored_as(self, name: str) -> str | None:
        """Under which of its names the files have a tensor of the module; None where they have it not."""
        there = name if name in self._sources else self._tied.get(name, name)
        return there if there in self._sources else None

    def _plainly_stored(self, name: str) -> str | None:
        """The tensor of the files that is this one as it is; None where it is made of others."""
        there = self._stored_as(name)
        source = None if there is None else self._sources[there]
        return None if source is None or source.converter is not None else source.names[0]

    def _make(self, names: list[str]) -> None:
        """Tensors that no file has, as transformers makes them: waves for positions, or what no site goes through."""
        ignored = (*NO_SITE, *BUFFERS, "embed_positions", *self._model.layout.family.ignored)
        for name in names:
            if not any(one in name for one in ignored):
                raise ModelError(f"{self._model.spec.path}: missing in the checkpoint: {name}")
            like = self._names[name]
            _put(self.module, name, torch.zeros(like.shape, dtype=like.dtype, device=self._model.spec.device))
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for path in dict.fromkeys(name.rpartition(".")[0] for name in names):
                _maker(self.module, path)._init_weights(self.module.get_submodule(path))

    @cached_property
    def _names(self) -> dict[str, torch.Tensor]:
        """The tensors of the module by every name that they have, without numbers."""
        found = dict(self.module.named_parameters(remove_duplicate=False))
        lasting = self.module.state_dict(keep_vars=True)
        return found | {name: tensor for name, tensor in lasting.items() if name not in found}

    @cached_property
    def _tied(self) -> dict[str, str]:
        """{name: name under which the files have it} of tensors with several names."""
        found: dict[str, str] = {}
        by_tensor: dict[int, list[str]] = {}
        for name, tensor in self._names.items():
            by_tensor.setdefault(id(tensor), []).append(name)
        told = dict(getattr(self.module, "all_tied_weights_keys", None) or {})
        for names in by_tensor.values():
            stored = next((n for n in names if n in self._sources), None)
            found |= {n: stored for n in names if stored is not None and n != stored}
        for one, other in told.items():
            for missing, there in ((one, other), (other, one)):
                if missing not in self._sources and there in self._sources:
                    found.setdefault(missing, there)
        return found

    def _below(self, path: str) -> tuple[str, ...]:
        return tuple(name for name in self._names if name.startswith(f"{path}."))

    def _path(self, module: Any) -> str:
        named = self.module.named_modules(remove_duplicate=False)
        return str(next(path for path, one in named if one is module))


@dataclass(frozen=True)
class Sources:
    """Tensors of the files, and those of the module that transformers makes of them; None: it is one, as it is."""

    checkpoint: Any
    names: tuple[str, ...]
    targets: tuple[str, ...]
    converter: Any = None
    patterns: tuple[str, ...] = ()

    def read(self, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        """The tensors of the module."""
        read = self.checkpoint.read
        if self.converter is None:
            return {self.targets[0]: read(self.names[0]).to(dtype)}
        converter = copy.deepcopy(self.converter)
        for name, pattern in zip(self.names, self.patterns, strict=True):
            converter.add_tensor(self.targets[0], name, pattern, partial(_read_as, read, name, dtype))
        made = converter.convert(self.targets[0], model=None, config=None, hf_quantizer=None, loading_info=None)
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def _read_as(read: Callable[[str], torch.Tensor], name: str, dtype: torch.dtype) -> torch.Tensor:
    return read(name).to(dtype)


def _sources(module: Any, checkpoint: Any) -> dict[str, Sources]:
    """Of each tensor of the module those of the files that make it, by transformers' own names and conversions."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(module, None, None)
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    renamings = [one for one in mapping if not isinstance(one, WeightConverter)]
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    known, prefix = module.state_dict(), module.base_model_prefix
    found: dict[str, list[tuple[str, str | None]]] = {}
    for name in sorted(checkpoint.tensors, key=dot_natural_key):
        target, pattern = rename_source_key(name, renamings, converters, prefix, known)
        if target not in known and name in known:
            target, pattern = rename_source_key(name, [], [], prefix, known)
        found.setdefault(target, []).append((name, pattern))
    sources: dict[str, Sources] = {}
    for target, pairs in found.items():
        pattern = pairs[0][1]
        if pattern is None:
            sources[target] = Sources(checkpoint, (pairs[0][0],), (target,))
            continue
        one = by_pattern[pattern]
        targets = tuple(target.replace(one.target_patterns[0], t) for t in one.target_patterns)
        made = Sources(checkpoint, tuple(n for n, _ in pairs), targets, one, tuple(str(p) for _, p in pairs))
        sources |= dict.fromkeys(targets, made)
    return sources


def empty_module(model: PretrainedModel) -> Any:
    """The module of a model as transformers builds it before it reads weights; buffers that no file has are made."""
    config = copy.deepcopy(model.config)
    chosen = model.attention or ("eager" if not model.layout.family.watched else None)
    arguments: dict[str, Any] = {"dtype": model.dtype} | ({"attn_implementation": chosen} if chosen else {})
    with by_transformers(model.spec.path, "build this model"), torch.device("meta"):
        module = model.model_class()._from_config(config, **arguments)
    module.eval().requires_grad_(False)
    _make_buffers(module, model.spec.device)
    return module


def _make_buffers(module: Any, device: str) -> None:
    """Buffers that are in no file, as transformers makes them when it loads a model."""
    lasting = set(module.state_dict())
    owners: dict[str, Any] = {}
    for path, owner in module.named_modules():
        for leaf, buffer in owner._buffers.items():
            name = f"{path}.{leaf}" if path else leaf
            if buffer is not None and buffer.is_meta and name not in lasting:
                owner._buffers[leaf] = torch.empty_like(buffer, device="cpu")
                owners[path] = owner
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for path, owner in owners.items():
            _maker(module, path)._init_weights(owner)
    for owner in owners.values():
        for leaf in owner._buffers:
            if leaf in owner._non_persistent_buffers_set and owner._buffers[leaf] is not None:
                owner._buffers[leaf] = owner._buffers[leaf].to(device)


def _maker(module: Any, path: str) -> Any:
    """The nearest model of transformers around a module: it knows how its buffers are made."""
    from transformers import PreTrainedModel

    while path:
        path = path.rpartition(".")[0]
        found = module.get_submodule(path)
        if isinstance(found, PreTrainedModel):
            return found
    return module


def give_back() -> None:
    """What was let go of goes back to the system: the C library keeps it, and would hold it beside what comes next."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def _intercept(module: Any, instead: Callable[..., Any]) -> None:
    """Have a module's calls answered by another, which is given its own way first."""
    own = module.forward

    @wraps(own)
    def forward(*given: Any, **named: Any) -> Any:
        return instead(own, *given, **named)

    module.forward = forward


def _holder(module: Any, name: str) -> tuple[Any, str]:
    place, _, leaf = name.rpartition(".")
    return module.get_submodule(place), leaf


def _put(module: Any, name: str, tensor: torch.Tensor) -> None:
    """Put a tensor in its place in a module, as a parameter where that is one."""
    holder, leaf = _holder(module, name)
    if leaf in holder._parameters:
        kept = isinstance(tensor, torch.nn.Parameter)
        holder._parameters[leaf] = tensor if kept else torch.nn.Parameter(tensor, requires_grad=False)
    else:
        holder._buffers[leaf] = tensor
