"""Embedding and head a few rows of their matrix at a time: the largest tensors of a small model, of which a pass needs
the rows of its tokens, and each logit one row.

The modules' own forwards run, on fewer rows: an embedding is asked for numbers among the rows that are there, a head
gives some columns of the logits. A product of some columns has the bits of the whole one's wherever it was tried; that
the end of a model comes out the same is tried for each (walk.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ..loading.checkpoint import Checkpoint, refuse_not_finite

if TYPE_CHECKING:
    from ..families.slots import Slot
    from ..loading.pretrained import PretrainedModel
    from .by_layer import Part

# Columns of logits are computed by so many at least, and in multiples of it.
COLUMNS = 64
# What transformers calls embeddings that multiply what they find by a number, and do nothing else with tokens.
SCALED = "ScaledWordEmbedding"
# Copies of a block of logits: as it is, in float32, and what its exponentials are summed of.
COPIES = 3


@dataclass
class Rows:
    """The matrix of an embedding or a head in the files: one row for each token of the vocabulary."""

    part: Part
    name: str  # of the tensor in the module
    stored: str  # and in the files
    checkpoint: Checkpoint
    path: str
    dtype: torch.dtype
    device: str
    kept: tuple[torch.Tensor, torch.Tensor] | None = field(default=None, repr=False)  # tokens, and their rows
    edited: torch.Tensor | None = field(default=None, repr=False)  # what a twin has in its place, for a pass
    holds: bool = False  # whether some rows stand in the head, for the columns that it is to give

    @property
    def vocabulary(self) -> int:
        """How many rows there are."""
        return self.checkpoint.tensors[self.stored].shape[0]

    @property
    def row_bytes(self) -> int:
        """What a row takes while it is read."""
        width: int = torch.Size(self.checkpoint.tensors[self.stored].shape[1:]).numel()
        return width * self.dtype.itemsize

    def read(self, wanted: torch.Tensor) -> torch.Tensor:
        """The rows of these tokens, which are in order."""
        if self.edited is not None:
            return self.edited[wanted.to(self.edited.device)]
        found = self.checkpoint.rows(self.stored, wanted.cpu(), self.dtype)
        refuse_not_finite(self.path, [(self.stored, found)])
        return found.to(self.device)

    def keep(self, ids: torch.Tensor) -> None:
        """Read the rows of all these tokens at once, until ``drop``."""
        wanted = torch.unique(ids)
        self.kept = wanted, self.read(wanted)

    def drop(self) -> None:
        """Let go of the rows that were kept."""
        self.kept = None

    def _are_kept(self, ids: torch.Tensor) -> bool:
        """Whether the rows of all these tokens are."""
        assert self.kept is not None
        return bool(torch.isin(ids, self.kept[0]).all())

    def looked_up(self, forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What an embedding gives of token numbers: its own forward, on the rows that are there."""
        ids = next(one for one in (*given, *named.values()) if isinstance(one, torch.Tensor))
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < self.vocabulary:
            raise IndexError("index out of range in self")  # as torch says it
        wanted, rows = self.kept if self.kept is not None and self._are_kept(ids) else (torch.unique(ids), None)
        rows = self.read(wanted) if rows is None else rows
        places = torch.searchsorted(wanted, ids.contiguous())
        module = self.part.module
        before, module.padding_idx = module.padding_idx, None  # a number among all rows; it only stops gradients
        try:
            with self.standing(rows):
                args = [places if one is ids else one for one in given]
                return forward(*args, **{key: places if one is ids else one for key, one in named.items()})
        finally:
            module.padding_idx = before

    def multiplied(self, forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any], most: int) -> Any:
        """What a head gives: all logits, ``most`` bytes of them at a time; or some, while it holds those rows."""
        if self.holds:
            return forward(*given, **named)
        hidden = next(one for one in (*given, *named.values()) if isinstance(one, torch.Tensor))
        step = self.columns(hidden[..., 0].numel(), most, copies=1)
        found = None
        for start in range(0, self.vocabulary, step):
            with self.holding(start, min(start + step, self.vocabulary)):
                some = forward(*given, **named)
            if step >= self.vocabulary:
                return some
            if found is None:
                found = some.new_empty((*some.shape[:-1], self.vocabulary))
            found[..., start : start + step] = some
        return found

    def columns(self, tokens: int, most: int, copies: int = COPIES) -> int:
        """How many columns of the logits of so many tokens are computed at a time, within so many bytes."""
        each = self.row_bytes + copies * tokens * max(self.dtype.itemsize, 4 if copies > 1 else 1)
        return max(COLUMNS, most // each // COLUMNS * COLUMNS)

    @contextlib.contextmanager
    def holding(self, start: int, end: int) -> Iterator[None]:
        """The head gives these columns of the logits alone, however often it is called."""
        self.holds = True
        try:
            with self.standing(self.read(torch.arange(start, end)), slice(start, end)):
                yield
        finally:
            self.holds = False

    @contextlib.contextmanager
    def standing(self, rows: torch.Tensor, some: slice | None = None) -> Iterator[None]:
        """The module with these rows in place of its matrix, and of its bias those numbers."""
        held = self.part.module._parameters
        before = {leaf: held[leaf] for leaf in ("weight", "bias") if held.get(leaf) is not None}
        held["weight"] = torch.nn.Parameter(rows, requires_grad=False)
        if "bias" in before and some is not None:
            held["bias"] = torch.nn.Parameter(before["bias"][some], requires_grad=False)
        try:
            yield
        finally:
            held.update(before)


@dataclass(frozen=True)
class Sliced:
    """Our W_E [token, d_model] or W_U [d_model, token] of a model that is read by rows, for who asks for some."""

    rows: Rows
    turned: bool

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the whole matrix."""
        vocabulary, width = self.rows.checkpoint.tensors[self.rows.stored].shape
        return (width, vocabulary) if self.turned else (vocabulary, width)

    def __getitem__(self, which: Any) -> torch.Tensor:
        if self.turned:
            every, some = which
            assert every == slice(None)
            return self.rows.read(torch.arange(*some.indices(self.rows.vocabulary))).T
        wanted, places = torch.unique(which, return_inverse=True)
        return self.rows.read(wanted)[places]


def rows_of(model: PretrainedModel, part: Part | None, stored: Callable[[str], str | None]) -> Rows | None:
    """How the matrix of an embedding or a head can be read by rows; None where it cannot."""
    if part is None or model.checkpoint is None:
        return None
    module = part.module
    own: Any = type(module).forward
    scaled = isinstance(module, torch.nn.Embedding) and type(module).__name__.endswith(SCALED)
    plain = scaled or own in (torch.nn.Embedding.forward, torch.nn.Linear.forward)
    leaves = {name.rpartition(".")[2]: name for name in part.tensors}
    if not plain or not {"weight"} <= leaves.keys() <= {"weight", "bias"}:
        return None
    there = stored(leaves["weight"])
    shape = tuple(module.weight.shape)
    if there is None or not model.checkpoint.has_rows(there) or model.checkpoint.tensors[there].shape != shape:
        return None
    outside = model.layout.places[None]
    if any(outside[name].theirs in model.changes for name in ("W_E", "W_U", "b_U") if name in outside):
        return None  # an adapter changes them
    told = (model.checkpoint, str(model.spec.path), module.weight.dtype, model.spec.device)
    return Rows(part, leaves["weight"], there, *told)


def sliced(model: Any, name: str) -> Sliced | None:
    """Our W_E or W_U of a model that is read by rows, which nobody needs as a whole."""
    by_layer = getattr(model, "by_layer", None)
    if by_layer is None or name not in ("W_E", "W_U") or name not in model.layout.places[None]:
        return None
    rows = by_layer.rows.get(by_layer.embedding if name == "W_E" else by_layer.head)
    if rows is None or not whole_rows(model.layout.places[None][name].slot, name):
        return None
    return Sliced(rows, name == "W_U")


def whole_rows(slot: Slot, name: str) -> bool:
    """Whether the rows of a stored matrix are those of our W_E, or the columns of our W_U, and nothing else."""
    odd = slot.turned or slot.plus or slot.skip or slot.part or slot.behind
    return not odd and slot.form == ("as is" if name == "W_E" else "in_out")
