"""What a stream analysis asks for: in which layers it can be had, whether there is any, and errors over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..contract.batches import Request
from ..contract.errors import ModelError, did_you_mean
from ..contract.sites import MODEL_SITES
from ..maths.resampling import dealt

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis
    from ..contract.engines import CaptureEngine
    from ..contract.model import ModelInfo, OpenModel
    from ..contract.prompts import Tokens


def request_of(analysis: Any) -> Request:
    """What an analysis asks for, as plain values: a class of its own runs no code where they are read later."""
    asked = analysis.request()
    sites = tuple("".join((name,)) for name in asked.sites)
    layers = None if asked.layers is None else tuple(int(n) for n in asked.layers)
    return Request(sites, layers, int(asked.passes), asked.rows, bool(asked.ordered))


def offers_state(analysis: Any) -> bool:
    """Whether an analysis has ``state`` and ``restore``."""
    return callable(getattr(analysis, "state", None)) and callable(getattr(analysis, "restore", None))


def layers_given(request: Request, info: ModelInfo) -> tuple[int | None, ...]:
    """The layers that a request gets batches of; None stands for the whole model."""
    sites = [s for s in request.sites if s not in MODEL_SITES]
    skipped = layers_skipped(request, info)
    has = [n for n in _asked(request, info) if n not in skipped]
    whole = [None] if any(s in MODEL_SITES for s in request.sites) else []
    return (*(has if sites else ()), *whole)


def layers_skipped(request: Request, info: ModelInfo) -> dict[int, str]:
    """Layers that do not have one of its sites, with the reason."""
    lacking = {n: info.lacking.get(n, {}) for n in _asked(request, info)}
    reasons = {n: [lacking[n][s] for s in request.sites if s in lacking[n]] for n in lacking}
    return {n: reason[0] for n, reason in reasons.items() if reason}


def _asked(request: Request, info: ModelInfo) -> list[int]:
    asked = info.layers if request.layers is None else request.layers
    return [n for n in asked if n in info.layers]


def check_request(analysis: Any, engine: CaptureEngine, model: OpenModel, view: ModelInfo | None = None) -> Request:
    """What it asks for; sites are refused that the model does not have, or that no layer in view has all of."""
    request = request_of(analysis)
    has = engine.sites(model)
    for site in request.sites:
        if site not in has:
            lacking = model.info.why_lacking(site)
            why = f" ({lacking})" if lacking else _near_site(site, has)
            raise ModelError(f"{model.info.name} has no site {site!r}{why}; its sites: {', '.join(has)}")
    if not request.sites:
        raise ModelError("it asks for no site")
    _check_together(request, view or model.info)
    if not request.ordered and not hasattr(analysis, "merge"):
        raise ModelError("it has no merge, which only an analysis with Request(..., ordered=True) may leave out")
    if request.passes > 1 and not request.ordered and not hasattr(analysis, "end_pass"):
        raise ModelError(f"it asks for {request.passes} passes and has no end_pass, which ends one and begins the next")
    return request


def _check_together(request: Request, view: ModelInfo) -> None:
    """Refuse sites of layers where no layer in view has all of them: there would be nothing to see."""
    skipped = layers_skipped(request, view)
    if not skipped or any(layer is not None for layer in layers_given(request, view)):
        return
    of_layers = [s for s in request.sites if s not in MODEL_SITES]
    layers: dict[str, list[str]] = {}
    for layer in skipped:
        lacking = view.lacking[layer]
        site = next(s for s in of_layers if s in lacking)
        layers.setdefault(lacking[site], []).append(f"{layer} ({site})")
    reasons = "; ".join(f"not in {', '.join(numbers)}: {why}" for why, numbers in layers.items())
    apart = all(any(s not in view.lacking.get(n, {}) for n in view.layers) for s in of_layers)
    advice = "other layers have each: ask for them in analyses of their own" if apart else "ask for other layers"
    together = " together" if len(of_layers) > 1 else ""
    raise ModelError(f"no layer in view of {view.name} has {' and '.join(of_layers)}{together} ({reasons}); {advice}")


def no_errors(descriptor: Analysis, tokens: Tokens, groups: int, ordered: bool = False) -> str | None:
    """Why a stream analysis has no errors on these prompts; None where it has."""
    if ordered:
        return f"{descriptor.name} sees all prompts in one order, and is not merged"
    if descriptor.bulk:
        return f"{descriptor.name} writes arrays as they come"
    try:
        dealt(tokens.ids, groups)
    except ValueError as error:
        return f"{error}; give more prompts, or `errors: {{groups: N}}`"
    return None


def _near_site(site: str, has: Sequence[str]) -> str:
    from ..contract.sites import TRANSFORMER_LENS

    plain = site.removeprefix("blocks.").removeprefix("attn.")
    for theirs, ours in TRANSFORMER_LENS.items():
        if site.endswith(theirs) or plain == theirs:
            return f": TransformerLens' {theirs} is {ours!r} here"
    return did_you_mean(site, has).split(";")[0]
