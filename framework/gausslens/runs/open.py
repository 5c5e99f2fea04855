"""Opening the model of a study: the loader that the run file means, and the engine that serves it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..contract.errors import GausslensError, ModelError
from ..contract.model import ModelSpec, OpenModel
from ..contract.reference import resolve
from ..plugins.host import best

if TYPE_CHECKING:
    from ..contract.descriptors import Engine, Owned
    from ..contract.engines import CaptureEngine
    from ..plugins import Host
    from .study import ModelCall


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
