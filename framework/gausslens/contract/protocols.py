"""What the classes behind the descriptors look like: protocols for mypy, and the words that plugin authors read.

An analysis is made as ``Class(parameters, context)`` and gets nothing else: never the model object, never the store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import torch
    import xarray as xr

    from .batches import Batch, Request, Sink
    from .model import LayerWeights, ModelInfo, OpenModel
    from .prompts import Prompt, Tokens
    from .twin import Twin


@dataclass(frozen=True)
class Estimate:
    """What a step will need: bytes, and seconds beyond those of the pass itself."""

    memory: int = 0
    disk: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class StepRef:
    """A planned step as a derived analysis sees it: a reference to a result."""

    variant: str
    label: str
    analysis: str
    draw: int | None = None
    sweep: tuple[tuple[str, Any], ...] = ()


class Bulk(Protocol):
    """Large arrays written as they come, into the part of the step (analyses that declare ``bulk``)."""

    def create(
        self,
        name: str,
        dims: tuple[str, ...],
        shape: tuple[int, ...],
        dtype: str,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        """Make an array, filled with NaN (floats) or 0 until it is written."""
        ...

    def write(self, name: str, index: tuple[Any, ...], values: np.ndarray) -> None:
        """Write a block: ``index`` is a tuple of ints and slices, as in numpy."""
        ...


@dataclass(frozen=True)
class Context:
    """What an analysis knows of its step: the model's facts in view, the tokens, and its seed.

    The seed is the same for all variants, so that comparisons between them are paired.
    """

    model: ModelInfo
    seed: int
    tokens: Tokens | None = None
    bulk: Bulk | None = None

    def generator(self, name: str = "") -> np.random.Generator:
        """A numpy generator of this step; different names give independent ones."""
        import numpy as np

        from .seeds import derive

        return np.random.default_rng(derive(self.seed, name))


class StreamAnalysis(Protocol):
    """Shape ``stream``: sees activations while passes run.

    The host deep-copies an empty instance for each shard of prompts, calls ``update`` once for each layer of the shard,
    and merges the copies in the order of the shards. ``result`` is called after the last pass. An analysis that asks
    for several passes has a method ``end_pass(index)`` besides: called between passes, it fixes what was found and
    empties the accumulators; the next pass starts from copies of that.
    """

    def request(self) -> Request: ...
    def update(self, batch: Batch) -> None: ...
    def merge(self, other: Any) -> None: ...
    def result(self) -> xr.Dataset: ...


class WeightsAnalysis(Protocol):
    """Shape ``weights``: sees one layer's tensors at a time, in any order; ``join`` gets {layer: dataset}.

    Without a ``join`` of its own, datasets are concatenated along ``layer``.
    """

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset: ...


class Runner(Protocol):
    """Runs the model for a ``forward`` analysis. ``base=True`` is the model without the variant's edits.

    ``replace(layer, scores, pattern, v)`` returns the pattern or the head outputs to use instead, or None.
    """

    @property
    def info(self) -> ModelInfo: ...

    def forward(
        self,
        tokens: np.ndarray,
        sites: Sequence[str] = (),
        replace: Callable[..., torch.Tensor | None] | None = None,
        base: bool = False,
        mask: np.ndarray | None = None,
    ) -> Mapping[Any, torch.Tensor]: ...

    def generate(self, tokens: np.ndarray, most: int, **how: Any) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int]) -> str: ...

    def weights(self, layer: int | None) -> LayerWeights: ...


class ForwardAnalysis(Protocol):
    """Shape ``forward``: runs the model itself."""

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset: ...


class DerivedAnalysis(Protocol):
    """Shape ``derived``: sees finished results only. ``inputs`` picks them among the planned steps."""

    def inputs(self, steps: Sequence[StepRef]) -> Sequence[StepRef]: ...
    def compute(self, inputs: Mapping[StepRef, xr.Dataset]) -> xr.Dataset: ...


@dataclass(frozen=True)
class Finding:
    """One comparison of a parity proof: what was compared, the largest difference, and the one allowed."""

    what: str
    difference: float
    tolerance: float

    @property
    def holds(self) -> bool:
        """Whether they are equal within the tolerance; a difference that is not a number is none."""
        return self.difference <= self.tolerance


class CaptureEngine(Protocol):
    """What an engine's class looks like; it is made without arguments.

    An engine may have a method ``prove(model: OpenModel) -> Sequence[Finding]`` besides: it holds what it captures
    against the model's own answer. The host asks for it once for each model, before the first capture of a run.
    """

    def sites(self, model: OpenModel) -> tuple[str, ...]:
        """The sites that this engine can give for this model."""
        ...

    def run(self, twin: Twin, tokens: Tokens, shard: np.ndarray, request: Request, sink: Sink) -> None:
        """Run one shard (indices into tokens) and call ``sink`` once for each layer asked for."""
        ...

    def runner(self, twin: Twin) -> Runner:
        """The runner of ``forward`` analyses."""
        ...


@dataclass(frozen=True)
class SourceContext:
    """What a prompt source knows: the directory that paths are relative to, and a seed."""

    directory: Path
    seed: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class PromptFunction(Protocol):
    """The function behind a prompt source."""

    def __call__(self, parameters: Any, context: SourceContext) -> Sequence[Prompt]: ...
