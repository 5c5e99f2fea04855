"""Writing a twin as a checkpoint that plain transformers opens, proved by opening it again.

The module writes itself while the twin's tensors are in it, so that files look as transformers has them: experts apart,
tied tensors once. A tied tensor that the twin edits on one side alone is untied in the config of what is written.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gausslens import ModelError, ModelSpec

from ..capture.patching import Patches
from ..maths.rounding import epsilons
from ..parameters import TransformersParameters
from .adapter import same_tensor
from .config_and_tokenizer import digest_of_tokenizer, first_line, quiet_transformers
from .turns import turn_of

if TYPE_CHECKING:
    from gausslens import Twin

    from .pretrained import PretrainedModel

State = dict[str, torch.Tensor]
# Tokens of the two prompts that both are asked; how far their answers may differ, as a part of the largest number.
TOKENS, TOLERANCE = 24, 1e-6


@dataclass(frozen=True)
class Content:
    """What goes into the files: the module whose class they are of, all its tensors by name, those no longer tied."""

    module: Any
    state: State
    apart: tuple[str, ...]


def write_twin(model: PretrainedModel, directory: Path, twin: Twin) -> str:
    """Write a twin into an empty directory; the fingerprint of what was written, once it is proved to be the twin."""
    with turn_of(model.module):
        with Patches().applied(twin, list(model.info.layers)):
            state = _state(model)
            answer = _answer(model, model.module)
        content, wrong = _content(model, state), ""
        for untied in (True, False) if content.apart else (False,):
            _write(model, directory, content, untied)
            try:
                again = _opened_again(model, directory)
                wrong = _difference(model, twin, state, answer, again)
            except ModelError as error:  # a class that does not read what it wrote
                wrong = str(error)
            if not wrong:
                return again.info.fingerprint
    cut = f" ({', '.join(content.apart)} would have to be cut loose from what it is tied to)" if content.apart else ""
    raise ModelError(f"{model.name}: this twin cannot be written as a checkpoint of transformers{cut}: {wrong}")


def _state(model: PretrainedModel) -> State:
    """All tensors of the module by name. What no file had and transformers has drawn (a pooler) is left out."""
    state = {name: t for name, t in model.module.state_dict().items() if name not in model.absent}
    elsewhere = sorted(name for name, tensor in state.items() if tensor.is_meta)
    if elsewhere:
        raise ModelError(f"{elsewhere[0]} is not in memory (device_map): what is written needs all weights there")
    return state


def _content(model: PretrainedModel, state: State) -> Content:
    """The tensors of the twin among all that the checkpoint has; tied ones that are equal are one tensor again."""
    module, absent = _whole(model)
    whole = module.state_dict()
    for name, tensor in state.items():
        theirs = same_tensor(name, whole)
        if theirs is None:
            raise ModelError(f"{model.name}: {type(module).__name__}, which its config names, has no {name}")
        whole[theirs] = tensor
    whole = {name: tensor for name, tensor in whole.items() if name not in absent}
    apart = []
    for name, source in module.all_tied_weights_keys.items():
        if name in whole and source in whole:
            if torch.equal(whole[name], whole[source]):
                whole[name] = whole[source]
            else:
                apart.append(name)
    return Content(module, whole, tuple(apart))


def _whole(model: PretrainedModel) -> tuple[Any, frozenset[str]]:
    """The model as its config names it, and what no file has of it.

    What is studied may be less: an encoder without its decoder and head, a body without the head of another task.
    """
    import transformers

    named = (getattr(model.config, "architectures", None) or [""])[0]
    found = getattr(transformers, named, None)
    if model.checkpoint is None or found is None or found is type(model.module):
        return model.module, model.absent
    if model.adapter is not None:
        raise ModelError(
            f"{model.name}: an adapter of a {named} of which only {type(model.module).__name__} is studied: merge it "
            "into its base (peft's merge_and_unload) and study what that saves"
        )
    return model.built(found)


def _write(model: PretrainedModel, directory: Path, content: Content, untied: bool) -> None:
    """Config, weights and tokenizer, as transformers writes them; a module's own config stays as it was."""
    for left in directory.iterdir():
        left.unlink()
    state = dict(content.state)
    if content.apart:  # what is tied to it besides: one file cannot hold a tensor under two names
        state = {name: tensor.clone() for name, tensor in state.items()}
    with _own_config(content.module) as config, quiet_transformers():
        for part in (config, config.get_text_config()) if untied else ():
            part.tie_word_embeddings = False
        try:
            content.module.save_pretrained(directory, state_dict=state)
            if model.tokenizer is not None:
                model.tokenizer.save_pretrained(directory)
        except (OSError, MemoryError):
            raise
        except Exception as error:
            what = f"{type(error).__name__}: {first_line(error)}"
            raise ModelError(f"{model.name}: transformers cannot write this model: {what}") from error
    mask = os.umask(0)
    os.umask(mask)
    for file in directory.iterdir():  # safetensors gives nobody else a right to read
        file.chmod(0o666 & ~mask)


