"""A plugin whose prompts bring the model that reads them, as tests read it: nothing is ever opened."""

from __future__ import annotations

from typing import Any

from gausslens import Loader, Parameters, PromptSource, hookimpl


class Opening(Parameters):
    causal: bool = False


class Saved(Opening):
    path: str | None = None
    fails: bool = False


def claims_nothing(path: str) -> bool:
    return False


def model_of(parameters: Saved) -> dict[str, Any] | None:
    if parameters.fails:
        raise ZeroDivisionError("no model")
    return (
        None if parameters.path is None else {"path": parameters.path, "loader": "saved", "causal": parameters.causal}
    )


@hookimpl
def loaders() -> list[Loader]:
    named: dict[str, Any] = {"claims": "saved_probes:claims_nothing", "open": "saved_probes:claims_nothing"}
    return [Loader(name="saved", version=1, summary="Opens.", parameters="saved_probes:Opening", **named)]


@hookimpl
def prompt_sources() -> list[PromptSource]:
    named: dict[str, Any] = {"prompts": "saved_probes:claims_nothing", "model": "saved_probes:model_of"}
    return [PromptSource(name="saved", version=1, summary="Saved.", parameters="saved_probes:Saved", **named)]
