"""Checks of the states of ``stream`` analyses: that merging neither changes nor shares what it takes in, and that
``result`` may be asked of a state that lacks prompts. Errors over prompts come from such merges."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..contract.analyses import compared
from ..contract.errors import GausslensError
from .result_checks import check_result, check_same

if TYPE_CHECKING:
    import xarray as xr

# Self, other and one prompt more, as prompts whose states are merged; () is a fresh empty state.
_CASES: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...] = (
    ((), (0,), 1),
    ((0,), (1,), 2),
    ((), (0, 1), 2),
    ((0,), (1, 2), 3),
)


@dataclass(frozen=True)
class Given:
    """An analysis with what it is given of each prompt: the arguments of ``update``, the same in each pass."""

    empty: Any
    batches: Sequence[Sequence[Any]]
    names: Sequence[str]
    passes: int
    result_of: Callable[[Any], xr.Dataset]
    shared: tuple[Any, ...] = ()  # what copies of a state share: the context

    def copied(self, state: Any) -> Any:
        """A copy as the host makes it."""
        return copy.deepcopy(state, {id(one): one for one in self.shared})

    def seen(self, empty: Any, prompt: int) -> Any:
        """A copy of an empty state that has seen one prompt."""
        state = self.copied(empty)
        for batch in self.batches[prompt]:
            state.update(batch)
        return state

    def merged(self, empty: Any, states: Sequence[Any]) -> Any:
        """Copies of states merged in order; of none, an empty state."""
        made = self.copied(states[0] if states else empty)
        for state in states[1:]:
            made.merge(self.copied(state))
        return made

    def through(self, prompts_of: Callable[[int], Sequence[int]], fold: Callable[[Any, list[Any]], Any]) -> xr.Dataset:
        """The result of all passes: ``fold`` merges the states of the prompts that are seen in each pass."""
        state = self.empty
        for index in range(self.passes):
            state = fold(state, [self.seen(state, prompt) for prompt in prompts_of(index)])
            if index + 1 < self.passes:
                state.end_pass(index)
        return self.result_of(state)


def check_merge(given: Given, rtol: float, atol: float) -> None:
    """Check that ``merge`` leaves ``other`` as it is, shares nothing with it, and takes empty states for nothing."""
    every = range(len(given.batches))
    empty = given.copied(given.empty)
    for index in range(given.passes):
        states = [given.seen(empty, prompt) for prompt in every]
        for mine, theirs, more in _CASES:
            if max(*mine, *theirs, more) < len(states):
                _check_apart(given, empty, states, mine, theirs, more)
        if index + 1 < given.passes:
            empty = given.merged(empty, states)
            empty.end_pass(index)

    def among_empty_ones(empty: Any, states: list[Any]) -> Any:
        made = given.copied(empty)
        for state in states:
            made.merge(state)
            made.merge(given.copied(empty))
        return made

    plain = given.through(lambda _: every, given.merged)
    what = "merging with a fresh empty state, as self or as other, changes the result"
    check_same(given.through(lambda _: every, among_empty_ones), plain, what, rtol, atol)


def _check_apart(
    given: Given, empty: Any, states: Sequence[Any], mine: Sequence[int], theirs: Sequence[int], more: int
) -> None:
    """Merge once; then let either side take in one prompt more, by update and by merge, and look at the other side."""
    into = "an empty state" if not mine else "a state"
    for update in (True, False):
        one, other = (given.merged(empty, [states[p] for p in prompts]) for prompts in (mine, theirs))
        before = given.copied(other)
        one.merge(other)
        where = difference(before, other)
        assert where is None, f"merge() into {into} changes the state that it takes in: {where}"
        for changed, left, said in (
            (one, other, "the state that was merged changes when the merged one takes in more"),
            (other, one, "the merged state changes when the one that was merged takes in more"),
        ):
            before = given.copied(left)
            if update:
                for batch in given.batches[more]:
                    changed.update(batch)
            else:
                changed.merge(states[more])
            where = difference(before, left)
            assert where is None, (
                f"merge() into {into} shares memory with the state that it takes in: {said} ({where}); "
                "keep copies (gausslens.merge_each does, for states by layer)"
            )


def check_left_out(given: Given, whole: xr.Dataset) -> None:
    """Check that a state which saw all prompts but one gives a result like the whole: see ``_check_like``."""
    count = len(given.batches)
    if count < 2:
        return
    longest = max(range(count), key=lambda p: max((len(b.tokens[0]) for b in _flat(given.batches[p])), default=0))
    refusals: list[GausslensError] = []
    chosen = list(dict.fromkeys((0, longest, count - 1)))
    # Of several passes, those before the last may have seen all prompts.
    ways = [(prompt, first) for prompt in chosen for first in ((0, given.passes - 1) if given.passes > 1 else (0,))]
    for prompt, first in ways:
        name = given.names[prompt]

        def others(index: int, prompt: int = prompt, first: int = first) -> list[int]:
            return [p for p in range(count) if p != prompt or index < first]

        try:
            found = given.through(others, given.merged)
        except GausslensError as error:
            refusals.append(error)
            continue
        except Exception as error:
            raise AssertionError(
                f"result() fails where a state has not seen prompt {name!r} ({type(error).__name__}: {error}): "
                "it may be asked of fewer prompts than context.tokens holds"
            ) from error
        _check_like(found, whole, name, prompt)
    assert len(refusals) < len(ways), (
        f"result() refuses whichever prompt a state has not seen ({refusals[-1]}): leave such prompts out of averages; "
        "where these are too few, give the check more texts"
    )


def _check_like(found: xr.Dataset, whole: xr.Dataset, name: str, prompt: int) -> None:
    """The same variables of the same dimensions; compared ones with the same cells; nothing of the prompt left out."""
    without = f"with prompt {name!r} left out"
    try:
        check_result(found)
    except AssertionError as error:
        raise AssertionError(f"{without}: {error}") from None
    lost = sorted(map(str, set(whole.data_vars) ^ set(found.data_vars)))
    assert not lost, f"{without} the result has other variables: {', '.join(lost)}"
    for key, variable in whole.data_vars.items():
        one = found[key]
        assert one.dims == variable.dims, f"{without} {key} has dimensions {one.dims} in place of {variable.dims}"
        if compared(variable):
            for dim in (d for d in variable.dims if d != "prompt"):
                same = one.sizes[dim] == variable.sizes[dim] and one[dim].equals(variable[dim])
                cells = f"{one[dim].values} for {variable[dim].values}"
                assert same, f"{without} {key} has other cells along {dim}: {cells}"
        if "prompt" in one.dims and one.dtype.kind == "f":
            named = list(one["prompt"].values) if "prompt" in one.coords else range(len(whole["prompt"]))
            at = prompt if len(named) == whole.sizes["prompt"] else list(named).index(name) if name in named else None
            held = at is not None and not bool(np.isnan(one.isel(prompt=at)).all())
            assert not held, f"{without} {key} still holds numbers of it: give NaN, or no row, for prompts not seen"


def _flat(batches: Sequence[Any]) -> Iterator[Any]:
    """Batches one by one, also where they come as tuples of all layers."""
    for batch in batches:
        yield from batch if isinstance(batch, tuple) else (batch,)


def difference(a: Any, b: Any) -> str | None:
    """Where two states first differ in content, as ``layers[0].sums``; None where they do not."""

    def walk(a: Any, b: Any, path: str) -> str | None:
        if a is b or (id(a), id(b)) in met:
            return None
        met.add((id(a), id(b)))
        kept.extend((a, b))  # so that no id is given again
        if type(a) is not type(b):
            return path
        if isinstance(a, (np.ndarray, np.generic, torch.Tensor)):
            return None if _same_array(a, b) else path
        inside = _inside(a), _inside(b)
        if inside[0] is None or inside[1] is None:
            kind: Any = type(a)
            plain = kind.__eq__ is object.__eq__  # told apart by what they are alone: nothing to compare
            return None if plain or a == b or (a != a and b != b) else path
        if inside[0].keys() != inside[1].keys():
            return path
        found = (walk(one, inside[1][key], f"{path}{key}") for key, one in inside[0].items())
        return next((where for where in found if where is not None), None)

    met: set[tuple[int, int]] = set()
    kept: list[Any] = []
    where = walk(a, b, "")
    return None if where is None else where.lstrip(".") or "the state itself"


def _same_array(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        floats = a.is_floating_point() and a.shape == b.shape
        return torch.equal(a, b) or (floats and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True))
    return bool(np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind in "fc"))


def _inside(one: Any) -> dict[str, Any] | None:
    """What a container or an object holds, by how one gets there; None of a plain value."""
    held: dict[str, Any] = {}
    if isinstance(one, Mapping):
        held = {f"[{key!r}]": value for key, value in one.items()}
    elif isinstance(one, (list, tuple, deque)):
        held = {f"[{i}]": value for i, value in enumerate(one)}
    elif not hasattr(one, "__dict__") and not _slots(one):
        return None
    slots = {f".{name}": getattr(one, name) for name in _slots(one) if hasattr(one, name)}
    return held | slots | {f".{name}": value for name, value in getattr(one, "__dict__", {}).items()}


def _slots(one: Any) -> list[str]:
    return [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()) if name != "__dict__"]
