"""What a run file may choose."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gausslens import Files, Parameters


class NanoGPT(Parameters):
    """Keys of `model:` for checkpoints of nanoGPT."""

    tokenizer: Annotated[str | None, Files("meta.pkl", "tokenizer.json", "*.tiktoken")] = Field(
        None,
        description="meta.pkl, tokenizer.json, a .tiktoken file, or a directory with one; by default what lies beside "
        "the checkpoint, or in data/DATASET beside its directory",
    )
    gelu: Literal["exact", "tanh"] = Field(
        "exact", description="tanh: the approximation, in which nanoGPT computed until June 2023"
    )
