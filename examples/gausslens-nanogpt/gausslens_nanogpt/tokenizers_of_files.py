"""Tokenizers as gausslens wants them, of what lies beside a checkpoint: characters, tokenizer.json, or ranks of GPT-2.

A meta.pkl is a pickle, which may name any function: here it is read as numbers, texts and tables, and nothing else.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.decoders import ByteLevel as FromBytes
from tokenizers.decoders import Fuse
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, Split
from transformers import PreTrainedTokenizerFast

from gausslens import ModelError

CHARACTERS, WHOLE, RANKS = "meta.pkl", "tokenizer.json", ".tiktoken"
END = "<|endoftext|>"


def find(directory: Path) -> Path | None:
    """The file of a directory that a tokenizer is made of."""
    named = [directory / CHARACTERS, directory / WHOLE, *sorted(directory.glob(f"*{RANKS}"))]
    return next((file for file in named if file.is_file()), None)


def read(file: Path, vocabulary: int) -> Any:
    """The tokenizer that a file is of; it may have fewer tokens than the model, whose vocabulary may be rounded up."""
    try:
        made = _made(file)
    except ModelError:
        raise
    except Exception as error:  # pickle, json and tokenizers each have errors of their own
        raise ModelError(f"{file} is no tokenizer: {type(error).__name__}: {error}") from error
    if len(made) > vocabulary:
        raise ModelError(f"{file} has {len(made)} tokens, and the model {vocabulary}: it is of another model")
    return made


def _made(file: Path) -> Any:
    if file.suffix == ".pkl":
        return of_characters(_numbers(file))
    if file.suffix == RANKS:
        return of_ranks({base64.b64decode(token): int(rank) for token, rank in _lines(file)})
    found = Tokenizer.from_file(str(file))
    ends = END if found.token_to_id(END) is not None else None
    return PreTrainedTokenizerFast(tokenizer_object=found, eos_token=ends, clean_up_tokenization_spaces=False)


class Characters(PreTrainedTokenizerFast):  # type: ignore[misc]  # transformers has no types
    """Each character is a token."""

    def __call__(self, text: str, **how: Any) -> Any:
        """As of any tokenizer; characters that it does not have are refused by name."""
        unknown = sorted(set(text) - self.get_vocab().keys())
        if unknown:
            shown = " ".join(map(repr, unknown[:10]))
            raise ModelError(f"the model knows {len(self)} characters, and not {shown}: leave them out of the prompts")
        return super().__call__(text, **how)


def of_characters(numbers: Mapping[str, int]) -> Any:
    """A tokenizer of single characters."""
    made = Tokenizer(WordLevel(dict(numbers)))
    made.pre_tokenizer = Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = Fuse()
    return Characters(tokenizer_object=made, clean_up_tokenization_spaces=False)


def of_ranks(ranks: Mapping[bytes, int]) -> Any:
    """GPT-2's byte pairs of ranks, which say in what order pairs are joined; the token behind the last ends a text."""
    letters = _letters()
    names = {token: "".join(letters[byte] for byte in token) for token in ranks}
    joined = (_joined(token, ranks) for token in sorted(ranks, key=ranks.__getitem__) if len(token) > 1)
    merges = [(names[one], names[other]) for one, other in joined]
    vocabulary = {names[token]: rank for token, rank in ranks.items()} | {END: max(ranks.values()) + 1}
    made = Tokenizer(BPE(vocabulary, merges))
    made.pre_tokenizer, made.decoder = ByteLevel(add_prefix_space=False), FromBytes()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, clean_up_tokenization_spaces=False)


def _joined(token: bytes, ranks: Mapping[bytes, int]) -> tuple[bytes, bytes]:
    """The two parts that a token is joined of: what is left when its bytes are joined by all pairs before it."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        pairs = [ranks.get(one + other, len(ranks)) for one, other in pairwise(parts)]
        first = min(range(len(pairs)), key=pairs.__getitem__)
        if pairs[first] >= ranks[token]:
            raise ModelError(f"the ranks do not say of which two the token {token!r} is joined")
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return parts[0], parts[1]


def _letters() -> list[str]:
    """The letter that stands for each byte in GPT-2's vocabulary: itself where it prints, others from U+0100 on."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(0x100 + hidden.index(byte)) for byte in range(256)]


def _lines(file: Path) -> Iterator[tuple[str, str]]:
    for line in file.read_text("ascii").splitlines():
        token, _, rank = line.partition(" ")
        yield token, rank


class _Plain(pickle.Unpickler):
    """Of a pickle what needs no class and no function."""

    def find_class(self, module: str, name: str) -> Any:
        """Refused."""
        raise pickle.UnpicklingError(f"it names {module}.{name}, where only numbers and texts belong")


def _numbers(file: Path) -> dict[str, int]:
    with file.open("rb") as opened:
        held = _Plain(opened).load()
    numbers = held.get("stoi") if isinstance(held, dict) else None
    if not isinstance(numbers, dict) or not numbers:
        raise ModelError(f"{file} has no stoi: {{character: number}}")
    wrong = next((key for key in numbers if not isinstance(key, str) or len(key) != 1), None)
    if wrong is not None:
        raise ModelError(f"{file}: stoi has {json.dumps(wrong, default=repr)}, which is no character")
    if sorted(map(repr, numbers.values())) != sorted(map(repr, range(len(numbers)))):
        raise ModelError(f"{file}: the numbers of stoi are not 0 to {len(numbers) - 1}")
    return {str(key): int(number) for key, number in numbers.items()}
