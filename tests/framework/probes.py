"""A probe plugin: an analysis of each shape, two edits and a prompt source, so simple that every result is known.

The mathematics is in probe_analyses.py: what is here imports nothing heavy, as in any plugin.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

import gausslens
from gausslens import Parameters

SEEN: list[tuple[str, Any]] = []  # (announcement, its news), for tests to look at


class Site(Parameters):
    site: str = Field(default="resid_pre", description="Where to look.")


class Power(Parameters):
    site: str = Field(default="q", description="Where to look.")
    scale: float = Field(default=1.0, description="A factor on the result.")


class Matrix(Parameters):
    matrix: Literal["W_Q", "W_K", "W_V", "W_O"] = Field(default="W_Q", description="Whose norm.")


class Of(Parameters):
    of: str = Field(default="probe.power", description="The label to read.")


class Failing(Parameters):
    at: Literal["init", "request", "update", "merge", "result", "never"] = Field(default="update", description="Where.")
    layer: int = Field(default=0, description="In which layer an update fails.")


class Epochs(Parameters):
    epochs: int = Field(default=1, ge=1, description="How often it sees the prompts.")


class Trained(Parameters):
    of: str = Field(default="train", description="The label of what was trained.")
    variant: str | None = Field(default=None, description="Its variant; none: its own, and of an edit the first.")


class Size(Parameters):
    megabytes: int = Field(default=0, ge=0, description="How large an array it stores beside.")
    fails: bool = Field(default=False, description="Whether it fails.")


class Newest(Parameters):
    directory: str = Field(default=".", description="Its newest file is read.")


class Scale(Parameters):
    alpha: float = Field(default=2.0, description="W_Q is multiplied by it.")


class Lines(Parameters):
    lines: list[str] = Field(default=["one two three", "four", "five six"], description="One prompt each.")


def _analysis(name: str, shape: str, made: str, parameters: str | None = None, **more: Any) -> gausslens.Analysis:
    model = f"probes:{parameters}" if parameters else "gausslens.parameters:NoParameters"
    summary = f"A probe of shape {shape}"
    return gausslens.Analysis(
        name=name, version=1, summary=summary, shape=shape, analysis=f"probe_analyses:{made}", parameters=model, **more
    )


POWER = _analysis("probe.power", "stream", "MeanSquare", "Power", exchangeable=("head",))
SPREAD = _analysis("probe.spread", "stream", "Spread", "Site")
ROWS = _analysis("probe.rows", "stream", "RowSums", row_blocks=True)
LAYERS = _analysis("probe.layers", "stream", "AllLayers", all_layers=True)
COPY = _analysis("probe.copy", "stream", "Copy", "Site", bulk=True)
ORDERED = _analysis("probe.ordered", "stream", "Ordered", "Epochs")
PLACED = _analysis("probe.placed", "stream", "Placed", knows=("variant", "draw"))
UNDECLARED = _analysis("probe.undeclared", "stream", "Placed")
TRAIN = _analysis("probe.train", "stream", "Train", "Size")
ALONG = _analysis("probe.along", "forward", "Along", "Trained", names=("of", "variant"))
BESIDE = _analysis("probe.beside", "weights", "Beside", "Trained", names=("of", "variant"))
CENTRED = _analysis("probe.centred", "stream", "Centred", "Trained", names=("of", "variant"))
EARLY = _analysis("probe.early", "forward", "Early", "Trained")
DRAWS = _analysis("probe.draws", "stream", "Draws", random=True)
FAILS = _analysis("probe.fails", "stream", "Fails", "Failing")
NORM = _analysis("probe.norm", "weights", "Norm", "Matrix", exchangeable=("head",), differences="also")
NEXT = _analysis("probe.next", "forward", "NextToken")
DOUBLED = _analysis("probe.doubled", "derived", "Doubled", "Of", names=("of",))
MEAN = _analysis("probe.mean", "derived", "MeanOverAll", "Of", scope="run", names=("of",))

SCALE = gausslens.Edit(
    name="probe.scale",
    version=1,
    summary="W_Q times alpha",
    parameters="probes:Scale",
    edit="probe_analyses:scaled",
    touches=("W_Q",),
)
REDRAW = gausslens.Edit(
    name="probe.redraw",
    version=1,
    summary="All matrices drawn afresh from the model's own initialisation",
    edit="probe_analyses:redrawn",
    touches=("W_Q", "W_K", "W_V", "W_O"),
    random=True,
)
FILED = _analysis("probe.filed", "weights", "Filed", "Newest", fingerprint="probe_analyses:newest_digest")
UNFILED = _analysis("probe.unfiled", "weights", "Filed", "Newest", fingerprint="probe_analyses:no_digest")
OF_FILE = gausslens.Edit(
    name="probe.of_file",
    version=1,
    summary="W_Q times a number that the newest file of a directory holds",
    parameters="probes:Newest",
    edit="probe_analyses:times_newest",
    touches=("W_Q",),
    fingerprint="probe_analyses:newest_digest",
)
TOLD = gausslens.PromptSource(
    name="told",
    version=1,
    summary="The same prompt, whatever its files hold",
    parameters="probes:Newest",
    prompts="probe_analyses:one_line",
    fingerprint="probe_analyses:newest_digest",
)
TAKEN_OUT = gausslens.Edit(
    name="probe.taken_out",
    version=1,
    summary="A direction that a step found, taken out of W_Q",
    parameters="probes:Trained",
    edit="probe_analyses:taken_out",
    touches=("W_Q",),
    inputs="probe_analyses:taken_from",
)
LINES = gausslens.PromptSource(
    name="lines",
    version=1,
    summary="One prompt for each line",
    parameters="probes:Lines",
    prompts="probe_analyses:lines",
)


@gausslens.hookimpl
def analyses() -> list[gausslens.Analysis]:
    stream = [POWER, SPREAD, ROWS, LAYERS, COPY, ORDERED, PLACED, UNDECLARED, DRAWS, FAILS, TRAIN, CENTRED]
    return [*stream, NORM, NEXT, ALONG, BESIDE, EARLY, FILED, UNFILED, DOUBLED, MEAN]


@gausslens.hookimpl
def edits() -> list[gausslens.Edit]:
    return [SCALE, REDRAW, TAKEN_OUT, OF_FILE]


@gausslens.hookimpl
def prompt_sources() -> list[gausslens.PromptSource]:
    return [LINES, TOLD]


@gausslens.hookimpl
def run_started(run: Any) -> None:
    SEEN.append(("run_started", run))


@gausslens.hookimpl
def step_started(run: Any, step: Any) -> None:
    SEEN.append(("step_started", step))


@gausslens.hookimpl
def step_finished(run: Any, step: Any) -> None:
    SEEN.append(("step_finished", step))


@gausslens.hookimpl
def run_failed(run: Any, step: Any, error: BaseException) -> None:
    SEEN.append(("run_failed", (step, error)))


@gausslens.hookimpl
def run_finished(run: Any, summary: dict[str, Any]) -> None:
    SEEN.append(("run_finished", summary))
