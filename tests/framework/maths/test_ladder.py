"""The ladder of nulls on planted numbers: what each rung explains, what it does not, and what cannot be told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gausslens.maths.ladder import ARRANGEMENT, UNDECIDED, WORDS, Rung, explained, ladder_order
from gausslens.maths.nulls import compare


def rung(name, mean, half, draws=8, error=None):
    mean, half = np.atleast_1d(np.asarray(mean, float)), np.atleast_1d(np.asarray(half, float))
    return Rung(name, draws, mean, mean - half, mean + half, error if error is None else np.atleast_1d(error))


def words(x, rungs, departs=True):
    x = np.atleast_1d(np.asarray(x, float))
    return explained(x, np.full(x.shape, departs), rungs).rung.tolist()


def test_eight_words():
    assert WORDS == ("before", "gains", "scale", "entries", "spectrum", "seeds", "arrangement", "undecided")


def test_a_number_has_the_first_rung_that_gives_it():
    before, scale, spectrum = rung("before", 0, 0.1), rung("scale", 10, 0.5), rung("spectrum", 20, 0.5)
    ladder = [before, scale, spectrum]
    assert words(10.2, ladder) == ["scale"]
    assert words(20.3, ladder) == ["spectrum"]
    assert words(40.0, ladder) == [ARRANGEMENT]
    assert words(0.05, ladder, departs=False) == ["before"]


def test_not_to_be_told_from_a_null_is_no_explanation():
    """The null is so wide that the number may lie anywhere in it: undecided, with the draws that would decide."""
    wide = rung("scale", 10, 3)
    found = explained(np.array([11.0]), np.array([True]), [rung("before", 0, 0.1), wide])
    assert found.rung.tolist() == [UNDECIDED]
    assert found.draws.tolist() == [0]  # the spread of the null itself is wider than a tenth of the departure
    near = rung("scale", 10, 1.15)
    found = explained(np.array([10.0]), np.array([True]), [rung("before", 0, 0.1), near])
    assert found.rung.tolist() == [UNDECIDED]
    assert 8 < found.draws[0] < 40


def test_the_error_over_prompts_must_agree():
    before = rung("before", 0, 0.1)
    assert words(10.0, [before, rung("scale", 10, 0.2, error=0.3)]) == ["scale"]
    assert words(10.0, [before, rung("scale", 10, 0.2, error=2.0)]) == [UNDECIDED]
    assert words(10.0, [before, rung("scale", 10, 0.2, error=np.nan)]) == ["scale"]
    assert words(20.0, [before, rung("scale", 10, 0.2, error=9.0)]) == [UNDECIDED]


def test_draws_are_not_asked_for_where_draws_are_not_what_lacks():
    """Their interval decides with those that there are: it is the prompts, or the test over all cells, that do not."""
    before, near = rung("before", 0, 0.1), rung("scale", 10, 0.2, error=2.0)
    found = explained(np.array([10.0]), np.array([True]), [before, near])
    assert (found.rung.tolist(), found.draws.tolist()) == ([UNDECIDED], [0])
    beyond = replace(rung("scale", 10, 0.2), called=np.array([False]))
    found = explained(np.array([20.0]), np.array([True]), [before, beyond])
    assert (found.rung.tolist(), found.draws.tolist()) == ([UNDECIDED], [0])


def test_shares_are_those_of_the_departure_from_the_first():
    found = explained(np.array([8.0]), np.array([True]), [rung("a", 0, 0.1), rung("b", 2, 0.1), rung("c", 8, 0.1)])
    np.testing.assert_allclose(found.share[:, 0], [0, 0.25, 1])
    assert found.rung.tolist() == ["c"]


def test_known_nulls_are_ordered_and_strangers_keep_their_place_after_them():
    names = ["spectrum", "mine", "before", "seeds", "scale", "yours"]
    assert [names[i] for i in ladder_order(names)] == ["before", "scale", "spectrum", "mine", "yours", "seeds"]


def test_a_null_that_keeps_a_number_exactly_explains_it():
    rng = np.random.default_rng(0)
    x = np.array([5.0, 6.0])
    before, kept = compare(x, rng.normal(size=(8, 2))), compare(x, np.repeat(x[None], 8, axis=0))
    ladder = [Rung(n, 8, c.mean, c.low, c.high) for n, c in (("before", before), ("spectrum", kept))]
    assert explained(x, np.array([True, True]), ladder).rung.tolist() == ["spectrum", "spectrum"]


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**31), st.floats(0.1, 100), st.floats(-50, 50))
def test_units_and_origin_do_not_matter(seed, factor, shift):
    rng = np.random.default_rng(seed)
    x, departs = rng.normal(size=9) * 5, rng.random(9) < 0.8
    raw = [(n, rng.normal(size=9) * 5, rng.random(9)) for n in ("before", "scale", "spectrum")]
    one = explained(x, departs, [Rung(n, 8, m, m - h, m + h) for n, m, h in raw])
    moved = [Rung(n, 8, m * factor + shift, (m - h) * factor + shift, (m + h) * factor + shift) for n, m, h in raw]
    other = explained(x * factor + shift, departs, moved)
    assert (one.rung == other.rung).mean() > 0.8  # numbers that stand on a limit may fall on either side
    np.testing.assert_allclose(one.share, other.share, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_planted_explanations_are_found(kept):
    """The model is one more draw of null ``kept``, whose mean is 40 of its deviations from the one before it."""
    names = ["before", "gains", "scale", "spectrum"]
    right = called = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        means = [rng.normal(size=(4, 6)) * 0.2 + 40 * i for i in range(4)]
        draws = [m + rng.normal(size=(8, 4, 6)) for m in means]
        x = means[kept] + rng.normal(size=(4, 6))
        each = [compare(x, d, (), (0,)) for d in draws]
        ladder = [Rung(n, 8, c.mean, c.low, c.high) for n, c in zip(names, each, strict=True)]
        found = explained(x, each[0].q < 0.05, ladder).rung
        right += int((found == names[kept]).sum())
        called += int(np.isin(found, names[1:]).sum() + (found == ARRANGEMENT).sum())
    assert called > 0
    assert right / called >= 0.95


def test_what_lies_beyond_a_null_and_is_not_called_is_undecided():
    x = np.array([10.0, 10.0])
    first = Rung("before", 8, np.zeros(2), np.full(2, -1.0), np.full(2, 1.0))
    called = np.array([True, False])
    other = Rung("scale", 8, np.full(2, 5.0), np.full(2, 4.0), np.full(2, 6.0), called=called)
    found = explained(x, np.ones(2, dtype=bool), [first, other]).rung
    assert found.tolist() == ["arrangement", "undecided"]


def test_infinite_values_do_not_depart_and_warn_of_nothing():
    x = np.array([np.inf, 9.0])
    draws = np.random.default_rng(0).normal(size=(8, 2))
    draws[3, 0] = np.inf
    each = [compare(x, draws + shift) for shift in (0.0, 1.0)]
    ladder = [Rung(n, 8, c.mean, c.low, c.high) for n, c in zip(("before", "scale"), each, strict=True)]
    assert explained(x, each[0].p < 0.05, ladder).rung.tolist() == ["before", ARRANGEMENT]
