"""Clue prompts on real weights: SmolLM2-135M-Instruct (byte-level, chat) and all-MiniLM-L6-v2 (WordPiece)."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import gausslens
from gausslens import Context, ModelSpec, Part, Prompt, SourceContext, Twin
from gausslens_models.analyses.loss import Loss
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.loading.pretrained import open_pretrained
from gausslens_models.parameters import FewShotParameters, LossParameters, TransformersParameters
from gausslens_models.prompts.few_shot import few_shot

pytestmark = pytest.mark.real_model


def opened(directory: Path) -> Any:
    return open_pretrained(ModelSpec(str(directory), TransformersParameters()))


def prompts(model: Any, **given: Any) -> list[Prompt]:
    return few_shot(FewShotParameters(**given), SourceContext(Path(), 0, model.info.facts))


def test_smollm2_is_asked_in_its_chat_template(real_models: Path) -> None:
    model = opened(real_models / "smollm2")
    asked = prompts(model, shots=2, targets=["Ant", "Owl"])
    found = model.tokenise(asked)
    said = [{"role": p.role, "content": p.text} for p in asked[0].parts]
    assert found.rendered[0] == model.tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
    assert found.rendered[0].endswith("<|im_start|>user\nAnt<|im_end|>\n<|im_start|>assistant\n")
    own = found.segment[0] == found.segments.index("target")
    assert "".join(p for p, mine in zip(found.pieces[0], own, strict=True) if mine) == "Ant"
    assert {"instruction", "example.0.word", "example.1.clue", "target", "special"} <= set(found.segments)


def test_smollm2_puts_no_bos_before_a_text(real_models: Path) -> None:
    model = opened(real_models / "smollm2")
    assert model.info.facts["bos"] is None
    found = model.tokenise([Prompt((Part("The ant 🐜 works.\n"),))])
    assert found.text[0].all()
    assert found.ids[0].tolist() == model.tokenizer("The ant 🐜 works.\n")["input_ids"]


def test_the_loss_of_smollm2_is_transformers_own(real_models: Path) -> None:
    model = opened(real_models / "smollm2")
    asked = prompts(model, shots=2, targets=["Ant", "Owl", "Penguin"], answers=True, chat="no")
    tokens = model.tokenise(asked)
    analysis = Loss(LossParameters(), Context(model.info, 0, tokens))
    for shard in tokens.shards():
        TransformersEngine().run(Twin(model), tokens, shard, analysis.request(), analysis.update)
    found = analysis.result()
    own = transformers.AutoModelForCausalLM.from_pretrained(
        real_models / "smollm2", dtype=torch.float32, attn_implementation="eager"
    )
    for number, row in enumerate(tokens.ids):
        ids = torch.from_numpy(row)[None]
        with torch.no_grad():
            theirs = float(own(input_ids=ids, labels=ids).loss)
        assert float(found.prompt_mean_loss[number]) == pytest.approx(theirs, abs=1e-5)
    text = "".join(tokens.rendered)
    nats = float(found.mean_loss) * int(found.tokens)
    # Nothing predicts the first token of a prompt, so its bytes do not count.
    size = len(text.encode()) - sum(len(pieces[0].encode()) for pieces in tokens.pieces)
    assert float(found.bits_per_byte) == pytest.approx(nats / math.log(2) / size)


def test_examples_help_smollm2(real_models: Path, gausslens_run: Callable[..., gausslens.Results]) -> None:
    """Bits per byte of ten clues, without examples and with three: paired, and far apart."""
    targets = ["Ant", "Bear", "Cat", "Elephant", "Fox", "Frog", "Owl", "Penguin", "Snake", "Spider"]
    asked = {"source": "few-shot", "targets": targets, "answers": True, "chat": "no"}
    study = {
        "model": {"path": str(real_models / "smollm2")},
        "analyses": [
            {"use": "model.loss", "as": str(k), "with": {"segments": ["answer"]}, "prompts": asked | {"shots": k}}
            for k in (0, 3)
        ],
    }
    store = gausslens_run(study, "models")
    none, three = (float(store["trained", label].bits_per_byte) for label in ("0", "3"))
    assert three < none - 0.1
    assert 0.8 < three < 2.0


def test_minilm_knows_its_words(real_models: Path) -> None:
    model = opened(real_models / "minilm")
    found = model.tokenise([Prompt((Part("Näht the hedgehog-like ants"),))])
    assert [bool(t) for t in found.text[0]][:: len(found.text[0]) - 1] == [False, False]
    gathered: dict[int, str] = {}
    for word, (start, end) in zip(found.word[0].tolist(), found.span[0].tolist(), strict=True):
        if word >= 0:
            gathered[word] = gathered.get(word, "") + found.rendered[0][start:end]
    assert list(gathered.values()) == ["Näht", "the", "hedgehog-like", "ants"]
