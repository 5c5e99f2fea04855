"""The text stack of a model that reads images or sound too: a config of its own, and its tensors in the whole's files.

Which models have one is told by structure: the config has a `text_config` of a type that is served, the class of the
whole holds the plain module of that type once, and the files have its tensors under one prefix. Everything else is left
out, and is never read. The class of the whole is run on a few tokens: what it does otherwise with text is refused.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gausslens import ModelError

from ..families.layout import FAMILIES, family_of, is_known
from .config_and_tokenizer import first_line, quiet_transformers
from .skeleton import skeleton_of

if TYPE_CHECKING:
    from gausslens import Tokens

    from .checkpoint import Checkpoint

# Types of text stacks whose positions are of three axes, and the plain type that has their tensors. A token of text is
# at the same place on all three, and each pair of features turns by its own frequency whichever axis it is given.
PLAIN = {
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
}
_AXES = ("mrope_section", "mrope_interleaved")
# What configs call the tokens that images and sound stand at.
_PLACEHOLDER = re.compile(r"(image|video|audio)_token_(id|index)")
_TOWERS = {"vision_config": "image", "audio_config": "audio", "encoder_config": "audio"}
# Prefixes below which other parts of a model may lie beside the text stack.
_SHARED = ("", "model.")
# What is left, where a text stack is not what it would be alone.
_APART = "; saved into a directory of its own, it is studied as the model that it then is"
# Tokens of the text that a whole is run on, and what its head then tells of each.
_PROBE = 5


@dataclass(frozen=True)
class TextStack:
    """A text stack as a model of its own.

    ``checkpoint`` has its tensors alone, as the plain class names them. ``prefixes`` says what their names in the files
    begin with, and what the plain class has in its place. Images and sound stand at ``placeholders``.
    """

    config: Any
    checkpoint: Checkpoint
    prefixes: Mapping[str, str]
    placeholders: frozenset[int]
    note: str

    @property
    def arguments(self) -> dict[str, Any]:
        """What from_pretrained is given to build it of the files of the whole."""
        renamed = {f"^{re.escape(theirs)}": ours for theirs, ours in self.prefixes.items() if theirs != ours}
        return {"config": copy.deepcopy(self.config), "key_mapping": renamed}

    def forget_prefixes(self, module: Any) -> None:
        """A module notes how its files were named and writes itself so again; this one is a model of its own now."""
        renamed = self.arguments["key_mapping"]
        noted = getattr(module, "_weight_conversions", None) or []
        module._weight_conversions = [c for c in noted if not set(c.source_patterns) & renamed.keys()]

    @property
    def where(self) -> str:
        """Where its tensors are, for errors that have the names of the plain class."""
        told = (
            f"{theirs or 'the root'} in the files for {ours or 'the root'}" for theirs, ours in self.prefixes.items()
        )
        return f"of the text stack of a model that reads more: {', '.join(told)}"

    def refuse_placeholders(self, tokens: Tokens, path: str) -> None:
        """Text alone is read: a token that stands for an image or for sound has no meaning without it."""
        for name, ids in zip(tokens.names, tokens.ids, strict=True):
            held = sorted(self.placeholders & set(ids.tolist()))
            if held:
                raise ModelError(
                    f"{path}: prompt {name!r} holds the token {held[0]}, which stands for an image or for sound: only "
                    "the text stack is opened, so give it text alone"
                )


class _Answer:
    """Hidden states as any module of transformers gives them; nothing else is there."""

    def __init__(self, hidden: torch.Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int) -> torch.Tensor:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        return None


class _Recorder(torch.nn.Module):
    """Stands for a text stack: what it is given is kept, what it gives is known."""

    def __init__(self, vocabulary: int, width: int, hidden: torch.Tensor) -> None:
        super().__init__()
        self.embed_tokens = torch.nn.Embedding(vocabulary, width)
        self.hidden = hidden
        self.given: list[dict[str, Any]] = []

    def get_input_embeddings(self) -> torch.nn.Module:
        """Where a whole looks up tokens itself."""
        return self.embed_tokens

    def forward(self, input_ids: Any = None, **given: Any) -> _Answer:
        """The hidden states, whatever is given."""
        self.given.append(given | {"input_ids": input_ids})
        return _Answer(self.hidden)

    def other_than(self, ids: list[int], rotary: bool) -> str:
        """What the whole gave it that a plain model of text would not be given; nothing where that is equal.

        Of rotary positions only the differences count: one that begins at 1 is equal.
        """
        if len(self.given) != 1:
            return f"it runs {len(self.given)} times"
        given, tokens = self.given[0], torch.tensor([ids])
        vectors, mask, places = (given.get(key) for key in ("inputs_embeds", "attention_mask", "position_ids"))
        if vectors is not None and not (vectors.shape[:2] == tokens.shape and vectors.equal(self.embed_tokens(tokens))):
            return "what goes in are not the embeddings of the tokens"
        if vectors is None and not (given["input_ids"] is not None and given["input_ids"].equal(tokens)):
            return "what goes in are not the tokens"
        if places is not None:
            shift = (places - torch.arange(len(ids))).unique()
            if len(shift) > 1 or (not rotary and shift.any()):
                return "positions are not those of the tokens"
        full = mask.get("full_attention") if isinstance(mask, Mapping) else mask
        if full is not None and not _is_causal(full, len(ids)):
            return "its mask is not causal"
        return ""


def _is_causal(mask: torch.Tensor, length: int) -> bool:
    """Whether a mask of one text lets each token see those before it; True, 0 and 1 (of two axes) stand for seen."""
    if mask.ndim == 2:
        return bool(mask.all())
    seen = mask if mask.dtype is torch.bool else mask == 0
    return bool((seen[0, 0, :, :length] == torch.ones(length, length).tril().bool()).all())


def text_stack_of(config: Any, checkpoint: Checkpoint, path: str) -> TextStack | None:
    """The text stack of a checkpoint; None where it has none that is a decoder of a served type, or is served whole."""
    inner = getattr(config, "text_config", None)
    if not hasattr(inner, "model_type") or is_known(config.model_type) or getattr(config, "is_encoder_decoder", False):
        return None
    text = _as_plain(inner)
    if not any(text.model_type in family.model_types and family.causal for family in FAMILIES):
        return None
    skeleton = _skeleton(config, text, path)
    told = config.to_dict().items()
    placeholders = frozenset(int(token) for key, token in told if _PLACEHOLDER.fullmatch(key) and token is not None)
    names, prefixes = _in_files(skeleton, checkpoint, path)
    head = any(name in names for name in _names(skeleton) if not name.startswith(_body(skeleton)))
    text.tie_word_embeddings = not head and any(getattr(c, "tie_word_embeddings", False) for c in (config, inner))
    text.architectures = [type(skeleton).__name__]
    if getattr(config, "transformers_weights", None) is not None:
        text.transformers_weights = config.transformers_weights
    _refuse_converted(config, set(names.values()), path)
    _refuse_other_computing(config, inner, skeleton, placeholders, path)
    note = _note(config, text, checkpoint, set(names.values()))
    return TextStack(text, checkpoint.only(names), prefixes, placeholders, note)


def _as_plain(inner: Any) -> Any:
    """A copy of the config of a text stack, of the plain type where another has its tensors."""
    from transformers import CONFIG_MAPPING

    if inner.model_type not in PLAIN:
        return copy.deepcopy(inner)
    told = {key: value for key, value in inner.to_dict().items() if key not in ("model_type", "architectures")}
    rotary = {key: value for key, value in (told.get("rope_parameters") or {}).items() if key not in _AXES}
    if rotary.get("rope_type") == "mrope":
        rotary["rope_type"] = "default"
    return CONFIG_MAPPING[PLAIN[inner.model_type]](**told | {"rope_parameters": rotary})


def _skeleton(config: Any, text: Any, path: str) -> Any:
    """The plain module of a text stack without memory; what was saved without its head has none."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    headless = (getattr(config, "architectures", None) or [""])[0].endswith("Model")
    return skeleton_of((MODEL_MAPPING if headless else MODEL_FOR_CAUSAL_LM_MAPPING)[type(text)], text, path)


