"""The tokenizer is an ingredient of everything that shows text or depends on it, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from gausslens.spreading.prepare import prepare
from gausslens_models.loading.config_and_tokenizer import digest_of_tokenizer

PLAIN = {"?": 0, "ant": 3, "bee": 4, "cow": 5}
SHOWING = ("model.loss", "model.generate", "model.attention", "model.embeddings")
NOT_SHOWING = ("model.capture", "gaussian.moments")
# What the key of a step that reads prompts was made of before the tokenizer was.
BEFORE = {"host", "model", "twin", "analysis", "engine", "tokens"}


def words(vocabulary: Mapping[str, int], **more: Any) -> Any:
    """A tokenizer of whole words."""
    whole = tokenizers.Tokenizer(tokenizers.models.WordLevel(dict(vocabulary), unk_token="?"))
    whole.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=whole, unk_token="?", **more)


@pytest.fixture
def keys(directory: Callable[[str], Path]) -> Callable[..., dict[str, str]]:
    """{analysis: key} of a run on token numbers, with the given tokenizer."""

    def of(tokenizer: Any, prompts: Mapping[str, Any] | None = None) -> dict[str, str]:
        return {step.ref.analysis: step.key for step in planned(tokenizer, prompts)}

    def planned(tokenizer: Any, prompts: Mapping[str, Any] | None = None) -> Any:
        study = {
            "name": "keys",
            "model": {"path": str(directory("llama"))},
            "prompts": prompts or {"source": "tokens", "ids": [[3, 4, 3]]},
            "analyses": [
                {"use": name, **({"with": {"sites": ["resid_post"]}} if name == "model.capture" else {})}
                for name in (*SHOWING, *NOT_SHOWING)
            ],
            "errors": False,
        }
        return prepare(study, tokenizer=tokenizer)[3].steps

    of.planned = planned  # type: ignore[attr-defined]
    return of


def test_another_tokenizer_is_another_key_of_what_shows_text(keys: Callable[..., dict[str, str]]) -> None:
    """The token numbers are equal, what they say is not."""
    one, other = keys(words(PLAIN)), keys(words(PLAIN | {"bee": 9, "wasp": 4}))
    assert {name for name in one if one[name] != other[name]} == set(SHOWING)


def test_so_is_one_that_differs_in_tokens_that_the_prompts_do_not_have(keys: Callable[..., dict[str, str]]) -> None:
    """The model may write them."""
    one, other = keys(words(PLAIN)), keys(words(PLAIN | {"dog": 6}))
    assert {name for name in one if one[name] != other[name]} == set(SHOWING)


def test_equal_numbers_of_other_text_are_another_key(keys: Callable[..., dict[str, str]]) -> None:
    """Unknown words have one number; bits per byte count their letters."""
    one, other = (keys(words(PLAIN), {"source": "text", "text": [f"ant {word}"]}) for word in ("wasp", "hippopotamus"))
    assert {name for name in one if one[name] != other[name]} == set(SHOWING)


def test_the_same_tokenizer_is_the_same_key(keys: Callable[..., dict[str, str]]) -> None:
    """Made anew, and after it was asked to cut and to pad."""
    used = words(PLAIN, pad_token="?")
    plain = digest_of_tokenizer(used)
    used(["ant bee cow", "ant"], truncation=True, max_length=2, padding=True)
    assert digest_of_tokenizer(used) == plain
    assert keys(words(PLAIN)) == keys(words(dict(reversed(PLAIN.items()))))


def test_other_keys_are_made_of_what_they_were(keys: Any) -> None:
    """So that a store goes on finding its results."""
    for step in keys.planned(words(PLAIN)):
        expected = BEFORE | ({"text"} if step.ref.analysis in SHOWING else set())
        assert set(step.ingredients) == expected


def test_without_a_tokenizer_there_is_none_to_tell(keys: Any) -> None:
    told = {step.ingredients["text"]["tokenizer"] for step in keys.planned(None) if "text" in step.ingredients}
    assert told == {None}
