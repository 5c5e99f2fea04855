"""What a runner cannot read as it is meant: padding before the tokens of a row, numbers of no token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from gausslens import Intervention, ModelError, Twin, Where
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import PretrainedModel

Opens = Callable[[str], PretrainedModel]


@pytest.mark.parametrize("kind", ["gpt2", "llama", "opt", "bert", "deepseek_v3"])
def test_padding_before_a_row_changes_nothing_or_is_refused(kind: str, opened: Opens) -> None:
    model = opened(kind)
    runner = TransformersEngine().runner(Twin(model))
    row, padded = np.array([[5, 9, 7, 11]]), np.array([[3, 3, 5, 9, 7, 11], [8, 6, 5, 9, 7, 11]])
    mask = np.array([[False] * 2 + [True] * 4, [True] * 6])

    def halved(tensor: torch.Tensor, where: Where) -> torch.Tensor:
        return tensor / 2

    def end(ids: np.ndarray, position: int, **how: Any) -> torch.Tensor:
        acts = [Intervention("z", 0, halved, positions=[position])]
        return runner.forward(ids, ("resid_post",), interventions=acts, **how)[model.info.layers[-1], "resid_post"]

    try:
        found = end(padded, 4, mask=mask)
    except ModelError as error:
        assert kind in ("gpt2", "bert"), error  # noqa: PT017
        assert "its positions count padding. Put padding at the end of rows" in str(error)  # noqa: PT017
    else:
        assert kind not in ("gpt2", "bert")
        assert float((found[0, 2:] - end(row, 2)[0]).abs().max()) < 2e-5
    end(padded[:, ::-1].copy(), 4, mask=mask[:, ::-1].copy())


def test_a_token_that_there_is_none_of_is_refused(opened: Opens) -> None:
    model = opened("llama")
    with pytest.raises(ModelError, match=f"has no token 99999: it has 0 to {model.info.vocabulary - 1}"):
        TransformersEngine().runner(Twin(model)).forward(np.array([[5, 99_999]]))
