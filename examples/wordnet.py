"""Words and definitions of WordNet, and the few-shot episodes that are made of them.

Needs the files of Debian's package wordnet-base (or WordNet 3.0 itself): data.noun, data.verb, data.adj, data.adv.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

HOME = Path("/usr/share/wordnet")
INSTRUCTION = "Write a short clue for each word.\n"
FILES = {"noun": "n", "verb": "v", "adj": "a", "adv": "r"}
LONGEST = 160  # characters of a definition; longer ones (one in a thousand) are left out
HELD_OUT = 25  # one synset in so many is never trained on
_NUMBER_OF_FILES = 45


@dataclass(frozen=True)
class Synset:
    """A meaning: the words that have it, its definition, and the number of its lexicographer file (05: animals)."""

    words: tuple[str, ...]
    definition: str
    file: int
    held_out: bool


@dataclass(frozen=True)
class Entry:
    """One line of an episode."""

    word: str
    definition: str
    file: int


def synsets(home: Path = HOME) -> list[Synset]:
    """All synsets with a usable definition; one in 25, by hash, is held out."""
    if not (home / "data.noun").is_file():
        raise SystemExit(f"{home} holds no WordNet: install Debian's wordnet-base, or give --wordnet DIRECTORY")
    found = [s for name, letter in FILES.items() for s in _read(home / f"data.{name}", letter)]
    trained = {s.definition for s in found if not s.held_out}
    return [s for s in found if not (s.held_out and s.definition in trained)]


def _read(path: Path, letter: str) -> Iterator[Synset]:
    with path.open(encoding="utf-8") as stream:
        for line in stream:
            if line.startswith("  "):  # the licence
                continue
            data, _, gloss = line.partition(" | ")
            fields = data.split(" ")
            count = int(fields[3], 16)
            words = [re.sub(r"\(\w+\)$", "", w).replace("_", " ") for w in fields[4 : 4 + 2 * count : 2]]
            definition = _definition(gloss)
            if 0 < len(definition) <= LONGEST:
                mark = int(sha256(f"{letter}{fields[0]}".encode()).hexdigest()[:8], 16)
                yield Synset(tuple(dict.fromkeys(words)), definition, int(fields[1]), mark % HELD_OUT == 0)


def _definition(gloss: str) -> str:
    """The first clause of a gloss, without the sentences that show its use."""
    clause = gloss.partition('"')[0].partition(";")[0]
    return clause.replace("`", "'").strip(" ;:,\n")


def by_file(chosen: Sequence[Synset]) -> list[list[Synset]]:
    """The synsets of each lexicographer file."""
    files: list[list[Synset]] = [[] for _ in range(_NUMBER_OF_FILES)]
    for synset in chosen:
        files[synset.file].append(synset)
    return files


class Episodes:
    """Endless entries of one episode after another.

    The synsets of an episode come from one lexicographer file, drawn in proportion to its size; in one episode of
    eight (``mixed``) each comes from any. One entry in five (``repeated``) is an earlier one again, which rewards heads
    that look back for the same word. In half of the episodes all words are capitalised.
    """

    def __init__(self, chosen: Sequence[Synset], seed: int, mixed: float = 0.125, repeated: float = 0.2) -> None:
        self.all = list(chosen)
        self.files = by_file(chosen)
        self.random = random.Random(seed)  # noqa: S311
        self.mixed = mixed
        self.repeated = repeated

    def episode(self) -> Iterator[Entry]:
        """Entries without end."""
        draw = self.random
        pool = self.all if draw.random() < self.mixed else self.files[draw.choice(self.all).file]
        capital = draw.random() < 0.5
        said: list[Entry] = []
        while True:
            if said and draw.random() < self.repeated:
                yield draw.choice(said)
                continue
            synset = draw.choice(pool)
            word = draw.choice(synset.words)
            said.append(Entry(capitalised(word) if capital else word, synset.definition, synset.file))
            yield said[-1]


def capitalised(word: str) -> str:
    """The word with a capital first letter, the others as they are."""
    return word[:1].upper() + word[1:]
