"""Measuring one twin: every analysis that looks at the model, whatever its shape, in few passes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..contract.analyses import Context, StepRef
from ..contract.engines import NarrowedRunner, no_texts
from ..contract.errors import ModelError
from ..contract.model import ModelInfo, NoTensor
from ..contract.twin import Copies
from ..guard import Guard, is_outside
from ..runs.lending import LentRunner, Spoiled, analysis_of, lent_context, own_copy, taken
from ..runs.outcome import Failure, Measured, Noted, Progress, in_words, labelled
from ..runs.requests import offers_state, request_of
from ..runs.resources import needs
from ..runs.steps import Step, step_seed
from .errors import jackknifed
from .on_the_way import agreement
from .passes import Job, cut, run_passes
from .pieces import OfLayer, numbers_there, read_group, read_layer, write_group, write_layer
from .shards import shard_tokens

if TYPE_CHECKING:
    import xarray as xr

    from ..contract.descriptors import Edit, Owned
    from ..contract.twin import Twin
    from ..runs.open import Opened
    from ..store.disk import Writer
    from ..store.write_parts import PartWriter
    from .held_weights import HeldWeights
    from .on_the_way import OnTheWay

    Events: TypeAlias = Iterator[Measured | Progress | Noted]

    Given = Mapping[StepRef, xr.Dataset]


def measured(
    opened: Opened,
    twin: Twin,
    steps: Sequence[Step],
    seed: int,
    writers: Mapping[str, PartWriter],
    held: HeldWeights,
    given: Callable[[Step], Given],
    way: OnTheWay,
) -> Events:
    """The steps of one twin, each as soon as it is done; ``writers`` take the large arrays of some, by key.

    ``held`` are the weights in memory, looked at after what an outside plugin did. ``given`` makes what a step reads,
    which goes when it is done. ``way`` commits long passes before they are done.
    """
    by_shape: dict[str, list[Step]] = {"stream": [], "weights": [], "forward": []}
    for step in steps:
        by_shape[_shape(step)].append(step)
    runs: list[tuple[list[Step], Callable[[Twin, Sequence[Step]], Events]]] = [
        (sharing, lambda now, some: _streamed(opened, now, some, seed, writers, given, way))
        for sharing in sharing(by_shape["stream"])
    ]
    runs += [([step], lambda now, some: _forward(opened, now, some, seed, given)) for step in by_shape["forward"]]
    runs.append((by_shape["weights"], lambda now, some: _layer_by_layer(now, some, seed, given, way.writer)))
    for some, run in runs:
        closed = held.closed
        yield from _looked_after(run, twin, some, held)
        if held.closed != closed:  # engines know a twin by its object: this one is of tensors that are gone
            twin = replace(twin, _made={})


def _looked_after(
    run: Callable[[Twin, Sequence[Step]], Events], twin: Twin, steps: Sequence[Step], held: HeldWeights
) -> Events:
    """Measure some steps; where an outside plugin changed the model's weights, its steps fail and ours run again."""
    edits = [call.edit for call in twin.edits if is_outside(call.edit.owner)]
    outside = [step for step in steps if is_outside(step.use.analysis.owner)]
    if not (edits or outside):
        yield from run(twin, steps)
        return
    held.note()
    done = []
    for event in run(twin, steps):
        if isinstance(event, Measured):
            done.append(event)
        else:
            yield event
    names = held.changed()
    if not names:
        yield from done
        return
    if edits or len(outside) == 1:
        error = _spoiled(names, edits)
        yield from (Measured(step, Failure(step, error), len(steps)) for step in (steps if edits else outside))
        outside, steps = [], [] if edits else [step for step in steps if step not in outside]
    for step in outside:  # which of them it was is seen where each runs by itself
        yield from _looked_after(run, replace(twin, _made={}), [step], held)
    again = [step for step in steps if step not in outside]
    if again:
        yield from run(replace(twin, _made={}), again)


