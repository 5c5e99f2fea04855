"""Few-shot prompts: what they say, that segments tile them, and that the seed alone decides the examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gausslens import InputError, Prompt, SourceContext
from gausslens_models.parameters import FewShotParameters
from gausslens_models.prompts.few_shot import few_shot, few_shot_template, word_list, word_list_names
from gausslens_models.prompts.tokenise import tokenise


def prompts_of(directory: Path = Path(), seed: int = 0, chat_template: bool = False, **given: Any) -> list[Prompt]:
    context = SourceContext(directory, seed, {"chat_template": chat_template})
    return few_shot(FewShotParameters(**given), context)


def said(prompt: Prompt) -> str:
    return "".join(part.text for part in prompt.parts)


def test_the_lists_of_the_package() -> None:
    assert word_list_names() == ["animals", "food", "professions", "tools"]
    for name in word_list_names():
        found = word_list(name, Path())
        assert len(found) == 40
        assert len(set(found.values())) == 40
        for word, clue in found.items():
            assert word.casefold() not in clue.casefold(), f"the clue gives {word} away"
            assert word == word.strip().capitalize()
            assert clue == clue.strip()
            assert 2 <= len(clue.split()) <= 12


def test_what_a_prompt_says() -> None:
    (prompt,) = prompts_of(clues={"Ant": "in a nest", "Bee": "makes honey"}, shots=1, targets=["Bee"])
    assert said(prompt) == "Write a short clue for each word.\nAnt: in a nest\nBee:"
    assert prompt.name == "Bee"
    assert [(p.segment, p.text, p.word) for p in prompt.parts] == [
        ("instruction", "Write a short clue for each word.\n", None),
        ("example.0.word", "Ant", "Ant"),
        ("example.0.word", ":", None),
        ("example.0.clue", " in a nest\n", None),
        ("target", "Bee", "Bee"),
        ("target", ":", None),
    ]


def test_an_answer_follows_where_it_is_wanted() -> None:
    (prompt,) = prompts_of(clues={"Bee": "makes honey"}, shots=0, targets=["bee"], answers=True, instruction="")
    assert said(prompt) == "bee: makes honey\n"
    assert prompt.parts[-1].segment == "answer"
    with pytest.raises(InputError, match="no clue for the target 'Wasp'"):
        prompts_of(clues={"Bee": "makes honey"}, shots=0, targets=["Wasp"], answers=True)


def test_other_templates() -> None:
    (prompt,) = prompts_of(
        clues={"Ant": "x", "Bee": "y"}, shots=1, targets=["Bee"], instruction="", template="<{word}> is {clue}; "
    )
    assert said(prompt) == "<Ant> is x; <Bee> is"
    for wrong in ("{clue}: {word}", "{word}", "{word}{clue}", "{word} {clue}", "{word}: {clue} {clue}"):
        with pytest.raises(InputError, match="template"):
            few_shot_template(wrong)


@given(seed=st.integers(0, 2**63 - 1), shots=st.integers(0, 39))
def test_examples_are_drawn_by_the_seed_and_never_the_target(seed: int, shots: int) -> None:
    animals = word_list("animals", Path())
    drawn = prompts_of(seed=seed, shots=shots, targets=["ant", "Fox", "Unicorn"])
    assert drawn == prompts_of(seed=seed, shots=shots, targets=["ant", "Fox", "Unicorn"])
    # A target more does not change the prompts of those before it.
    assert drawn[:2] == prompts_of(seed=seed, shots=shots, targets=["ant", "Fox"])
    for prompt in drawn:
        words = [p.word for p in prompt.parts if p.word and p.segment.startswith("example")]
        assert len(set(words)) == shots
        assert prompt.name not in words
        assert "Ant" not in words or prompt.name != "ant"
        clues = [p.text.strip() for p in prompt.parts if p.segment.endswith(".clue")]
        assert clues == [animals[str(w)] for w in words]


def test_every_example_is_drawn_about_as_often() -> None:
    """2,000 prompts of 3 of 39: each is expected 153.8 times, standard deviation 11.9; five of these are allowed."""
    counts: dict[str, int] = {}
    animals = word_list("animals", Path())
    for seed in range(2000):
        for part in prompts_of(seed=seed, shots=3, targets=["Ant"], clues=animals)[0].parts:
            if part.word and part.segment.startswith("example"):
                counts[part.word] = counts.get(part.word, 0) + 1
    assert len(counts) == 39
    assert all(abs(n - 2000 * 3 / 39) < 60 for n in counts.values())


def test_without_targets_all_words_are_asked_for() -> None:
    assert [p.name for p in prompts_of(words="food", shots=0)] == list(word_list("food", Path()))


def test_examples_may_come_from_another_list() -> None:
    (prompt,) = prompts_of(words="animals", examples="food", shots=4, targets=["Ant"], answers=True)
    shown = [p.word for p in prompt.parts if p.word and p.segment.startswith("example")]
    assert set(shown) <= set(word_list("food", Path()))
    assert word_list("animals", Path())["Ant"] in said(prompt)


def test_lists_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("Ant: small\nPolar bear: white\n", encoding="utf-8")
    (prompt,) = prompts_of(tmp_path, words="mine.yaml", shots=1, targets=["Ant"], instruction="")
    assert said(prompt) == "Polar bear: white\nAnt:"
    more = prompts_of(tmp_path, words="mine.yaml", clues={"Bee": "buzzes"}, shots=0)
    assert [p.name for p in more] == ["Ant", "Polar bear", "Bee"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- Ant\n- Bee\n", "lines of `word: clue`"),
        ("no: a word that YAML takes for false\n", "put them in quotes"),
        ("Ant:\n", "put them in quotes"),
        ("Ant: [\n", "not YAML"),
    ],
)
def test_lists_that_are_wrong(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=complaint):
        prompts_of(tmp_path, words="mine.yaml")


def test_what_cannot_be_had_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean animals"):
        prompts_of(words="animal")
    with pytest.raises(InputError, match=r"nowhere\.yaml"):
        prompts_of(tmp_path, words="nowhere.yaml")
    with pytest.raises(InputError, match="only 39 examples"):
        prompts_of(shots=40, targets=["Ant"])
    with pytest.raises(InputError, match="no chat template"):
        prompts_of(chat="yes")


def test_a_chat_is_asked_in_turns() -> None:
    (prompt,) = prompts_of(
        chat_template=True, clues={"Ant": "in a nest", "Bee": "makes honey"}, shots=1, targets=["Bee"], answers=True
    )
    assert [(p.role, p.segment, p.text) for p in prompt.parts] == [
        ("system", "instruction", "Write a short clue for each word."),
        ("user", "example.0.word", "Ant"),
        ("assistant", "example.0.clue", "in a nest"),
        ("user", "target", "Bee"),
        ("assistant", "answer", "makes honey"),
    ]
    (plain,) = prompts_of(chat_template=True, clues={"Bee": "makes honey"}, shots=0, targets=["Bee"], chat="no")
    assert all(part.role is None for part in plain.parts)


@pytest.mark.parametrize("chat", ["", "chatml", "stripping"])
def test_segments_tile_the_prompt(chat: str, style: str, tokenizers: Callable[..., Any]) -> None:
    prompts = prompts_of(chat_template=bool(chat), shots=3, targets=["Ant", "Fox"], answers=True, seed=1)
    found = tokenise(tokenizers(style, chat), prompts, "tiny")
    expected = {"instruction", "target", "answer", *(f"example.{i}.{p}" for i in range(3) for p in ("word", "clue"))}
    assert set(found.segments) - {"special"} == expected
    assert found.names == ("Ant", "Fox")
    for prompt in range(2):
        for name in expected:
            own = found.segment[prompt] == found.segments.index(name)
            whole = "".join(p.text for p in prompts[prompt].parts if p.segment == name)
            start, end = found.span[prompt][own, 0].min(), found.span[prompt][own, 1].max()
            assert found.rendered[prompt][start:end].strip() == whole.strip()
            assert not name.endswith(".word") or found.word[prompt][own].min() >= 0
