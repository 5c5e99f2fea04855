"""One shard on its way to the analyses of a pass: its pieces put together, each layer handed to those that want it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..contract.batches import Batch, Request
from ..contract.errors import ModelError
from ..contract.sites import HEAD_AXIS, KV_HEAD_AXIS, SQUARE_SITES
from ..runs.lending import LentBatch, Spoiled, copied_batch

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .passes import Job


# Rows of scores and patterns that an analysis with row_blocks gets at a time.
ROW_BLOCK = 256
SQUARE = frozenset(SQUARE_SITES)


class Pieces:
    """The pieces of one shard, by layer and block of query rows or columns: some prompts at a time, in any order.

    Pieces are padded to the width of the shard, and all sites of a layer come together.
    """

    def __init__(self, shard: np.ndarray) -> None:
        self.place = {int(prompt): place for place, prompt in enumerate(shard)}
        self.waiting: dict[tuple[int | None, int, int], list[Batch]] = {}
        self.done: set[int | None] = set()

    def add(self, batch: Batch) -> Batch | None:
        """The whole shard of this layer (and block of rows) once its last piece is there, else None."""
        _check(batch)
        whole: Batch | None = batch
        if [int(p) for p in batch.prompts] != list(self.place):
            where = (batch.layer, batch.rows, batch.columns)
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
        for (layer, *_), batches in self.waiting.items():
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


# Of jobs whose layers are apart the states of each group of prompts, layer by layer.
LayerStates: TypeAlias = "dict[str, dict[int, dict[int | None, Any]]]"


class Feed:
    """One shard on its way to the jobs of a pass: what each of them made of it, in a fresh state.

    Of jobs in ``layers`` each layer has a state of its own, which goes into that of the shards before as it is done.
    """

    def __init__(
        self, shard: np.ndarray, jobs: Sequence[Job], groups: Mapping[str, int], layers: LayerStates | None = None
    ) -> None:
        self.shard, self.jobs, self.groups = shard, jobs, groups
        self.copies: dict[str, Any] = {}
        self._layers = layers or {}
        self._pieces = Pieces(shard)
        self._held: dict[str, list[Batch]] = {job.name: [] for job in jobs}
        self._outside = [job for job in jobs if job.guard.outside]
        self._copied: set[str] = set()
        for job in jobs:
            if job.name not in self._layers:
                self._begin(job)

    def sink(self, batch: Batch) -> None:
        """Hand a batch to the jobs that want it, once the whole shard is there."""
        whole = self._pieces.add(batch)
        if whole is None:
            return
        wanting = [job for job in self.jobs if _wants(job, whole)]
        self._begin_copies(whole, wanting)
        for job in wanting:
            if job.name in self._layers and job.name not in self.copies:
                self._begin(job)
        reading = [job for job in self._outside if _wants(job, whole)]
        for job in wanting:
            if not job.guard.outside and job.error is None:
                view = _view(whole, job)
                if job.all_layers:
                    self._held[job.name].append(kept(view))
                else:
                    _update(job, self.copies[job.name], view)
        self._copied |= {site for site, array in whole.arrays.items() if array in whole.copies}
        lent = LentBatch(whole, sorted({s for job in reading for s in job.request.sites})) if reading else None
        for job in reading:
            assert lent is not None
            if job.all_layers:
                self._held[job.name].append(copied_batch(_view(whole, job)))
            else:
                _update_lent(job, self.copies[job.name], lent)
        for job in wanting:
            if job.name in self._layers and _is_last(job, whole) and job.name in self.copies:
                by_layer = self._layers[job.name].setdefault(self.groups[job.name], {})
                state = self.copies.pop(job.name)
                if whole.layer in by_layer:
                    guarded(job, whole.layer, lambda seen, of=by_layer[whole.layer]: of.merge(seen), state)
                else:
                    by_layer[whole.layer] = state

    def _begin_copies(self, batch: Batch, jobs: Sequence[Job]) -> None:
        """Have the device copy in one go what analyses read on the CPU, as those of the layer before did."""
        for site in sorted(self._copied & {s for job in jobs for s in job.request.sites} & set(batch.arrays)):
            batch.copies.begin(batch[site])

    def finish(self) -> None:
        """See that all came, and hand over what waits for all layers."""
        self._pieces.check_done()
        for job in self.jobs:
            missing = [n for n in job.layers if n not in self._pieces.done]
            if missing and job.error is None:
                where = "outside the layers" if missing[0] is None else f"in layer {missing[0]}"
                raise ModelError(f"the engine never gave {', '.join(job.request.sites)} {where}: nothing was captured")
            if job.all_layers and job.error is None:
                batches = sorted(self._held[job.name], key=lambda b: (b.layer is None, b.layer or 0))
                guarded(job, None, lambda seen, of=self.copies[job.name]: of.update(seen), tuple(batches))

    def _begin(self, job: Job) -> None:
        try:
            self.copies[job.name] = job.guard.call(job.fresh)
        except Exception as error:
            job.failed(error)


def _wants(job: Job, batch: Batch) -> bool:
    if job.error is not None or batch.layer not in job.layers:
        return False
    # Every block holds all other sites whole: it saw them with the first.
    sites = set(job.request.sites)
    return "logits" in sites if batch.columns else not batch.rows or bool(SQUARE & sites)


def _is_last(job: Job, batch: Batch) -> bool:
    """Whether nothing more of this layer comes for a job: other blocks are for who reads what comes in them."""
    in_blocks = {"logits"} if batch.layer is None else SQUARE
    return batch.last_rows or not in_blocks & set(job.request.sites)


def _update_lent(job: Job, state: Any, lent: LentBatch) -> None:
    """Show an outside analysis a copy, and see that it is as it was for the next."""
    view = _view(lent.batch(), job)
    for block in _row_blocks(view) if job.row_blocks else [view]:
        if job.error is None:
            guarded(job, view.layer, lambda seen: state.update(seen), block)
    try:
        lent.check()
    except Spoiled as error:
        job.failed(error, view.layer)


def _update(job: Job, state: Any, view: Batch) -> None:
    blocks = _row_blocks(view) if job.row_blocks else [view]
    for block in blocks:
        if job.error is None:
            before = _versions(block)
            guarded(job, view.layer, lambda seen: state.update(seen), block)
            if _versions(block) != before:
                raise ModelError(
                    f"{job.title} changes an array in place, which others and the model itself still use: "
                    "it must work on a copy"
                )


def _versions(batch: Batch) -> list[int]:
    """How often each array was changed in place, as torch counts it."""
    return [array._version for array in batch.arrays.values() if not array.is_inference()]


def guarded(job: Job, layer: int | None, call: Callable[..., None], *arguments: Any) -> None:
    """Call a job's code; what it raises takes the job out of the pass."""
    try:
        job.guard.call(call, *arguments)
    except Exception as error:
        job.failed(error, layer)


def merged_into(job: Job, copy: Any, merged: dict[int, Any], group: int) -> None:
    """Merge what a job made of a shard into what it made of those before."""
    if job.error is not None:
        return
    if group in merged and not job.request.ordered:
        guarded(job, None, lambda seen: merged[group].merge(seen), copy)
    else:
        merged[group] = copy


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


def union(jobs: Sequence[Job]) -> Request:
    """What the engine is asked for on behalf of all jobs."""
    sites = tuple(sorted({s for j in jobs for s in j.request.sites}))
    layers = tuple(sorted({n for j in jobs for n in j.layers if n is not None}))
    square = [j for j in jobs if SQUARE & set(j.request.sites)]
    in_blocks = bool(square) and all(j.row_blocks for j in square)
    columns = "logits" in sites and all(j.column_blocks for j in jobs if "logits" in j.request.sites)
    return Request(sites, layers, rows=ROW_BLOCK if in_blocks else None, columns=columns)