def _spoiled(names: Sequence[str], edits: Sequence[Owned[Edit]]) -> Spoiled:
    """The error of who changed weights of the model."""
    tensors = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    hooked = any(" of " in name for name in names)  # no tensor is called so
    what = f"{'' if hooked else 'weights of '}the model itself ({tensors})"
    if not edits:
        return Spoiled(what, "copy.deepcopy gives, or intervene" if hooked else "`runner.weights(layer)` gives them")
    whose = " or ".join(f"{e.descriptor.name} of plugin {e.owner.plugin}" for e in edits)
    return Spoiled(f"{what}, by edit {whose},", "`weights.W_Q` gives them")


def units(steps: Sequence[Step], info: ModelInfo) -> int:
    """About how often ``measured`` will tell of progress."""
    streams = sharing([s for s in steps if _shape(s) == "stream"])
    shards = sum(len(cut(same[0].tokens, same[0].groups)) for same in streams if same[0].tokens)
    forward = sum(_shape(s) == "forward" for s in steps)
    weights = {n for s in steps if _shape(s) == "weights" for n in _view(s, info).layers}
    return shards + forward + len(weights)


def sharing(steps: Sequence[Step]) -> list[list[Step]]:
    """Stream steps that see the same tokens, cut alike and in one order: they share their passes."""
    found: dict[tuple[str, int | None, bool], list[Step]] = {}
    for step in steps:
        found.setdefault((step.ingredients["tokens"], step.groups, _is_ordered(step)), []).append(step)
    return list(found.values())


def _is_ordered(step: Step) -> bool:
    return "order" in step.ingredients


def _shape(step: Step) -> str:
    return step.use.analysis.descriptor.shape


def _view(step: Step, info: ModelInfo) -> ModelInfo:
    return info.narrowed(step.use.layers, step.use.heads)


def _streamed(
    opened: Opened,
    twin: Twin,
    steps: Sequence[Step],
    seed: int,
    writers: Mapping[str, PartWriter],
    given: Callable[[Step], Given],
    way: OnTheWay,
) -> Events:
    """All stream analyses that see the same tokens, in the same passes."""
    assert opened.running is not None
    tokens = steps[0].tokens  # shuffled ones are there as long as someone holds them
    assert tokens is not None
    jobs: dict[str, Job] = {}
    for step in steps:
        try:
            jobs[step.key] = _job(step, twin, seed, given(step), writers.get(step.key))
        except Exception as error:
            yield Measured(step, Failure(step, error), len(steps))
    order = seed if _is_ordered(steps[0]) else None
    at_once, note = _at_once(opened, steps, list(jobs.values()))
    yield from [Noted(note)] if note else []
    size = shard_tokens(opened, tokens, {site for job in jobs.values() for site in job.request.sites})
    of_all = list(jobs.values())
    if at_once == 1 and steps[0].groups is not None:
        _take_up(steps, jobs, way.writer, size)
    for text in run_passes(opened.running, twin, tokens, of_all, steps[0].groups, order, way, at_once, size):
        yield from map(Noted, way.told())
        yield Progress(text)
    yield from map(Noted, way.told())
    for step in steps:
        if step.key in jobs:
            if jobs[step.key].at_fault:
                way.drop(jobs[step.key])  # its code will be another when it is run again
            yield Measured(step, _result(step, jobs.pop(step.key)), len(steps))


def _take_up(steps: Sequence[Step], jobs: Mapping[str, Job], writer: Writer, size: int | None) -> None:
    """Give jobs of one pass the states of groups of prompts that others have seen for them."""
    keys = [step.key for step in steps if step.key in jobs and _is_shared(jobs[step.key])]
    there = numbers_there(writer.root, keys, "group")
    cut_so = _cut(steps[0], size) if any(there.values()) else ""
    for key, groups in there.items():
        for group in sorted(groups):
            arrays = read_group(writer.root, key, group, cut_so)
            if arrays is not None:
                with suppress(Exception):
                    jobs[key].apart[group] = jobs[key].of_arrays(arrays)


def _is_shared(job: Job) -> bool:
    """Whether the groups of prompts may be seen by several processes: in one pass, by one of ours with a state."""
    return job.can_commit and job.request.passes == 1 and not job.request.ordered and not job.guard.outside


