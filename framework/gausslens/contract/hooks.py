"""Every hook of gausslens, in one file.

A plugin is a module that an entry point of the group ``gausslens`` names. It implements any of these hooks with
``@gausslens.hookimpl``. The first six return descriptors (data, see descriptors.py); the last five are announcements.
HOOKS.md documents each under its exact signature.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from .descriptors import Analysis, Edit, Engine, Loader, PromptSource, ReportSection


@dataclass(frozen=True)
class RunNews:
    """A run: its name, where its results go, and the digest of its plan."""

    name: str
    store: str
    plan: str
    steps: int


@dataclass(frozen=True)
class StepNews:
    """A step of a run: one analysis on one draw of one variant."""

    variant: str
    label: str
    analysis: str
    key: str
    draw: int | None = None
    sweep: Mapping[str, Any] = field(default_factory=dict)


hookspec = pluggy.HookspecMarker("gausslens")
hookimpl = pluggy.HookimplMarker("gausslens")

# Raised when plugins must change something. A plugin declares ``api_version = 2``, or was written for version 1, the
# OLDEST that works as it is: one of before is warned of, a newer one set aside. HOOKS.md says what changed.
API_VERSION = 2
OLDEST = 1


@hookspec
def loaders() -> Sequence[Loader]:
    """Ways to open a model: each says which paths it claims and opens them."""
    raise NotImplementedError


@hookspec
def captures() -> Sequence[Engine]:
    """Capture engines: each runs a model on prompts and hands activations, layer by layer, to a sink."""
    raise NotImplementedError


@hookspec
def prompt_sources() -> Sequence[PromptSource]:
    """Where prompts come from: each returns text in parts, never tokens."""
    raise NotImplementedError


@hookspec
def edits() -> Sequence[Edit]:
    """Changes to weights, from which the variants of a run file are made."""
    raise NotImplementedError


@hookspec
def analyses() -> Sequence[Analysis]:
    """What is computed: each of one of the four shapes stream, weights, forward and derived."""
    raise NotImplementedError


@hookspec
def report_sections() -> Sequence[ReportSection]:
    """Parts of the report page: each turns stored results into figures, as data."""
    raise NotImplementedError


@hookspec
def run_started(run: RunNews) -> None:
    """A run begins: its plan is fixed and its manifest is in the store."""


@hookspec
def step_started(run: RunNews, step: StepNews) -> None:
    """A step begins that is not in the store yet."""


@hookspec
def step_finished(run: RunNews, step: StepNews) -> None:
    """The result of a step is in the store."""


@hookspec
def run_failed(run: RunNews, step: StepNews | None, error: BaseException) -> None:
    """A step failed (or, where ``step`` is None, the run itself); the error is re-raised unchanged afterwards."""


@hookspec
def run_finished(run: RunNews, summary: dict[str, Any]) -> None:
    """All steps were tried; ``summary`` counts those done, found in the store, and failed."""
