"""A model's tensors as matrices and back."""

from __future__ import annotations

import pytest
import torch

from gausslens.maths.heads import BIAS_OF, as_matrices, as_tensor


def some(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("by", ["head", "matrix"])
@pytest.mark.parametrize("name", ["W_Q", "W_O", "W_in", "b_Q", "b_O"])
def test_matrices_go_back_to_where_they_came_from(name: str, by: str) -> None:
    shape = {"W_Q": (3, 8, 4), "W_O": (3, 4, 8), "W_in": (8, 5), "b_Q": (3, 4), "b_O": (8,)}[name]
    tensor = some(shape).float()
    made = as_matrices(name, tensor, by)
    assert made.ndim == 3
    assert torch.equal(as_tensor(name, made, tensor), tensor)
    if name == "W_Q" and by == "matrix":  # all heads side by side: x W gives the outputs of all of them
        x = some((1, 8))
        assert torch.allclose(x @ made[0], torch.cat(list((x @ tensor.double())[:, 0]))[None])


@pytest.mark.parametrize("by", ["head", "matrix"])
@pytest.mark.parametrize("name", ["W_Q", "W_V", "W_in"])
def test_a_bias_has_a_row_for_each_block_that_its_matrix_writes(name: str, by: str) -> None:
    shape, of_bias = {"W_in": ((8, 5), (5,))}.get(name, ((3, 8, 4), (3, 4)))
    matrices, rows = as_matrices(name, some(shape), by), as_matrices(BIAS_OF[name], some(of_bias), by)
    assert rows.shape == (len(matrices), 1, matrices.shape[-1])


def test_views_of_the_same_numbers_give_the_same_bits() -> None:
    tensor = some((3, 8, 4))
    view = tensor.transpose(0, 1).contiguous().transpose(0, 1)
    for by in ("head", "matrix"):
        one, other = as_matrices("W_Q", tensor, by), as_matrices("W_Q", view, by)
        assert one.stride() == other.stride()
        assert torch.equal(one, other)


def test_each_expert_is_a_matrix_of_its_own() -> None:
    tensor = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    for by in ("head", "matrix"):
        matrices = as_matrices("W_in", tensor, by)
        assert torch.equal(matrices, tensor.double())
        assert torch.equal(as_tensor("W_in", matrices, tensor), tensor)
