"""Prompts as one text, plain or through a chat template, and where their parts lie in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gausslens import ModelError

if TYPE_CHECKING:
    from gausslens import Part


@dataclass(frozen=True)
class Stretch:
    """Characters of the rendered text that came from one part."""

    start: int
    end: int
    segment: str
    word: str | None


Message = tuple[str, list["Part"]]


def render(tokenizer: Any, parts: Sequence[Part], model: str) -> tuple[str, list[Stretch], bool]:
    """The text, where its parts lie in it, and whether it went through the chat template."""
    if not any(p.role for p in parts):
        return "".join(p.text for p in parts), _side_by_side(parts, 0), False
    if any(not p.role for p in parts):
        raise ModelError("a prompt mixes chat messages with plain text: give every part a role, or none")
    if not getattr(tokenizer, "chat_template", None):
        raise ModelError(f"{model} has no chat template: leave the roles out of the prompts")
    messages: list[Message] = []
    for part in parts:
        if not messages or messages[-1][0] != part.role:
            messages.append((str(part.role), []))
        messages[-1][1].append(part)
    contents = ["".join(p.text for p in own) for _, own in messages]
    # Marks of the private use area stand in for the contents, to find where the template puts each of them.
    marks = [f"\ue000{i}\ue001" for i in range(len(messages))]
    text = _chat(tokenizer, messages, contents, model)
    frame = _split_at(_chat(tokenizer, messages, marks, model), marks)
    stretches: list[Stretch] = []
    cursor = len(frame[0]) if frame else 0
    for i, (_, own) in enumerate(messages):
        said = _said(text, cursor, contents[i], frame[i + 1]) if frame else None
        if said is None:
            raise ModelError(
                f"{model}: its chat template changes the text of message {i + 1} ({messages[i][0]}): "
                f"words cannot be traced. Write the prompt as plain text (few-shot: `chat: no`)"
            )
        lead = contents[i].index(said)
        clipped = _side_by_side(own, cursor - lead)
        stretches += [
            Stretch(max(s.start, cursor), max(min(s.end, cursor + len(said)), cursor), s.segment, s.word)
            for s in clipped
        ]
        cursor += len(said) + len(frame[i + 1])
    return text, stretches, True


def _side_by_side(parts: Sequence[Part], start: int) -> list[Stretch]:
    stretches = []
    for part in parts:
        stretches.append(Stretch(start, start + len(part.text), part.segment, part.word))
        start += len(part.text)
    return stretches


def _chat(tokenizer: Any, messages: Sequence[Message], contents: Sequence[str], model: str) -> str:
    said = [{"role": role, "content": content} for (role, _), content in zip(messages, contents, strict=True)]
    asks = messages[-1][0] == "user"
    try:
        return str(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=asks))
    except Exception as error:
        raise ModelError(f"{model}: its chat template refuses these messages: {error}") from error


def _split_at(text: str, marks: Sequence[str]) -> list[str]:
    """What stands before, between and after the marks; empty where one is not there exactly once, in order."""
    pieces = []
    for mark in marks:
        before, found, text = text.partition(mark)
        if not found or mark in text:
            return []
        pieces.append(before)
    return [*pieces, text]


def _said(text: str, start: int, content: str, after: str) -> str | None:
    """What a template made of a content: the same, or without the white space around it."""
    for said in (content, content.strip(), content.lstrip(), content.rstrip()):
        if text.startswith(said + after, start):
            return said
    return None
