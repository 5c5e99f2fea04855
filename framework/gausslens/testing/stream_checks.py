"""Checks of analyses of shape ``stream``: that nothing depends on how the host cuts, orders and merges."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

from ..contract.analyses import Context, StepRef
from ..contract.batches import Batch, Request, Sink
from ..contract.descriptors import Analysis
from ..contract.errors import ModelError
from ..contract.model import ModelInfo, OpenModel
from ..contract.parameters import Parameters
from ..contract.prompts import SHARD_TOKENS, Part, Prompt, Tokens
from ..contract.reference import resolve
from ..contract.twin import Twin
from ..measuring import feed, passes
from ..measuring.on_the_way import Merged, OnTheWay, Reached
from ..runs.outcome import labelled
from ..runs.requests import check_request, offers_state
from .merge_checks import Given, check_left_out, check_merge
from .result_checks import check_outputs, check_result, check_same
from .tiny_engine import TinyEngine
from .tiny_model import of_kinds

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

# Of different lengths, one of a single word, one with characters of several bytes.
TEXTS = ("The quick brown fox", "jumps over", "the lazy dög, twice: 中", "a b a b a b", "x")


def check_stream(
    analysis: Analysis,
    parameters: Parameters | None = None,
    *,
    model: OpenModel | None = None,
    texts: Sequence[str] = TEXTS,
    rtol: float = 1e-6,
    atol: float = 1e-9,
    inputs: Mapping[StepRef, xr.Dataset] | None = None,
) -> xr.Dataset:
    """Run a stream analysis on the tiny model and return its result, after checking that

    - without ``model``, it runs on each of ``TinyModel.kinds()`` that has its sites, or refuses a kind by a
      GausslensError; the first that has them is the one on which all that follows is checked;
    - a second run gives the same bits: no state is shared between copies;
    - it changes no ``tokens``, ``text`` or ``mask`` of a batch;
    - it keeps no array that is valid only during ``update``, and layers may come in any order: the same bits;
    - prompts may be cut into shards in any way, and the merge of shards is associative: equal within the tolerance,
      which is that of sums in another order;
    - ``merge`` leaves the state that it takes in as it is and shares nothing with it that either changes later, and an
      empty state changes nothing, on either side;
    - ``result`` may be asked of a state that has not seen all prompts: the same variables and cells, NaN (or no row)
      along ``prompt`` for those not seen; a refusal (``GausslensError``) of some is let pass, of all is not;
    - where it takes row blocks, or column blocks, their size does not matter;
    - where it has ``state`` and ``restore``: the state is plain arrays, asking for it changes nothing, and whoever goes
      on from it after any shard of any pass gets the same bits, beside another that does so too;
    - the result is well formed (``check_result``), and by default as the plugin lists it (``check_outputs``).

    One that asks for ``ordered`` is never cut nor merged. ``inputs`` are what it finds in ``context.inputs``.
    """
    chosen = parameters or resolve(analysis.parameters)()
    by_default = parameters is None and model is None
    if model is None:
        model = of_kinds(None, lambda held: _runs(_Check(analysis, chosen, held, texts, inputs)))
    check = _Check(analysis, chosen, model, texts, inputs)
    result = check.run()
    check_same(check.run(), result, "a second run differs: is state shared between copies of the analysis?")
    hostile = check.run(engine=_HostileEngine())
    check_same(hostile, result, "it differs where layers come in another order, or arrays are reused after update()")
    check.on_the_way()
    if check.request.ordered:
        return check_outputs(analysis, result) if by_default else check_result(result)
    _check_cuts(check, result, rtol, atol)
    if analysis.row_blocks:
        with patch.object(feed, "ROW_BLOCK", 3):
            check_same(check.run(), result, "it depends on the size of the blocks of query rows", rtol, atol)
    check_merge(given := check.given(), rtol, atol)
    check_left_out(given, result)
    return check_outputs(analysis, result) if by_default else check_result(result)


def _check_cuts(check: _Check, result: xr.Dataset, rtol: float, atol: float) -> None:
    for size in (1, 64, 10**9):
        cut = check.run(shards=check.tokens.shards(size))
        check_same(cut, result, f"it depends on how prompts are cut into shards (of {size} tokens)", rtol, atol)
    if check.analysis.column_blocks:
        cut = check.run(engine=_ColumnEngine())
        check_same(cut, result, "it depends on the size of the blocks of the vocabulary", rtol, atol)
    left = check.folded(lambda states: reduce(_merged, states))
    right = check.folded(lambda states: reduce(lambda late, early: _merged(early, late), reversed(states)))
    check_same(left, right, "merge() is not associative: (a + b) + c differs from a + (b + c)", rtol, atol)


def context_of(
    analysis: Analysis,
    model: OpenModel,
    inputs: Mapping[StepRef, xr.Dataset] | None = None,
    tokens: Tokens | None = None,
    view: ModelInfo | None = None,
) -> Context:
    """What an analysis is given on the tiny model, as a step of a variant ``trained`` without edits."""
    place = StepRef("trained", analysis.name, analysis.name)
    runs = analysis.shape in ("stream", "forward")
    context = Context(view or model.info, 0, tokens, inputs=inputs or {})
    return context.at(place, analysis.knows, Twin(model) if runs else None)


def _runs(check: _Check) -> OpenModel:
    """The model of this check, where it has the sites that are asked for and the analysis runs on it."""
    missing = [site for site in check.request.sites if site not in TinyEngine().sites(check.model)]
    if missing:
        raise ModelError(f"this tiny model has no {', '.join(missing)}: pass one that has, as model=TinyModel.of(...)")
    check_result(check.run())
    return check.model


@dataclass(frozen=True)
class _Sharded(Tokens):
    """Tokens that are cut as a test wants them."""

    as_cut: tuple[np.ndarray, ...] = ()

    def shards(self, size: int = SHARD_TOKENS, among: Iterable[int] | None = None) -> list[np.ndarray]:  # noqa: ARG002
        return list(self.as_cut)


def sharded(tokens: Tokens, shards: Sequence[np.ndarray]) -> Tokens:
    """The same tokens, cut into these shards."""
    return _Sharded(**{f.name: getattr(tokens, f.name) for f in fields(tokens)}, as_cut=tuple(shards))


class _ColumnEngine(TinyEngine):
    """Gives logits three tokens of the vocabulary at a time, to those who take them so."""

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        def cut(batch: Batch) -> None:
            if "logits" not in batch.arrays or not request.columns:
                sink(batch)
                return
            logits = batch["logits"]
            for start in range(0, logits.shape[-1], 3):
                some = {} if start else dict(batch.arrays)
                arrays = some | {"logits": logits[..., start : start + 3]}
                sink(replace(batch, arrays=arrays, columns=start, last_rows=start + 3 >= logits.shape[-1]))

        super().run(twin, tokens, shard, request, cut)


class _HostileEngine(TinyEngine):
    """Hands layers over last to first, and overwrites every array when the sink returns: all that engines may do."""

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        batches: list[Batch] = []
        super().run(twin, tokens, shard, request, batches.append)
        for batch in reversed(batches):
            arrays = {site: array.clone() for site, array in batch.arrays.items()}
            lent = {name: getattr(batch, name).clone() for name in ("tokens", "text", "mask")}
            sink(replace(batch, arrays=arrays, **lent))
            for name, array in lent.items():
                assert torch.equal(array, getattr(batch, name)), f"it changes batch.{name} in place: work on a copy"
            for array in arrays.values():
                array.fill_(torch.nan)


class _Remembers(OnTheWay):
    """In place of files: keeps what is committed, and lets jobs go on from the last of what it has."""

    def __init__(self, places: Sequence[Reached] = ()) -> None:
        self.places = list(places)

    def begin(self, job: passes.Job, agreed: object) -> None:  # noqa: ARG002
        if self.places:
            job.go_on(self.places[-1])

    def commit(
        self,
        jobs: Sequence[passes.Job],
        index: int,
        shards: int,
        merged: Merged,
        agreed: object,  # noqa: ARG002
    ) -> None:
        for job in jobs:
            if job.error is None:
                try:
                    self.places.append(copy.deepcopy(job.reached(index, shards, merged[job.name])))
                except TypeError as error:
                    raise AssertionError(str(error)) from error


class _Check:
    """One analysis with its parameters on one model, run in several ways."""

    def __init__(
        self,
        analysis: Analysis,
        parameters: Parameters,
        model: OpenModel,
        texts: Sequence[str],
        inputs: Mapping[StepRef, xr.Dataset] | None,
    ) -> None:
        self.analysis = analysis
        self.model = model
        self.tokens = model.tokenise([Prompt((Part(text),)) for text in texts])
        self.context = context_of(analysis, model, inputs, self.tokens)
        self.made: Callable[[], Any] = lambda: resolve(analysis.analysis)(parameters, self.context)
        self.empty = self.made()
        self.request: Request = self.empty.request()

    def run(self, engine: TinyEngine | None = None, shards: Sequence[np.ndarray] | None = None) -> xr.Dataset:
        """The result, through the host's own passes."""
        cut = self.tokens.shards() if shards is None else shards
        return self._result(self._passed(self.empty, self.request, cut, engine))

    def folded(self, fold: Callable[[list[Any]], Any]) -> xr.Dataset:
        """The result where each prompt is a shard of its own, and ``fold`` merges their states."""
        state = copy.deepcopy(self.empty)
        one_pass = replace(self.request, passes=1)
        for index in range(self.request.passes):
            shards = self.tokens.shards(1)
            state = fold([self._passed(state, one_pass, [shard]) for shard in shards])
            if index + 1 < self.request.passes:
                state.end_pass(index)
        return self._result(state)

    @property
    def _shared(self) -> tuple[Any, ...]:
        return (self.context, self.context.model, self.tokens)

    def given(self) -> Given:
        """What the analysis is given of each prompt, to make states of it directly."""
        one_pass = replace(self.request, passes=1)
        kept = [self._passed(_Kept(one_pass), one_pass, [shard]).calls for shard in self._one_by_one()]
        return Given(self.empty, kept, self.tokens.names, self.request.passes, self._result, self._shared)

    def _one_by_one(self) -> list[np.ndarray]:
        """Each prompt a shard of its own, in the user's order."""
        return sorted(self.tokens.shards(1), key=lambda shard: int(shard[0]))

    def _result(self, state: Any) -> xr.Dataset:
        return labelled(copy.deepcopy(state).result(), self.model.info)

    def _passed(
        self, state: Any, request: Request, shards: Sequence[np.ndarray], engine: TinyEngine | None = None
    ) -> Any:
        job = self._job("check", state, request)
        self._through([job], shards, engine)
        return job.state

    def _job(self, name: str, state: Any, request: Request) -> passes.Job:
        job = passes.Job(
            name=name,
            title=self.analysis.name,
            state=state,
            request=request,
            info=self.model.info,
            row_blocks=self.analysis.row_blocks,
            column_blocks=self.analysis.column_blocks,
            all_layers=self.analysis.all_layers,
            shared=self._shared,
            made=self.made,
            can_commit=offers_state(state) and not self.analysis.bulk,
        )
        if request.ordered:
            job.state = job.copied(state)
        return job

    def _through(
        self,
        jobs: Sequence[passes.Job],
        shards: Sequence[np.ndarray],
        engine: TinyEngine | None = None,
        way: OnTheWay | None = None,
    ) -> None:
        running, tokens = engine or TinyEngine(), sharded(self.tokens, shards)
        check_request(jobs[0].state, running, self.model)
        order = 0 if jobs[0].request.ordered else None
        for _ in passes.run_passes(running, Twin(self.model), tokens, jobs, order=order, way=way):
            pass
        for job in jobs:
            if job.error is not None:
                raise job.error

    def on_the_way(self) -> None:
        """Commit after each shard, of one prompt, and go on from each of these places."""
        shards = self._one_by_one()
        job, reached = self._job("check", self.empty, self.request), _Remembers()
        if not job.can_commit:
            return
        whole = self.run(shards=shards)
        self._through([job], shards, way=reached)
        check_same(self._result(job.state), whole, "asking for state() changes the result")
        for place in reached.places:
            both = [self._job(name, self.empty, self.request) for name in ("check", "beside")]
            self._through(both, shards, way=_Remembers([place]))
            where = f"after shard {place.shards} of pass {place.index + 1}"
            for one in both:
                said = f"what goes on by restore() from state() {where} gives another result"
                check_same(self._result(one.state), whole, said)


class _Kept:
    """In place of an analysis: keeps what ``update`` is called with."""

    def __init__(self, asked: Request) -> None:
        self.asked = asked
        self.calls: list[Any] = []

    def request(self) -> Request:
        """What the analysis asks for."""
        return self.asked

    def update(self, batch: Any) -> None:
        """Keep a batch, or the batches of all layers."""
        self.calls.append(tuple(map(feed.kept, batch)) if isinstance(batch, tuple) else feed.kept(batch))

    def merge(self, other: _Kept) -> None:
        """Those of another shard."""
        self.calls += other.calls


def _merged(first: Any, second: Any) -> Any:
    state = copy.deepcopy(first)
    state.merge(copy.deepcopy(second))
    return state
