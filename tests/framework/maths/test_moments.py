"""The arrays of running states: out, in again, and many small ones as few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gausslens.maths.moments import RunningMoments, arrays_of, packed, put_arrays, put_each, unpacked

NUMBERS = st.one_of(st.none(), st.integers(0, 9))


@st.composite
def by_key(draw: st.DrawFn) -> dict[Any, dict[str, np.ndarray]]:
    """{key: {name: array}}: keys of one length, arrays of a name of one type, some of them lacking."""
    length = draw(st.integers(1, 4))
    one = (
        draw(st.sampled_from([st.tuples(*[NUMBERS] * length), st.integers(0, 99)])) if length > 1 else st.integers(0, 9)
    )
    kinds = {
        name: (draw(st.sampled_from(["<f8", "<f4", "<i8", "?"])), draw(st.integers(0, 3))) for name in ("a", "b/c")
    }
    found: dict[Any, dict[str, np.ndarray]] = {}
    for key in draw(st.lists(one, unique=True, max_size=5)):
        found[key] = {}
        for name in draw(st.lists(st.sampled_from(sorted(kinds)), unique=True, min_size=1)):
            dtype, axes = kinds[name]
            shape = tuple(draw(st.lists(st.integers(0, 3), min_size=axes, max_size=axes)))
            found[key][name] = draw(arrays.arrays(dtype, shape))
    return found


@given(held=by_key())
def test_what_is_packed_is_unpacked_to_the_same_bits(held: dict[Any, dict[str, np.ndarray]]) -> None:
    few = packed(held)
    assert len(few) <= 6
    found = unpacked(few)
    assert found.keys() == held.keys()
    for key, wanted in held.items():
        assert found[key].keys() == wanted.keys()
        for name, array in wanted.items():
            one = found[key][name]
            assert (one.dtype, one.shape, one.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_states_that_share_a_name_but_not_a_type_are_refused() -> None:
    with pytest.raises(TypeError, match="arrays 'a' are not all of one type and number of axes"):
        packed({0: {"a": np.zeros(2)}, 1: {"a": np.zeros(2, np.float32)}})


def test_states_by_layer_come_back_without_copies() -> None:
    held = {None: RunningMoments(), 3: RunningMoments()}
    for state in held.values():
        state.add(np.random.default_rng(0).normal(size=(2, 9, 4)))
    found = arrays_of(held)
    assert found["3/scatter"] is held[3].scatter
    taken = put_each(RunningMoments, found)
    assert list(taken) == [None, 3]
    assert taken[3].scatter is held[3].scatter
    assert (taken[3].count, type(taken[3].count)) == (9, int)


def test_what_was_none_is_an_array_and_numbers_keep_their_type() -> None:
    class State:
        def __init__(self) -> None:
            self.values: np.ndarray | None = None
            self.total, self.most = 0.0, np.float32(2)

    state = State()
    assert "values" not in arrays_of(state)
    state.values, state.total = np.arange(3), 1.5
    taken = put_arrays(State(), arrays_of(state))
    assert taken.values is state.values
    assert (taken.total, type(taken.total), type(taken.most)) == (1.5, float, np.float32)
