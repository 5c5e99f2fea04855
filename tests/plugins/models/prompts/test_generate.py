"""model.generate: the likeliest tokens or seeded samples, cut where they should end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from gausslens import Context, ModelError, Part, Prompt, Tokens, Twin
from gausslens.testing import check_forward
from gausslens_models import plugin
from gausslens_models.analyses.generate import Generate
from gausslens_models.capture.engine import TransformersEngine
from gausslens_models.parameters import GenerateParameters
from gausslens_models.prompts.tokenise import tokenise

GENERATE = next(a for a in plugin.analyses() if a.name == "model.generate")
CAUSAL = ["gpt2", "llama-tied", "mistral", "qwen3", "gemma2", "gpt_neox", "opt"]


class Talker:
    """A runner whose continuation is known: the letters of a text, one token each."""

    def __init__(self, model: Any, says: str) -> None:
        self.info, self.says, self.how = model.info, says, []

    def generate(self, tokens: np.ndarray, most: int, stop_text: str = "", **how: Any) -> list[np.ndarray]:
        self.how.append(how)
        text = self.says[:most]
        if stop_text and stop_text in text:
            text = text[: text.index(stop_text) + len(stop_text)]
        return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int64) for _ in tokens]

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode()


def written(model: Any, prompts: Tokens, seed: int = 0, runner: Any = None, **given: Any) -> xr.Dataset:
    analysis = Generate(GenerateParameters(**given), Context(model.info, seed, prompts))
    return analysis.run(runner or TransformersEngine().runner(Twin(model)), prompts)


def test_it_says_the_same_again() -> None:
    found = check_forward(GENERATE, GenerateParameters(tokens=5, stop=""))
    assert found.text.dims == ("prompt", "sample")
    assert found.tokens.values.max() == 5
    assert str(found.after[0].values) == "The quick brown fox"


@pytest.mark.parametrize(("stop", "expected"), [("\n", " in a nest"), ("", " in a nest\nBee: ho"), ("nest", " in a ")])
def test_it_is_cut_before_the_stop(gausslens_model: Any, stop: str, expected: str) -> None:
    tokens = gausslens_model.tokenise([Prompt((Part("Ant:"),), name="Ant")])
    talker = Talker(gausslens_model, " in a nest\nBee: honey")
    found = written(gausslens_model, tokens, runner=talker, stop=stop, tokens=18)
    assert str(found.text.sel(prompt="Ant", sample=0).values) == expected
    assert talker.how == [{}], "greedy: there is nothing to seed"


def test_samples_are_seeded_by_prompt_and_sample(gausslens_model: Any) -> None:
    tokens = gausslens_model.tokenise([Prompt((Part("Ant:"),)), Prompt((Part("Bee:"),))])

    def seeds(seed: int) -> list[Any]:
        talker = Talker(gausslens_model, "x")
        written(gausslens_model, tokens, seed=seed, runner=talker, temperature=0.7, samples=3)
        assert all(how["temperature"] == 0.7 for how in talker.how)
        return [how["seed"] for how in talker.how]

    assert seeds(0) == seeds(0)
    assert len(set(seeds(0))) == 6
    assert not set(seeds(0)) & set(seeds(1))


@pytest.mark.parametrize("named", CAUSAL)
def test_greedy_is_the_argmax_step_by_step(named: str, opened: Callable[[str], Any], prompts: Tokens) -> None:
    """With its cache a model writes what it would without one. Near ties may go either way and are told apart."""
    model = opened(named)
    runner = TransformersEngine().runner(Twin(model))
    for row in prompts.ids:
        (new,) = runner.generate(row[None], 6, stop=[])
        ids = list(row)
        for number in new:
            logits = runner.forward(np.array([ids]))["logits"][0, -1]
            assert float(logits.max() - logits[number]) < 1e-4
            ids.append(int(number))


@pytest.mark.parametrize("named", ["bert", "bert-masked", "gpt2-headless"])
def test_models_that_cannot_write_are_refused(named: str, opened: Callable[[str], Any], prompts: Tokens) -> None:
    with pytest.raises(ModelError, match="does not generate"):
        written(opened(named), prompts, stop="")


def test_text_that_stops_it_is_found_across_tokens(
    opened: Callable[[str], Any], tokenizers: Callable[..., Any]
) -> None:
    """Two tokens make up the stop text; what follows it is not computed."""
    model = opened("llama")
    tokenizer = tokenizers("byte-level")
    runner = TransformersEngine().runner(Twin(model))
    model.__dict__["tokenizer"] = tokenizer
    tokens = tokenise(tokenizer, [Prompt(ids=(5, 6, 7))], "tiny")
    (free,) = runner.generate(tokens.ids[0][None], 12, stop=[])
    whole = tokenizer.decode(free)
    stop = whole[4:6]
    (cut,) = runner.generate(tokens.ids[0][None], 12, stop=[], stop_text=stop)
    assert stop in tokenizer.decode(cut)
    assert stop not in tokenizer.decode(cut[:-1])
    assert cut.tolist() == free[: len(cut)].tolist()
    assert len(cut) < len(free)


def test_samples_follow_the_models_own_chances(opened: Callable[[str], Any]) -> None:
    """Of 1,000 samples of one token, each of the likeliest five within 4.5 standard errors of its probability."""
    model = opened("llama")
    runner = TransformersEngine().runner(Twin(model))
    ids = np.array([[3, 4, 5]])
    chances = torch.softmax(runner.forward(ids)["logits"][0, -1].double() / 0.8, dim=-1).numpy()
    n = 1000
    drawn = [int(new[0]) for new in runner.generate(np.repeat(ids, n, axis=0), 1, temperature=0.8, seed=1, stop=[])]
    for number in np.argsort(-chances)[:5]:
        p = chances[number]
        assert abs(drawn.count(int(number)) / n - p) < 4.5 * np.sqrt(p * (1 - p) / n)


def test_an_edited_twin_writes_something_else(gausslens_run: Callable[..., Any]) -> None:
    study = {
        "model": {"path": "builtin:tiny"},
        "prompts": {"source": "text", "text": ["abcdefabcdef", "xyzwxyzw"]},
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.permute"}], "draws": 2}},
        "analyses": [{"use": "model.generate", "with": {"tokens": 8, "stop": ""}}],
        "against": "chance",
    }
    store = gausslens_run(study, "models", "reinit")
    trained, chance = store["trained", "model.generate"], store["chance", "model.generate"]
    assert chance.sizes["draw"] == 2
    assert (chance.text.values != trained.text.values).any()
    assert trained.after.values.tolist() == ["abcdefabcdef", "xyzwxyzw"]
