"""Prompt source `few-shot`: an instruction, example pairs of word and clue, and a word that wants one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gausslens import InputError, Part, Prompt, did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from gausslens import SourceContext

    from ..parameters import FewShotParameters

LISTS = Path(__file__).parents[1] / "words"
DEFAULT_LIST = "animals"


@dataclass(frozen=True)
class Template:
    """What stands before a word, between word and clue, and after the clue."""

    before: str
    between: str
    after: str

    @property
    def colon(self) -> str:
        """What follows a word whose clue is not given: without the space that a model writes itself."""
        return self.between.rstrip()

    @property
    def gap(self) -> str:
        """The white space between that and the clue."""
        return self.between[len(self.colon) :]


def few_shot(parameters: FewShotParameters, context: SourceContext) -> list[Prompt]:
    """One prompt for each target: examples drawn by the seed, never the target itself."""
    import numpy as np

    template = few_shot_template(parameters.template)
    pairs = _pairs(parameters.words, parameters.clues, context.directory)
    examples = pairs if parameters.examples is None else word_list(parameters.examples, context.directory)
    chat = _is_chat(parameters.chat, context)
    prompts = []
    for number, target in enumerate(parameters.targets or list(pairs)):
        clue = _clue(target, pairs) if parameters.answers else None
        generator = np.random.default_rng([context.seed, number])
        shown = _drawn(examples, target, parameters.shots, generator)
        parts = (
            _chat(parameters.instruction, shown, target, clue)
            if chat
            else _plain(template, parameters.instruction, shown, target, clue)
        )
        prompts.append(Prompt(tuple(p for p in parts if p.text), name=target))
    return prompts


def word_list_names() -> list[str]:
    """The names of the word lists of this package."""
    return sorted(path.stem for path in LISTS.glob("*.yaml"))


def word_list(name: str, directory: Path) -> dict[str, str]:
    """A word list of the package by its name, or a YAML file of ``word: clue`` lines."""
    import yaml

    path = directory / name if name.endswith((".yaml", ".yml")) else LISTS / f"{name}.yaml"
    if path.parent == LISTS and name not in word_list_names():
        near = did_you_mean(name, word_list_names())
        raise InputError(f"no word list {name!r}{near}; a list of your own is a .yaml file")
    try:
        found = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {error}") from error
    if not isinstance(found, dict) or not found:
        raise InputError(f"{path}: lines of `word: clue` are wanted")
    for word, clue in found.items():
        if not isinstance(word, str) or not isinstance(clue, str) or not word.strip() or not clue.strip():
            raise InputError(f"{path}: {word!r}: {clue!r} is not a word and its clue as text; put them in quotes")
    return found


def few_shot_template(text: str) -> Template:
    """A template cut at its two places."""
    before, word, rest = text.partition("{word}")
    between, clue, after = rest.partition("{clue}")
    if not word or not clue or "{word}" in between + after or "{clue}" in before + after:
        raise InputError(f"template: {text!r} must hold {{word}} once and, after it, {{clue}} once")
    if not between.strip():
        raise InputError(f"template: {text!r} needs a mark between {{word}} and {{clue}}, such as ': '")
    return Template(before, between, after)


def _pairs(name: str | None, own: Mapping[str, str], directory: Path) -> dict[str, str]:
    if name is None and own:
        return dict(own)
    return word_list(name or DEFAULT_LIST, directory) | dict(own)


def _is_chat(choice: str, context: SourceContext) -> bool:
    has = bool(context.facts.get("chat_template"))
    if choice == "yes" and not has:
        raise InputError("chat: yes, but the model's tokenizer has no chat template; leave `chat` out")
    return has and choice != "no"


def _clue(target: str, pairs: Mapping[str, str]) -> str:
    by_folded = {word.casefold(): clue for word, clue in pairs.items()}
    if target.casefold() not in by_folded:
        raise InputError(f"answers: there is no clue for the target {target!r}{did_you_mean(target, pairs)}")
    return by_folded[target.casefold()]


def _drawn(
    examples: Mapping[str, str], target: str, shots: int, generator: np.random.Generator
) -> list[tuple[str, str]]:
    others = [pair for pair in examples.items() if pair[0].casefold() != target.casefold()]
    if shots > len(others):
        raise InputError(f"shots: {shots}, but there are only {len(others)} examples beside the target {target!r}")
    return [others[i] for i in generator.permutation(len(others))[:shots]]


def _plain(
    template: Template, instruction: str, shown: Sequence[tuple[str, str]], target: str, clue: str | None
) -> list[Part]:
    parts = [Part(f"{instruction}\n" if instruction else "", "instruction")]
    for number, (word, its_clue) in enumerate(shown):
        of_word, of_clue = f"example.{number}.word", f"example.{number}.clue"
        parts += [Part(template.before, of_word), Part(word, of_word, word), Part(template.colon, of_word)]
        parts += [Part(template.gap + its_clue + template.after, of_clue)]
    parts += [Part(template.before, "target"), Part(target, "target", target), Part(template.colon, "target")]
    return [*parts, Part("" if clue is None else template.gap + clue + template.after, "answer")]


def _chat(instruction: str, shown: Sequence[tuple[str, str]], target: str, clue: str | None) -> list[Part]:
    """Each word is asked for by the user and its clue given by the assistant: the template has no place here."""
    parts = [Part(instruction, "instruction", role="system")]
    for number, (word, its_clue) in enumerate(shown):
        parts.append(Part(word, f"example.{number}.word", word, role="user"))
        parts.append(Part(its_clue, f"example.{number}.clue", role="assistant"))
    parts.append(Part(target, "target", target, role="user"))
    return [*parts, Part(clue or "", "answer", role="assistant")]
