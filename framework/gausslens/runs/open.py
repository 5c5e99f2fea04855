"""Opening the models of a study: loader, the engine that serves it, and the proof that this captures the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from ..contract.analyses import Context
from ..contract.digests_and_seeds import digest
from ..contract.engines import Finding
from ..contract.errors import GausslensError, ModelError
from ..contract.model import ModelSpec, OpenModel
from ..contract.reference import resolve
from ..contract.twin import DifferenceModel, Twin
from ..plugins.host import best
from . import keys

if TYPE_CHECKING:
    from ..contract.descriptors import Engine, Owned
    from ..contract.engines import CaptureEngine
    from ..plugins import Host
    from .plan import Step
    from .study import Difference, ModelCall, Point, Study, Variant

# A draw at a point of a variant, and its model.
Twins: TypeAlias = "tuple[Point, int | None, Opened | None]"
# How many findings an error shows, the worst first.
SHOWN = 8


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
    identity: Mapping[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.identity = keys.of_model(self.call, self.model.info)


class Models:
    """The models of a study. Each is opened once, when it is first asked for, however many variants name it.

    Opening reads config, tokenizer and fingerprint; weights come when they are first needed, and go with ``release``.
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
            opened.model.close()

    def _of(self, call: ModelCall | None) -> Opened | None:
        if call is None:
            return None
        if call.name not in self._opened:
            live = self._live if call is self._study.model else (None, None)
            self._opened[call.name] = open_model(call, self._host, *live)
        return self._opened[call.name]

    def _difference(self, difference: Difference) -> Opened | None:
        sides = [(self._of(call or self._study.model), edits) for call, edits in (difference.of, difference.less)]
        seed = self._study.seed
        twins, told = [], []
        for opened, edits in sides:
            if opened is None:
                return None
            twins.append(Twin(opened.model, edits, seed))
            told.append({"model": opened.identity, "twin": keys.of_edits(edits, seed, None)})
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


def open_model(call: ModelCall, host: Host, model: Any = None, tokenizer: Any = None) -> Opened:
    """Open what the `model:` block says: config, tokenizer and fingerprint; weights are read when first needed."""
    spec = ModelSpec(call.path, call.parameters, call.dtype, call.device, model, tokenizer)
    try:
        opened: OpenModel = resolve(call.loader.descriptor.open)(spec)
    except GausslensError:
        raise
    except Exception as error:
        owner = call.loader.owner
        raise ModelError(
            f"{call.mark}: the loader {call.loader.descriptor.name} (plugin {owner.plugin} of {owner.distribution} "
            f"{owner.version}) could not open {call.path}: {type(error).__name__}: {error}"
        ) from error
    loader = call.loader.descriptor.name
    engine = best(each for each in host.engines.values() if loader in each.descriptor.serves)
    return Opened(call, opened, engine, resolve(engine.descriptor.engine)() if engine else None)


def proved(opened: Opened, todo: Sequence[Step]) -> dict[str, float]:
    """{comparison: largest difference} of all that were made; ModelError where one that steps depend on does not hold.

    An engine's ``prove`` may take ``sites``, those that the steps read; an engine that does not proves all.
    """
    prove: Callable[..., Sequence[Finding]] | None = getattr(opened.running, "prove", None)
    if prove is None:
        return {}
    sites = sites_read(opened, todo)
    told = {"sites": sites} if "sites" in inspect.signature(prove).parameters else {}
    findings = list(prove(opened.model, **told))
    wrong = [f for f in findings if not f.holds and (sites is None or not f.sites or set(f.sites) & set(sites))]
    if wrong:
        raise ModelError(_message(opened, wrong, len(findings)))
    return {f.what: f.difference for f in findings if not f.left_out}


def sites_read(opened: Opened, todo: Sequence[Step]) -> tuple[str, ...] | None:
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
            context = Context(opened.model.info.narrowed(step.use.layers, step.use.heads), 0, step.tokens)
            found |= set(resolve(step.use.analysis.descriptor.analysis)(step.use.parameters, context).request().sites)
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
