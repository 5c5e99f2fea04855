"""A model whose weights are read a part at a time: what runs has its tensors, the rest of it has shapes alone.

The parts are the embedding, each layer, and the head; what else stands outside the layers (norms, positions) is read
when a pass begins. A part is read from the files when the model first calls it, edited as the twin says, and let go of
when another is needed. Of embedding and head some rows are read at a time (vocabulary.py); what edits make of them is
kept for the pass, for an edit draws a tensor whole.
Buffers that no file has, as rotary frequencies, are made as transformers makes them.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any, Protocol

import torch

from gausslens import ModelError

from ..empty_module import empty_module, maker_of, sources_of
from ..loading.checkpoint import refuse_not_finite
from ..loading.skeleton import BUFFERS, NO_SITE
from .vocabulary import Rows, rows_of, whole_rows

if TYPE_CHECKING:
    from gausslens import Twin

    from ..loading.pretrained import PretrainedModel

# What is left for a model that cannot be run a part at a time.
AGAIN = ": it cannot be run a layer at a time; leave max_memory out, or raise it above the size of the weights"


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
        self.keeps_embedding = False  # whether layers behind the first read what the embedding gave
        self.in_columns = False  # whether its logits come out the same some columns at a time
        self.twin: Twin | None = None
        self.serving: int | None = None  # the layer whose tensors are in the module as the files have them
        self.outside: dict[str, torch.Tensor] | None = None  # while edits are made outside the layers, what was read
        self._held: dict[Part, dict[str, torch.Tensor]] = {}  # of each part in memory what stood in its places before
        self._depth = 0
        self._sources = sources_of(self.module, model.checkpoint)

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
        """How a part is read by rows, of the files or of what the twin makes of it; None where it is read whole."""
        rows = None if part is None else self.rows.get(part)
        if part is None or rows is None or self.twin is None:
            return rows
        changed = [name for name in self._ours(part, self.twin.touches(None)) if name in ("W_E", "W_U")]
        if changed:
            place = self._model.module_layout.places[None][changed[0]]
            if not whole_rows(place.slot, changed[0]):
                return None
            edited = self._outside(self.twin).get(changed[0])
            rows.edited = edited if edited is None or changed[0] == "W_E" else edited.mT
        return rows

    def held(self, edited: Collection[str] = ()) -> tuple[int, str]:
        """The most bytes that parts take at once, and of which; ``edited`` tensors of ours outside the layers.

        What an edit draws whole is there three times: the model's, what it is given, what it gives, of all that it
        draws; what it gives is kept while layers are read.
        """
        twins = self._model.spec.twins
        ends = [part for part in (self.embedding, self.head) if part is not None]
        drawn = [part for part in ends if self._ours(part, edited)]
        kept = {self._stored_as(name): self.bytes(part) for part in drawn for name in part.tensors}
        sizes = {part.name: self.bytes(part) * (1 + twins) for part in dict.fromkeys(self.layers)}
        sizes |= {part.name: self.bytes(part) for part in ends if part not in self.rows}
        sizes = {name: size + sum(kept.values()) for name, size in sizes.items()}
        if kept:
            whole = " and ".join(part.name for part in drawn)
            sizes[f"{whole}, drawn by an edit"] = 2 * sum(kept.values()) + max(kept.values())
        largest = max(sizes, key=sizes.__getitem__)
        return self.bytes(self.rest) + sizes[largest], largest

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
        if but is None:
            for rows in self.rows.values() if "rows" in vars(self) else ():
                rows.edited = None
            if self.twin is not None:
                self.twin.forget(None)
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

    def _outside(self, twin: Twin) -> Mapping[str, torch.Tensor]:
        """What a twin makes of the tensors outside the layers: once for a pass, of what is read once."""
        there = [(self._plainly_stored(name), name) for name in self.rest.tensors if self.rest in self._held]
        changed = self._model.changes  # by an adapter: what is in the module is another
        self.outside = {stored: self.tensor(name) for stored, name in there if stored and stored not in changed}
        try:
            return twin.overlay(None)
        finally:
            self.outside = None

    def _edit(self, twin: Twin, part: Part) -> None:
        """Write what a twin changes into a part, and let go of it."""
        layer = part.layers[0] if part.layers else None
        if not self._edited(twin, part):
            return
        rows = self.rows.get(part)
        self.serving = layer
        try:
            edited = self._outside(twin) if layer is None else twin.overlay(layer)
        finally:
            self.serving = None
        model = self._model
        layout = model.module_layout
        own: set[str] = set()
        for name, tensor in edited.items():
            place = model.place_to_edit(layer, name)
            plus = place.slot.plus
            at = self._place_in(part, name, place.theirs, layout.tied)
            if at is None or (rows is not None and at == rows.name):
                continue
            if plus and torch.equal(tensor, layout.ours(place, self.tensor(at), self.tensor(at).dtype)):
                continue  # what is stored cannot be had back exactly from the sum
            if at not in own:  # what was read may be the file itself
                own.add(at)
                _put(self.module, at, self.tensor(at).clone())
            layout.write(place, self.tensor(at), tensor - plus if plus else tensor)
        if layer is not None:
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
                maker_of(self.module, path)._init_weights(self.module.get_submodule(path))

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
