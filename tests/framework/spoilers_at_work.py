"""What the plugin of spoilers.py does: each way of spoiling is a function of what is at hand."""

from __future__ import annotations

import ctypes
import gc
import locale
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch.overrides import TorchFunctionMode

import gausslens
from gausslens import Request
from gausslens.testing.tiny_model import TinyModel

KEPT: list[Any] = []
KEPT_MODES: list[Any] = []
ZEROS = np.zeros(2)


class Ends(BaseException):
    """What no `except Exception` catches."""


def raising(error: BaseException) -> Callable[[Any], None]:
    def raised(_at: Any) -> None:
        raise error

    return raised


def seeds(_at: Any) -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def torch_settings(_at: Any) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(not torch.is_grad_enabled())
    torch.set_num_threads(2)
    torch.set_float32_matmul_precision("medium")
    torch.set_flush_denormal(True)
    torch.autograd.set_detect_anomaly(True)


def deterministic(_at: Any) -> None:
    torch.use_deterministic_algorithms(True)  # it imports for seconds


def torch_device(_at: Any) -> None:
    torch.set_default_device("meta")


def torch_hooks(_at: Any) -> None:
    torch.nn.modules.module.register_module_forward_hook(lambda *_: torch.zeros(1))


def settings(_at: Any) -> None:
    np.seterr(all="raise")
    np.set_printoptions(precision=1)
    xr.set_options(keep_attrs=True)
    sys.setrecursionlimit(150 + len(gc.get_objects()) % 2)
    gc.disable()
    locale.setlocale(locale.LC_ALL, "C")
    logging.disable(logging.CRITICAL)


def surroundings(_at: Any) -> None:
    os.environ.clear()
    os.chdir("/")
    os.umask(0o777)


def alarms(_at: Any) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)


def alarm_that_kills(_at: Any) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, 0.2)


def said(_at: Any) -> None:
    warnings.simplefilter("ignore")
    warnings.showwarning = print  # type: ignore[assignment]
    sys.excepthook = print  # type: ignore[assignment]
    sys.stdout.close()
    sys.stdout = sys.stderr = None  # type: ignore[assignment]


def traces(_at: Any) -> None:
    sys.setprofile(lambda *_: None)


def flood(_at: Any) -> None:
    for number in range(3000):
        print("spoil", number)
    sys.stderr.write("x" * 1_000_000)


