"""Analyses: what each of the four shapes looks like, what an analysis is given, and the variables that it gives.

An analysis is made as ``Class(parameters, context)`` and gets nothing else: never the model object, never the store.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from .errors import ModelError

if TYPE_CHECKING:
    import numpy as np
    import xarray as xr

    from ..maths.ragged import Ragged
    from .batches import Batch, Request
    from .engines import Runner
    from .model import LayerWeights, ModelInfo
    from .prompts import Tokens
    from .twin import Twin

Key = TypeVar("Key", bound=Hashable)
# A variable of more cells is not compared with a null, nor is one along these: its cells are data.
LARGEST = 100_000
NOT_ALONG = frozenset({"query", "key", "position", "token", "prompt", "feature", "d_model"})


@dataclass(frozen=True)
class Estimate:
    """What a step will need: bytes, and seconds beyond those of the pass itself.

    ``state`` is the part of ``memory`` that one state of a stream analysis holds, ``result`` the part of ``seconds``
    that one call of its ``result()`` takes: errors over prompts hold several states (0: they are taken to hold all of
    ``memory`` several times), and ask each for its result.
    """

    memory: int = 0
    disk: int = 0
    seconds: float = 0.0
    state: int = 0
    result: float = 0.0


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


class NoBulk:
    """In place of the store, while a step is planned: what is written goes nowhere."""

    def create(self, *arguments: Any, **named: Any) -> None:
        """Nothing is made."""

    def write(self, *arguments: Any, **named: Any) -> None:
        """Nothing is written."""


class NoResults(Mapping[StepRef, "xr.Dataset"]):
    """In place of results, while a step is planned: it is empty, and reading it is refused."""

    def __getitem__(self, ref: StepRef) -> xr.Dataset:
        raise ModelError(
            "context.inputs is read while the step is planned, when there are no results yet: read it where the step "
            "computes (update, layer, run, result), not in __init__, inputs or request"
        )

    def __iter__(self) -> Iterator[StepRef]:
        self[StepRef("", "", "")]
        yield from ()

    def __len__(self) -> int:
        return 0


@dataclass(frozen=True)
class Context:
    """What an analysis knows of its step: the model's facts in view, the tokens, its seed, and results it reads.

    The seed is the same for all variants, so that comparisons between them are paired. ``inputs`` holds the results
    that its ``inputs(steps)`` picked; each is read when it is first asked for, and large arrays of it when they are
    used, once for the whole step.
    """

    model: ModelInfo
    seed: int
    tokens: Tokens | None = None
    bulk: Bulk | None = None
    inputs: Mapping[StepRef, xr.Dataset] = field(default_factory=NoResults)
    _twin: Twin | None = field(default=None, init=False, repr=False)
    _place: StepRef | None = field(default=None, init=False, repr=False)
    _knows: tuple[str, ...] = field(default=(), init=False, repr=False)

    def at(self, place: StepRef | None, knows: Sequence[str] = (), twin: Twin | None = None) -> Context:
        """The same for a step in its place; ``knows`` is what its descriptor declares. The host's, and of tests."""
        made = replace(self)
        for name, value in (("_place", place), ("_knows", tuple(knows)), ("_twin", twin)):
            object.__setattr__(made, name, value)
        return made

    def seeing(self, model: ModelInfo, tokens: Tokens | None) -> Context:
        """The same, with these facts of the model and these prompts. The host's."""
        return replace(self, model=model, tokens=tokens).at(self._place, self._knows, self._twin)

    @property
    def variant(self) -> str:
        """The name of the variant that the step is on, for analyses that declare it."""
        return self._here("variant").variant

    @property
    def draw(self) -> int | None:
        """Which draw of the variant; None where it has none. For analyses that declare it."""
        return self._here("draw").draw

    def same_twin(self, steps: Sequence[StepRef]) -> list[StepRef]:
        """Those of the variant, draw and swept values that this step is on: for ``inputs(steps)``."""
        if self._place is None:
            raise ModelError("context.same_twin is there while a step is planned: call it in inputs(steps)")
        mine = (self._place.variant, self._place.draw, self._place.sweep)
        return [step for step in steps if (step.variant, step.draw, step.sweep) == mine]

    def weights(self, layer: int | None) -> LayerWeights:
        """The tensors of a layer as the variant's edits leave them, of the heads in view; for stream and forward.

        They are copies, and there while the step runs.
        """
        if self._twin is None:
            raise ModelError(
                "context.weights is there while a stream or forward analysis runs: call it in update, run or result"
            )
        from .twin import Copies

        return Copies.of(self._twin.weights(layer, self.model))

    def _here(self, what: str) -> StepRef:
        if what not in self._knows or self._place is None:
            raise ModelError(
                f"context.{what} is read, which is no part of the key: results of one {what} would be taken for those "
                f"of another. Say knows=({what!r},) in the Analysis"
            )
        return self._place

    def generator(self, name: str = "") -> np.random.Generator:
        """A numpy generator of this step; different names give independent ones."""
        import numpy as np

        from .digests_and_seeds import derive

        return np.random.default_rng(derive(self.seed, name))


