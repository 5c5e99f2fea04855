"""A plugin that ends the program where the host merely looks: at attributes, at what it returned."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
import torch
import xarray as xr
from pydantic import Field, field_validator

import gausslens
from gausslens import Parameters, Request
from gausslens.testing.tiny_model import TinyModel


def leave(*_: Any) -> NoReturn:
    sys.exit(3)


class How(Parameters):
    how: str = Field(default="nothing", description="Where it ends.")

    @field_validator("how")
    @classmethod
    def _how(cls, value: str) -> str:
        if value == "validator":
            raise KeyboardInterrupt
        return value


def _descriptor(name: str, shape: str, made: str, **more: Any) -> gausslens.Analysis:
    return gausslens.Analysis(
        name=f"ends.{name}",
        version=1,
        shape=shape,
        summary="It ends",
        parameters="endings:How",
        analysis=f"endings:{made}",
        **more,
    )


@gausslens.hookimpl
def analyses() -> list[gausslens.Analysis]:
    return [
        _descriptor("stream", "stream", "Stream"),
        _descriptor("weights", "weights", "Weights"),
        _descriptor("derived", "derived", "Derived"),
        _descriptor("fingered", "weights", "Weights", fingerprint="endings:fingerprint"),
    ]


@gausslens.hookimpl
def edits() -> list[gausslens.Edit]:
    about: dict[str, Any] = {"version": 1, "summary": "It ends", "parameters": "endings:How", "edit": "endings:edit"}
    return [
        gausslens.Edit(name="ends.edit", touches=("W_Q",), **about),
        gausslens.Edit(name="ends.touches", touches="endings:leave", **about),
    ]


class OfItsOwn(xr.Dataset):
    __slots__ = ()

    def expand_dims(self, *_: Any, **__: Any) -> NoReturn:
        leave()


class Asked(Request):
    ordered = property(leave)  # type: ignore[assignment]

    def __init__(self) -> None:
        vars(self).update(sites=("q",), layers=None, passes=1, rows=None)


class Tensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.to:  # as it is laid over the model
            leave()
        return super().__torch_function__(function, types, args, kwargs or {})


class Ends:
    """An analysis of which an attribute ends the program, or any."""

    def __init__(self, parameters: How, context: Any) -> None:
        self.how, self.context = parameters.how, context

    def __getattribute__(self, name: str) -> Any:
        held = object.__getattribute__(self, "__dict__")
        how = held.get("how")
        if name == how or (how == "getattr" and name not in held and not hasattr(Stream, name)):
            leave()
        return object.__getattribute__(self, name)

    def one(self) -> xr.Dataset:
        made = OfItsOwn if self.how == "class" else xr.Dataset
        return made({"one": ((), 1.0, {"long_name": "one", "units": "1"})})


class Stream(Ends):
    def request(self) -> Request:
        if self.how == "asked":
            return Asked()
        return Request(("q",), passes=2 if self.how == "end_pass" else 1)

    def update(self, batch: Any) -> None:
        pass

    def merge(self, other: Stream) -> None:
        pass

    def end_pass(self, index: int) -> None:
        pass

    def result(self) -> xr.Dataset:
        return self.one()


class Weights(Ends):
    def layer(self, weights: Any, layer: int) -> xr.Dataset:
        return self.one()


class Step:
    def __eq__(self, other: object) -> bool:
        leave()

    __hash__ = None  # type: ignore[assignment]


class Derived(Ends):
    def inputs(self, steps: Iterable[Any]) -> list[Any]:
        return [Step()] if self.how == "refs" else list(steps)[:1]

    def compute(self, results: Any) -> xr.Dataset:
        return self.one()


class Text(str):
    __slots__ = ()

    def __len__(self) -> int:
        leave()


@gausslens.hookimpl
def prompt_sources() -> list[gausslens.PromptSource]:
    about: dict[str, Any] = {"parameters": "endings:How", "prompts": "endings:prompts"}
    return [gausslens.PromptSource(name="ending", version=1, summary="It ends", **about)]


def prompts(parameters: How, context: Any) -> Iterable[gausslens.Prompt]:
    def endless() -> Iterable[gausslens.Prompt]:
        for number in itertools.count():
            if number == 3000:
                os.kill(os.getpid(), signal.SIGINT)
            yield gausslens.Prompt((gausslens.Part("one two"),))

    two = [gausslens.Prompt((gausslens.Part(text),)) for text in ("one two", "three")]
    ways: dict[str, Any] = {
        "text": [gausslens.Prompt((gausslens.Part(Text("one two")),)), two[1]],
        "numbers": [gausslens.Prompt(ids=(10**30,)), two[1]],
        "endless": endless(),
    }
    return ways.get(parameters.how, two)


@gausslens.hookimpl
def loaders() -> list[gausslens.Loader]:
    about: dict[str, Any] = {"parameters": "endings:How", "claims": "endings:claims", "open": "endings:opened"}
    return [gausslens.Loader(name="ending", version=1, summary="It ends", **about)]


def claims(path: str) -> bool:
    return False


def opened(spec: Any) -> Any:
    class Model(TinyModel):
        def close(self) -> None:
            leave()

    class NoFacts(TinyModel):
        info = property(leave)  # type: ignore[assignment]

    return NoFacts.__new__(NoFacts) if spec.parameters.how == "info" else Model()


def fingerprint(parameters: How) -> str:
    leave()


def edit(weights: Any, parameters: How, generators: Any) -> dict[str, torch.Tensor]:
    if weights.layer is None:
        return {}
    made = weights.W_Q + torch.from_numpy(np.ones(weights.W_Q.shape, dtype=np.float32))
    return {"W_Q": made.as_subclass(Tensor) if parameters.how == "tensor" else made}
