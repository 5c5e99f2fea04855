"""The built-in model that writes clues: what ships, and that training left in it what its card says."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gausslens_models

SHIPPED = Path(gausslens_models.__file__).parent / "builtin" / "clue-tiny"
# In the style of its training data: definitions as WordNet writes them.
ANIMALS = {
    "Ant": "social insect living in organized colonies",
    "Herring": "commercially important food fish of northern waters",
    "Heron": "grey or white wading bird with long neck and long legs",
    "Beetle": "insect having biting mouthparts and front wings modified to form horny covers",
    "Trout": "any of various game and food fishes of cool fresh waters",
    "Lizard": "relatively long-bodied reptile with usually two pairs of legs and a tapering tail",
}
FOOD = {
    "Bun": "small rounded bread either plain or sweet",
    "Stew": "food prepared by stewing especially meat or fish with vegetables",
    "Jam": "preserve of crushed fruit",
    "Brandy": "distilled from wine or fermented fruit juice",
}


def test_what_ships_is_small_and_says_where_it_comes_from() -> None:
    from safetensors import safe_open

    weights = SHIPPED / "model.safetensors"
    assert weights.stat().st_size <= 12_000_000
    with safe_open(weights, "pt") as held:
        assert {str(held.get_slice(name).get_dtype()) for name in held.keys()} == {"F16"}  # noqa: SIM118
    config = json.loads((SHIPPED / "config.json").read_text())
    assert config["model_type"] == "mistral"
    assert config["num_key_value_heads"] < config["num_attention_heads"]
    assert config["tie_word_embeddings"]
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in (SHIPPED / "LICENSE").read_text()
    card = (SHIPPED / "README.md").read_text()
    for said in ("WordNet", "LICENSE", "mostly wrong", "clue_card.py", "train_clue_model.py"):
        assert said in card


@pytest.fixture
def found(gausslens_run: Callable[..., Any]) -> Any:
    prompts = {"source": "few-shot", "clues": ANIMALS | FOOD, "answers": True, "targets": list(ANIMALS)}
    same = prompts | {"clues": ANIMALS, "shots": 4}
    study = {
        "model": {"path": "builtin:clue-tiny"},
        "prompts": same,
        "variants": {"trained": [], "chance": {"edits": [{"edit": "reinit.config"}], "draws": 8}},
        "analyses": [
            {"use": "model.loss", "with": {"segments": ["answer"]}},
            {"use": "model.attention", "with": {"maps": "none"}},
        ],
        "against": "chance",
    }
    return gausslens_run(study, "models", "reinit")


def test_it_predicts_definitions_far_better_than_chance(found: Any) -> None:
    """Definitions in WordNet's own manner; a uniform guess costs log 4096 = 8.3 nats a token."""
    trained = float(found["trained", "model.loss"].mean_loss)
    assert trained < 0.7 * math.log(4096)
    assert (found["chance", "model.loss"].mean_loss > trained + 2).all()


def test_training_put_structure_into_its_attention(found: Any) -> None:
    trained, chance = found["trained", "model.attention"], found["chance", "model.attention"]
    assert float(chance.entropy_deficit.max()) < 0.02
    assert float(trained.entropy_deficit.sel(layer=slice(1, None)).mean()) > 0.5
    assert float(trained.to_previous.max()) > 0.4, "there is a head that looks at the token before"
    z = found.against("trained", "model.attention").entropy_deficit_z
    assert (np.abs(z.values) > 10).all()


def test_bos_is_put_before_a_text(gausslens_run: Callable[..., Any]) -> None:
    study = {
        "model": {"path": "builtin:clue-tiny"},
        "prompts": {"source": "text", "text": ["Ant: a social insect\n"]},
        "analyses": [{"use": "model.attention", "with": {"maps": "heads"}}],
    }
    data = gausslens_run(study, "models")["trained", "model.attention"]
    assert data.key_text.values[0, 0] == "<s>"
    assert data.key_segment_of.values[0].tolist()[:2] == ["special", "text"]
