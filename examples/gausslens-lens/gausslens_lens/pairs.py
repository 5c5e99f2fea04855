"""Pairs of a clean and a corrupted prompt as tokens, and what is measured on them at the last token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from gausslens import InputError, Part, Prompt, Runner, Tokens

from .parameters import Induction, Pair, PairsParameters

Metric = Literal["logit-difference", "kl"]


@dataclass(frozen=True)
class Group:
    """Pairs of one length: tokens [pair, position], the first tokens of both answers, and which pairs they are."""

    clean: np.ndarray
    corrupted: np.ndarray
    answer: np.ndarray
    wrong: np.ndarray
    numbers: tuple[int, ...]

    @property
    def length(self) -> int:
        """Tokens of each prompt."""
        return int(self.clean.shape[1])

    def chosen(self, numbers: Sequence[int]) -> Group | None:
        """Those pairs of it that are among these."""
        rows = [row for row, number in enumerate(self.numbers) if number in numbers]
        kept = tuple(self.numbers[row] for row in rows)
        return (
            Group(self.clean[rows], self.corrupted[rows], self.answer[rows], self.wrong[rows], kept) if rows else None
        )


def groups_of(parameters: PairsParameters, runner: Runner, prompts: Tokens) -> list[Group]:
    """The pairs that the parameters ask for, those of one length together."""
    if parameters.pairs or parameters.swap:
        return _grouped([_tokenised(runner, pair) for pair in _written(parameters)])
    return [_induction(parameters.induction or Induction.model_validate({}), prompts)]


def measured(metric: Metric, logits: torch.Tensor, group: Group, clean: torch.Tensor) -> torch.Tensor:
    """[pair]: logit(answer) - logit(wrong) at the last token, or -KL(clean || p) in nats.

    ``logits`` and ``clean`` (those of the clean run) are [pair, position, token].
    """
    last = logits[:, -1].double()
    if metric == "kl":
        before, now = (torch.log_softmax(each, dim=-1) for each in (clean[:, -1].double(), last))
        return -(before.exp() * (before - now)).sum(-1)
    rows = torch.arange(len(last), device=last.device)
    answer, wrong = (torch.as_tensor(each, device=last.device) for each in (group.answer, group.wrong))
    return last[rows, answer] - last[rows, wrong]


def _written(parameters: PairsParameters) -> list[Pair]:
    if parameters.swap is None:
        return list(parameters.pairs)
    text, words = parameters.swap.text, parameters.swap.words
    return [
        Pair(clean=text.replace("{}", a), corrupted=text.replace("{}", b), answer=words[a], wrong=words[b])
        for a in words
        for b in words
        if words[a] != words[b]
    ]


def _tokenised(runner: Runner, pair: Pair) -> tuple[np.ndarray, np.ndarray, int, int]:
    texts = (pair.clean, pair.corrupted, pair.clean + pair.answer, pair.corrupted + pair.wrong)
    made = runner.tokenise([Prompt((Part(text),)) for text in texts])
    # What a tokenizer puts at the end, as </s>, is not followed by an answer.
    clean, corrupted, answered, misled = (
        np.asarray(ids)[: np.flatnonzero(text)[-1] + 1] for ids, text in zip(made.ids, made.text, strict=True)
    )
    if len(clean) != len(corrupted):
        raise InputError(
            f"pairs: {pair.clean!r} has {len(clean)} tokens and {pair.corrupted!r} has {len(corrupted)}: what is "
            "patched position by position needs as many; choose other words"
        )
    return clean, corrupted, _following(clean, answered, pair.answer), _following(corrupted, misled, pair.wrong)


def _following(prompt: np.ndarray, whole: np.ndarray, answer: str) -> int:
    n = len(prompt)
    if len(whole) <= n or not np.array_equal(whole[:n], prompt):
        raise InputError(
            f"pairs: {answer!r} does not begin a token of its own behind its prompt: begin it with a space"
        )
    return int(whole[n])


def _grouped(made: Sequence[tuple[np.ndarray, np.ndarray, int, int]]) -> list[Group]:
    lengths = sorted({len(clean) for clean, *_ in made})
    groups = []
    for length in lengths:
        numbers = tuple(number for number, (clean, *_) in enumerate(made) if len(clean) == length)
        clean, corrupted, answer, wrong = zip(*(made[number] for number in numbers), strict=True)
        groups.append(Group(np.stack(clean), np.stack(corrupted), np.array(answer), np.array(wrong), numbers))
    return groups


def _induction(rule: Induction, prompts: Tokens) -> Group:
    """Clean: x_1 .. x_n x_1 .. x_(j-1), which x_j answers; corrupted: the first x_j is another, which then answers."""
    read = [(np.asarray(ids), np.asarray(text)) for ids, text in zip(prompts.ids, prompts.text, strict=True)]
    known = np.unique(np.concatenate([ids[text] for ids, text in read])) if read else np.array([], dtype=np.int64)
    if len(known) <= rule.length:
        raise InputError(
            f"induction: length {rule.length} needs {rule.length + 1} different tokens, and the prompts hold "
            f"{len(known)}: give longer prompts"
        )
    ids, text = read[0]
    before = ids[:1] if not text[0] else ids[:0]  # BOS, where the model has one
    # Not of the context, whose numbers are those of one step: attribution must have the pairs of patching.
    generator = np.random.default_rng(rule.seed)
    drawn = np.stack([generator.choice(known, rule.length + 1, replace=False) for _ in range(rule.pairs)])
    tokens, other = drawn[:, :-1], drawn[:, -1]
    place = rule.length // 2
    changed = tokens.copy()
    changed[:, place] = other
    start = np.repeat(before[None], rule.pairs, axis=0)
    clean, corrupted = (np.concatenate([start, first, tokens[:, :place]], axis=1) for first in (tokens, changed))
    return Group(clean, corrupted, tokens[:, place], other, tuple(range(rule.pairs)))
