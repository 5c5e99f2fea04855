"""Opening the model of a study: its loader, the engine that serves it, and the proof that this captures the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..contract.analyses import Context
from ..contract.engines import Finding
from ..contract.errors import GausslensError, ModelError
from ..contract.model import ModelSpec, OpenModel
from ..contract.reference import resolve
from ..plugins.host import best

if TYPE_CHECKING:
    from ..contract.descriptors import Engine, Owned
    from ..contract.engines import CaptureEngine
    from ..plugins import Host
    from .plan import Step
    from .study import ModelCall

# How many findings an error shows, the worst first.
SHOWN = 8


@dataclass
class Opened:
    """An open model and, where one serves its loader, the capture engine."""

    call: ModelCall
    model: OpenModel
    engine: Owned[Engine] | None
    running: CaptureEngine | None


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
