"""What is made of q and k is held against the module's own z in every pass, whatever the proof's prompts showed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_gpt import GPT, GPT_MAPPING, ROTARY_MAPPING, changed, gpt_twins, rotary_twins
from torch import nn

import gausslens
from gausslens import Twin
from gausslens_models.capture.plain_capture import PlainEngine


class OddAttention(nn.Module):
    """That of GPT, with a mask and a scale that are set from outside."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.c_attn, self.c_proj = plain.c_attn, plain.c_proj

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.c_attn(x).split(32, dim=2))
        pattern = (q @ k.mT * self._scale).masked_fill(~self._seen, -1e9).softmax(-1)
        return self.c_proj((pattern @ v).transpose(1, 2).flatten(2))


class OddGPT(GPT):
    """What short prompts of random tokens do not show: ``kind`` is window, scale or documents."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.load_state_dict(gpt_twins()[0].state_dict())
        self.kind = kind
        for block in self.transformer["h"]:
            block.attn = OddAttention(block.attn)

    def forward(self, idx: torch.Tensor, targets: Any = None) -> Any:
        length = idx.shape[1]
        seen, scale = torch.ones(length, length, dtype=torch.bool).tril()[None, None], 8**-0.5
        if self.kind == "both ways":
            seen = torch.ones_like(seen)
        elif self.kind == "window":
            seen = seen.triu(-29)
        elif self.kind == "documents":
            document = (idx == 58).cumsum(1)
            seen = seen & (document[:, None, :, None] == document[:, None, None, :])
        elif length > 32:
            scale = scale * 1.3
        for block in self.transformer["h"]:
            block.attn._seen, block.attn._scale = seen, scale
        return super().forward(idx, targets)


class TestHeldInEveryPass:
    """The proof sees two short prompts; z is held against pattern times v wherever patterns are made."""

    def study(self, use: str, **told: Any) -> dict[str, Any]:
        ids = [[(7 * n + p) % 58 for n in range(40)] for p in (0, 3)]
        ids[1][34] = 58  # which no prompt of the proof has
        return {
            "prompts": {"source": "tokens", "ids": ids},
            "variants": {"trained": []},
            "analyses": [{"use": use} | ({"with": told} if told else {})],
        }

    @pytest.mark.parametrize("kind", ["window", "scale", "documents"])
    @pytest.mark.parametrize("sites", [["pattern"], ["scores"]])
    def test_what_the_proof_did_not_show_is_refused(self, kind: str, sites: list[str], tmp_path: Path) -> None:
        module = OddGPT(kind)
        assert all(f.holds for f in PlainEngine().prove(gausslens.load(module, mapping=GPT_MAPPING)._opened.model))
        place = {
            "window": "prompt 0, position 30",
            "scale": r"prompt 0, position 1\b",
            "documents": "prompt 1, position 34",
        }
        study = self.study("model.capture", sites=sites)
        with pytest.raises(gausslens.GausslensError, match=f"layer 0, {place[kind]}.*sliding_window.*scale.*mask"):
            gausslens.run(study, tmp_path, model=module, mapping=GPT_MAPPING, shown=False)

    def test_blocks_of_rows_and_replacement_are_held(self, tmp_path: Path) -> None:
        for use, told in (("model.attention", {}), ("attention.swap", {"band": [2]})):
            study = self.study(use, **told)
            with pytest.raises(gausslens.GausslensError, match="layer 0, prompt 0, position 30"):
                gausslens.run(study, tmp_path, model=OddGPT("window"), mapping=GPT_MAPPING, shown=False)

    def test_the_rest_can_be_studied_and_a_window_that_is_told(self, tmp_path: Path) -> None:
        study = self.study("model.capture", sites=["z", "resid_post"])
        gausslens.run(study, tmp_path, model=OddGPT("window"), mapping=GPT_MAPPING, shown=False)
        told = changed(GPT_MAPPING, facts={"sliding_window": 30})
        found = gausslens.run(
            self.study("model.capture", sites=["pattern"]), tmp_path, model=OddGPT("window"), mapping=told, shown=False
        )
        pattern = found["trained", "model.capture"]["pattern"].transpose("layer", "prompt", "head", ...).values
        assert pattern.shape[-2:] == (40, 40)
        assert np.abs(pattern[..., 39, :10]).max() == 0

    @pytest.mark.parametrize("sharp", [1.0, 30.0])
    @pytest.mark.parametrize(
        ("sort", "dtype"), [("linear", torch.float32), ("linear", torch.bfloat16), ("rotary", torch.float32)]
    )
    def test_an_honest_module_is_never_refused(self, sort: str, dtype: torch.dtype, sharp: float) -> None:
        """Neither one with scores of hundreds, where roundings move patterns."""
        module, mapping = (gpt_twins()[0], GPT_MAPPING) if sort == "linear" else (rotary_twins()[0], ROTARY_MAPPING)
        for name, parameter in module.named_parameters():
            if "attn.weight" in name or "qkv.weight" in name:
                parameter.data *= sharp**0.5
        model = gausslens.load(module.to(dtype), mapping=mapping)._opened.model
        tokens = torch.randint(0, 61, (4, 64), generator=torch.Generator().manual_seed(2)).numpy()
        found = PlainEngine().runner(Twin(model)).forward(tokens, ("pattern", "scores"))
        assert all(bool(found[layer, "pattern"].isfinite().all()) for layer in range(3))

    def test_an_encoder_without_a_mask_reads_prompts_of_one_length(self, tmp_path: Path) -> None:
        mapping = changed(GPT_MAPPING, facts={"causal": False})
        study = self.study("model.attention")
        for ids in ([[3, 9, 4, 1, 7], [5, 2, 8, 8, 6]], [[3, 9, 4, 1, 7], [5, 2]]):
            study["prompts"] = {"source": "tokens", "ids": ids}
            if len(ids[1]) == 5:
                assert gausslens.run(study, tmp_path, model=OddGPT("both ways"), mapping=mapping, shown=False)
                continue
            with pytest.raises(
                gausslens.GausslensError, match=r"no argument .* takes the mask: say arguments: \{NAME: m"
            ):
                gausslens.run(study, tmp_path, model=OddGPT("both ways"), mapping=mapping, shown=False)
