"""Entries of unequal extents in one flat array: there and back, beside arrays filled up by hand."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gausslens.maths.ragged import Ragged

EXTENTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=1, max_size=6)


@given(EXTENTS, st.permutations(["head", "query", "key"]), st.integers(1, 3))
def test_flat_and_back(extents, inner, layers):
    layout = Ragged.of(("layer", "prompt", *inner), ("query", "key"), extents, {"layer": layers, "head": 2})
    rng = np.random.default_rng(0)
    flat = np.full(layout.flat_shape, np.nan)
    blocks = []
    for number, (queries, keys) in enumerate(extents):
        sizes = {"head": 2, "query": queries, "key": keys}
        block = rng.normal(size=(layers, *(sizes[d] for d in inner)))
        blocks.append(block)
        for layer in range(layers):
            flat[layer, layout.cells(number)] = layout.flat(block[layer])
    assert not np.isnan(flat).any()
    for number, block in enumerate(blocks):
        np.testing.assert_array_equal(layout.entry(number, flat[:, layout.cells(number)]), block)


def test_cells_stand_in_c_order_of_the_unequal_dimensions():
    layout = Ragged.of(("prompt", "head", "query", "key"), ("query", "key"), [(1, 2), (2, 1)], {"head": 2})
    block = np.array([[[1.0, 2.0]], [[3.0, 4.0]]])  # [head, query, key]
    np.testing.assert_array_equal(layout.flat(block), [[1, 3], [2, 4]])  # [cell, head]
    assert (layout.cells(0), layout.cells(1)) == (slice(0, 2), slice(2, 4))
    assert (layout.shape, layout.flat_shape) == ((2, 2, 2, 2), (4, 2))
    assert layout.flat_dims("map") == ("map_cell", "head")


def test_only_what_would_be_mostly_filling_is_wasteful():
    def of(*lengths):
        return Ragged.of(("prompt", "query", "key"), ("query", "key"), lengths, {})

    assert not of(7, 7, 7).wasteful
    assert not of(5, 7, 7).wasteful
    assert of(2, 2, 2, 20).wasteful
