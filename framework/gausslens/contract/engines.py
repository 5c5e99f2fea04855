"""Capture engines and runners: what runs a model and hands out what it computes; and the proof of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import torch

    from .batches import Request, Sink
    from .descriptors import Analysis
    from .model import LayerWeights, ModelInfo, OpenModel
    from .prompts import Prompt, Tokens
    from .twin import Twin


class Runner(Protocol):
    """Runs the model for a ``forward`` analysis. ``base=True`` is the model without the variant's edits.

    ``tokenise`` makes tokens of an analysis's own prompts, where its descriptor says ``texts``: see ReadingRunner.

    ``replace(layer, scores, pattern, v)`` returns the pattern or the head outputs to use instead, or None. The
    runner of a model of two stacks takes ``**tokens.beside(prompts)`` besides: ``sources``, (ids, mask) of what its
    encoder reads.
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

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens: ...

    def weights(self, layer: int | None) -> LayerWeights: ...


class CaptureEngine(Protocol):
    """What an engine's class looks like; it is made without arguments.

    An engine may have a method ``prove(model: OpenModel, sites: Sequence[str] | None = None) -> Sequence[Finding]``
    besides: it holds what it captures (of these sites; None: all) against the model's own answer. The host asks for it
    once for each model, before the first capture of a run; ``sites`` may be left out of it. It may have
    ``remedies(model: OpenModel, findings: Sequence[Finding]) -> Sequence[str]``, too: what a user can do where findings
    do not hold.
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
class Finding:
    """One comparison of a parity proof: what was compared, the worst difference, and what is allowed there.

    ``sites`` are those that it speaks of; none stands for all. ``left_out`` is the reason where the comparison could
    not be made: it then holds, and is told.
    """

    what: str
    difference: float
    tolerance: float
    sites: tuple[str, ...] = ()
    left_out: str = ""

    @property
    def holds(self) -> bool:
        """Whether they are equal within the tolerance; a difference that is not a number is none."""
        return self.difference <= self.tolerance

    @property
    def share(self) -> float:
        """The difference as a part of what is allowed; infinite where nothing is, or where it is no number."""
        if self.difference == 0:
            return 0.0
        found = self.difference / self.tolerance if self.tolerance else math.inf
        return math.inf if math.isnan(found) else found


class ReadingRunner:
    """A runner that makes tokens of an analysis's own prompts, if that may be: ``refused`` is the reason where not.

    What an analysis reads beside the run's prompts follows from its parameters, which are in its key, and from the
    tokenizer, which is only where its descriptor says ``texts=True``.
    """

    def __init__(self, runner: Runner, model: OpenModel, refused: str | None) -> None:
        self._runner, self._model, self._refused = runner, model, refused

    def __getattr__(self, name: str) -> Any:
        """All else is the engine's."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._runner, name)

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Prompts as the tokens that the model would see."""
        if self._refused is not None:
            raise ModelError(self._refused)
        return self._model.tokenise(prompts)


def no_texts(analysis: Analysis) -> str | None:
    """Why a forward analysis may make no tokens of prompts of its own; None where it may."""
    if analysis.texts:
        return None
    return (
        f"{analysis.name} makes tokens of prompts of its own, which depend on the tokenizer: its descriptor must say "
        "texts=True, so that its key does"
    )
