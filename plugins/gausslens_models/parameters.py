"""Parameters of the loaders, prompt sources and analyses of this plugin."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from gausslens import Files, Parameters

BASE = (
    "the model that an adapter is for: a directory, or builtin:NAME or hub:OWNER/NAME; by default what its config names"
)


class BridgeParameters(Parameters):
    """Keys of `model:` for the loader that builds a model with transformers for TransformerLens."""

    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model: only if you trust it"
    )
    device_map: str | None = Field(None, description="spread the model over devices: auto, balanced or sequential")
    gguf_file: str | None = Field(None, description="the GGUF file in the directory, which transformers dequantises")


class TransformersParameters(BridgeParameters):
    """Keys of `model:` for the loader that builds a model with transformers."""

    base: Annotated[str | None, Files()] = Field(None, description=BASE)


class WeightsParameters(Parameters):
    """Keys of `model:` for the loader that reads weights without building a model."""

    base: Annotated[str | None, Files()] = Field(None, description=BASE)


class LoraParameters(Parameters):
    """A LoRA adapter that is merged into the model."""

    path: Annotated[str, Files("adapter_config.json", "adapter_model.*")] = Field(
        description="the directory of the adapter, relative to the run file"
    )


class BuiltinParameters(Parameters):
    """Keys of `model:` for built-in models: there are none."""


class TextParameters(Parameters):
    """Prompts written in the run file."""

    text: list[str] = Field(description="one prompt each", min_length=1)
    role: Literal["", "system", "user", "assistant"] = Field(
        "", description="send each as a chat message of this role, through the model's chat template"
    )


class FileParameters(Parameters):
    """Prompts from a file of lines (.txt), of JSON objects (.jsonl, .json) or of columns (.csv, .tsv)."""

    path: str = Field(description="the file, relative to the run file")
    field: str = Field("text", description="which key or column holds the text (.jsonl, .json, .csv, .tsv)")
    chunk: int | None = Field(
        None, ge=2, description="join all texts and cut them into prompts of this many tokens, special ones included"
    )
    max_tokens: int | None = Field(
        None, ge=1, description="keep this many tokens: of each prompt, or with `chunk` of the whole file"
    )
    limit: int | None = Field(None, ge=1, description="take this many texts from the start of the file")


class TokensParameters(Parameters):
    """Prompts as token numbers, passed to the model as they are: add BOS yourself if the model wants it."""

    ids: list[list[int]] = Field(description="one list of token numbers for each prompt", min_length=1)


class RepeatedRandomParameters(Parameters):
    """Uniformly random tokens, then the same again: what induction heads are found by."""

    prompts: int = Field(8, ge=1, description="how many prompts")
    length: int = Field(32, ge=1, description="tokens before they repeat")
    repeats: int = Field(2, ge=1, description="how often the tokens stand in the prompt")


class FewShotParameters(Parameters):
    """An instruction, example pairs of word and clue, and a target: a word that the model is to give a clue."""

    words: str | None = Field(
        None,
        description="a word list: animals, food, professions or tools, or a .yaml file of `word: clue` lines, relative "
        "to the run file; animals where there are no `clues`",
    )
    clues: dict[str, str] = Field({}, description="pairs of your own, word: clue; where a list is named, added to it")
    examples: str | None = Field(None, description="take the examples from this list instead (named as `words` is)")
    shots: int = Field(3, ge=0, description="how many examples stand before the target; the seed draws them")
    targets: list[str] = Field([], description="words to ask for, one prompt each; without any, all words of the list")
    answers: bool = Field(False, description="the target's own clue follows it, as segment `answer`: to measure loss")
    instruction: str = Field("Write a short clue for each word.", description="what stands first; may be empty")
    template: str = Field(
        "{word}: {clue}\n", description="how a pair is written; the target ends after what follows {word}"
    )
    chat: Literal["auto", "yes", "no"] = Field(
        "auto", description="as chat messages, user and assistant in turn; auto: where the model has a chat template"
    )


class CaptureParameters(Parameters):
    """Raw activations into the store."""

    sites: list[str] = Field(description="which sites", min_length=1)
    dtype: Literal["float32", "float64", "float16", "bfloat16"] | None = Field(
        None,
        description="as what numbers are kept; the 2-byte types take half the disk (float16: 3 digits up to 65504, "
        "bfloat16: 2 digits and no limit); by default float32, or float64 where the model computes in it",
    )
    most_gigabytes: float = Field(4.0, gt=0, description="refuse to write more than this")

    @field_validator("sites")
    @classmethod
    def _once(cls, value: list[str]) -> list[str]:
        twice = [site for site in value if value.count(site) > 1]
        if twice:
            raise ValueError(f"{twice[0]} is named twice")
        return value


class LossParameters(Parameters):
    """How well the model predicts each token of the prompts."""

    segments: list[str] = Field(
        [], description="count only tokens of these segments, with * as wildcard: [answer, example.*.clue]; [] is all"
    )


class GenerateParameters(Parameters):
    """What the model writes after each prompt."""

    tokens: int = Field(24, ge=1, description="the most tokens to write")
    stop: str = Field("\n", description="stop before this text; empty: only at the end-of-text token")
    temperature: float = Field(0.0, ge=0, description="0: always the likeliest token; else sampled, by the seed")
    samples: int = Field(1, ge=1, description="how many continuations of each prompt")


class AttentionMapParameters(Parameters):
    """Where the heads look, as maps between tokens or words and in numbers by head."""

    level: Literal["token", "word"] = Field(
        "token", description="word: attention to the tokens of a word is summed, from them averaged; rows sum to 1"
    )
    maps: Literal["mean", "heads", "none"] = Field(
        "mean", description="keep maps averaged over heads, of each head, or only the numbers by head"
    )
    queries: list[str] = Field([], description="rows of these segments only, with * as wildcard: [target]; [] is all")
    keys: list[str] = Field([], description="columns of the maps from these segments only; [] is all")
    most_gigabytes: float = Field(
        4.0, gt=0, exclude=True, description="refuse to keep more maps than this; no result depends on it"
    )


class EmbeddingsParameters(Parameters):
    """The embedding of the vocabulary, and the neighbours there of the tokens of the prompts."""

    nearest: int = Field(8, ge=1, description="how many nearest tokens")
    draws: int = Field(64, ge=2, description="random vectors of the same length to compare softmax entropies with")