def _cut(step: Step, size: int | None) -> str:
    """A digest of the shards of all groups of prompts, which are of so many tokens where not as ever."""
    assert step.tokens is not None
    return agreement(cut(step.tokens, step.groups, size), 1, step.groups, None)


def share_of_groups(
    opened: Opened,
    twin: Twin,
    steps: Sequence[Step],
    groups: Sequence[int],
    seed: int,
    given: Callable[[Step], Given],
    writer: Writer,
) -> Iterator[Noted]:
    """Some groups of prompts of stream analyses that share passes, each state written down where it is not there yet.

    What fails leaves nothing, and fails again, by its name, where all groups are merged.
    """
    assert opened.running is not None
    tokens = steps[0].tokens
    assert tokens is not None
    jobs = []
    for step in steps:
        with suppress(Exception):
            jobs.append(_job(step, twin, seed, given(step), None))
    size = shard_tokens(opened, tokens, {site for job in jobs for site in job.request.sites})
    there, cut_so = numbers_there(writer.root, [step.key for step in steps], "group"), _cut(steps[0], size)
    for group in groups:
        jobs = [job for job in jobs if job.error is None]
        seeing = [job for job in jobs if _is_shared(job) and group not in there[job.name]]
        for _ in run_passes(opened.running, twin, tokens, seeing, steps[0].groups, size=size, among=[group]):
            pass
        for job in seeing:
            try:
                if job.error is None:
                    write_group(writer, job.name, group, job.arrays(job.groups[0]), cut_so)
            except Exception as error:
                yield Noted(f"{job.place} is not shared out: {error}")
                job.error = error  # nor are its other groups tried here


