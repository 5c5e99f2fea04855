"""Opening the model of a study: the loader that the run file means, and the engine that serves it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import GausslensError, ModelError
from .model import LayerWeights, ModelInfo, ModelSpec, OpenModel
from .prompts import Part, Prompt, Tokens
from .reference import resolve

if TYPE_CHECKING:
    from .descriptors import Engine
    from .plugins import Host
    from .shapes import CaptureEngine
    from .study import ModelCall, Owned


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
    engine = _serving(call.loader.descriptor.name, host)
    return Opened(call, opened, engine, resolve(engine.descriptor.engine)() if engine else None)


def _serving(loader: str, host: Host) -> Owned[Engine] | None:
    """The engine of highest rank, then first by name, that serves models of this loader."""
    serving = [e for e in host.engines.values() if loader in e.descriptor.serves]
    return min(serving, key=lambda e: (-e.descriptor.rank, e.descriptor.name), default=None)


def load(
    path: Any,
    loader: str = "auto",
    dtype: str | None = None,
    device: str = "cpu",
    tokenizer: Any = None,
    **parameters: Any,
) -> Model:
    """Open a model from Python: a path as in a run file, or a live module (with its tokenizer).

    ``load("path/to/model", loader="weights").weights(3).W_Q`` is [head, d_model, d_head] of layer 3.
    """
    from . import plugins, runfile

    live = None if isinstance(path, str | os.PathLike) else path
    block = {"path": f"live:{type(live).__name__}" if live is not None else os.fspath(path)}
    host = plugins.load()
    call = runfile.read_model(block | {"loader": loader, "dtype": dtype, "device": device, **parameters}, host)
    return Model(open_model(call, host, live, tokenizer))


class Model:
    """An open model in Python: its facts, its tensors, its tokens."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    @property
    def info(self) -> ModelInfo:
        """What config and headers tell."""
        return self._opened.model.info

    def weights(self, layer: int | None = None) -> LayerWeights:
        """The tensors of a layer by name; those outside the layers without a number."""
        return LayerWeights(self._opened.model, layer)

    def tokens(self, *texts: str) -> Tokens:
        """Texts as the tokens that the model would see."""
        return self._opened.model.tokenise([Prompt((Part(text),)) for text in texts])

    def __repr__(self) -> str:
        info = self.info
        shape = f"{info.n_layers} layers of {info.n_heads} heads, {info.n_parameters:,} parameters"
        return f"<{info.name}: {info.family}, {shape}>"
