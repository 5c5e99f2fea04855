"""Parameters of the loaders, prompt sources and analyses of this plugin."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gausslens import Parameters


class TransformersParameters(Parameters):
    """Keys of `model:` for the loaders that build a model with transformers."""

    trust_remote_code: bool = Field(
        False, description="run Python code that comes with the model: only if you trust it"
    )
    device_map: str | None = Field(None, description="spread the model over devices: auto, balanced or sequential")
    gguf_file: str | None = Field(None, description="the GGUF file in the directory, which transformers dequantises")


class WeightsParameters(Parameters):
    """Keys of `model:` for the loader that reads weights without building a model: there are none."""


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


class CaptureParameters(Parameters):
    """Raw activations into the store."""

    sites: list[str] = Field(description="which sites", min_length=1)
    most_gigabytes: float = Field(4.0, gt=0, description="refuse to write more than this")
