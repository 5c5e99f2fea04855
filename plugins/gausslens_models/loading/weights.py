"""Loader `weights`: a checkpoint's tensors straight from its files, one at a time. No model is loaded."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gausslens import ModelError, ModelInfo, ModelSpec

from ..families.facts import model_info
from ..families.layout import Layout, families_of, make_layout
from ..families.stored_names import as_in_module
from ..maths.latent_products import product
from ..prompts.pairs import PairReader
from ..prompts.tokenise import tokenise
from .adapter import Adapter, adapter_of
from .checkpoint import Checkpoint, refuse_no_weights, refuse_not_finite
from .config_and_tokenizer import (
    digest_of_tokenizer,
    notes_of,
    read_config,
    read_tokenizer,
    torch_dtype,
    where_pretrained,
)
from .fingerprint import cached, fingerprint, of_stack
from .skeleton import Initial, held_against, skeleton_of
from .text_stack import TextStack, text_stack_of

if TYPE_CHECKING:
    import torch

    from gausslens import Prompt, Tokens

    from ..families.slots import Family

_HEADED = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "BertGenerationDecoder", "ForConditionalGeneration", "MTModel")
# The class of an encoder that was saved without its decoder.
_ENCODER_ALONE = "EncoderModel"


class CheckpointModel:
    """A model as files: config and headers at once, tensors when asked for."""

    def __init__(self, spec: ModelSpec, name: str | None = None, adapter: Adapter | None = None) -> None:
        self.spec = spec
        self.stack: str | None = getattr(spec.parameters, "stack", None)
        self.adapter = adapter
        named = adapter.directory.name if adapter is not None else name
        self.name = named or (Path(spec.path).name if Path(spec.path).exists() else spec.path)
        self.config = self._config()
        self.dtype = torch_dtype(spec)
        self.checkpoint = self._checkpoint()
        self.text = self._text_stack()
        if self.text is not None:
            self.config, self.checkpoint = self.text.config, self.text.checkpoint
        self.families: tuple[Family, ...] = ()
        with self._told_of_text_stack():
            self.layout = self._layout()
        self.changes = {} if adapter is None else adapter.placed(self.layout, self.spec.path)
        self._initial: Initial | None = None

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, or None; an adapter's own, where it comes with one."""
        own = self.adapter.directory if self.adapter is not None else None
        if own is not None and (own / "tokenizer_config.json").is_file():
            return read_tokenizer(replace(self.spec, path=str(own)))
        return read_tokenizer(self.spec)

    @cached_property
    def tokenizer_digest(self) -> str | None:
        """What the tokenizer is; None where there is none."""
        return None if self.tokenizer is None else digest_of_tokenizer(self.tokenizer)

    @cached_property
    def info(self) -> ModelInfo:
        """The facts, from config, headers and fingerprint."""
        dtype = str(self.dtype).removeprefix("torch.")
        parts = (self.name, self.config, self.layout, self._fingerprint(), dtype)
        return model_info(*parts, self.tokenizer, self.told())

    def told(self) -> tuple[str, ...]:
        """What this loader has to tell of the model beside its facts."""
        text = [] if self.text is None else [self.text.note]
        return (*notes_of(self.spec), *text, *([self.adapter.described] if self.adapter is not None else []))

    def tokenise(self, prompts: Sequence[Prompt]) -> Tokens:
        """Render, tokenise once with offsets, and map parts to tokens, words and segments."""
        if self.stack is None:
            tokens = tokenise(self.tokenizer, prompts, self.name)
            if self.text is not None:
                self.text.refuse_placeholders(tokens, self.name)
            return tokens
        reader = PairReader(self.name, self.stack, self.layout.family.start, self._start(), self.info.max_positions)
        return reader.tokens(self.tokenizer, prompts)

    def _start(self) -> int | None:
        """The token that targets begin with, where the model says one."""
        told = getattr(self.config, "decoder_start_token_id", None)
        return None if told is None else int(told)

    def names(self, layer: int | None) -> tuple[str, ...]:
        """The tensors of a layer, or those outside the layers."""
        if layer not in self.layout.places:
            raise ModelError(f"{self.spec.path} has no layer {layer}: it has {len(self.layout.places) - 1} layers")
        return self.layout.names(layer)

    def product(self, layer: int | None, name: str, edited: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """A tensor that is a product of others, some of which may be edited."""
        factors = self.layout.products(layer)[name]
        return product([edited[f] if f in edited else self.tensor(layer, f) for f in factors])

    def tensor(self, layer: int | None, name: str) -> torch.Tensor:
        """One tensor, read from its file."""
        if name in self.layout.products(layer):
            return self.product(layer, name, {})
        place = self.layout.places[layer][name]
        theirs = self._stored(place.theirs).to(self.spec.device)
        refuse_not_finite(self.spec.path, [(place.theirs, theirs)])
        if self.adapter is not None and place.theirs in self.changes:
            theirs = self.adapter.changed(self.changes[place.theirs], theirs.to(self.dtype), place)
        return self.layout.ours(place, theirs, self.dtype)

    def waves(self) -> torch.Tensor | None:
        """The table [position, d_model] of positions that are waves, where the checkpoint has it: as that rounds it."""
        name = self.layout.table_of_waves
        return None if name is None else self._stored(name)

    def initial(self, layer: int | None, name: str, seed: int) -> torch.Tensor:
        """A fresh draw of a tensor from the initialisation of the model's own class."""
        if self._initial is None:
            self._initial = Initial(self.config, self.model_class(), self.dtype, self.layout.family)
        factors = self.layout.products(layer).get(name)
        if factors is not None:
            return product([self.initial(layer, factor, seed) for factor in factors])
        return self._initial.draw(layer, name, seed).to(self.spec.device)

    def model_class(self) -> Any:
        """The class of transformers that the checkpoint is of: with its language-model head if it has one."""
        return class_of(self.config, self.headed)

    @property
    def headed(self) -> bool:
        """Whether there is a language-model head that the studied stack goes through."""
        return self.stack != "encoder" and any(_has_head(a) for a in getattr(self.config, "architectures", None) or ())

    def close(self) -> None:
        """Let go of what was made on the way."""
        self._initial = None

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return Path(where_pretrained(self.spec)[0])

    def _config(self) -> Any:
        return read_config(self.spec)

    def _checkpoint(self) -> Checkpoint | None:
        found = Checkpoint(self.directory, getattr(self.config, "transformers_weights", None))
        if not found.tensors:
            refuse_no_weights(self.directory)
        return found

    def _text_stack(self) -> TextStack | None:
        return None if self.checkpoint is None else text_stack_of(self.config, self.checkpoint, self.spec.path)

    @contextlib.contextmanager
    def _told_of_text_stack(self) -> Iterator[None]:
        """What is wrong with a text stack is told by the names that it has alone: where they stand in the files."""
        try:
            yield
        except ModelError as error:
            if self.text is None:
                raise
            raise ModelError(f"{error} ({self.text.where})") from error

    def _layout(self) -> Layout:
        assert self.checkpoint is not None
        shapes, stored = as_in_module(self.checkpoint.shapes, self.config, self.spec.path)
        self.families = families_of(self.config, self.spec.path, shapes, self.headed, stored, self.stack)
        layout = make_layout(self.families[0], self.config, shapes, self.spec.path, self.headed, stored)
        self.checkpoint.refuse_integers(layout.in_files)
        return layout if layout.family.read_as else self._held_against_class(layout)

    def _held_against_class(self, layout: Layout) -> Layout:
        """Its tensors must be those of the model that the config says, by names and shapes."""
        try:
            model_class = self.model_class()
        except KeyError:  # code of its own, of which transformers has no class
            return layout
        return held_against(layout, skeleton_of(model_class, self.config, self.spec.path), self.config, self.spec.path)

    def _stored(self, name: str) -> torch.Tensor:
        """A tensor of the module from the file: one tensor, or one for each expert."""
        assert self.checkpoint is not None
        stored = self.layout.stored.get(name)
        if stored is None:
            return self.checkpoint.read(name)
        return stored.joined([self.checkpoint.read(part) for part in stored.names])

    def _fingerprint(self) -> str:
        checkpoint = self.checkpoint
        assert checkpoint is not None

        def compute() -> str:
            names = sorted(checkpoint.tensors)
            return fingerprint(self.config.to_dict(), ((n, checkpoint.read(n)) for n in names))

        found = cached(self.directory, (*checkpoint.files, self.directory / "config.json"), compute)
        found = of_stack(found, self.stack)
        return found if self.adapter is None else sha256(f"{found} {self.adapter.fingerprint}".encode()).hexdigest()


def _has_head(architecture: str) -> bool:
    """Whether a class has a language-model head; one for pre-training has none where nothing is tied (ELECTRA)."""
    import transformers

    if not architecture.endswith("ForPreTraining"):
        return architecture.endswith(_HEADED)
    return bool(getattr(getattr(transformers, architecture, None), "_tied_weights_keys", None))


def class_of(config: Any, headed: bool) -> Any:
    """The class for a config, with or without a language-model head."""
    import transformers
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, MODEL_MAPPING

    alone = next((a for a in getattr(config, "architectures", None) or () if a.endswith(_ENCODER_ALONE)), None)
    if alone is not None and hasattr(transformers, alone):
        return getattr(transformers, alone)
    if headed and getattr(config, "is_encoder_decoder", False):
        return transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(config)]
    if not headed:
        return MODEL_MAPPING[type(config)]
    masked = any(a.endswith(("ForMaskedLM", "ForPreTraining")) for a in config.architectures)
    return (MODEL_FOR_MASKED_LM_MAPPING if masked else MODEL_FOR_CAUSAL_LM_MAPPING)[type(config)]


def open_weights(spec: ModelSpec) -> CheckpointModel:
    """Open a directory for reading tensors; nothing that runs the model will serve it."""
    base, adapter = adapter_of(spec)
    model = CheckpointModel(base, adapter=adapter)
    if model.layout.family.read_as:
        raise ModelError(
            f"{spec.path}: no table names the model type {model.config.model_type!r}; its tensors are laid out as in "
            f"{model.layout.family.read_as}, which nothing proves without running it: use `loader: transformers`, "
            "which does"
        )
    return model
