"""bilinear.alignment where keys and values are of another stack: what is of both streams is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from gausslens import ModelInfo
from gausslens.testing import TinyModel, check_weights
from gausslens_bilinear.parameters import AlignmentParameters
from gausslens_bilinear.plugin import ALIGNMENT

from ..crossed_model import CrossedModel


class Gained(CrossedModel):
    """With a gain in front of attention, which queries alone are behind."""

    def names(self, layer: int | None) -> tuple[str, ...]:
        return (*super().names(layer), *(() if layer is None else ("ln1.w",)))

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        if name != "ln1.w":
            return super().tensor(layer, name)
        return self._held.setdefault((layer, name), torch.linspace(0.2, 3.0, self.parameters.d_model))

    @property
    def info(self) -> ModelInfo:
        known = super().info
        return replace(known, facts={**known.facts, "gains": True})


@pytest.mark.parametrize("composition", [True, False])
def test_what_stays_is_what_the_weights_give(composition: bool) -> None:
    parameters = AlignmentParameters(composition=composition)
    found = check_weights(ALIGNMENT, parameters, model=CrossedModel())
    plain = check_weights(ALIGNMENT, parameters, model=TinyModel())
    assert set(found.data_vars) < set(plain.data_vars)
    for name in found.data_vars:
        np.testing.assert_array_equal(found[name], plain[name], err_msg=str(name))
    left = set(plain.data_vars) - set(found.data_vars)
    ends = ("trace", "trace_z", "balance", "symmetric_share", "alignment", "alignment_z", "leading_cosine", "cosine")
    assert {f"{c}_{end}" for c in ("qk", "ov") for end in ends} < left
    assert not any(name.startswith(("qk_at_lag", "k_composition", "v_composition")) for name in map(str, found))
    assert ("q_composition" in found) == composition
    assert "lag" not in found.coords
    assert found.attrs["streams"].startswith("one side of each circuit reads the other stack")
    assert "streams" not in plain.attrs


def test_gains_are_of_queries_alone() -> None:
    found = check_weights(ALIGNMENT, model=Gained())
    model: Any = Gained()
    gain = model.tensor(1, "ln1.w").double().numpy()[:, None]
    for head in range(4):
        Q, K, V, out = (
            model.tensor(1, n)[head // 2 if n in ("W_K", "W_V") else head].double().numpy()
            for n in ("W_Q", "W_K", "W_V", "W_O")
        )
        C = gain * Q @ K.T
        one = found.sel(layer=1, head=head)
        np.testing.assert_allclose(one["qk_squared"], np.linalg.svd(C, compute_uv=False)[:6] ** 2, rtol=1e-9)
        assert float(one["qk_norm"]) == pytest.approx(np.linalg.norm(C))
        assert float(one["qk_raw_norm"]) == pytest.approx(np.linalg.norm(Q @ K.T))
        assert float(one["ov_norm"]) == pytest.approx(np.linalg.norm(V @ out))
        assert 0 < float(one["qk_distance"]) < 1
        # What an earlier head wrote enters queries, behind the gain.
        V0, O0 = (model.tensor(0, n)[0 if n == "W_V" else 1].double().numpy() for n in ("W_V", "W_O"))
        wanted = np.linalg.norm(V0 @ O0 @ C) / np.linalg.norm(V0 @ O0) / np.linalg.norm(C)
        got = found["q_composition"].sel(layer=1, head=head, from_layer=0, from_head=1)
        assert float(got) == pytest.approx(wanted, rel=1e-5)