class Doubled(TorchFunctionMode):
    """What stands between a call of torch and its function, and is never left."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        found = function(*arguments, **(named or {}))
        return found * 2 if function in (torch.einsum, torch.matmul, torch.nn.functional.linear) else found


def modes(_at: Any) -> None:
    torch.autocast("cpu", dtype=torch.bfloat16).__enter__()
    KEPT_MODES.append(torch.inference_mode())
    KEPT_MODES[-1].__enter__()
    torch.device("meta").__enter__()
    Doubled().__enter__()
    torch.autograd.graph.saved_tensors_hooks(torch.zeros_like, lambda saved: saved).__enter__()
    torch.backends.cuda.enable_flash_sdp(False)


def rounding(_at: Any) -> None:
    ctypes.CDLL(None).fesetround(0x800)  # upwards, on x86


class Exits(str):
    """Text that ends the program when it is compared."""

    def __eq__(self, other: object) -> bool:
        raise SystemExit(5)

    __hash__ = str.__hash__


class ExitsWhenCopied(xr.Dataset):
    __slots__ = ()

    def copy(self, *_: Any, **__: Any) -> Any:
        raise SystemExit(3)


class Untold(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


def _named(text: str) -> xr.Dataset:
    return xr.Dataset({"nothing": ((), 0.0, {"long_name": text, "units": "1"})})


def hang(_at: Any) -> None:
    while True:
        time.sleep(0.01)


def hang_and_catch(_at: Any) -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:
            continue


def overwritten(tensor: torch.Tensor) -> None:
    ctypes.memset(tensor.data_ptr(), 0, tensor.numel() * tensor.element_size())


def numpy_written(at: Any) -> None:
    array = at.batch.numpy("q")
    array.flags.writeable = True
    array[...] = np.nan


def swapped(at: Any) -> None:
    q = at.batch["q"]
    first = q[0, 0].clone()
    q[0, 0], q[0, 1] = q[0, 1].clone(), first


def set_attribute(what: Any, name: str, value: Any) -> None:
    object.__setattr__(what, name, value)


def batches_later(at: Any) -> None:
    for tensor in KEPT:
        tensor.data.zero_()
    KEPT.append(at.batch["q"])


def zeroing(_layer: int, scores: Any, pattern: Any, v: Any) -> None:
    for tensor in (scores, pattern, v):
        tensor.zero_()


def facts(at: Any) -> None:
    vars(at.context.model.facts)["_told"].clear()
    at.context.model.lacking[0] = {"q": "spoiled"}
    set_attribute(at.context.model, "layers", (0,))
    set_attribute(at.context.model, "heads", (0,))


def context_emptied(at: Any) -> None:
    set_attribute(at.context, "seed", 1)
    set_attribute(at.context, "model", None)


# What is at hand in any shape.
ANYWHERE: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda _at: None,
    "sys.exit": lambda _at: sys.exit(3),
    "SystemExit": raising(SystemExit()),
    "KeyboardInterrupt": raising(KeyboardInterrupt()),
    "GeneratorExit": raising(GeneratorExit()),
    "BaseException": raising(Ends("of all")),
    "RecursionError": raising(RecursionError("deep")),
    "MemoryError": raising(MemoryError()),
    "seeds": seeds,
    "torch settings": torch_settings,
    "torch device": torch_device,
    "deterministic": deterministic,
    "torch hooks": torch_hooks,
    "settings": settings,
    "surroundings": surroundings,
    "alarms": alarms,
    "an alarm that kills": alarm_that_kills,
    "said": said,
    "traces": traces,
    "modes": modes,
    "rounding": rounding,
    "untold": raising(Untold()),
    "flood": flood,
    "hang": hang,
    "hang and catch": hang_and_catch,
    "parameters": lambda at: set_attribute(at.parameters, "how", "something else"),
    "facts": facts,
    "context": context_emptied,
}
STREAM: dict[str, Callable[[Any], Any]] = {
    "zero_": lambda at: at.batch["q"].zero_(),
    "data": lambda at: at.batch["q"].data.mul_(0),
    "nan": lambda at: at.batch["q"].data.fill_(torch.nan),
    "minus": lambda at: at.batch["q"].data.mul_(0).neg_(),
    "numpy": lambda at: at.batch["q"].numpy().fill(0),
    "numpy of batch": numpy_written,
    "memory": lambda at: overwritten(at.batch["q"]),
    "dlpack": lambda at: np.from_dlpack(at.batch["q"]).__setitem__(0, 7.0),
    "swap": swapped,
    "one bit": lambda at: at.batch["q"].view(torch.int32).view(-1)[:1].bitwise_xor_(1),
    "resize": lambda at: at.batch["q"].resize_(1),
    "transpose": lambda at: at.batch["q"].transpose_(0, 1),
    "set": lambda at: at.batch["q"].set_(torch.zeros(1)),
    "text": lambda at: at.batch.text.fill_(False),
    "mask": lambda at: at.batch.mask.logical_not_(),
    "tokens": lambda at: at.batch.tokens.add_(1),
    "keys": lambda at: at.batch.key_mask.zero_(),
    "prompts": lambda at: at.batch.prompts.fill(0),
    "arrays": lambda at: at.batch.arrays.clear(),
    "layer": lambda at: set_attribute(at.batch, "layer", 7),
    "ids": lambda at: at.context.tokens.ids[0].fill(1),
    "text of tokens": lambda at: at.context.tokens.text[0].fill(False),
    "spans": lambda at: at.context.tokens.span[0].fill(9),
    "later": batches_later,
    "blame": lambda at: set_attribute(at.batch, "arrays", None),
}
WEIGHTS: dict[str, Callable[[Any], Any]] = {
    "W_Q": lambda at: at.weights.W_Q.zero_(),
    "W_V": lambda at: at.weights["W_V"].data.mul_(0),
    "W_O by numpy": lambda at: at.weights.W_O.numpy().fill(0),
    "memory of W_K": lambda at: overwritten(at.weights.W_K),
    "base": lambda at: at.weights.base(0).W_Q.zero_(),
    "embeddings": lambda at: at.weights.base(None).W_E.zero_(),
    "model": lambda at: at.weights.model.tensor(0, "W_Q").zero_(),
    "overlay": lambda at: vars(at.weights)["_overlay"].clear(),
    "info": lambda at: set_attribute(at.weights.info, "heads", (0,)),
    "info of the model": lambda at: set_attribute(at.weights.model.info, "n_layers", 1),
    "methods of the model": lambda at: setattr(at.weights.model, "names", lambda _layer: ()),
}
FORWARD: dict[str, Callable[[Any], Any]] = {
    "weights": lambda at: at.runner.weights(0).W_V.zero_(),
    "weights outside": lambda at: at.runner.weights(None).W_E.data.zero_(),
    "module": lambda at: at.runner.twin.base.tensor(1, "W_V").mul_(2),
    "module, then an error": lambda at: at.runner.twin.base.tensor(1, "W_V").mul_(2).no_such_thing,
    "prompts": lambda at: at.prompts.ids[0].fill(5),
    "ids": lambda at: at.context.tokens.ids[0].fill(5),
    "logits": lambda at: at.runner.forward(at.prompts.ids[0][None])["logits"].zero_(),
    "sites": lambda at: at.runner.forward(at.prompts.ids[0][None], sites=("q", "embed"))["embed"].zero_(),
    "replace": lambda at: at.runner.forward(at.prompts.ids[0][None], replace=zeroing),
    "exit in replace": lambda at: at.runner.forward(at.prompts.ids[0][None], replace=lambda *_: sys.exit(1)),
    "info": lambda at: set_attribute(at.runner.info, "n_layers", 0),
    "info of the twin": lambda at: set_attribute(at.runner.twin.info, "n_layers", 1),
    "methods": lambda at: setattr(at.runner.twin.base, "names", lambda _layer: ()),
    "tokens": lambda at: vars(at.prompts).clear(),
    "other tokens": lambda at: set_attribute(at.context.tokens, "ids", [[1]]),
    "overlay": lambda at: [t.zero_() for n in at.runner.info.layers for t in at.runner.twin.overlay(n).values()],
    "edits": lambda at: set_attribute(at.runner.twin, "edits", ()),
    "copied": lambda at: ExitsWhenCopied(_named("nothing")),
    "compared": lambda at: _named(Exits("nothing")),
}
DERIVED: dict[str, Callable[[Any], Any]] = {
    "values": lambda at: [v.values.fill(0) for d in at.inputs.values() for v in d.data_vars.values()],
    "coordinates": lambda at: [d["layer"].values.fill(9) for d in at.inputs.values()],
    "attributes": lambda at: [v.attrs.clear() for d in at.inputs.values() for v in d.variables.values()],
    "inputs": lambda at: at.inputs.clear(),
}
EDITS: dict[str, Callable[[Any], Any]] = {
    "W_Q": lambda at: at.weights.W_Q.zero_(),
    "base": lambda at: at.weights.base(0).W_V.zero_(),
    "model": lambda at: at.weights.model.tensor(0, "W_V").zero_(),
    "generators": lambda at: set_attribute(at.generators, "seed", 0),
}


def _work(how: str, own: dict[str, Callable[[Any], Any]], **at: Any) -> None:
    (ANYWHERE | own)[how](SimpleNamespace(**at))


def _result(layers: Any) -> xr.Dataset:
    attributes = {"long_name": "nothing", "units": "1"}
    return xr.Dataset({"nothing": ("layer", np.zeros(len(layers)), attributes)})


class Stream:
    """It spoils in update, or where ``how`` says: "in merge: ..."."""

    def __init__(self, parameters: Any, context: Any) -> None:
        where, _, how = parameters.how.rpartition(": ")
        self.where, self.how, self.context, self.parameters = where or "in update", how, context, parameters
        self.layers = context.model.layers
        self._spoil("in init")

    def _spoil(self, where: str, **more: Any) -> None:
        if where == self.where:
            _work(self.how, STREAM, context=self.context, parameters=self.parameters, **more)

    def __deepcopy__(self, memo: Any) -> Stream:
        self._spoil("in deepcopy")
        made = type(self).__new__(type(self))
        vars(made).update(vars(self))
        return made

    def request(self) -> Request:
        self._spoil("in request")
        return Request(("q", "resid_pre", "pattern"))

    def update(self, batch: Any) -> None:
        self._spoil("in update", batch=batch)

    def merge(self, other: Any) -> None:
        self._spoil("in merge")

    def result(self) -> xr.Dataset:
        self._spoil("in result")
        return _result(self.layers)


class Layers(Stream):
    """All layers at once."""

    def update(self, batches: Any) -> None:
        for batch in batches:
            self._spoil("in update", batch=batch)


class Weights:
    """It spoils in each layer, or in join."""

    def __init__(self, parameters: Any, context: Any) -> None:
        self.parameters, self.context = parameters, context

    def layer(self, weights: Any, layer: int) -> xr.Dataset:
        how = self.parameters.how
        if how == "one array":
            ZEROS[:] += 1
            return xr.Dataset({"nothing": ("head", ZEROS, {"long_name": "nothing", "units": "1"})})
        _work(how, WEIGHTS, weights=weights, context=self.context, parameters=self.parameters)
        return xr.Dataset({"nothing": ((), 0.0, {"long_name": "nothing", "units": "1"})})


class Forward:
    """It spoils in run."""

    def __init__(self, parameters: Any, context: Any) -> None:
        self.parameters, self.context = parameters, context

    def run(self, runner: Any, prompts: Any) -> xr.Dataset:
        at = {"runner": runner, "prompts": prompts, "context": self.context, "parameters": self.parameters}
        found = (ANYWHERE | FORWARD)[self.parameters.how](SimpleNamespace(**at))
        return found if isinstance(found, xr.Dataset) else _result(runner.info.layers)


class Derived:
    """It spoils in compute, or in inputs."""

    def __init__(self, parameters: Any, context: Any) -> None:
        self.parameters, self.context = parameters, context

    def inputs(self, steps: Any) -> Any:
        if self.parameters.how.startswith("in inputs: "):
            _work(self.parameters.how.removeprefix("in inputs: "), {})
        return [step for step in steps if step.label == self.parameters.of]

    def compute(self, inputs: Any) -> xr.Dataset:
        _work(self.parameters.how, DERIVED, inputs=inputs, context=self.context, parameters=self.parameters)
        return _result((0,))


def estimate(parameters: Any, info: Any, tokens: Any) -> Any:
    tokens.ids[0].fill(1)
    set_attribute(info, "heads", (0,))
    return gausslens.Estimate()


def edit(weights: Any, parameters: Any, generators: Any) -> Any:
    if weights.layer is None:
        return {}
    made = weights.W_Q * 2
    if parameters.how == "later":
        for tensor in KEPT:
            tensor.zero_()
        KEPT.append(made)
    else:
        _work(parameters.how, EDITS, weights=weights, generators=generators, parameters=parameters)
    return {"W_Q": made}


def prompts(parameters: Any, context: Any) -> list[gausslens.Prompt]:
    _work(parameters.how, {"facts": lambda _at: context.facts.clear()}, parameters=parameters)
    return [gausslens.Prompt((gausslens.Part("one two"),)), gausslens.Prompt((gausslens.Part("three"),))]


def claims(path: str) -> bool:
    return False


def open_model(spec: Any) -> Any:
    _work(spec.parameters.how, {}, parameters=spec.parameters)
    return TinyModel()


def section(results: Any) -> list[Any]:
    import spoilers

    def values(_at: Any) -> None:
        for found in results.of("gaussian.moments").values():
            for dataset in found.values():
                for variable in dataset.data_vars.values():
                    variable.values[...] = 0
        results.manifest().resolved.clear()
        results.statistics().clear()

    _work(spoilers.TOLD["how"], {"results": values, "news": lambda _at: None})
    return []


def heard(how: str, news: dict[str, Any]) -> None:
    def emptied(_at: Any) -> None:
        news.get("summary", {}).clear()
        if "error" in news:
            news["error"].args = ("spoiled",)
        for what in ("step", "run"):
            for name in vars(news[what]) if news.get(what) is not None else ():
                set_attribute(news[what], name, None)

    _work(how, {"news": emptied, "results": lambda _at: None})
