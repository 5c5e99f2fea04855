"""Loader `weights`: a checkpoint's tensors straight from its files, one at a time. No model is built."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import ModelError, ModelInfo, ModelSpec

from .checkpoint import Checkpoint
from .facts import model_info
from .fingerprint import cached, fingerprint
from .initial import Initial
from .layout import Layout, family_of, make_layout
from .opening import located, read_config, read_tokenizer, torch_dtype
from .tokenise import tokenise

if TYPE_CHECKING:
    import torch

    from gausslens import Prompt, Tokens

_HEADED = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForPreTraining")


class CheckpointModel:
    """A model as files: config and headers at once, tensors when asked for."""

    def __init__(self, spec: ModelSpec, name: str | None = None) -> None:
        self.spec = spec
        self.name = name or (Path(spec.path).name if Path(spec.path).exists() else spec.path)
        self.config = self._config()
        self.dtype = torch_dtype(spec)
        self.checkpoint = self._checkpoint()
        self.layout = self._layout()
        self._initial: Initial | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, or None."""
        return read_tokenizer(self.spec)

    @cached_property
    def info(self) -> ModelInfo:
        """The facts, from config, headers and fingerprint."""
        dtype = str(self.dtype).removeprefix("torch.")
        return model_info(self.name, self.config, self.layout, self._fingerprint(), dtype, self.tokenizer)

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Render, tokenise once with offsets, and map parts to tokens, words and segments."""
        return tokenise(self.tokenizer, prompts, self.name)

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors of a layer, or those outside the layers."""
        if layer not in self.layout.places:
            raise ModelError(f"{self.spec.path} has no layer {layer}: it has {len(self.layout.places) - 1} layers")
        return tuple(self.layout.places[layer])

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        """One tensor, read from its file."""
        place = self.layout.places[layer][name]
        assert self.checkpoint is not None
        return self.layout.ours(place, self.checkpoint.read(place.theirs).to(self.spec.device), self.dtype)

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """A fresh draw of a tensor from the initialisation of the model's own class."""
        if self._initial is None:
            self._initial = Initial(self.config, self.model_class(), self.dtype)
        return self._initial.draw(layer, name, seed).to(self.spec.device)

    def model_class(self) -> Any:
        """The class of transformers that the checkpoint is of: with its language-model head if it has one."""
        return class_of(self.config, self.headed)

    @property
    def headed(self) -> bool:
        """Whether there is a language-model head."""
        return any(a.endswith(_HEADED) for a in getattr(self.config, "architectures", None) or ())

    def close(self) -> None:
        """Let go of what was made on the way."""
        self._initial = None

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return Path(located(self.spec)[0])

    def _config(self) -> Any:
        return read_config(self.spec)

    def _checkpoint(self) -> Checkpoint | None:
        found = Checkpoint(self.directory)
        if not found.tensors:
            raise ModelError(f"{self.spec.path}: no weights there: neither model.safetensors nor pytorch_model.bin")
        return found

    def _layout(self) -> Layout:
        assert self.checkpoint is not None
        family = family_of(self.config, self.spec.path, self.checkpoint.tensors)
        return make_layout(family, self.config, self.checkpoint.shapes, self.spec.path, self.headed)

    def _fingerprint(self) -> str:
        checkpoint = self.checkpoint
        assert checkpoint is not None

        def compute() -> str:
            names = sorted(checkpoint.tensors)
            return fingerprint(self.config.to_dict(), ((n, checkpoint.read(n)) for n in names))

        return cached(self.directory, (*checkpoint.files, self.directory / "config.json"), compute)


def class_of(config: Any, headed: bool) -> Any:
    """The class for a config, with or without a language-model head."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING

    if not headed:
        return MODEL_MAPPING[type(config)]
    masked = any(a.endswith(("ForMaskedLM", "ForPreTraining")) for a in config.architectures)
    return (MODEL_FOR_MASKED_LM_MAPPING if masked else MODEL_FOR_CAUSAL_LM_MAPPING)[type(config)]


def open_weights(spec: ModelSpec) -> CheckpointModel:
    """Open a directory for reading tensors; nothing that runs the model will serve it."""
    return CheckpointModel(spec)
