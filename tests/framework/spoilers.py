"""A plugin that spoils what it can: one analysis of each shape, an edit, a source, a section and listeners.

Each does one of the WAYS, by the name that its parameter ``how`` gives; what is announced does what ``TOLD`` says.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

import gausslens
from gausslens import Parameters

TOLD = {"how": "nothing"}  # what listeners and the section do


class How(Parameters):
    how: str = Field(default="nothing", description="What it does.")


class HowDerived(How):
    of: str = Field(default="gaussian.moments", description="The label to read.")


def _analysis(name: str, shape: str, made: str, parameters: str = "How", **more: Any) -> gausslens.Analysis:
    return gausslens.Analysis(
        name=f"spoil.{name}",
        version=1,
        summary="It spoils",
        shape=shape,
        analysis=f"spoilers_at_work:{made}",
        parameters=f"spoilers:{parameters}",
        **more,
    )


STREAM = _analysis("stream", "stream", "Stream")
LAYERS = _analysis("layers", "stream", "Layers", all_layers=True)
ROWS = _analysis("rows", "stream", "Stream", row_blocks=True)
WEIGHTS = _analysis("weights", "weights", "Weights")
FORWARD = _analysis("forward", "forward", "Forward")
DERIVED = _analysis("derived", "derived", "Derived", "HowDerived")
ESTIMATED = _analysis("estimated", "stream", "Stream", estimate="spoilers_at_work:estimate")
EDIT = gausslens.Edit(
    name="spoil.edit",
    version=1,
    summary="It spoils",
    parameters="spoilers:How",
    edit="spoilers_at_work:edit",
    touches=("W_Q",),
)
SOURCE = gausslens.PromptSource(
    name="spoiled",
    version=1,
    summary="It spoils",
    parameters="spoilers:How",
    prompts="spoilers_at_work:prompts",
)
LOADER = gausslens.Loader(
    name="spoiled",
    version=1,
    summary="It spoils",
    parameters="spoilers:How",
    claims="spoilers_at_work:claims",
    open="spoilers_at_work:open_model",
)
SECTION = gausslens.ReportSection(
    name="spoiled",
    version=1,
    summary="It spoils",
    section="spoilers_at_work:section",
    analyses=("gaussian.moments",),
    order=-1,
)


@gausslens.hookimpl
def analyses() -> list[gausslens.Analysis]:
    return [STREAM, LAYERS, ROWS, WEIGHTS, FORWARD, DERIVED, ESTIMATED]


@gausslens.hookimpl
def edits() -> list[gausslens.Edit]:
    return [EDIT]


@gausslens.hookimpl
def prompt_sources() -> list[gausslens.PromptSource]:
    return [SOURCE]


@gausslens.hookimpl
def loaders() -> list[gausslens.Loader]:
    return [LOADER]


@gausslens.hookimpl
def report_sections() -> list[gausslens.ReportSection]:
    return [SECTION]


def _heard(**news: Any) -> None:
    import spoilers_at_work

    spoilers_at_work.heard(TOLD["how"], news)


@gausslens.hookimpl
def run_started(run: Any) -> None:
    _heard(run=run)


@gausslens.hookimpl
def step_started(step: Any) -> None:
    _heard(step=step)


@gausslens.hookimpl
def step_finished(step: Any) -> None:
    _heard(step=step)


@gausslens.hookimpl
def run_failed(step: Any, error: BaseException) -> None:
    _heard(step=step, error=error)


@gausslens.hookimpl
def run_finished(summary: dict[str, Any]) -> None:
    _heard(summary=summary)