@contextlib.contextmanager
def _own_config(module: Any) -> Iterator[Any]:
    """A copy of a module's config in its place: what is written in it is not left there.

    What was read of a GGUF file is no longer quantised, though transformers has it noted.
    """
    held, quantised = module.config, getattr(module, "hf_quantizer", None)
    module.config = copy.deepcopy(held)
    if quantised is not None:
        module.hf_quantizer = None
        vars(module.config).pop("quantization_config", None)
    try:
        yield module.config
    finally:
        module.config = held
        if quantised is not None:
            module.hf_quantizer = quantised


def _opened_again(model: PretrainedModel, directory: Path) -> PretrainedModel:
    """What was written, as anyone would open it, in the type in which it was written."""
    from .pretrained import PretrainedModel

    trusted = bool(getattr(model.spec.parameters, "trust_remote_code", False))
    parameters = TransformersParameters.model_validate({"stack": model.stack, "trust_remote_code": trusted})
    dtype = str(model.dtype).removeprefix("torch.")
    again = PretrainedModel(ModelSpec(str(directory), parameters, dtype, model.spec.device), model.name)
    if model.layout.family.read_as:
        again.read_as(model.layout.family)
    return again


def _difference(model: PretrainedModel, twin: Twin, state: State, answer: torch.Tensor, again: PretrainedModel) -> str:
    """In what a model that was read again differs from the twin, in words; nothing where it does not."""
    found = again.module.state_dict()
    lost = sorted(name for name in state if name not in found or not torch.equal(found[name], state[name]))
    if lost:
        return f"read again, {len(lost)} of its {len(state)} tensors are others: {', '.join(lost[:8])}"
    for layer in (None, *model.info.layers):
        edited, known = twin.weights(layer), again.names(layer)
        others = [n for n in edited.names if n not in known or not torch.equal(again.tensor(layer, n), edited[n])]
        if others:
            where = "outside the layers" if layer is None else f"in layer {layer}"
            return f"read again, gausslens finds another {', '.join(others[:8])} {where}"
    said = _answer(again, again.module)
    allowed = max(TOLERANCE, 4 * epsilons(said.dtype)[0]) * float(answer.abs().amax().clamp_min(1))
    if said.shape != answer.shape or not float((said - answer).abs().amax()) <= allowed:
        return "its tensors are the twin's, and what it computes with them is not"
    if model.tokenizer is not None and digest_of_tokenizer(again.tokenizer) != digest_of_tokenizer(model.tokenizer):
        return "read again, its tokenizer is another"
    return ""


def _answer(model: PretrainedModel, module: Any) -> torch.Tensor:
    """What a module says to two prompts: logits, or its final hidden state."""
    config = model.config
    sizes = (model.info.vocabulary, config.vocab_size, getattr(config, "decoder_vocab_size", None))
    length = min(TOKENS, model.info.max_positions or TOKENS)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, min(size for size in sizes if size), (2, length), generator=draw).to(model.device)
    beside = {"decoder_input_ids": ids.flip(0)} if module.config.is_encoder_decoder and _has_decoder(module) else {}
    with quiet_transformers(), torch.no_grad():
        output = module(input_ids=ids, **beside)
    found: torch.Tensor = output.logits if hasattr(output, "logits") else output.last_hidden_state
    return found


def _has_decoder(module: Any) -> bool:
    """Whether it is both stacks of a model of two, and not its encoder saved alone."""
    return module.get_decoder() is not module and not type(module).__name__.endswith("EncoderModel")