def _at_once(opened: Opened, steps: Sequence[Step], jobs: Sequence[Job]) -> tuple[int, str]:
    """How many shards go through a layer before the next one's weights are read, and what is to be told of it.

    One, where the weights are all in memory. Else as many as there is memory for what analyses hold of each shard.
    """
    together = getattr(opened.running, "together", None)
    reason = together(opened.model) if together is not None and opened.max_memory is not None else ""
    if reason is not None:
        return 1, f"{reason}; its weights are read for each shard of prompts" if reason else ""
    if any(job.request.ordered and len(job.layers) > 1 for job in jobs):
        return 1, f"{opened.model.info.name}: an analysis sees several layers in order; weights are read for each shard"
    known = {step.key: step for step in steps}
    each = sum(needs(known[job.name], opened.model.info).memory for job in jobs if not job.is_by_layer)
    assert opened.max_memory is not None
    return max(1, opened.max_memory // each if each else sys.maxsize), ""


def _guard(step: Step, seed: int) -> Guard:
    """How the calls of a step's analysis are made."""
    return Guard.of(step.use.analysis.owner, step_seed(step, seed), step.use.limit)


def _context(step: Step, twin: Twin, seed: int, inputs: Given, bulk: PartWriter | None = None) -> Context:
    """What the analysis of a step is given; one of an outside plugin has facts of its own."""
    context = Context(_view(step, twin.info), step_seed(step, seed), step.tokens, bulk, inputs)
    if is_outside(step.use.analysis.owner):
        context = lent_context(context)
    runs = _shape(step) in ("stream", "forward")
    return context.at(step.ref, step.use.analysis.descriptor.knows, twin if runs else None)


def _job(step: Step, twin: Twin, seed: int, inputs: Given, writer: PartWriter | None) -> Job:
    descriptor = step.use.analysis.descriptor
    guard = _guard(step, seed)
    context = _context(step, twin, seed, inputs, writer)
    state = analysis_of(step.use, context, guard)
    request = guard.call(request_of, state)
    if request.ordered != _is_ordered(step):
        raise ModelError("request() says another `ordered` than when the run was planned")
    shared = (context, context.model, context.tokens, context.bulk)
    return Job(
        name=step.key,
        title=step.ref.analysis,
        state=state,
        request=request,
        guard=guard,
        info=_view(step, twin.info),
        row_blocks=descriptor.row_blocks,
        column_blocks=descriptor.column_blocks,
        all_layers=descriptor.all_layers,
        by_layer=descriptor.by_layer,
        shared=shared,
        place=in_words(step.ref),
        made=lambda: analysis_of(step.use, context, guard),
        can_commit=writer is None and guard.call(offers_state, state),
    )


def _result(step: Step, job: Job) -> xr.Dataset | Failure:
    if job.error is not None:
        return Failure(step, job.error, job.layer)
    try:
        return taken(job.guard, lambda: _of_job(job, step.ingredients["tokens"]))
    except Exception as error:
        return Failure(step, error)


def _of_job(job: Job, prompts: str) -> xr.Dataset:
    if job.groups:
        return jackknifed(job, prompts)
    return labelled(job.state.result(), job.info, job.skipped)


def _forward(opened: Opened, twin: Twin, steps: Sequence[Step], seed: int, given: Callable[[Step], Given]) -> Events:
    for step in steps:
        yield Measured(step, _run_forward(opened, twin, step, seed, given(step)))
        yield Progress(step.ref.label)


def _run_forward(opened: Opened, twin: Twin, step: Step, seed: int, inputs: Given) -> xr.Dataset | Failure:
    """A forward analysis: it runs the model itself."""
    assert opened.running is not None
    try:
        info = _view(step, opened.model.info)
        guard = _guard(step, seed)
        context = _context(step, twin, seed, inputs)
        runner: Any = NarrowedRunner(opened.running.runner(twin), twin, info, no_texts(step.use.analysis.descriptor))
        analysis = analysis_of(step.use, context, guard)
        lent = LentRunner(runner) if guard.outside else runner
        return taken(guard, lambda: labelled(analysis.run(lent, context.tokens), info))
    except Exception as error:
        return Failure(step, error)


class _Weighed:
    """A weights analysis on its way through the layers: what it made of each, and why others were skipped."""

    def __init__(self, step: Step, twin: Twin, seed: int, inputs: Given) -> None:
        self.step, self.info = step, _view(step, twin.info)
        self.layers: dict[int, xr.Dataset] = {}
        self.skipped: dict[int, str] = {}
        self.failure: Failure | None = None
        self.guard = _guard(step, seed)
        try:
            context = _context(step, twin, seed, inputs)
            self.analysis: Any = analysis_of(step.use, context, self.guard)
        except Exception as error:
            self.failure = Failure(step, error)

    def see(self, twin: Twin, layer: int) -> None:
        """Hand it one layer, if it has it in view."""
        if self.failure is not None or layer not in self.info.layers or layer in self.layers or layer in self.skipped:
            return
        try:
            self.layers[layer] = self.guard.call(self._of, twin, layer)
        except Exception as error:
            reason = _lacks(error, self.info, layer)
            if reason is None:
                self.failure = Failure(self.step, error, layer)
            else:
                self.skipped[layer] = reason

    def take_up(self, layer: int, made: OfLayer) -> None:
        """Have a layer as another process made it."""
        if self.failure is None and made.found is not None:
            self.layers[layer] = made.found
        elif self.failure is None and made.skipped is not None:
            self.skipped[layer] = made.skipped
        self.guard.spent += made.spent
        if self.failure is None and self.guard.limit is not None and self.guard.spent > self.guard.limit:
            self.failure = Failure(self.step, self.guard.too_long(), layer)

    def piece(self, twin: Twin, layer: int) -> list[tuple[_Weighed, int, OfLayer]]:
        """What it makes of a layer by itself, or nothing."""
        random, spent = self.guard.random, self.guard.spent
        self.see(twin, layer)
        found, skipped = self.layers.pop(layer, None), self.skipped.get(layer)
        if (found is None and skipped is None) or self.guard.random != random:
            return []
        return [(self, layer, OfLayer(found, skipped, self.guard.spent - spent))]

    def _of(self, twin: Twin, layer: int) -> Any:
        weights = twin.weights(layer, self.info)
        if not self.guard.outside:
            return self.analysis.layer(weights, layer)
        return own_copy(self.analysis.layer(Copies.of(weights), layer))  # the next may be written into the same arrays

    def result(self) -> xr.Dataset | Failure:
        """All layers together."""
        if self.failure is not None:
            return self.failure
        try:
            if not self.layers:
                reasons = "; ".join(sorted(set(self.skipped.values())))
                raise ModelError(f"no layer in view has what it reads: {reasons}")
            return taken(self.guard, lambda: labelled(self._joined(), self.info, self.skipped))
        except Exception as error:
            return Failure(self.step, error)

    def _joined(self) -> Any:
        import xarray as xr

        if hasattr(self.analysis, "join"):
            return self.analysis.join(self.layers)
        layers = [part.expand_dims(layer=[n]) for n, part in sorted(self.layers.items())]
        return xr.concat(layers, dim="layer", join="outer", combine_attrs="override")


def _layer_by_layer(
    twin: Twin, steps: Sequence[Step], seed: int, given: Callable[[Step], Given], writer: Writer
) -> Events:
    """Weights analyses: the edited tensors of one layer serve all of them, then are let go.

    A layer that the model says lacks something (a hybrid's), and that does not have a tensor asked for, is skipped.
    What another process has made of a layer is taken as it is.
    """
    weighed = [_Weighed(step, twin, seed, given(step)) for step in steps]
    there = numbers_there(writer.root, [step.key for step in steps if step.use.analysis.descriptor.by_layer], "layer")
    for layer in sorted({n for one in weighed for n in one.info.layers}):
        for one in weighed:
            if layer in there.get(one.step.key, ()) and (made := read_layer(writer.root, one.step.key, layer)):
                one.take_up(layer, made)
            one.see(twin, layer)
        twin.forget(layer)
        yield Progress(f"weights of layer {layer}")
    for one in weighed:
        yield Measured(one.step, one.result(), len(steps))


def share_of_layers(
    twin: Twin,
    steps: Sequence[Step],
    layers: Sequence[int],
    seed: int,
    held: HeldWeights,
    given: Callable[[Step], Given],
    writer: Writer,
) -> Iterator[Noted]:
    """Some layers of weights analyses, each written down where it can be and is not there yet.

    What fails leaves nothing, and fails again, by its name, where all layers are put together. Nor is anything left by
    what depends on other layers after all: an outside plugin's that draws from the global generators, or changes the
    model itself.
    """
    outside = any(is_outside(step.use.analysis.owner) for step in steps)
    if outside:
        held.note()
    weighed = [_Weighed(step, twin, seed, given(step)) for step in steps]
    there = numbers_there(writer.root, [step.key for step in steps], "layer")
    made: list[tuple[_Weighed, int, OfLayer]] = []
    for layer in layers:
        if outside:  # where reading makes the model, that draws numbers: no plugin is to be blamed
            with suppress(Exception):
                twin.base.tensor(layer, twin.base.names(layer)[0])
        for one in weighed:
            if layer not in there[one.step.key]:
                made += one.piece(twin, layer)
        twin.forget(layer)
        if not outside:
            yield from _written(writer, made)
            made = []
    if not (outside and held.changed()):
        yield from _written(writer, made)


def _written(writer: Writer, made: Sequence[tuple[_Weighed, int, OfLayer]]) -> Iterator[Noted]:
    for one, layer, piece in made:
        try:
            write_layer(writer, one.step.key, layer, piece)
        except Exception as error:
            yield Noted(f"{in_words(one.step.ref)} is not shared out: {error}")
            one.failure = Failure(one.step, error, layer)  # nor are its other layers tried here


def _lacks(error: BaseException, info: ModelInfo, layer: int) -> str | None:
    """Why a layer does not have the tensor that was asked for, where the model says that it lacks something."""
    asked = error.__cause__ if isinstance(error, AttributeError) else error
    reasons = info.lacking.get(layer, {})
    return next(iter(reasons.values())) if isinstance(asked, NoTensor) and reasons else None
