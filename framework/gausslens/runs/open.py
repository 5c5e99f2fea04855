"""Opening the models of a study: loader, the engine that serves it, and the proof that this captures the model."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..contract.digests_and_seeds import derive, digest
from ..contract.engines import Finding
from ..contract.errors import GausslensError, ModelError, did_you_mean
from ..contract.model import ModelSpec, OpenAs, OpenModel
from ..contract.reference import resolve
from ..contract.twin import DifferenceModel, Twin, touched
from ..guard import Guard, is_outside, settled
from ..plugins.host import best
from . import keys
from .lending import asked_of
from .resources import largest_of_shards

if TYPE_CHECKING:
    import numpy as np

    from ..contract.descriptors import Engine, Loader, Owned
    from ..contract.engines import CaptureEngine
    from ..plugins import Host
    from .steps import Step
    from .study import Difference, ModelCall, Point, Study, Variant

# A draw at a point of a variant, and its model.
Twins: TypeAlias = "tuple[Point, int | None, Opened | None]"
# How many findings an error shows, the worst first.
SHOWN = 8
# Steps whose order is looked at: a few matrices of attention in so many layers, and of each so many numbers.
FEWEST_STEPS, MOST_STEPS, LAYERS, NUMBERS = 3, 1000, 3, 2048
MATRICES = ("W_Q", "W_K", "W_V", "W_O")
SIZES = ("n_layers", "n_heads", "n_kv_heads", "d_model", "d_head")
# Bytes that are read for it at most, of each model and of all.
OF_EACH, OF_ALL = 32 << 20, 1 << 30
# Of more models than this, distances to so many neighbours alone.
MOST_PAIRED, NEIGHBOURS = 64, 4


@dataclass(eq=False)
class Opened:
    """An open model and, where one serves its loader, the capture engine; ``identity`` is what keys have of it.

    ``call`` is how the run file names it: of a difference, the model that the other is taken from.
    """

    call: ModelCall
    model: OpenModel
    engine: Owned[Engine] | None
    running: CaptureEngine | None
    is_difference: bool = False
    max_memory: int | None = None  # bytes, where its weights are more: they are then read a layer at a time
    identity: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.identity = keys.of_model(self.call, self.model.info)

    def close(self) -> None:
        """Let its weights go; where a model of an outside loader cannot, that costs no result."""
        try:
            self.model.close()
        except BaseException as error:
            if not is_outside(self.call.loader.owner):
                raise
            settled(error)


class Models:
    """The models of a study. Each is opened once, when it is first asked for, however many variants name it.

    Opening reads config, tokenizer and fingerprint; weights come when they are first needed, and go when it is closed.
    """

    def __init__(self, study: Study, host: Host, live: Any = None, tokenizer: Any = None) -> None:
        self._study, self._host = study, host
        self._live = (live, tokenizer)
        self._opened: dict[str, Opened] = {}

    def of_run(self) -> Opened | None:
        """The model of the run; None where the run file has none."""
        return self._of(self._study.model)

    def of(self, point: Point, draw: int | None) -> Opened | None:
        """The model of a draw at a point of a variant: its own, else that of the run, or a difference of two."""
        if point.difference is None:
            return self._of(point.model(draw, self._study.model))
        return self._difference(point.difference)

    def __iter__(self) -> Iterator[Opened]:
        return iter(self._opened.values())

    def close(self) -> None:
        """Let go of all of them."""
        for opened in self._opened.values():
            opened.close()

    def _of(self, call: ModelCall | None) -> Opened | None:
        if call is None:
            return None
        if call.name not in self._opened:
            live = self._live if call is self._study.model else (None, None)
            most = self._study.max_memory
            edits = any(point.edits for variant in self._study.variants for point in variant.points)
            self._opened[call.name] = open_model(call, self._host, live[0], live[1], most, edits)
        return self._opened[call.name]

    def _difference(self, difference: Difference) -> Opened | None:
        sides = [(self._of(call or self._study.model), edits) for call, edits in (difference.of, difference.less)]
        seed = self._study.seed
        twins, told = [], []
        for opened, edits in sides:
            if opened is None:
                return None
            twins.append(Twin(opened.model, edits, seed))
            told.append({"model": opened.identity, "twin": keys.of_edits(edits, opened.model.info, seed, None)})
        name = digest(["difference", *told])
        if name not in self._opened:
            first = sides[0][0]
            assert first is not None
            try:
                model = DifferenceModel(twins[0], twins[1], name)
            except ModelError as error:
                raise ModelError(f"{difference.mark}: {error}") from error
            self._opened[name] = Opened(first.call, model, None, None, is_difference=True)
            self._opened[name].identity = {"difference": told}
        return self._opened[name]


def open_model(
    call: ModelCall,
    host: Host,
    model: Any = None,
    tokenizer: Any = None,
    max_memory: int | None = None,
    twins: bool = False,
) -> Opened:
    """Open what the `model:` block says: config, tokenizer and fingerprint; weights are read when first needed.

    Weights of more than ``max_memory`` bytes, counted twice where ``twins`` of it run, are not held all at once.
    """
    spec = ModelSpec(call.path, call.parameters, call.dtype, call.device, model, tokenizer, None, max_memory, twins)
    made, loader = _opened(call, call.loader, spec), call.loader
    if isinstance(made, OpenAs):
        loader = _inner(call, host, made)
        made = _served(call, loader, made)
    names = set(loader.descriptor.every_name)
    engine = best(each for each in host.engines.values() if names & set(each.descriptor.serves))
    running = resolve(engine.descriptor.engine)() if engine else None

    def opened() -> Opened:
        exceeds = max_memory is not None and made.info.weight_bytes * (1 + twins) > max_memory
        return Opened(call, made, engine, running, max_memory=max_memory if exceeds else None)

    try:
        return Guard.of(loader.owner).call(opened)
    except Exception as error:
        if isinstance(error, GausslensError) or not is_outside(loader.owner):
            raise
        raise ModelError(f"{_blamed(call, loader)} gave no model: {type(error).__name__}: {error}") from error


def _opened(call: ModelCall, loader: Owned[Loader], spec: ModelSpec) -> Any:
    """What a loader makes of a spec: an open model, or a module for another loader."""
    try:
        return Guard.of(loader.owner).call(lambda: resolve(loader.descriptor.open)(spec))
    except GausslensError:
        raise
    except Exception as error:
        raise ModelError(
            f"{_blamed(call, loader)} could not open {call.path}: {type(error).__name__}: {error}"
        ) from error


def _inner(call: ModelCall, host: Host, made: OpenAs) -> Owned[Loader]:
    """The loader that a loader hands its module to."""
    found = host.loaders.get(made.loader)
    if found is None or found is call.loader:
        raise ModelError(f"{_handed(call, made)}, which there is not{did_you_mean(made.loader, host.loaders)}")
    return found


def _handed(call: ModelCall, made: OpenAs) -> str:
    return f"{_blamed(call, call.loader)} opens {call.path} as the loader {made.loader}"


def _served(call: ModelCall, inner: Owned[Loader], made: OpenAs) -> OpenModel:
    """The module that a loader made, opened by the loader that it names; it keeps the fingerprint that it came with."""
    from pydantic import ValidationError

    blamed = _handed(call, made)
    try:
        told = json.dumps(dict(made.parameters))
        parameters = resolve(inner.descriptor.parameters).model_validate_json(told, strict=True)
    except (ValidationError, TypeError) as error:
        raise ModelError(f"{blamed}, with parameters that it does not have: {error}") from error
    spec = ModelSpec(call.path, parameters, call.dtype, call.device, None, made.tokenizer, made)
    opened = _opened(call, inner, spec)
    if isinstance(opened, OpenAs) or opened.info.fingerprint != made.fingerprint:
        raise ModelError(f"{blamed}, which takes no modules of other loaders: `torch` does")
    found: OpenModel = opened
    return found


def _blamed(call: ModelCall, loader: Owned[Loader]) -> str:
    name, owner = loader.descriptor.name, loader.owner
    return f"{call.mark}: the loader {name} (plugin {owner.plugin} of {owner.distribution} {owner.version})"


def proved(opened: Opened, todo: Sequence[Step]) -> dict[str, float]:
    """{comparison: largest difference} of all that were made; ModelError where one that steps depend on does not hold.

    An engine's ``prove`` may take ``sites``, those that the steps read; an engine that does not proves all.
    """
    prove: Callable[..., Sequence[Finding]] | None = getattr(opened.running, "prove", None)
    if prove is None:
        return {}
    sites = sites_read(todo)
    told = {"sites": sites} if "sites" in inspect.signature(prove).parameters else {}
    findings = list(prove(opened.model, **told))
    wrong = [f for f in findings if not f.holds and (sites is None or not f.sites or set(f.sites) & set(sites))]
    if wrong:
        raise ModelError(_message(opened, wrong, len(findings)))
    return {f.what: f.difference for f in findings if not f.left_out}


def sites_read(todo: Sequence[Step]) -> tuple[str, ...] | None:
    """The sites that steps read, where they alone matter; None where all do.

    A forward analysis may read any site. Edits, and analyses of weights, depend on what tensors are called.
    """
    found: set[str] = set()
    for step in todo:
        if step.inputs:
            continue
        if step.use.analysis.descriptor.shape != "stream" or step.point.edits or step.reads is None:
            return None
        try:
            found |= set(asked_of(step.use, step.planned).sites)
        except Exception:
            return None  # the step will fail and say why; what it reads is not known
    return tuple(sorted(found))


def _message(opened: Opened, wrong: Sequence[Finding], count: int) -> str:
    ordered = sorted(wrong, key=lambda f: f.share, reverse=True)
    lines = [
        f"what is captured of {opened.model.info.name} is not what the model computes: {len(wrong)} of {count} "
        "comparisons differ (gausslens model shows all), the worst first:"
    ]
    for f in ordered[:SHOWN]:
        concerned = f" (sites: {', '.join(f.sites)})" if f.sites else ""
        lines.append(f"  {f.what}: differs by {f.difference:.2g}, allowed is {f.tolerance:.2g}{concerned}")
    if len(ordered) > SHOWN:
        lines.append(f"  and {len(ordered) - SHOWN} more")
    remedies: Any = getattr(opened.running, "remedies", None)
    told = list(remedies(opened.model, wrong)) if remedies is not None else []
    return "\n".join([*lines, *(["what can be done:"] if told else []), *(f"  {line}" for line in told)])


def by_layer(models: Models, steps: Sequence[Step]) -> list[str]:
    """What is to be told of models that are larger than ``max_memory`` and run; refused is what needs more of it.

    An engine's ``by_layer`` may take ``edited``, the tensors outside the layers that edits change.
    """
    told = []
    for opened in models:
        running = [s for s in steps if s.opened is opened and not s.inputs and s.reads]
        if opened.max_memory is None or not running:
            continue
        tell: Callable[..., str] | None = getattr(opened.running, "by_layer", None)
        limit = f"{opened.call.mark}: max_memory is less than the weights of {opened.model.info.name}"
        if tell is None:
            raise ModelError(f"{limit}, and the engine that runs it holds them all: raise it, or leave it out")
        try:
            edited = (
                {"edited": _edited(opened.model, running)} if "edited" in inspect.signature(tell).parameters else {}
            )
            told.append(f"{limit}, which are read a layer at a time: {tell(opened.model, **edited)}")
        except ModelError as error:
            raise ModelError(f"{limit}, and it cannot be run a layer at a time: {error}") from error
        for step in running:
            _refuse_whole_logits(step, opened.max_memory)
    return told


def _edited(model: OpenModel, steps: Sequence[Step]) -> list[str]:
    """The tensors outside the layers that edits of steps may change."""
    there = model.names(None)
    calls = {id(call): call for step in steps for call in step.point.edits if call.layers is None}
    return sorted({name for call in calls.values() for name in touched(call, model.info) if name in there})


def _refuse_whole_logits(step: Step, most: int) -> None:
    """Logits come some of the vocabulary at a time to those analyses that take them so; others want all of a shard."""
    analysis = step.use.analysis.descriptor
    if analysis.shape != "stream" or analysis.column_blocks or step.tokens is None:
        return
    if "logits" not in asked_of(step.use, step.planned).sites:
        return
    size = largest_of_shards("logits", step.info, step.tokens)
    if size > most:
        raise ModelError(
            f"{step.use.mark}: {step.use.label} reads the logits of all the vocabulary at once, {size / 1e6:,.1f} MB "
            "for a shard of the prompts, and max_memory is less: raise it, give shorter prompts, or leave it out"
        )


def equal_steps(variants: Sequence[Variant], twins: Mapping[str, Sequence[Twins]]) -> list[str]:
    """What is to be told of sweeps over models: values at which the weights are the same."""
    told = []
    for variant in variants:
        alike: dict[str, dict[str, None]] = {}
        for point, draw, opened in twins[variant.name] if variant.swept_models else ():
            at = ", ".join(f"{name} {value}" for name, value in point.values if name in variant.swept_models)
            if opened is not None and not draw:
                alike.setdefault(digest(opened.identity), {})[at] = None
        same = [list(names) for names in alike.values() if len(names) > 1]
        told += [f"{variant.mark}: {' and '.join(names)} of {variant.name} are the same weights" for names in same]
    return told


def equal_sides(variants: Sequence[Variant], twins: Mapping[str, Sequence[Twins]]) -> list[str]:
    """What is to be told of differences: those of equal weights, which are 0 everywhere."""
    told: dict[str, None] = {}
    for variant in variants:
        for point, _, opened in twins[variant.name]:
            if opened is not None and opened.is_difference:
                of, less = opened.identity["difference"]
                at = "".join(f", {name} {value}" for name, value in point.values)
                if of == less:
                    told[f"{variant.mark}: both sides of {variant.name}{at} are the same weights: it is 0"] = None
    return list(told)


def steps_out_of_line(variants: Sequence[Variant], twins: Mapping[str, Sequence[Twins]]) -> list[str]:
    """What is to be told of sweeps over models by a number: steps whose weights lie where they should not.

    Weights are looked at in a sample (``sampled``): at most 32 MiB of a model are read, and 1 GiB of all. A sweep for
    which that is too little for one matrix of each model is not looked at, nor for all of a model that no file holds
    tensor by tensor (a module that a loader makes, GGUF); nor one over models of several sizes, or over more than a
    thousand.
    """
    told: list[str] = []
    seen: set[str] = set()
    for variant in variants:
        if variant.points and variant.points[0].difference is not None:
            continue
        for name, each in _in_order(variant, twins[variant.name]):
            what = digest([[value, opened.identity] for value, opened in each])
            if what not in seen:
                seen.add(what)
                told += _out_of_line(variant, name, each)
    return told


def _in_order(variant: Variant, twins: Sequence[Twins]) -> Iterator[tuple[str, list[tuple[Any, Opened]]]]:
    """For each swept number of a variant its values in order, each with its model; one by one for all other values."""
    for name in variant.swept_models:
        rows: dict[Any, dict[Any, Opened]] = {}
        for point, draw, opened in twins:
            values = dict(point.values)
            value = values.pop(name)
            if opened is not None and not draw and isinstance(value, int | float) and not isinstance(value, bool):
                models = {n: v for n, v in values.items() if n in variant.swept_models}
                rows.setdefault(digest(models), {}).setdefault(value, opened)
        for row in rows.values():
            if FEWEST_STEPS <= len(row) <= MOST_STEPS:
                yield name, sorted(row.items(), key=lambda pair: pair[0])


def _out_of_line(variant: Variant, name: str, each: Sequence[tuple[Any, Opened]]) -> list[str]:
    from ..maths.trainings import out_of_line

    distances = _distances([opened for _, opened in each])
    if distances is None:
        return []
    found = out_of_line(distances)
    of, steps = f"{variant.mark}: {variant.name}", [f"{name} {value}" for value, _ in each]
    told = []
    if found.swapped is not None:
        one, other = (steps[i] for i in found.swapped)
        told.append(f"{of}: by their weights {one} and {other} have changed places: are they labelled rightly?")
    elif len(found.steps) == 1:
        step = steps[found.steps[0]]
        told.append(f"{of}: by its weights {step} does not lie between its neighbours: is it labelled rightly?")
    elif found.steps:
        out = ", ".join(steps[i] for i in found.steps[:SHOWN])
        more = f" and {len(found.steps) - SHOWN} more" if len(found.steps) > SHOWN else ""
        told.append(f"{of}: by their weights {out}{more} are out of order: are they labelled rightly?")
    return told


def _distances(models: Sequence[Opened]) -> np.ndarray | None:
    """Distances [model, model] between samples of weights, of many models those of neighbours alone; None without."""
    import numpy as np

    samples = []
    try:
        which = _looked_at(models)
        for opened in models if which else ():
            samples.append(sampled(opened.model, which))
            opened.close()
    except Exception:
        return None  # what cannot be read is told by the step that needs it
    if not samples or len({len(sample) for sample in samples}) > 1:
        return None
    n = len(samples)
    reach = n if n <= MOST_PAIRED else NEIGHBOURS
    found = np.full((n, n), np.nan)
    for i in range(n):
        for j in range(i, min(n, i + reach + 1)):
            found[i, j] = found[j, i] = float(np.linalg.norm(samples[i] - samples[j]))
    return found


def _looked_at(models: Sequence[Opened]) -> list[tuple[int, str]]:
    """A few matrices of attention, spread over the layers, as far as the bytes to be read allow; the same always."""
    first = models[0].model
    info = first.info
    least = min(OF_EACH, OF_ALL // len(models))
    # Where there is no file to read a tensor of, the whole model is made.
    whole = [opened.model.info for opened in models if getattr(opened.model, "checkpoint", first) is None]
    if any(4 * one.n_parameters > least for one in whole):
        return []
    if len({tuple(getattr(opened.model.info, size) for size in SIZES) for opened in models}) > 1:
        return []
    having = [layer for layer in info.layers if set(MATRICES) & set(first.names(layer))]
    spread = [having[round(i * (len(having) - 1) / (LAYERS - 1))] for i in range(LAYERS)] if having else []
    found = []
    for place, layer in enumerate(dict.fromkeys(spread)):
        names = [name for name in MATRICES if name in first.names(layer)]
        found.append((layer, names[place % len(names)]))

    def size(name: str) -> int:
        heads = info.n_kv_heads if name in ("W_K", "W_V") else info.n_heads
        return 4 * heads * info.d_model * info.d_head

    found.sort(key=lambda place: size(place[1]))
    while found and sum(size(name) for _, name in found) > least:
        found.pop()
    return found


def sampled(model: OpenModel, which: Sequence[tuple[int, str]]) -> np.ndarray:
    """So many numbers of each of these tensors, at places that are the same for all models of these sizes."""
    import numpy as np

    parts = []
    for layer, name in which:
        flat = model.tensor(layer, name).detach().reshape(-1)
        places = np.random.default_rng(derive(layer, name, flat.numel())).integers(0, flat.numel(), NUMBERS)
        parts.append(flat[places.tolist()].float().cpu().numpy())
    return np.concatenate(parts)
