"""What small models are trained on: windows of a text, pairs, or sums; each batch follows from seed and step alone.

So a training that goes on after it was killed sees what it would have seen. Without a file texts and pairs are made of
the words and clues that come with gausslens: the text is their lines; the pairs are their words, and what a rule makes
of each. Sums are of numbers below a modulus: "12 34 = 46"; a share of all of them is learned, the others are the test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

Batch = dict[str, torch.Tensor]
VOWELS = "aeiouy"
IGNORED = -100  # a label that transformers leaves out


def seed_of(*what: object) -> int:
    """A seed that follows from what it is for: equal in every process, of neighbours unlike."""
    return int.from_bytes(sha256(repr(what).encode()).digest()[:7])


def reversal(words: str) -> str:
    """Its letters from the last to the first."""
    return words[::-1]


def pig_latin(words: str) -> str:
    """Each word with the consonants that it begins with at its end, and "ay" behind them."""

    def turned(word: str) -> str:
        first = next((n for n, letter in enumerate(word) if letter in VOWELS and (n or letter != "y")), 0)
        return f"{word[first:]}{word[:first]}ay"

    return " ".join(map(turned, words.split(" ")))


RULES: dict[str, Callable[[str], str]] = {"reversal": reversal, "pig-latin": pig_latin}


def built_in_lines() -> list[str]:
    """The words that come with gausslens, each with its clue: "Ant: works all summer in a crowded nest"."""
    lists = sorted((entry for entry in files("gausslens_models").joinpath("words").iterdir()), key=lambda e: e.name)
    return [line for entry in lists for line in entry.read_text(encoding="utf-8").splitlines() if ": " in line]


def built_in_pairs(rule: str) -> list[tuple[str, str]]:
    """Each word of these lines, and each two that follow one another, with what the rule makes of them."""
    found: dict[str, None] = {}
    for line in built_in_lines():
        words = re.findall(r"[a-z]+", line.lower())
        found |= dict.fromkeys(words) | {f"{a} {b}": None for a, b in pairwise(words)}
    return [(source, RULES[rule](source)) for source in found]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """A file with one pair in each line, source and target with a tab between them."""
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        if line.strip():
            source, tab, target = line.partition("\t")
            if not (tab and source.strip() and target.strip()):
                raise ValueError(f"{path}:{number}: a pair is a source, a tab and a target")
            found.append((source, target))
    if not found:
        raise ValueError(f"{path}: holds no pairs")
    return found


@dataclass(frozen=True)
class TextWindows:
    """Windows of a text at random places, each behind the token that begins every text, where there is one."""

    ids: torch.Tensor
    first: int | None
    length: int
    rows: int
    seed: int

    @classmethod
    def of(cls, text: str, tokenizer: Any, length: int, rows: int, seed: int) -> TextWindows:
        """Of a text as the tokens of a tokenizer."""
        ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
        if len(ids) < length:
            raise ValueError(f"the text has {len(ids)} tokens, fewer than a window of {length}: lower --length")
        return cls(ids, tokenizer.bos_token_id, length, rows, seed)

    def batch(self, step: int) -> Batch:
        """What step number ``step`` learns from."""
        draw = torch.Generator().manual_seed(seed_of(self.seed, step))
        body = self.length if self.first is None else self.length - 1
        starts = torch.randint(0, len(self.ids) - body + 1, (self.rows,), generator=draw)
        ids = self.ids[starts[:, None] + torch.arange(body)]
        if self.first is not None:
            ids = torch.cat([torch.full((self.rows, 1), self.first), ids], dim=1)
        return {"input_ids": ids, "labels": ids}


@dataclass(frozen=True)
class PairRows:
    """Pairs drawn at random: what an encoder reads, and what a decoder is to write."""

    sources: Sequence[Sequence[int]]
    targets: Sequence[Sequence[int]]
    padding: int
    rows: int
    seed: int

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]], tokenizer: Any, length: int, rows: int, seed: int) -> PairRows:
        """Of pairs as the tokens of a tokenizer; those longer than ``length`` are left out."""
        sides = [tokenizer([pair[n] for pair in pairs])["input_ids"] for n in (0, 1)]
        kept = [n for n in range(len(pairs)) if max(len(side[n]) for side in sides) <= length]
        if not kept:
            raise ValueError(f"no pair has at most {length} tokens on each side: raise --length")
        return cls(*([side[n] for n in kept] for side in sides), tokenizer.pad_token_id, rows, seed)

    def batch(self, step: int) -> Batch:
        """What step number ``step`` learns from."""
        draw = torch.Generator().manual_seed(seed_of(self.seed, step))
        chosen = torch.randint(0, len(self.sources), (self.rows,), generator=draw).tolist()
        ids = _filled([self.sources[n] for n in chosen], self.padding)
        mask = _filled([[1] * len(self.sources[n]) for n in chosen], 0)
        labels = _filled([self.targets[n] for n in chosen], IGNORED)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def number_tokenizer(modulus: int) -> PreTrainedTokenizerFast:
    """One token for each number below the modulus, which is its number, one for "=", and one for all else."""
    vocabulary = {word: number for number, word in enumerate([*map(str, range(modulus)), "=", "?"])}
    words_alone = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="?"))  # noqa: S106 - a token of text
    words_alone.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words_alone, unk_token="?")  # noqa: S106


def split_sums(modulus: int, share: float) -> tuple[torch.Tensor, torch.Tensor]:
    """All (a, b) below the modulus, drawn apart into those to learn and those to test: equal in every training."""
    pairs = torch.cartesian_prod(torch.arange(modulus), torch.arange(modulus))
    draw = torch.Generator().manual_seed(seed_of("sums", modulus))
    pairs = pairs[torch.randperm(len(pairs), generator=draw)]
    learned = round(share * len(pairs))
    if not 0 < learned < len(pairs):
        raise ValueError(f"of {len(pairs)} sums {learned} would be learned: some must be, and some must be left")
    return pairs[:learned], pairs[learned:]


def as_sums(pairs: torch.Tensor, modulus: int) -> torch.Tensor:
    """Pairs as tokens: a, b, =, a + b."""
    return torch.cat([pairs, torch.full((len(pairs), 1), modulus), pairs.sum(1, keepdim=True) % modulus], dim=1)


@dataclass(frozen=True)
class Sums:
    """Sums modulo a number; of each the last token alone is learned."""

    ids: torch.Tensor
    rows: int
    seed: int

    @classmethod
    def of(cls, modulus: int, share: float, rows: int, seed: int) -> Sums:
        """The share of all sums that is learned."""
        return cls(as_sums(split_sums(modulus, share)[0], modulus), rows, seed)

    def batch(self, step: int) -> Batch:
        """What step number ``step`` learns from."""
        draw = torch.Generator().manual_seed(seed_of(self.seed, step))
        ids = self.ids[torch.randint(0, len(self.ids), (self.rows,), generator=draw)]
        labels = ids.clone()
        labels[:, :-1] = IGNORED
        return {"input_ids": ids, "labels": labels}


def _filled(rows: Sequence[Sequence[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows])
