"""Several captures through one model together: all of them through a layer before the weights of the next are read.

For each layer the model's own forward runs again, with what it computed before in place of its parts: the embedding and
the layers before the last give nothing but not-a-number, of the right shape, and the last one what it gave. So whatever
stands between the layers is the model's own, and a model that goes on from anything but the layer before is found out.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from gausslens import ModelError

from ..loading.eager_answer import proof_prompt
from ..loading.turns import turn_of
from .attention import with_our_attention
from .by_layer import AGAIN
from .intervening import hook
from .vocabulary import COLUMNS

if TYPE_CHECKING:
    from .by_layer import ByLayer, Part
    from .forward_pass import Capture, Captured, Sources


@dataclass
class Run:
    """One capture to be carried: what it reads, what of the whole model is asked, and what takes that.

    ``finish(found, first, last)`` has the sites of the whole model; where it takes ``columns``, logits may come some
    columns at a time, ``first`` among them and whether they are the ``last``.
    """

    capture: Capture
    ids: torch.Tensor
    mask: torch.Tensor
    logits: bool
    embed: bool
    finish: Callable[[dict[str, Any], int, bool], None]
    sources: Sources | None = None
    columns: bool = False
    found: dict[str, Any] = field(default_factory=dict)
    embedded: Any = None  # the shape of what the embedding gave, and below of what a layer gave
    embedded_beside: tuple[Any, ...] | None = None  # what it gave beside vectors; None where it gave these alone
    empty: Any = None
    beside: tuple[Any, ...] | None = None  # what the last layer gave beside the stream; None where it gave that alone

    @property
    def last(self) -> int:
        """The last turn that it takes: of a layer, or behind all of them that of the end."""
        return max(self.capture.last(self.logits), 0) + self.logits


# The turn of the embedding, before that of layer 0.
BEFORE = -1


class Streams:
    """The stream of each run between two layers: in memory up to a limit, beyond it in a file that has no name."""

    def __init__(self, most: int) -> None:
        self._most, self._held = most, 0
        self._memory: dict[int, torch.Tensor] = {}
        self._file: Any = None
        self._places: dict[int, tuple[int, torch.Tensor]] = {}
        self.spilled = 0

    def put(self, number: int, stream: torch.Tensor) -> None:
        """Keep the stream of a run; what is written goes into the place of the one before, if it has its size."""
        size = stream.numel() * stream.element_size()
        if self._held + size <= self._most:
            self._held += size
            self._memory[number] = stream
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="gausslens-")  # noqa: SIM115 - closed by close()
        place, before = self._places.get(number, (-1, stream[:0]))
        place = place if before.numel() * before.element_size() == size else self._file.seek(0, 2)
        self._places[number] = place, torch.empty(stream.shape, dtype=stream.dtype, device="meta")
        self._file.seek(place)
        self._file.write(_bytes(stream.detach().cpu().contiguous()))
        self.spilled += size

    def take(self, number: int, device: torch.device, keep: bool = False) -> torch.Tensor:
        """The stream of a run, which is then kept no more, or is to be taken again."""
        if number in self._memory and keep:
            return self._memory[number].clone()
        if number in self._memory:
            found = self._memory.pop(number)
            self._held -= found.numel() * found.element_size()
            return found
        assert self._file is not None
        place, shape = self._places[number]
        found = torch.empty(shape.shape, dtype=shape.dtype)
        self._file.seek(place)
        if self._file.readinto(_bytes(found)) != found.numel() * found.element_size():
            raise ModelError("a stream between two layers could not be read again from its temporary file")
        return found.to(device)

    def close(self) -> None:
        """Let go of the file, which is then gone."""
        if self._file is not None:
            self._file.close()


class LayerDone(Exception):
    """Not an error: the layer that all runs are to go through is done."""


class Walk:
    """Carries runs through a model; it is asked at every call of a part what that gives."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.by_layer: ByLayer = model.by_layer
        self.layer, self.spilled = BEFORE, 0
        self._calls, self._embeddings, self._number = 0, 0, 0
        self._run: Run | None = None
        self._stream: torch.Tensor | None = None
        self._kept: Streams | None = None  # what the embedding gave, where later layers read it too

    def carry(self, runs: Sequence[Run], most: int, columns: int | None = None) -> None:
        """All runs through all layers that they ask for; ``most`` are the bytes of streams that stay in memory.

        So many ``columns`` of logits come at a time, where all runs take them so; None: as many as memory has room for.
        """
        last = max(run.last for run in runs)
        keeps = self.by_layer.keeps_embedding
        streams = Streams(most // 2 if keeps else most)
        self._kept = Streams(most // 2) if keeps else None
        self.by_layer.visitor = self
        try:
            with contextlib.ExitStack() as stack, torch.no_grad():
                stack.enter_context(with_our_attention(self.model.module, self.model.layout.family.watched))
                stack.enter_context(self.by_layer.holding())
                self.by_layer.need(self.by_layer.embedding)  # some models ask it where it is before they call it
                self._keep_rows(runs)
                for self.layer in range(BEFORE, last + 1):
                    through = [(number, run) for number, run in enumerate(runs) if self.layer <= run.last]
                    step = self._columns([run for _, run in through], columns)
                    if step is not None:
                        self._in_blocks(through, streams, step)
                        continue
                    with self._whole_head(through):
                        for number, run in through:
                            self._through(run, number, streams)
                    self._drop_rows()
        finally:
            self.by_layer.visitor = None
            self._drop_rows()
            for one in (streams, self._kept):
                if one is not None:
                    one.close()
        self.spilled = streams.spilled + (0 if self._kept is None else self._kept.spilled)

    def _keep_rows(self, runs: Sequence[Run]) -> None:
        """Read the rows of the embedding for all runs at once, where there is room; else each reads its own."""
        rows = self.by_layer.in_rows(self.by_layer.embedding)
        if rows is not None:
            ids = torch.unique(torch.cat([torch.unique(run.ids) for run in runs]))
            if len(ids) * rows.row_bytes <= self.model.room_for_block:
                rows.keep(ids)

    def _drop_rows(self) -> None:
        for rows in self.by_layer.rows.values():
            rows.drop()

    def _columns(self, runs: Sequence[Run], columns: int | None) -> int | None:
        """How many columns of logits come at a time at the end of the model; None where some run takes no columns."""
        rows = self.by_layer.in_rows(self.by_layer.head)
        if rows is None or self.layer < self.model.info.n_layers or not self.by_layer.in_columns:
            return None
        if not all(run.columns for run in runs):
            return None
        if columns is None:
            columns = rows.columns(max(run.ids.numel() for run in runs), self.model.room_for_block)
        return min(columns, rows.vocabulary)

    @contextlib.contextmanager
    def _whole_head(self, runs: Sequence[tuple[int, Run]]) -> Iterator[None]:
        """Where several runs ask for all logits, the head is read for all of them, if memory has room for it."""
        rows = self.by_layer.in_rows(self.by_layer.head)
        room = self.model.spec.max_memory - self.model.room
        asked = self.layer == self.model.info.n_layers and len(runs) > 1
        if rows is None or not asked or rows.vocabulary * rows.row_bytes > room:
            yield
            return
        self.by_layer.need(rows.part)
        with rows.holding(0, rows.vocabulary):
            yield

    def _in_blocks(self, runs: Sequence[tuple[int, Run]], streams: Streams, step: int) -> None:
        """All runs to their end, for some columns of their logits before the next are read."""
        assert self.by_layer.head is not None
        rows = self.by_layer.rows[self.by_layer.head]
        self.by_layer.need(rows.part)
        for start in range(0, rows.vocabulary, step):
            end = min(start + step, rows.vocabulary)
            with rows.holding(start, end):
                for number, run in runs:
                    self._through(run, number, streams, (start, end == rows.vocabulary))

    def _through(self, run: Run, number: int, streams: Streams, block: tuple[int, bool] | None = None) -> None:
        """One run through the layer whose turn it is, or from the last one to the end: some columns of its logits,
        the first of them and whether they are the last, or all.
        """
        self._run, self._calls, self._embeddings, self._number = run, 0, 0, number
        keep = block is not None and not block[1]
        self._stream = None if self.layer == BEFORE else streams.take(number, self.model.device, keep)
        ends = self.layer == run.last
        layers = [self.layer] if 0 <= self.layer < self.model.info.n_layers else []
        with contextlib.ExitStack() as stack:
            watching = run.capture.watching(run.ids.shape, run.embed and self.layer == 0, layers=layers)
            found = stack.enter_context(watching)
            for layer in layers:
                stack.enter_context(hook(self.model.layer_module(layer), self._noted))
            with contextlib.suppress(LayerDone):
                found |= run.capture.called(run.ids, run.mask, run.logits)
        run.found |= found
        stream, self._stream, self._run = self._stream, None, None
        if stream is None:
            raise ModelError(f"{self.model.name}: layer {max(self.layer, 0)} never ran{AGAIN}")
        if block is not None:
            logits = run.found.pop("logits")
            whole = run.capture.concluded(run.found, logits=False, embed=run.embed) if block[0] == 0 else {}
            run.finish(whole | {"logits": logits}, *block)
            return
        if ends:
            run.finish(run.capture.concluded(run.found, run.logits, run.embed), 0, True)
            return
        streams.put(number, stream)

    def visited(self, part: Part, forward: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What a part gives: as it is computed, or what stands for what it gave before."""
        if part is self.by_layer.embedding:
            return self._embedded(part, forward, given, named)
        if not part.layers:
            return self.by_layer.through(part, forward, given, named)
        run, turn = self._run, self._calls
        assert run is not None
        self._calls += 1
        if turn not in part.layers or turn > self.layer:
            raise ModelError(f"{self.model.name}: its layers are not called once each, in their order{AGAIN}")
        if turn == self.layer:
            self._check(given, named)
            self._stream = None
            return self.by_layer.through(part, forward, given, named)
        stream = self._stream if turn == self.layer - 1 else run.empty.clone(memory_format=torch.contiguous_format)
        return (stream, *run.beside) if run.beside is not None else stream

    def _embedded(self, part: Part, forward: Callable[..., Any], given: Any, named: Any) -> Any:
        """What the embedding gives: as it is, until the first layer has read it."""
        run = self._run
        assert run is not None
        if self.layer == BEFORE:  # what becomes of it before the first layer is computed with that
            result = self.by_layer.through(part, forward, given, named)
            self._stream, run.embedded_beside = (result[0], result[1:]) if isinstance(result, tuple) else (result, None)
            if not isinstance(self._stream, torch.Tensor):
                raise ModelError(f"{self.model.name}: its embedding gives no vectors{AGAIN}")
            run.embedded = _empty(self._stream)
            if self._kept is not None:
                self._kept.put(self._number, self._stream.clone())
            raise LayerDone
        self._embeddings += 1
        if self._embeddings > 1:
            raise ModelError(f"{self.model.name}: its embedding is called more than once{AGAIN}")
        found = self._stream
        if self.layer > 0 and self._kept is not None:
            found = self._kept.take(self._number, self.model.device, keep=True)
        elif self.layer > 0:
            found = run.embedded.clone(memory_format=torch.contiguous_format)
        return found if run.embedded_beside is None else (found, *run.embedded_beside)

    def _check(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """What a layer is given must not come from anything but the layer before."""
        for one in _tensors((given, named)):
            if one.is_floating_point() and not one.is_meta and bool(one.isnan().any()):
                raise ModelError(
                    f"{self.model.name}: layer {self.layer} reads what other layers than the one before it, or the "
                    f"embedding, gave{AGAIN}"
                )

    def _noted(self, _module: Any, _given: Any, result: Any) -> None:
        """Keep what the layer whose turn it is gave, and end the run there."""
        assert self._run is not None
        if self._calls - 1 != self.layer:
            return
        self._stream = result[0] if isinstance(result, tuple) else result
        self._run.beside = result[1:] if isinstance(result, tuple) else None
        self._run.empty = _empty(self._stream)
        raise LayerDone


def why_not(model: Any, capture: type[Capture]) -> str | None:
    """Why runs cannot be carried through a model together, None where they can: tried on two prompts.

    What they end with must be what the model gives each of them by itself.
    """
    by_layer = model.by_layer
    if by_layer.why_not is None:
        by_layer.why_not = _tried(model, capture) or ""
    if by_layer.why_not and not by_layer.keeps_embedding:  # layers behind the first may read what it gave (DeBERTa's)
        by_layer.keeps_embedding = True
        by_layer.why_not = _tried(model, capture) and by_layer.why_not
    return by_layer.why_not or None


def _tried(model: Any, capture: type[Capture]) -> str | None:
    """Why not, by two prompts: carried together, the second time with their logits in columns, and each by itself.

    A model whose end is another in columns is given its logits whole.
    """
    if model.stack in ("decoder", "cross"):
        return f"{model.name}: its decoder reads what its encoder gives"
    try:
        with turn_of(model.module):
            apart = _ends(model, capture, together=False)
            model.by_layer.in_columns = model.by_layer.head in model.by_layer.rows
            if model.by_layer.in_columns:
                model.by_layer.in_columns = _alike(apart, _ends(model, capture, together=True))
            if model.by_layer.in_columns or _alike(apart, _ends(model, capture, together=True)):
                return None
    except (ModelError, RuntimeError) as error:
        return str(error)
    return f"{model.name}: run a layer at a time it gives something else"


def _ends(model: Any, capture: type[Capture], together: bool) -> list[dict[Any, torch.Tensor]]:
    """What the last layer and the head give of two prompts."""
    last = model.info.n_layers - 1
    sites = tuple(s for s in ("resid_post",) if s in model.sites)
    ids, _ = proof_prompt(model)
    ends: list[dict[Any, torch.Tensor]] = [{} for _ in ids]
    runs = []
    for row, end in zip(ids, ends, strict=True):

        def done(layer: int, captured: Captured, end: dict[Any, torch.Tensor] = end) -> None:
            end.update({(layer, name): array.clone() for name, array in captured.arrays.items()})

        def finish(found: dict[str, Any], first: int, _last: bool, end: dict[Any, torch.Tensor] = end) -> None:
            end.update({name: torch.cat([end[name], some], -1) if first else some for name, some in found.items()})

        of = capture(model, {last: sites}, done)
        runs.append(Run(of, row[None], torch.ones_like(row)[None], model.headed, False, finish, columns=True))
    if together:
        head = model.by_layer.rows.get(model.by_layer.head)
        few = None if head is None else min(head.columns(ids.numel(), model.room_for_block), head.vocabulary // 2)
        Walk(model).carry(runs, 0, few and max(few, COLUMNS))
    else:
        for run in runs:
            run.finish(run.capture.run(run.ids, run.mask, run.logits), 0, True)
    return ends


def _alike(apart: list[dict[Any, torch.Tensor]], together: list[dict[Any, torch.Tensor]]) -> bool:
    pairs = zip(apart, together, strict=True)
    return all(name in ours and torch.equal(array, ours[name]) for of, ours in pairs for name, array in of.items())


def _empty(tensor: torch.Tensor) -> torch.Tensor:
    """Not-a-number in the shape of a tensor, without its memory: whoever reads it is found out."""
    return tensor.new_full((), torch.nan).expand(tensor.shape)


def _tensors(given: Any) -> list[torch.Tensor]:
    """All tensors in what a module is given."""
    if isinstance(given, torch.Tensor):
        return [given]
    if isinstance(given, dict):
        return [one for value in given.values() for one in _tensors(value)]
    return [one for value in given for one in _tensors(value)] if isinstance(given, tuple | list) else []


def _bytes(tensor: torch.Tensor) -> memoryview:
    """The memory of a tensor."""
    flat: Any = tensor.reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)
