"""One pass of a twin over its prompts, shared by all stream analyses that want it.

The shard is the unit: an engine may hand it over in pieces, each analysis sees it whole. For each shard it works on a
copy of its empty state; the copies are merged in the order of the shards: so the result depends on nothing else. For
errors over prompts shards are cut within groups of prompts, and each group has a state of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from ..contract.batches import Batch, Request
from ..contract.digests_and_seeds import derive
from ..contract.errors import ModelError
from ..contract.sites import HEAD_AXIS, KV_HEAD_AXIS, SQUARE_SITES
from ..guard import Guard, settled
from ..maths.resampling import dealt
from ..runs.lending import LentBatch, Spoiled, copied_batch
from ..runs.requests import layers_given, layers_skipped
from .on_the_way import Arrays, OnTheWay, Reached, agreement, plain_arrays

if TYPE_CHECKING:
    import numpy as np
    import torch

    from ..contract.engines import CaptureEngine
    from ..contract.model import ModelInfo
    from ..contract.prompts import Tokens
    from ..contract.twin import Twin


class Pieces:
    """The pieces of one shard, by layer and block of query rows: some prompts at a time, in any order.

    Pieces are padded to the width of the shard, and all sites of a layer come together.
    """

    def __init__(self, shard: np.ndarray) -> None:
        self.place = {int(prompt): place for place, prompt in enumerate(shard)}
        self.waiting: dict[tuple[int | None, int], list[Batch]] = {}
        self.done: set[int | None] = set()

    def add(self, batch: Batch) -> Batch | None:
        """The whole shard of this layer (and block of rows) once its last piece is there, else None."""
        _check(batch)
        whole: Batch | None = batch
        if [int(p) for p in batch.prompts] != list(self.place):
            where = (batch.layer, batch.rows)
            self.waiting.setdefault(where, []).append(kept(batch))
            if sum(len(b.prompts) for b in self.waiting[where]) < len(self.place):
                return None
            whole = self._joined(self.waiting.pop(where))
        if batch.layer in self.done:
            raise ModelError(f"the engine gave {_where(batch.layer)} twice for one shard")
        if batch.last_rows:
            self.done.add(batch.layer)
        return whole

    def check_done(self) -> None:
        """Refuse a shard of which prompts are missing."""
        for (layer, _), batches in self.waiting.items():
            got = sum(len(b.prompts) for b in batches)
            raise ModelError(f"the engine gave {got} of {len(self.place)} prompts of a shard for {_where(layer)}")

    def _joined(self, batches: Sequence[Batch]) -> Batch:
        import numpy as np
        import torch

        prompts = np.concatenate([b.prompts for b in batches])
        if sorted(self.place) != sorted(int(p) for p in prompts):
            raise ModelError(f"the engine gave prompts twice, or of another shard, for {_where(batches[0].layer)}")
        order = torch.as_tensor(np.argsort([self.place[int(p)] for p in prompts]))

        def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
            whole = torch.cat(list(parts))
            return whole[order.to(whole.device)]

        return replace(
            batches[0],
            prompts=prompts[order.numpy()],
            tokens=joined([b.tokens for b in batches]),
            text=joined([b.text for b in batches]),
            mask=joined([b.mask for b in batches]),
            key_tokens=joined([_of_keys(b, "tokens") for b in batches]),
            key_text=joined([_of_keys(b, "text") for b in batches]),
            key_mask=joined([_of_keys(b, "mask") for b in batches]),
            arrays={s: joined([b[s] for b in batches]) for s in batches[0].arrays},
        )


def _of_keys(batch: Batch, name: str) -> torch.Tensor:
    """What a piece holds of its keys. One cut out of a batch by its queries alone has those of the whole: its own."""
    found: torch.Tensor = getattr(batch, f"key_{name}")
    own: torch.Tensor = getattr(batch, name)
    return found if len(found) == len(batch.prompts) else own


def kept(batch: Batch) -> Batch:
    """A batch that outlives the call in which an engine handed it over."""
    return replace(batch, arrays={site: array.clone() for site, array in batch.arrays.items()})


def _check(batch: Batch) -> None:
    for site, array in batch.arrays.items():
        if array.shape[0] != len(batch.prompts) or array.numel() == 0:
            raise ModelError(
                f"site {site} of {_where(batch.layer)} has shape {tuple(array.shape)} for {len(batch.prompts)} prompts"
            )


def _where(layer: int | None) -> str:
    return "the whole model" if layer is None else f"layer {layer}"


# Rows of scores and patterns that an analysis with row_blocks gets at a time.
ROW_BLOCK = 256
SQUARE = frozenset(SQUARE_SITES)


@dataclass
class Job:
    """A stream analysis on its way through the passes: its empty state, what it wants, and what went wrong."""

    name: str
    title: str
    state: Any
    request: Request
    info: ModelInfo
    row_blocks: bool = False
    all_layers: bool = False
    shared: tuple[Any, ...] = ()  # what copies of the state share: context, tokens, the writer of large arrays
    error: BaseException | None = None
    at_fault: bool = False  # the error is of its own code, not of the engine
    layer: int | None = None
    guard: Guard = field(default_factory=Guard)  # how its calls are made
    groups: list[Any] = field(default_factory=list)  # where prompts are in groups: the state of each, of the last pass
    place: str = ""  # what it is in words, for notes
    made: Callable[[], Any] | None = None  # makes an instance anew
    can_commit: bool = False  # it has ``state`` and ``restore``, and all that it saw is in them
    start: tuple[int, int] = (0, 0)  # the pass, and the shard of it, from which it is fed
    restored: dict[int, Any] = field(default_factory=dict)  # its states there, by group

    @property
    def layers(self) -> tuple[int | None, ...]:
        """The layers it gets batches of; None stands for the whole model."""
        return layers_given(self.request, self.info)

    @property
    def skipped(self) -> dict[int, str]:
        """Layers that do not have one of its sites, with the reason."""
        return layers_skipped(self.request, self.info)

    def fresh(self) -> Any:
        """A copy of the empty state; one that sees the shards in order is itself in each."""
        return self.state if self.request.ordered else self.copied(self.state)

    def copied(self, state: Any) -> Any:
        """A copy of a state."""
        return copy.deepcopy(state, {id(one): one for one in self.shared})

    def failed(self, error: BaseException, layer: int | None = None) -> None:
        """Take the job out of the pass, by its own fault; the others go on."""
        self.error, self.layer, self.at_fault = error, layer, True

    def reached(self, index: int, shards: int, merged: Mapping[int, Any]) -> Reached:
        """Where it is after so many shards of a pass, as plain arrays."""

        def arrays(state: Any) -> Arrays:
            return self.guard.call(lambda: plain_arrays(state.state()))

        random = self.guard.random
        began = arrays(self.state) if index and not self.request.ordered else None
        groups = {g: arrays(s) for g, s in merged.items()}
        self.guard.random = random  # what it draws does not depend on when it is committed
        return Reached(index, shards, began, groups, random)

    def go_on(self, reached: Reached) -> None:
        """Take up what was reached; where that fails it is as it was, still at the beginning."""
        random = self.guard.random
        try:
            self._take_up(reached)
        except BaseException:
            self.guard.random = random
            raise

    def _take_up(self, reached: Reached) -> None:

        def restored(empty: Any, arrays: Arrays) -> Any:
            own = {name: array.copy(order="K") for name, array in arrays.items()}
            self.guard.call(lambda: empty.restore(own))
            return empty

        anew = self.copied(self.state) if self.made is None else self.made()
        if self.request.ordered:
            began = restored(anew, reached.groups[0])
            groups = {0: began}
        else:
            began = anew if reached.began is None else restored(anew, reached.began)
            groups = {g: restored(self.guard.call(self.copied, began), arrays) for g, arrays in reached.groups.items()}
        self.guard.random = reached.random
        self.state, self.restored, self.start = began, groups, (reached.index, reached.shards)


def cut(tokens: Tokens, groups: int | None) -> list[tuple[int, np.ndarray]]:
    """The shards in their order, each with the group of prompts that it is of; without groups all are of group 0."""
    if groups is None:
        return [(0, shard) for shard in tokens.shards()]
    import numpy as np

    group = dealt(tokens.ids, groups)
    return [(g, shard) for g in range(groups) for shard in tokens.shards(among=np.flatnonzero(group == g))]


def shuffled(tokens: Tokens, seed: int, index: int) -> list[tuple[int, np.ndarray]]:
    """The shards of a pass over ordered analyses: prompts of one length are dealt anew, and shards come as they fall.

    Shards are cut by length as ever, so that no more is padded; where all prompts are of one length, as in text that is
    cut into pieces, any prompt comes in any place. Training wants neighbours that are of no one document or length.
    """
    import numpy as np

    generator = np.random.default_rng(derive(seed, "order of prompts", index))
    shards = tokens.shards()
    order = np.concatenate(shards)
    sources = tokens.lengths if tokens.sources is None else tokens.sources.lengths
    length = np.array([(tokens.lengths[i], sources[i]) for i in order]).reshape(-1, 2)
    for alike in np.unique(length, axis=0):
        places = np.flatnonzero((length == alike).all(axis=1))
        order[places] = generator.permutation(order[places])
    dealt_anew = np.split(order, np.cumsum([len(shard) for shard in shards])[:-1])
    return [(0, dealt_anew[i]) for i in generator.permutation(len(shards))]


def run_passes(
    engine: CaptureEngine,
    twin: Twin,
    tokens: Tokens,
    jobs: Sequence[Job],
    groups: int | None = None,
    order: int | None = None,
    way: OnTheWay | None = None,
) -> Iterator[str]:
    """Run as many passes as the jobs want, saying after each shard how far it is.

    Once it is exhausted, each job has its final state, or an error; with ``groups`` of prompts the last pass of a job
    gives a state of each group instead. ``order`` is the seed by which ordered jobs, which are all of them, see it.
    ``way`` commits jobs on the way: one that goes on is not fed again what it has seen, and shards that all have seen
    are left out.
    """
    shards = cut(tokens, groups) if order is None else []

    @cache
    def agreed(passes: int) -> str:
        return agreement(shards if order is None else shuffled(tokens, order, 0), passes, groups, order)

    if way is not None:
        for job in jobs:
            way.begin(job, agreed)
    for index in range(max((j.request.passes for j in jobs), default=0)):
        shards = shards if order is None else shuffled(tokens, order, index)
        active = [j for j in jobs if j.request.passes > index and j.error is None]
        if not active:
            return
        merged = {job.name: dict(job.restored) if job.start[0] == index else {} for job in active}
        for number, (group, shard) in enumerate(shards):
            fed = [job for job in active if job.start <= (index, number)]
            copies = _run_shard(engine, twin, tokens, shard, fed) if fed else {}
            for job in fed:
                # All passes but the last see all prompts: what they find is fixed, and the same for every group.
                _merge(job, copies.get(job.name), merged[job.name], group if index + 1 == job.request.passes else 0)
            if way is not None:
                way.commit(fed, index, number + 1, merged, agreed)
            yield f"pass {index + 1}, shard {number + 1} of {len(shards)}"
            active = [j for j in active if j.error is None]
            if not active:
                return
        for job in active:
            if job.start[0] <= index:
                _end_pass(job, index, merged[job.name], groups)


def _end_pass(job: Job, index: int, merged: dict[int, Any], groups: int | None) -> None:
    job.restored = {}
    if index + 1 < job.request.passes:
        job.state = merged[0]
        _guarded(job, None, _ended, job.state, index)
    elif groups is None:
        job.state = merged[0]
    else:
        job.groups = list(merged.values())


def _ended(state: Any, index: int) -> None:
    if hasattr(state, "end_pass"):
        state.end_pass(index)


def _run_shard(
    engine: CaptureEngine, twin: Twin, tokens: Tokens, shard: np.ndarray, jobs: Sequence[Job]
) -> dict[str, Any]:
    """One shard through the model; a fresh state for each job that has seen it."""
    copies: dict[str, Any] = {}
    for job in jobs:
        try:
            copies[job.name] = job.guard.call(job.fresh)
        except Exception as error:
            job.failed(error)
    held: dict[str, list[Batch]] = {job.name: [] for job in jobs}
    pieces = Pieces(shard)
    outside = [job for job in jobs if job.guard.outside]

    def sink(batch: Batch) -> None:
        whole = pieces.add(batch)
        if whole is None:
            return
        for job in jobs:
            if not job.guard.outside and _wants(job, whole):
                view = _view(whole, job)
                if job.all_layers:
                    held[job.name].append(kept(view))
                else:
                    _update(job, copies[job.name], view)
        reading = [job for job in outside if _wants(job, whole)]
        lent = LentBatch(whole, sorted({s for job in reading for s in job.request.sites})) if reading else None
        for job in reading:
            assert lent is not None
            if job.all_layers:
                held[job.name].append(copied_batch(_view(whole, job)))
            else:
                _update_lent(job, copies[job.name], lent)

    try:
        engine.run(twin, tokens, shard, _union(jobs), sink)
        pieces.check_done()
        for job in jobs:
            missing = [n for n in job.layers if n not in pieces.done]
            if missing and job.error is None:
                where = "outside the layers" if missing[0] is None else f"in layer {missing[0]}"
                raise ModelError(f"the engine never gave {', '.join(job.request.sites)} {where}: nothing was captured")
            if job.all_layers and job.error is None:
                batches = sorted(held[job.name], key=lambda b: (b.layer is None, b.layer or 0))
                _guarded(job, None, lambda seen, of=copies[job.name]: of.update(seen), tuple(batches))
    except BaseException as error:
        for job in jobs:
            if job.error is None:
                job.error = settled(error)
    return copies


def _wants(job: Job, batch: Batch) -> bool:
    if job.error is not None or batch.layer not in job.layers:
        return False
    # Every block holds all other sites whole: it saw them with the first.
    return not batch.rows or bool(SQUARE & set(job.request.sites))


def _update_lent(job: Job, state: Any, lent: LentBatch) -> None:
    """Show an outside analysis a copy, and see that it is as it was for the next."""
    view = _view(lent.batch(), job)
    for block in _row_blocks(view) if job.row_blocks else [view]:
        if job.error is None:
            _guarded(job, view.layer, lambda seen: state.update(seen), block)
    try:
        lent.check()
    except Spoiled as error:
        job.failed(error, view.layer)


def _update(job: Job, state: Any, view: Batch) -> None:
    blocks = _row_blocks(view) if job.row_blocks else [view]
    for block in blocks:
        if job.error is None:
            before = _versions(block)
            _guarded(job, view.layer, lambda seen: state.update(seen), block)
            if _versions(block) != before:
                raise ModelError(
                    f"{job.title} changes an array in place, which others and the model itself still use: "
                    "it must work on a copy"
                )


def _versions(batch: Batch) -> list[int]:
    """How often each array was changed in place, as torch counts it."""
    return [array._version for array in batch.arrays.values() if not array.is_inference()]


def _guarded(job: Job, layer: int | None, call: Callable[..., None], *arguments: Any) -> None:
    try:
        job.guard.call(call, *arguments)
    except Exception as error:
        job.failed(error, layer)


def _merge(job: Job, copy: Any, merged: dict[int, Any], group: int) -> None:
    if job.error is not None:
        return
    if group in merged and not job.request.ordered:
        _guarded(job, None, lambda seen: merged[group].merge(seen), copy)
    else:
        merged[group] = copy


def _union(jobs: Sequence[Job]) -> Request:
    """What the engine is asked for on behalf of all jobs."""
    sites = tuple(sorted({s for j in jobs for s in j.request.sites}))
    layers = tuple(sorted({n for j in jobs for n in j.layers if n is not None}))
    square = [j for j in jobs if SQUARE & set(j.request.sites)]
    in_blocks = bool(square) and all(j.row_blocks for j in square)
    return Request(sites, layers, rows=ROW_BLOCK if in_blocks else None)


def _view(batch: Batch, job: Job) -> Batch:
    """What one job sees of a batch: its sites, its heads."""
    arrays = {s: batch[s] for s in job.request.sites if s in batch.arrays}
    heads, kv_heads = job.info.heads, job.info.kv_heads
    if batch.layer is not None:
        for site, array in arrays.items():
            axes = ((HEAD_AXIS, heads, batch.heads), (KV_HEAD_AXIS, kv_heads, batch.kv_heads))
            for axis, wanted, held in axes:
                if site in axis and wanted != held:
                    rows = [held.index(h) for h in wanted]
                    arrays[site] = array.index_select(axis[site], _indices(rows, array))
    return replace(batch, arrays=arrays, heads=heads, kv_heads=kv_heads)


def _indices(rows: Sequence[int], like: Any) -> Any:
    import torch

    return torch.tensor(rows, device=like.device)


def _row_blocks(batch: Batch) -> list[Batch]:
    """A batch cut into blocks of query rows, all other sites whole."""
    square = [s for s in batch.arrays if s in SQUARE]
    if not square:
        return [batch]
    blocks = []
    n = batch[square[0]].shape[2]
    for start in range(0, n, ROW_BLOCK):
        arrays = {s: a[:, :, start : start + ROW_BLOCK] if s in square else a for s, a in batch.arrays.items()}
        last = batch.last_rows and start + ROW_BLOCK >= n
        blocks.append(replace(batch, arrays=arrays, rows=batch.rows + start, last_rows=last))
    return blocks