class StreamAnalysis(Protocol):
    """Shape ``stream``: sees activations while passes run.

    The host deep-copies an empty instance for each shard of prompts, calls ``update`` once for each layer of the shard,
    and merges the copies in the order of the shards. ``result`` is called after the last pass. An analysis that asks
    for several passes has a method ``end_pass(index)`` besides: called between passes, it fixes what was found and
    empties the accumulators; the next pass starts from copies of that.

    For errors over prompts states are merged again and again, of all groups of prompts but one: ``merge`` leaves
    ``other`` as it was and shares nothing with it that either will change, and ``result`` gives numbers of those
    prompts that the state has seen.

    With ``state()``, which gives all that was seen as plain numpy arrays by name, and ``restore(state)``, which puts it
    into a fresh instance, long passes commit on the way: a run that was killed goes on from there.
    """

    def request(self) -> Request: ...
    def update(self, batch: Batch) -> None: ...
    def merge(self, other: Any) -> None: ...
    def result(self) -> xr.Dataset: ...


def merge_each(mine: MutableMapping[Key, Any], theirs: Mapping[Key, Any]) -> None:
    """Merge states by key, one for each layer, say: ``mine[key].merge(theirs[key])``, or a copy where there is none."""
    for key, state in theirs.items():
        if key in mine:
            mine[key].merge(state)
        else:
            mine[key] = copy.deepcopy(state)


class WeightsAnalysis(Protocol):
    """Shape ``weights``: sees one layer's tensors at a time, in any order; ``join`` gets {layer: dataset}.

    Without a ``join`` of its own, datasets are concatenated along ``layer``.
    """

    def layer(self, weights: LayerWeights, layer: int) -> xr.Dataset: ...


class ForwardAnalysis(Protocol):
    """Shape ``forward``: runs the model itself."""

    def run(self, runner: Runner, prompts: Tokens) -> xr.Dataset: ...


class DerivedAnalysis(Protocol):
    """Shape ``derived``: sees finished results only. ``inputs`` picks them among the planned steps."""

    def inputs(self, steps: Sequence[StepRef]) -> Sequence[StepRef]: ...
    def compute(self, inputs: Mapping[StepRef, xr.Dataset]) -> xr.Dataset: ...


# As xarray.Dataset takes it.
Variable = tuple[tuple[str, ...], Any, dict[str, Any]]


def attributes(long_name: str, units: str = "1", against: bool | None = None, **more: Any) -> dict[str, Any]:
    """The attributes of a variable. ``against`` overrides the rule by which variables are compared with a null."""
    told: dict[str, Any] = {"long_name": long_name, "units": units}
    return told | ({} if against is None else {"against": int(against)}) | more


def variable(
    dims: str | Sequence[str],
    values: Any,
    long_name: str,
    units: str = "1",
    against: bool | None = None,
    order: int | None = None,
    **more: Any,
) -> Variable:
    """A variable for ``xarray.Dataset({"trace": variable("layer", values, "trace of the covariance")})``.

    ``units`` is "1" for pure numbers. ``against=False`` leaves it out of comparisons with a null, ``against=True`` puts
    it in. ``order=4`` says that it is a fourth moment, as a kurtosis: its error over prompts is then called a lower
    bound. ``more`` are attributes of your own.
    """
    named = (dims,) if isinstance(dims, str) else tuple(dims)
    told = more if order is None else {"order": order} | more
    return named, values, attributes(long_name, units, against, **told)


def ragged_variables(
    name: str, layout: Ragged, flat: Any, long_name: str, units: str = "1", **more: Any
) -> dict[str, Variable]:
    """The variables of an array whose entries have unequal extents: ``flat``, as ``layout`` lays it, and its extents.

    Whoever reads the result sees one array of ``layout.dims``, filled up with NaN, "" or the attribute ``fill``, of
    which no more is read than is asked for. Use it where ``layout.wasteful``: a result is then as large as its numbers.
    It is not compared with a null.
    """
    extents = variable((layout.over, f"{name}_unequal"), layout.extents, f"extents of {name}", against=False)
    told = variable(layout.flat_dims(name), flat, long_name, units, against=False, ragged=layout.told(), **more)
    return {name: told, f"{name}_extent": extents}


def mean_over_prompts(
    name: str, dims: str | Sequence[str], values: Any, long_name: str, units: str = "1", **more: Any
) -> dict[str, Variable]:
    """A variable that is the mean of values [prompt, ...], and beside it its error over prompts, ``<name>_se``.

    For analyses of shape ``forward``, which have values of each prompt: ``xr.Dataset(mean_over_prompts("loss", (),
    losses, "mean loss", "nat"))``. The error is s / sqrt(m), of prompts as the independent units; a missing value (NaN)
    is left out.
    """
    from ..maths.resampling import mean_and_error

    mean, error = mean_and_error(values, skip_missing=True)
    return {
        name: variable(dims, mean, long_name, units, **more),
        f"{name}_se": error_of(name, dims, error, long_name, units),
    }


def error_of(
    name: str, dims: str | Sequence[str], error: Any, long_name: str, units: str = "1", **more: Any
) -> Variable:
    """The variable ``<name>_se`` of standard errors over prompts of the variable ``name``: not compared with a null."""
    return variable(dims, error, f"{long_name}: standard error over prompts", units, against=False, of=name, **more)


def compared(variable: xr.DataArray) -> bool:
    """Whether a variable is compared with its null. Its attribute ``against`` (0 or 1) overrides the rule."""
    if "against" in variable.attrs:
        return bool(variable.attrs["against"])
    if variable.attrs.get("null") == "law" or variable.dtype.kind not in "fiu":
        return False
    return variable.size <= LARGEST and not NOT_ALONG & {str(d) for d in variable.dims}