def _refuse_converted(config: Any, read: set[str], path: str) -> None:
    """Tensors that transformers turns or joins for the whole, and not for the plain type, are not read as they are."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    for known in (config.model_type, *(getattr(config, "architectures", None) or ())):
        for change in get_checkpoint_conversion_mapping(known) or ():
            if not isinstance(change, WeightConverter):
                continue
            turned = next((n for n in sorted(read) if change.rename_source_key(n)[1] is not None), None)
            if turned is not None:
                raise ModelError(
                    f"{path}: the text stack of {config.model_type!r} cannot be read alone: its files hold {turned} in "
                    f"another form than those of a plain model of text{_APART}"
                )


def _refuse_other_computing(config: Any, inner: Any, plain: Any, placeholders: frozenset[int], path: str) -> None:
    """What the whole computes of text alone must be what the plain module does: its config is no proof of that.

    The class of the whole is run, without memory for its tensors: where it holds the module of the text's type, once, a
    recorder stands. It notes what goes in, and gives back hidden states of its own, which the head then reads.
    """
    import transformers

    named = (getattr(config, "architectures", None) or [""])[0]
    whole = getattr(transformers, named, None)
    begun = f"{path}: the text stack of {config.model_type!r}, of type {inner.model_type!r}, cannot be read alone"
    if whole is None:
        raise ModelError(
            f"{begun}: transformers has no class {named or '(config.json names none)'}, which computes it{_APART}"
        )
    if getattr(inner, "use_bidirectional_attention", None):
        raise ModelError(f"{begun}: tokens of a prompt see those behind them (use_bidirectional_attention){_APART}")
    module, body = skeleton_of(whole, config, path), transformers.MODEL_MAPPING[type(inner)]
    found = [name for name, part in module.named_modules() if type(part) is body]
    if len(found) != 1:
        raise ModelError(
            f"{begun}: {named} holds {len(found)} modules of class {body.__name__}, and should hold one{_APART}"
        )
    ids = [token for token in range(3, 4 + _PROBE + len(placeholders)) if token not in placeholders][:_PROBE]
    seen, said = _run_on(module, found[0], plain, ids)
    if isinstance(said, str):
        raise ModelError(f"{begun}: {named} does not run on text alone ({said}){_APART}")
    other = seen.other_than(ids, family_of(plain.config, path).position == "rotary")
    _, answer = _run_on(plain, _body(plain).rstrip("."), plain, ids)
    if not other and (isinstance(answer, str) or said.shape != answer.shape or not said.allclose(answer, atol=1e-6)):
        other = f"its head computes otherwise than that of {type(plain).__name__} (a scale, or a cap, of logits)"
    if other:
        raise ModelError(f"{begun}: in {named} {other}{_APART}")


def _run_on(module: Any, place: str, plain: Any, ids: list[int]) -> tuple[_Recorder, Any]:
    """What the module at a place is given, and what the whole says then, or why it does not run."""
    head, width = plain.get_output_embeddings(), plain.get_input_embeddings().weight.shape[1]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        wide = plain.config.hidden_size if head is None else head.weight.shape[1]
        recorder = _Recorder(max(ids) + 1, width, torch.randn(1, len(ids), wide))
        if head is not None:
            module.set_output_embeddings(torch.nn.Linear(wide, _PROBE, bias=False))
        if place:
            module.set_submodule(place, recorder)
        else:
            module = recorder
        for part in module.modules():  # what is left without memory is not run; some ask where it is
            for leaf in [leaf for leaf, held in part._parameters.items() if held is not None and held.is_meta]:
                part._parameters[leaf] = torch.nn.Parameter(torch.empty(0))
        try:
            with quiet_transformers():
                said = module.eval()(input_ids=torch.tensor([ids]), use_cache=False)
        except Exception as error:  # code of any class
            return recorder, f"{type(error).__name__}: {first_line(error)[:200]}"
    return recorder, said[0]


def _in_files(skeleton: Any, checkpoint: Checkpoint, path: str) -> tuple[dict[str, str], dict[str, str]]:
    """{name in the plain module: name in the files}, and {prefix in the files: prefix in the module}.

    The embedding tells the prefix: of several that have one, that below which most tensors of the module are.
    """
    body, known, stored = _body(skeleton), _names(skeleton), checkpoint.tensors
    weight = skeleton.get_input_embeddings().weight
    parameters = skeleton.named_parameters(remove_duplicate=False)
    embedding = next(n for n, p in parameters if p is weight and n.startswith(body)).removeprefix(body)
    parts = {name.removeprefix(body).split(".")[0] for name in known if name.startswith(body)}
    counts: dict[str, int] = {}
    for name in stored:
        prefix = name.removesuffix(embedding)
        if prefix != name and (not prefix or prefix.endswith(".")):
            counts[prefix] = sum(prefix + n.removeprefix(body) in stored for n in known if n.startswith(body))
    best = [prefix for prefix, count in counts.items() if count == max(counts.values())]
    if len(best) != 1:
        found = f"{embedding} is below each of {', '.join(sorted(best))}" if best else f"none ends with {embedding}"
        raise ModelError(f"{path}: no one prefix of its tensors is that of the text stack: {found}")
    prefix = best[0]
    below = {name.removeprefix(prefix): name for name in stored if name.startswith(prefix)}
    names = {body + rest: name for rest, name in below.items() if prefix not in _SHARED or rest.split(".")[0] in parts}
    prefixes = {prefix: body}
    above = [".".join((*prefix.split(".")[:n], "")).lstrip(".") for n in range(prefix.count("."), -1, -1)]
    for head in (name for name in known if not name.startswith(body)):
        for theirs in [before + head for before in above if before + head in stored][:1]:  # the nearest
            names[head], prefixes[theirs] = theirs, head
    return names, prefixes


def _names(skeleton: Any) -> list[str]:
    """All its tensors, tied ones under each name."""
    return [name for name, _ in skeleton.named_parameters(remove_duplicate=False)]


def _body(skeleton: Any) -> str:
    """What the names of its tensors begin with, but for those of the head."""
    prefix = f"{skeleton.base_model_prefix}."
    return prefix if any(name.startswith(prefix) for name in _names(skeleton)) else ""


def _note(config: Any, text: Any, checkpoint: Checkpoint, read: set[str]) -> str:
    """What is opened, and what is not."""
    towers = dict.fromkeys(word for key, word in _TOWERS.items() if getattr(config, key, None) is not None)
    left = sorted(set(checkpoint.tensors) - read)
    plural = "s" if len(towers) > 1 else ""
    tower = f"the {' and '.join(towers)} tower{plural}" if towers else "all but the text stack"
    places = dict.fromkeys(name.removeprefix("model.").split(".")[0] for name in left)
    where = f" ({', '.join(places)})" if places else ""
    return (
        f"{tower} of {config.model_type} {'are' if plural else 'is'} left out: {len(left):,} tensors{where}; its text "
        f"stack is opened, as a model of type {text.model_type}, for text alone"
    )
