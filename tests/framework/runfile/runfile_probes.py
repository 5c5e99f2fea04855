"""A plugin for tests of run files: parameters of every sort, nested ones too. Nothing in it is ever run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from gausslens import Analysis, Edit, Loader, Parameters, PromptSource, hookimpl


class Window(Parameters):
    """A stretch of positions."""

    start: int = Field(0, ge=0, description="The first position.")
    length: int = Field(description="How many positions.", ge=1)
    weights: list[float] = Field([], description="One for each position.")


class Ball(Parameters):
    shape: Literal["ball"] = "ball"
    radius: float = Field(1.0, gt=0, description="Its radius.")


class Box(Parameters):
    shape: Literal["box"]
    sides: tuple[float, float] = Field((1.0, 1.0), description="Its sides.")


class Moments(Parameters):
    site: Literal["resid_pre", "q", "k", "v"] = Field("resid_pre", description="Where to look.")
    keep: int = Field(8, ge=1, le=64, description="How many eigenvalues to keep.")
    tolerance: float = Field(1e-5, gt=0, description="When to stop.")
    centred: bool = Field(True, description="Subtract the mean.")
    title: str | None = Field(None, min_length=2, description="A heading.")
    window: Window | None = Field(None, description="Where in the text.")
    windows: list[Window] = Field([], description="Several of them.")
    by_segment: dict[str, Window] = Field({}, description="One for each segment.")
    by_layer: dict[int, float] = Field({}, description="A factor for each layer.")
    range: tuple[int, int] = Field((0, 4), description="From, to.")
    layer: int | list[int] = Field(0, description="One layer, or several.")
    region: Annotated[Ball | Box, Field(discriminator="shape")] = Field(Ball(), description="Which region.")

    @model_validator(mode="after")
    def _ordered(self) -> Moments:
        if self.range[0] > self.range[1]:
            raise ValueError("range: from is beyond to")
        return self


class Scale(Parameters):
    matrices: list[Literal["W_Q", "W_K", "W_V"]] = Field(["W_Q"], min_length=1, description="Which are scaled.")
    alpha: float = Field(description="The factor.", gt=0)
    centre: float = Field(0.0, description="What stays where it is.")

    @model_validator(mode="after")
    def _not_one(self) -> Scale:
        if self.alpha == self.centre:
            raise ValueError("alpha and centre are equal: nothing would change")
        return self


class Redraw(Parameters):
    keep: Literal["nothing", "moments"] = Field("nothing", description="What stays.")


class Opening(Parameters):
    revision: str = Field("main", description="Which state of it.")
    cache: bool = Field(True, description="Keep it in memory.")


class Texts(Parameters):
    text: list[str] = Field(description="One prompt each.", min_length=1)
    role: Literal["", "user"] = Field("", description="As a chat message.")


class Words(Parameters):
    words: str = Field(description="The list of words.")
    shots: int = Field(3, ge=0, description="Examples before the target.")


class Raising(Parameters):
    how: str = Field("", description="Which exception.")

    @field_validator("how")
    @classmethod
    def _raise(cls, how: str) -> str:
        if how == "exit":
            raise SystemExit(3)
        if how:
            raise KeyError(how)
        return how


class NotParameters:
    pass


def claims_tiny(path: str) -> bool:
    return path.startswith(("builtin:tiny", "live:"))


def claims_anything(path: str) -> bool:
    return not path.startswith(("builtin:", "hub:", "live:")) and not path.endswith("unclaimed")


def _analysis(name: str, shape: str, parameters: str, **more: Any) -> Analysis:
    return Analysis(
        name=f"probe.{name}",
        version=1,
        shape=shape,  # type: ignore[arg-type]
        summary=f"A probe of shape {shape}.",
        analysis="runfile_probes:Nothing",
        parameters=parameters,
        **more,
    )


NONE = "gausslens.parameters:NoParameters"


@hookimpl
def analyses() -> list[Analysis]:
    return [
        _analysis("moments", "stream", "runfile_probes:Moments"),
        _analysis("norms", "weights", NONE),
        _analysis("replace", "forward", NONE, prompts={"source": "text", "text": ["one two"]}),
        _analysis("wrong-prompts", "forward", NONE, prompts={"source": "text", "txet": ["one two"]}),
        _analysis("summary", "derived", NONE),
        _analysis("raising", "weights", "runfile_probes:Raising"),
        _analysis("absent", "weights", "runfile_probes_absent:Parameters"),
        _analysis("alien", "weights", "runfile_probes:NotParameters"),
    ]


@hookimpl
def edits() -> list[Edit]:
    return [
        Edit(name="probe.scale", version=1, summary="Scales.", edit="runfile_probes:Nothing", touches=("W_Q",),
             parameters="runfile_probes:Scale"),
        Edit(name="probe.redraw", version=1, summary="Draws.", edit="runfile_probes:Nothing", touches=("W_Q",),
             parameters="runfile_probes:Redraw", random=True),
    ]  # fmt: skip


@hookimpl
def loaders() -> list[Loader]:
    return [
        Loader(name="tiny", version=1, summary="Opens tiny models.", claims="runfile_probes:claims_tiny",
               open="runfile_probes:Nothing", parameters="runfile_probes:Opening"),
        Loader(name="files", version=1, summary="Opens directories.", claims="runfile_probes:claims_anything",
               open="runfile_probes:Nothing"),
    ]  # fmt: skip


@hookimpl
def prompt_sources() -> list[PromptSource]:
    return [
        PromptSource(name="text", version=1, summary="Texts.", prompts="runfile_probes:Nothing",
                     parameters="runfile_probes:Texts"),
        PromptSource(name="few-shot", version=1, summary="Words and clues.", prompts="runfile_probes:Nothing",
                     parameters="runfile_probes:Words"),
    ]  # fmt: skip
