"""model.loss against transformers' own loss, against a count by hand, and against itself cut otherwise."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from gausslens import Context, GausslensError, InputError, Part, Prompt, Tokens, Twin
from gausslens.testing import TinyEngine, TinyModel, check_stream
from gausslens_models import plugin
from gausslens_models.analyses.loss import Loss, token_losses
from gausslens_models.analyses.token_segments import bytes_of
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.parameters import LossParameters

LOSS = next(a for a in plugin.analyses() if a.name == "model.loss")


def measured(model: Any, tokens: Tokens, engine: Any = None, **given: Any) -> Any:
    """The result of model.loss, shard by shard as the host would have it."""
    analysis = Loss(LossParameters(**given), Context(model.info, 0, tokens))
    running = engine or TransformersEngine()
    for shard in tokens.shards():
        running.run(Twin(model), tokens, shard, analysis.request(), analysis.update)
    return analysis.result()


def test_loss_equals_transformers_own(
    which: str, opened: Callable[[str], Any], directory: Callable[[str], Path], prompts: Tokens
) -> None:
    """Within 1e-5 on every family with a language-model head, prompt by prompt and over all tokens."""
    model = opened(which)
    if not model.headed:
        assert "logits" not in model.sites
        return
    masked = which == "bert-masked"
    loader = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    own = loader.from_pretrained(directory(which), attn_implementation="eager").eval()
    found = measured(model, prompts)
    total = 0.0
    for number, row in enumerate(prompts.ids):
        ids = torch.from_numpy(row)[None]
        with torch.no_grad():
            theirs = float(own(input_ids=ids, labels=ids).loss)
        assert float(found.prompt_mean_loss[number]) == pytest.approx(theirs, abs=1e-5)
        total += theirs * (len(row) - (not masked))
    predicted = sum(len(row) - (not masked) for row in prompts.ids)
    assert float(found.mean_loss) == pytest.approx(total / predicted, abs=1e-5)
    assert float(found.perplexity) == pytest.approx(math.exp(total / predicted), rel=1e-4)
    assert int(found.tokens) == predicted


def test_it_does_not_matter_how_prompts_are_cut() -> None:
    found = check_stream(LOSS, rtol=1e-5)
    assert found.loss.dims == ("prompt", "position")
    assert np.isnan(found.loss[:, 0]).all()


@given(rows=st.integers(1, 3), length=st.integers(2, 9), vocabulary=st.integers(2, 300), seed=st.integers(0, 99))
def test_token_losses_are_minus_log_softmax(rows: int, length: int, vocabulary: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, length, vocabulary, generator=draw)
    ids = torch.randint(vocabulary, (rows, length), generator=draw)
    found = token_losses(logits, ids)
    exact = torch.log_softmax(logits.double(), dim=-1)
    for row in range(rows):
        assert math.isnan(found[row, 0])
        for place in range(1, length):
            assert float(found[row, place]) == pytest.approx(-float(exact[row, place - 1, ids[row, place]]), abs=1e-5)


def test_sums_by_hand() -> None:
    """Bits per byte, perplexity and the parts of a prompt, from the losses that the result itself holds."""
    model = TinyModel()
    texts = (("word", "Ant:"), ("clue", " näht\n"), ("word", "Bee:"))
    tokens = model.tokenise([Prompt(tuple(Part(t, segment=s) for s, t in texts)), Prompt((Part("x", segment="clue"),))])
    found = measured(model, tokens, TinyEngine())
    loss = found.loss.values
    assert float(found.mean_loss) == pytest.approx(np.nanmean(loss))
    # One token is one byte here, and BOS predicts the first: bits per byte is the mean loss over log 2.
    assert float(found.bits_per_byte) == pytest.approx(np.nanmean(loss) / math.log(2))
    assert int(found.tokens) == len("Ant: näht\nBee:".encode()) + 1
    clue = [*loss[0, 5:12], loss[1, 1]]
    assert float(found.segment_mean_loss.sel(segment="clue")) == pytest.approx(np.mean(clue))
    assert int(found.segment_tokens.sel(segment="clue")) == 8
    assert float(found.prompt_perplexity[1]) == pytest.approx(math.exp(loss[1, 1]))
    assert set(found.segment.values) == {"word", "clue"}


def test_segments_can_be_chosen() -> None:
    model = TinyModel()
    parts = (Part("Ant:", segment="example.0.word"), Part(" nest\n", segment="example.0.clue"), Part("Bee:", "target"))
    tokens = model.tokenise([Prompt(parts)])
    whole = measured(model, tokens, TinyEngine())
    clues = measured(model, tokens, TinyEngine(), segments=["example.*.clue"])
    assert float(clues.mean_loss) == float(whole.segment_mean_loss.sel(segment="example.0.clue"))
    assert np.array_equal(clues.loss, whole.loss, equal_nan=True)
    with pytest.raises(InputError, match="did you mean target"):
        Loss(LossParameters(segments=["targt"]), Context(model.info, 0, tokens))


def test_prompts_without_anything_to_predict_are_refused() -> None:
    model = TinyModel()
    tokens = model.tokenise([Prompt(ids=(65,))])
    with pytest.raises(GausslensError, match="no token is predicted"):
        measured(model, tokens, TinyEngine())


def test_a_character_that_is_several_tokens_counts_once(tokenizers: Callable[..., Any]) -> None:
    from gausslens_models.prompts.tokenise import tokenise

    for style in ("byte-level", "sentencepiece"):
        tokens = tokenise(tokenizers(style), [Prompt((Part("a 🐜 naïve\n"),))], "tiny")
        assert bytes_of(tokens, 0, tokens.text[0]) == len("a 🐜 naïve\n".encode())


def test_against_chance_compares_sums_but_no_single_token(gausslens_run: Callable[..., Any]) -> None:
    study = {
        "prompts": {"source": "text", "text": ["The ant", "sees the bee"]},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.gaussian"}], "draws": 2}},
        "analyses": [{"use": "model.loss"}],
        "against": "chance",
    }
    found = gausslens_run(study, "models", "reinit").against("trained", "model.loss")
    assert {"mean_loss_z", "bits_per_byte_z", "segment_mean_loss_z"} <= set(found.data_vars)
    assert not {"loss_z", "prompt_mean_loss_z", "tokens_z"} & set(found.data_vars)


def test_white_space_that_no_token_has_is_text_all_the_same() -> None:
    """As where a tokenizer cuts at spaces: bytes are those of the text, whatever its offsets say."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from gausslens_models.prompts.tokenise import tokenise

    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(["?", "ant", "naïve", "bee"])}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    cutting = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="?")
    text = "ant  naïve\n bee ant"
    tokens = tokenise(cutting, [Prompt((Part(text),)), Prompt((Part(text),), chunk=2)], "tiny")
    assert bytes_of(tokens, 0, tokens.text[0]) == len(text.encode())
    behind = tokens.text[0] & (np.arange(4) > 0)
    assert bytes_of(tokens, 0, behind) == len(text.encode()) - len("ant")
    # Of a second chunk, white space before it may have counted in the first.
    assert [bytes_of(tokens, n, tokens.text[n]) for n in (1, 2)] == [len("ant  naïve".encode()), len("bee ant")]
