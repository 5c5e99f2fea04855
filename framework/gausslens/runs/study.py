"""A study: a run file after it was read, checked and resolved. Nothing downstream reads the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..contract.digests_and_seeds import digest
from ..contract.parameters import fingerprint

if TYPE_CHECKING:
    from ..contract.descriptors import Analysis, Loader, Owned, PromptSource
    from ..contract.errors import Mark
    from ..contract.parameters import Parameters
    from ..contract.twin import EditCall

# The variant under which results of the whole run are kept: no variant may be called so.
WHOLE_RUN = "all"


@dataclass(frozen=True)
class ModelCall:
    """The `model:` block, ``auto`` resolved. ``path`` is absolute, or ``builtin:x``, ``hub:o/n``, ``live:x``."""

    path: str
    loader: Owned[Loader]
    parameters: Parameters
    dtype: str | None
    device: str
    mark: Mark

    @cached_property
    def name(self) -> str:
        """By which a study opens it once, however many variants name it."""
        said = [self.path, self.loader.descriptor.name, self.dtype, self.device, self.parameters.canonical()]
        return digest(said)


@dataclass(frozen=True)
class Difference:
    """What one model holds more than another: W_of - W_less, tensor by tensor. Edits are made on it, not before.

    Each side is a model and what its variant edits; None is the model of the run.
    """

    of: tuple[ModelCall | None, tuple[EditCall, ...]]
    less: tuple[ModelCall | None, tuple[EditCall, ...]]
    mark: Mark


@dataclass(frozen=True)
class PromptCall:
    """A `prompts:` block."""

    source: Owned[PromptSource]
    parameters: Parameters
    mark: Mark

    @cached_property
    def fingerprint(self) -> str | None:
        """What the files hold that its source reads, where the source can say so."""
        source = self.source.descriptor
        return fingerprint(self.source, self.parameters, f"{self.mark}: source {source.name}")


@dataclass(frozen=True)
class Shuffle:
    """The `prompts: {shuffle: ...}` of a variant: a null of the text, made of the prompts that a step reads anyway."""

    how: str
    within: str | None
    segments: tuple[str, ...]
    mark: Mark

    def canonical(self) -> dict[str, Any]:
        """How it reads in a run file, and what its seed is derived from."""
        return {"shuffle": self.how, "within": self.within, "segments": list(self.segments)}


@dataclass(frozen=True)
class Point:
    """One point of a variant's sweeps: the swept values in order, and model and edits with these values.

    ``models`` is empty where the model is that of the run; else it is one, or one for each draw. A ``difference`` takes
    its place: it has weights alone.
    """

    values: tuple[tuple[str, Any], ...]
    edits: tuple[EditCall, ...]
    models: tuple[ModelCall, ...] = ()
    difference: Difference | None = None

    def model(self, draw: int | None, otherwise: ModelCall | None) -> ModelCall | None:
        """The model of a draw; ``otherwise`` is that of the run."""
        if not self.models:
            return otherwise
        return self.models[0 if len(self.models) == 1 or draw is None else draw]


@dataclass(frozen=True)
class Variant:
    """An edited twin, or several: ``draws`` of it, at each point of its sweeps; and what it reads instead.

    ``prompts`` is None where it reads what the run does. Draws that are models have ``draw_values``: of each draw the
    values that fill in the path, as (("seed", 3),). ``swept_models`` names the sweeps that do.
    """

    name: str
    draws: int | None
    points: tuple[Point, ...]
    mark: Mark
    prompts: PromptCall | Shuffle | None = None
    draw_values: tuple[tuple[tuple[str, Any], ...], ...] = ()
    swept_models: tuple[str, ...] = ()

    def twins(self) -> list[tuple[Point, int | None]]:
        """Every draw of every point."""
        draws: list[int | None] = [None] if self.draws is None else list(range(self.draws))
        return [(point, draw) for draw in draws for point in self.points]


@dataclass(frozen=True)
class Errors:
    """Errors over prompts: by deleting one of so many groups at a time; ``asked`` says where the run file asks."""

    groups: int
    asked: Literal["nowhere", "run", "entry"] = "nowhere"


@dataclass(frozen=True)
class Use:
    """One entry of `analyses:`: an analysis with its parameters, on some variants; ``own``: with prompts of its own.

    ``limit`` are the seconds that a step of it may take.
    """

    label: str
    analysis: Owned[Analysis]
    parameters: Parameters
    layers: tuple[int, ...] | None
    heads: tuple[int, ...] | None
    variants: tuple[str, ...]
    prompts: PromptCall | None
    mark: Mark
    own: bool = False
    errors: Errors | None = None
    limit: float | None = None

    @cached_property
    def fingerprint(self) -> str | None:
        """What the files hold that its analysis reads, where the analysis can say so."""
        return fingerprint(self.analysis, self.parameters, f"{self.mark}: {self.label}")


@dataclass(frozen=True)
class Study:
    """A whole run file, resolved. ``resolved`` is the file as plain data with every default filled in.

    ``warnings`` say what works and should be written otherwise, with its place.
    ``limit`` are the seconds that an edit may take for a layer, and a step where it says nothing else.
    ``max_memory`` are the bytes that the weights of a model, and the streams between its layers, may take.
    """

    name: str
    seed: int
    model: ModelCall | None
    prompts: PromptCall | None
    variants: tuple[Variant, ...]
    uses: tuple[Use, ...]
    against: tuple[str, ...]
    report: bool
    directory: Path
    resolved: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    limit: float | None = None
    max_memory: int | None = None
