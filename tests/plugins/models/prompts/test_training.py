"""What builtin:clue-tiny is trained on and measured against: WordNet read right, nothing held out is trained on."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripts import script_at

EXAMPLES = Path(__file__).parents[4] / "examples"


wordnet = script_at("examples/wordnet.py")
ngrams = script_at("examples/ngrams.py")


def data_line(offset: int, file: int, words: list[str], gloss: str, kind: str = "n") -> str:
    listed = " ".join(f"{word} 0" for word in words)
    return f"{offset:08d} {file:02d} {kind} {len(words):02x} {listed} 001 @ 00001740 n 0000 | {gloss}  \n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A WordNet of 400 nouns in four files, and one line each of the others."""
    nouns = [
        data_line(i, 5 + i % 4, [f"word_{i}", f"other{i}"], f'a definition of number {i}; "as one says"')
        for i in range(400)
    ]
    (tmp_path / "data.noun").write_text("  1 This software\n  2 licence\n" + "".join(nouns))
    (tmp_path / "data.verb").write_text(data_line(7, 29, ["breathe"], 'draw air in, and out; "I can breathe"', "v"))
    (tmp_path / "data.adj").write_text(data_line(8, 0, ["able(p)"], "(usually followed by `to') having means", "a"))
    (tmp_path / "data.adv").write_text(data_line(9, 2, ["barely"], "x" * 200, "r"))
    return tmp_path


def test_definitions_are_the_first_clause_without_examples(home: Path) -> None:
    found = {s.words[0]: s for s in wordnet.synsets(home)}
    assert found["word 3"].definition == "a definition of number 3"
    assert found["word 3"].words == ("word 3", "other3")
    assert found["word 3"].file == 8
    assert found["breathe"].definition == "draw air in, and out"
    assert found["able"].definition == "(usually followed by 'to') having means"
    assert "barely" not in found, "its definition is too long"


def test_about_one_in_25_is_held_out_and_never_trained_on(home: Path) -> None:
    found = wordnet.synsets(home)
    held = [s for s in found if s.held_out]
    # 400 synsets at 1/25: 16 expected, standard deviation 3.9; four of these are allowed.
    assert 1 <= len(held) <= 32
    trained = {s.definition for s in found if not s.held_out}
    assert not trained & {s.definition for s in held}
    episodes = wordnet.Episodes([s for s in found if not s.held_out], seed=0)
    for _ in range(20):
        assert {e.definition for e in itertools.islice(episodes.episode(), 50)} <= trained


def test_the_synsets_of_an_episode_are_of_one_file_unless_mixed(home: Path) -> None:
    found = [s for s in wordnet.synsets(home) if 5 <= s.file <= 8]
    pure = wordnet.Episodes(found, seed=1, mixed=0.0)
    mixed = wordnet.Episodes(found, seed=1, mixed=1.0)
    for _ in range(10):
        assert len({e.file for e in itertools.islice(pure.episode(), 30)}) == 1
        assert len({e.file for e in itertools.islice(mixed.episode(), 60)}) == 4


def test_repeated_entries_are_earlier_ones(home: Path) -> None:
    """Of 4,000 entries one in five repeats; new ones seldom collide. Within 4 standard errors of 0.2 (0.0253)."""
    episodes = wordnet.Episodes(wordnet.synsets(home), seed=2, mixed=1.0, repeated=0.2)
    again = total = 0
    for _ in range(200):
        entries = list(itertools.islice(episodes.episode(), 21))
        seen: set[str] = set()
        for entry in entries[1:]:
            seen.add(entries[0].definition)
            again += entry.definition in seen
            seen.add(entry.definition)
            total += 1
    chance_of_collision = 10 / 400
    assert abs(again / total - (0.2 + 0.8 * chance_of_collision)) < 4 * math.sqrt(0.16 / total) + 0.01


def test_equal_seeds_give_equal_episodes(home: Path) -> None:
    found = wordnet.synsets(home)
    one, two, three = (wordnet.Episodes(found, seed=s) for s in (5, 5, 6))
    first = [list(itertools.islice(e.episode(), 40)) for e in (one, two, three)]
    assert first[0] == first[1]
    assert first[0] != first[2]


ROWS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=12), min_size=1, max_size=6)


@given(rows=ROWS, before=st.lists(st.integers(0, 4), max_size=4), order=st.integers(1, 3))
def test_chances_of_all_tokens_add_up_to_one(rows: list[list[int]], before: list[int], order: int) -> None:
    grams = ngrams.NGrams(3, 5).learn(rows)
    chances = [math.exp(-grams.nats(token, before, order)) for token in range(5)]
    assert sum(chances) == pytest.approx(1)


def test_a_trigram_by_hand() -> None:
    """a b a b c: after "a b" came a and c once each; after b too; D = 3/4."""
    grams = ngrams.NGrams(3, 4).learn([[0, 1, 0, 1, 2]])
    uniform = 1 / 4
    unigram = (2 - 0.75 + 0.75 * 3 * uniform) / 5
    bigram = (1 - 0.75 + 0.75 * 2 * unigram) / 2
    trigram = (1 - 0.75 + 0.75 * 2 * bigram) / 2
    for order, p in ((1, unigram), (2, bigram), (3, trigram)):
        assert math.exp(-grams.nats(0, [0, 1], order)) == pytest.approx(p)


@pytest.mark.full
def test_training_ends_with_a_model_that_opens(home: Path, tmp_path: Path) -> None:
    """A few thousand tokens: the loss falls, the files are all there, and equal seeds give equal bits."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    made = []
    for name in ("one", "two"):
        command = [sys.executable, str(EXAMPLES / "train_clue_model.py"), str(tmp_path / name), "--tokens", "32768"]
        ran = subprocess.run([*command, "--wordnet", str(home), "--layers", "1"], capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        made.append((tmp_path / name / "model.safetensors").read_bytes())
    assert made[0] == made[1]
    facts = json.loads((tmp_path / "one" / "training.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert facts["held_out_loss"] < math.log(len(tokenizer)) - 0.3, "it has not begun to learn"
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "one")
    assert tokenizer("Ant")["input_ids"][0] == tokenizer.bos_token_id == model.config.bos_token_id
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
